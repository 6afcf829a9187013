"""Statistics and packet sizes, which depend on no record.

``__all__`` lists the modules that other folders can import.
"""

__all__ = [
    "binomial",
    "certainty",
    "change_points",
    "headers",
    "phases",
    "quantiles",
    "steady",
]
