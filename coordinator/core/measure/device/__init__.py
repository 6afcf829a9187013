"""Device values of a burst, from telemetry.

``__all__`` lists the modules that other folders can import.
"""

__all__ = [
    "canary_cpu",
    "device_metrics",
    "placement",
    "seen_units",
    "session_counts",
]
