"""Records of a burst on a grid of whole UTC seconds.

``__all__`` lists the modules that other folders can import.
"""

__all__ = [
    "align",
    "grid_rows",
    "resample",
    "second_table",
    "series",
]
