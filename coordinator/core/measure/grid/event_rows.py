"""Counts and times that an engine reports for each second in place of bytes, for the fleet.

A count is the sum over the pairs. A time in microseconds is the largest one of a pair: the fleet's
percentile is not above it. The second of an engine belongs to the UTC second that contains its
middle, because events cannot be divided.
"""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.grid.grid_rows import Grid
from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.exchange.messages import Side

# Suffix of a time in microseconds.
TIME_SUFFIX: Final = "_us"
SERVER_PREFIX: Final = "server_"


class EventRows:
    """Events of all pairs by name and UTC second."""

    def __init__(self) -> None:
        self._cells: dict[str, dict[int, float]] = {}

    def add(self, track: IntervalColumns, correction_s: float) -> None:
        """Add the events of one end.

        Args:
            track: Seconds of the end.
            correction_s: Correction of its clock, in seconds.
        """
        if not track.events:
            return
        zero_s = track.first_data_at_s - correction_s
        seconds = np.floor(zero_s + (track.start_s + track.end_s) / 2).astype(np.int64).tolist()
        prefix = SERVER_PREFIX if track.side is Side.SERVER else ""
        for name, values in track.events.items():
            cells = self._cells.setdefault(prefix + name, {})
            for second, value in zip(seconds, values.tolist(), strict=True):
                if math.isnan(value):
                    continue
                known = cells.get(second, 0.0)
                is_time = name.endswith(TIME_SUFFIX)
                cells[second] = max(known, value) if is_time else known + value

    def done(self, grid: Grid) -> Mapping[str, Floats]:
        """Return the events in each cell of a grid by name, with NaN where no pair has reported."""
        events = {}
        for name, cells in sorted(self._cells.items()):
            values = np.full(grid.count, np.nan)
            for second, value in cells.items():
                if 0 <= second - grid.start_s < grid.count:
                    values[second - grid.start_s] = value
            events[name] = values
        return events
