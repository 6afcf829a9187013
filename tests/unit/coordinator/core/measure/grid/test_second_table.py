"""Tests for tables of seconds. The number of bytes is the same at all resolutions."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.core.measure.grid import second_table
from broadside.coordinator.core.measure.grid.second_table import (
    Column,
    TableTooLong,
    fleet_table,
    pair_table,
)
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.exchange.messages import Flow
from tests.unit.coordinator.core.records import burst_series

START_S = 1_800_000_000


def series(
    cells: list[list[float | None]], *, lead_s: int = 1, flows: tuple[Flow, ...] = (Flow.UP,)
) -> BurstSeries:
    """Return pairs with the given bytes per second. Use None if it is not known."""
    rates = np.array([[math.nan if c is None else c * 8 for c in row] for row in cells])
    known = ~np.isnan(rates)
    return burst_series(
        START_S - lead_s,
        float(START_S),
        np.nansum(rates, axis=0) / 8,
        rates,
        flows=flows,
        coverage_ratio=known.mean(axis=0),
    )


def column(table: "list[Column] | object", name: str) -> list[float | None]:
    assert isinstance(table, list)
    (result,) = [item for item in table if item.name == name]
    return [None if value != value else value for value in result.values.tolist()]


RECEIVED = "received_payload_bits_per_second"
CELLS = st.lists(st.none() | st.integers(0, 10**9), min_size=1, max_size=60)


@given(
    rows=st.integers(1, 3).flatmap(
        lambda n: CELLS.flatmap(
            lambda first: st.tuples(
                st.just(first),
                *[
                    st.lists(
                        st.none() | st.integers(0, 10**9),
                        min_size=len(first),
                        max_size=len(first),
                    )
                    for _ in range(n - 1)
                ],
            )
        )
    ),
    resolution_s=st.integers(1, 70),
    lead_s=st.integers(0, 9),
)
def test_bytes_are_conserved_at_every_resolution(
    rows: tuple[list[float | None], ...], resolution_s: int, lead_s: int
) -> None:
    made = series([list(row) for row in rows], lead_s=lead_s)
    table = list(fleet_table(made, resolution_s))
    rates, known_s = column(table, RECEIVED), column(table, "known_s")
    total = sum(
        rate / 8 * seconds
        for rate, seconds in zip(rates, known_s, strict=True)
        if rate is not None and seconds is not None
    )
    assert total == pytest.approx(float(made.received_bytes.sum()), rel=1e-7, abs=1e-6)
    begins = column(table, "from_start_s")
    assert all(begin is not None and begin % resolution_s == 0 for begin in begins)


def test_missing_second_is_unknown_and_stall_is_zero() -> None:
    table = list(fleet_table(series([[None, 0.0, 5.0], [None, 0.0, None]]), 1))
    assert column(table, RECEIVED) == [None, 0.0, 40.0]
    assert column(table, "coverage_ratio") == [0.0, 1.0, 0.5]


def test_bin_is_the_mean_of_known_seconds() -> None:
    table = list(fleet_table(series([[8.0, None, 4.0, None, None, None]], lead_s=0), 3))
    assert column(table, RECEIVED) == [48.0, None]
    assert column(table, "known_s") == [2.0, 0.0]


def test_lists_flows_in_sequence() -> None:
    table = list(fleet_table(series([[1.0, 2.0]], flows=(Flow.UP, Flow.DOWN)), 1))
    (flow,) = [item for item in table if item.name == "flow"]
    assert flow.values.tolist() == ["up", "up", "down", "down"]


def test_table_of_one_pair_or_all_pairs() -> None:
    made = series([[1.0, None], [2.0, 3.0]])
    all_pairs = list(pair_table(made, 1, ["pair-001", "pair-002"], None))
    assert column(all_pairs, RECEIVED) == [8.0, None, 16.0, 24.0]
    one = list(pair_table(made, 1, ["pair-001", "pair-002"], 1))
    assert column(one, RECEIVED) == [16.0, 24.0]


def test_flow_without_seconds_of_pairs_is_unknown() -> None:
    made = series([[1.0, 2.0]], flows=(Flow.UP, Flow.DOWN))
    up, down = made.flows
    none = replace(down, pairs_bits_per_second=down.pairs_bits_per_second[:0])
    both = pair_table(replace(made, flows=(up, none)), 1, ["pair-001"], None)
    assert column(list(both), RECEIVED) == [8.0, 16.0, None, None]


def test_table_above_the_limit_suggests_a_coarser_resolution() -> None:
    made = series([[1.0] * 60_000])
    with pytest.raises(TableTooLong, match="coarser"):
        fleet_table(made, 1)
    assert fleet_table(made, 60)


def test_fleet_table_begins_with_time_and_flow() -> None:
    table = list(fleet_table(series([[1.0, 2.0]]), 1))
    assert [(item.name, item.unit) for item in table[:3]] == [
        ("at", "UTC"),
        ("from_start_s", "s"),
        ("flow", "name"),
    ]


def test_rounds_to_nine_digits_and_returns_nan_and_infinity() -> None:
    values = np.array([123456789012.0, -0.00123456789012, 0.0, np.nan, np.inf])
    result = second_table._rounded(values)
    assert result.tolist()[:3] == [123456789000.0, pytest.approx(-0.00123456789, rel=1e-12), 0.0]
    assert np.isnan(result[3])
    assert np.isinf(result[4])
    assert result[1] != values[1]


def test_events_are_columns_of_the_flow_up() -> None:
    events = {
        "attempted": np.array([1.0, 2, np.nan, 4]),
        "open": np.array([10.0, 20, 30, 40]),
        "handshake_p99_us": np.array([1000.0, 3000, np.nan, 2000]),
    }
    both = replace(series([[1, 1, 1, 1]], lead_s=0, flows=(Flow.UP, Flow.DOWN)), events=events)
    seconds = list(fleet_table(both, 1))
    assert column(seconds, "connections_attempted_count") == [1, 2, None, 4] + 4 * [None]
    pairs = list(fleet_table(both, 2))
    assert column(pairs, "connections_attempted_count")[:2] == [3, 4]
    assert column(pairs, "connections_open_count")[:2] == [15, 35]
    assert column(pairs, "handshake_p99_s")[:2] == [0.003, 0.002]
    named = list(fleet_table(both, 1, ["refused"]))
    assert column(named, "connections_refused_count") == 8 * [None]
