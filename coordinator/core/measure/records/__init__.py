"""Records of a burst as columns, matched to its pairs.

``__all__`` lists the modules that other folders can import.
"""

__all__ = [
    "clock_readings",
    "columns",
    "ends_offset",
    "evidence",
    "server_tests",
]
