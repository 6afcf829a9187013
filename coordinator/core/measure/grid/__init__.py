"""Records of a burst on a grid of whole UTC seconds.

``EXPORTS`` lists the names that other folders can import, by module.
"""

EXPORTS = {
    "align": "Aligned Alignment CELL_FULL_RATIO Chosen align",
    "grid_rows": "FlowSeconds Grid HostSeconds",
    "resample": "OverlapResampler",
    "second_table": "CELLS_MAX_COUNT Column TableTooLong fleet_table pair_table",
    "series": "BurstMeasurement BurstSeries FlowSeries",
}
