"""Analysis of drills and of scale-out under constant load.

``__all__`` lists the modules that other folders can import.
"""

__all__ = [
    "drill",
    "scale_out",
]
