"""Device values of a burst, from telemetry.

``EXPORTS`` lists the names that other folders can import, by module.
"""

EXPORTS = {
    "canary_cpu": "with_device_cpu",
    "device_metrics": "certain device_figures witness_findings",
    "placement": "place",
    "seen_units": "with_seen_units",
    "session_counts": "session_counts",
}
