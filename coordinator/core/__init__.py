"""Core logic for planning, measuring and judging runs, without clock or I/O.

``__all__`` lists the modules that other folders can import.
"""

__all__ = [
    "arrays",
    "documented_limits",
    "formatting",
    "guards",
    "long_run_checks",
    "metrics",
    "plain_fields",
    "quantities",
    "run_spec",
    "run_trends",
    "summary",
    "thresholds",
    "verdict_reason",
]
