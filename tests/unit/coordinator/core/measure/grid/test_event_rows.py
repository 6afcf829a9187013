"""Tests for events of engines on the grid of seconds."""

import math

import numpy as np

from broadside.coordinator.core.measure.grid.event_rows import EventRows
from broadside.coordinator.core.measure.grid.grid_rows import Grid
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.exchange.messages import Flow, Side
from tests.seconds_as_columns import told_track
from tests.unit.coordinator.core.records import burst_series

START_S = 1_800_000_000


def track(side: Side, first_s: float, **events: list[float]) -> IntervalColumns:
    """Return an end whose first second is shorter, because its engine started later."""
    count = len(next(iter(events.values())))
    bounds_s = np.append(0.0, np.arange(1, count + 1) - first_s)
    columns = told_track(side, Flow.UP, START_S + first_s, bounds_s, np.zeros(count), {})
    for name, values in events.items():
        columns.events[name] = np.array(values)  # type: ignore[index]
    return columns


def test_counts_are_added_and_times_are_the_largest_of_a_pair() -> None:
    rows = EventRows()
    rows.add(track(Side.CLIENT, 0.25, attempted=[10, 20], handshake_p99_us=[700, 100]), 0.0)
    rows.add(track(Side.CLIENT, 0.0, attempted=[1, 2, math.nan], handshake_p99_us=[5, 900, 1]), 0)
    rows.add(track(Side.SERVER, 0.0, attempted=[7]), 0.0)
    events = rows.done(Grid(start_s=START_S - 1, count=4))
    assert {name: values.tolist()[1:] for name, values in events.items() if "_us" in name} == {
        "handshake_p99_us": [700, 900, 1]
    }
    assert np.array_equal(events["attempted"], [math.nan, 11, 22, math.nan], equal_nan=True)
    assert np.array_equal(events["server_attempted"][1:2], [7])


def test_clock_is_corrected_and_seconds_outside_the_grid_are_dropped() -> None:
    rows = EventRows()
    rows.add(track(Side.CLIENT, 0.0, attempted=[1, 2]), 1.0)
    events = rows.done(Grid(start_s=START_S, count=2))
    assert np.array_equal(events["attempted"], [2, math.nan], equal_nan=True)


def test_selected_rows_keep_their_events() -> None:
    columns = track(Side.CLIENT, 0.0, attempted=[1, 2, 3]).rows(slice(1, None))
    assert columns.events["attempted"].tolist() == [2, 3]


def test_packed_series_contains_the_events() -> None:
    plain = burst_series(START_S, float(START_S), np.ones(3), np.ones((1, 3)))
    assert BurstSeries.unpack(plain.pack()).events == {}
    events = {"attempted": np.array([1.0, math.nan, 3])}
    counted = burst_series(START_S, float(START_S), np.ones(3), np.ones((1, 3)), events=events)
    unpacked = BurstSeries.unpack(counted.pack()).events
    assert np.array_equal(unpacked["attempted"], events["attempted"], equal_nan=True)
