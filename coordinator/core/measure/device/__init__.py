"""Device values of a burst, from telemetry.

``EXPORTS`` lists the names that other folders can import, by module.
"""

EXPORTS = {
    "device_metrics": """
        certain device_figures seconds_of_devices telemetry_findings with_device_cpu
    """,
    "placement": "place",
    "seen_units": "with_seen_units",
    "session_counts": "session_counts",
}
