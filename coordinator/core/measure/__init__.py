"""Computation of all values for a burst from agents' rows, without input or output.

``__all__`` lists the modules that other folders can import.
"""

__all__ = [
    "aggregate",
    "burst",
    "completeness",
    "consistency_checks",
    "disruptions",
    "engine_metrics",
    "mixed",
    "outages",
    "requested_vs_effective",
    "resolution",
    "telemetry",
]
