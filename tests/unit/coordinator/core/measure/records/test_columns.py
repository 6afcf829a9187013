"""Rows of one end are put in order: sorted, once each, never over another."""

import numpy as np
import pytest

from broadside.coordinator.core.measure.records.columns import (
    HostColumns,
    IntervalColumns,
    disjoint_host,
    disjoint_track,
)
from broadside.exchange.messages import Flow, Side


def _track(
    *rows: tuple[float, float, float], omitted: int = 0, side: Side = Side.SERVER
) -> IntervalColumns:
    """Rows of start, end and bytes; the first so many are the warm-up."""
    start, end, amount = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    count = len(rows)
    reported = np.arange(count, dtype=np.float32)
    return IntervalColumns(
        side=side,
        flow=Flow.UP,
        first_data_at_s=1000.0,
        start_s=start,
        end_s=end,
        transferred_bytes=amount,
        omitted=np.arange(count) < omitted,
        retransmits_count=reported,
        rtt_s=reported,
        cwnd_bytes=reported,
        packets_count=reported,
        lost_count=reported,
    )


def _rows(track: IntervalColumns) -> list[tuple[float, float, float]]:
    columns = (track.start_s, track.end_s, track.transferred_bytes)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_rows_in_order_are_left_as_they_are() -> None:
    track = _track((0, 1, 10), (1, 2, 20), (3, 4, 30))
    assert disjoint_track(track) is track


def test_rows_are_sorted_with_all_their_columns() -> None:
    result = disjoint_track(_track((1, 2, 20), (0, 1, 10)))
    assert _rows(result) == [(0, 1, 10), (1, 2, 20)]
    assert list(result.rtt_s) == [1, 0]
    assert result.impossible_count == 0


@pytest.mark.parametrize(
    ("rows", "kept", "impossible"),
    [
        pytest.param([(0, 1, 10), (0, 1, 10)], [(0, 1, 10)], 0, id="a copy is none"),
        pytest.param([(0, 1, 10), (0, 1, 11)], [(0, 1, 10)], 1, id="of other bytes"),
        pytest.param([(0, 1, 10), (0, 2, 10)], [(0, 2, 10)], 1, id="the longest stands"),
        pytest.param([(0, 1, 10), (0.5, 1.5, 10)], [(0, 1, 10)], 1, id="inside another"),
        pytest.param(
            [(0, 2, 10), (1, 1.5, 5), (1.8, 3, 5), (2, 3, 7)],
            [(0, 2, 10), (2, 3, 7)],
            2,
            id="two inside",
        ),
        pytest.param(
            [(0, 1, 10), (0.9995, 2, 20)], [(0, 1, 10), (0.9995, 2, 20)], 0, id="by rounding"
        ),
        pytest.param(
            [(0, 1, 10), (0.0005, 1.0005, 10), (1, 2, 5)],
            [(0, 1, 10), (1, 2, 5)],
            0,
            id="a copy but for rounding",
        ),
        pytest.param([(0, 1, 10), (1, 1, 0), (1, 2, 5)], [(0, 1, 10), (1, 2, 5)], 0, id="empty"),
    ],
)
def test_a_row_over_another_never_counts_twice(
    rows: list[tuple[float, float, float]],
    kept: list[tuple[float, float, float]],
    impossible: int,
) -> None:
    result = disjoint_track(_track(*rows))
    assert (_rows(result), result.impossible_count) == (kept, impossible)


@pytest.mark.parametrize(
    "row", [(2, 1, 5), (1, 2, -1), (1, 2, np.nan), (np.nan, 2, 5), (1, np.inf, 5), (1, 2, np.inf)]
)
def test_rows_that_cannot_be_true_are_unknown_and_counted(row: tuple[float, float, float]) -> None:
    result = disjoint_track(_track((0, 1, 10), row, (2, 3, 30)))
    assert _rows(result) == [(0, 1, 10), (2, 3, 30)]
    assert result.impossible_count == 1


def test_engine_time_that_begins_anew_after_the_warm_up_runs_on() -> None:
    again = disjoint_track(_track((0, 1, 1), (1, 2, 2), (0, 1, 10), (1, 2, 20), omitted=2))
    assert _rows(again) == [(0, 1, 1), (1, 2, 2), (2, 3, 10), (3, 4, 20)]
    assert list(again.omitted) == [True, True, False, False]
    on = disjoint_track(_track((0, 1, 1), (1, 2, 2), (2, 3, 10), omitted=2))
    assert _rows(on) == [(0, 1, 1), (1, 2, 2), (2, 3, 10)]
    all_of_it = _track((0, 1, 1), (1, 2, 2), omitted=2)
    assert disjoint_track(all_of_it) is all_of_it


def test_hosts_rows_count_once() -> None:
    none = np.zeros(3, np.float32)
    at = np.array([1.0, 0.0, 1.0])
    host = HostColumns(
        start_at_s=at,
        end_at_s=at + 1,
        nic_rx_bytes=np.array([5.0, 6.0, 5.0]),
        nic_tx_bytes=np.zeros(3),
        drops_count=none,
        cpu_busy_ratio=none,
        cpu_busiest_core_ratio=none,
    )
    assert list(disjoint_host(host).nic_rx_bytes) == [6.0, 5.0]
    ordered = host.rows(np.array([1, 0]))
    assert disjoint_host(ordered) is ordered


def test_a_servers_lead_goes_with_what_the_gate_sent() -> None:
    """1.5 s: the first row is over by then, its byte goes to the row that reaches over it."""
    track = _track((0, 1, 1), (1, 2, 100), (2, 3, 200))
    result = track.without_lead(1.5)
    assert result.first_data_at_s == 1001.5
    assert _rows(result) == [(0, 0.5, 101), (0.5, 1.5, 200)]
    assert list(result.rtt_s) == [1, 2]
    complete = track.without_lead(1.0)
    assert _rows(complete) == [(0, 1, 101), (1, 2, 200)]


def test_what_is_no_lead_is_left_alone() -> None:
    track = _track((0, 1, 1), (1, 2, 100))
    assert track.without_lead(0.0) is track
    assert track.without_lead(2.0) is track  # nothing would be left
    client = _track((0, 1, 1), (1, 2, 100), side=Side.CLIENT)
    assert client.without_lead(1.0) is client
