"""Analysis of drills, of scale-out under constant load, and of canaries.

``__all__`` lists the modules that other folders can import.
"""

__all__ = [
    "canary",
    "drill",
    "scale_out",
]
