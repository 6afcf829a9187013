"""Tests for interval columns, which are sorted and must not overlap."""

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
    """Return a track from (start, end, bytes). Use ``omitted`` for the number of warm-up rows."""
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


def test_returns_ordered_rows_unchanged() -> None:
    track = _track((0, 1, 10), (1, 2, 20), (3, 4, 30))
    assert disjoint_track(track) is track


def test_sorts_rows_with_all_columns() -> None:
    result = disjoint_track(_track((1, 2, 20), (0, 1, 10)))
    assert _rows(result) == [(0, 1, 10), (1, 2, 20)]
    assert list(result.rtt_s) == [1, 0]
    assert result.impossible_count == 0


@pytest.mark.parametrize(
    ("rows", "expected", "impossible"),
    [
        pytest.param([(0, 1, 10), (0, 1, 10)], [(0, 1, 10)], 0, id="duplicate"),
        pytest.param([(0, 1, 10), (0, 1, 11)], [(0, 1, 10)], 1, id="different bytes"),
        pytest.param([(0, 1, 10), (0, 2, 10)], [(0, 2, 10)], 1, id="longest row"),
        pytest.param([(0, 1, 10), (0.5, 1.5, 10)], [(0, 1, 10)], 1, id="inside another"),
        pytest.param(
            [(0, 2, 10), (1, 1.5, 5), (1.8, 3, 5), (2, 3, 7)],
            [(0, 2, 10), (2, 3, 7)],
            2,
            id="two inside",
        ),
        pytest.param(
            [(0, 1, 10), (0.9995, 2, 20)],
            [(0, 1, 10), (0.9995, 2, 20)],
            0,
            id="overlap by rounding",
        ),
        pytest.param(
            [(0, 1, 10), (0.0005, 1.0005, 10), (1, 2, 5)],
            [(0, 1, 10), (1, 2, 5)],
            0,
            id="duplicate except for rounding",
        ),
        pytest.param([(0, 1, 10), (1, 1, 0), (1, 2, 5)], [(0, 1, 10), (1, 2, 5)], 0, id="empty"),
    ],
)
def test_overlapping_rows_count_once(
    rows: list[tuple[float, float, float]],
    expected: list[tuple[float, float, float]],
    impossible: int,
) -> None:
    result = disjoint_track(_track(*rows))
    assert (_rows(result), result.impossible_count) == (expected, impossible)


@pytest.mark.parametrize(
    "row", [(2, 1, 5), (1, 2, -1), (1, 2, np.nan), (np.nan, 2, 5), (1, np.inf, 5), (1, 2, np.inf)]
)
def test_counts_and_drops_impossible_rows(row: tuple[float, float, float]) -> None:
    result = disjoint_track(_track((0, 1, 10), row, (2, 3, 30)))
    assert _rows(result) == [(0, 1, 10), (2, 3, 30)]
    assert result.impossible_count == 1


def test_continues_engine_time_that_restarts_after_the_warm_up() -> None:
    again = disjoint_track(_track((0, 1, 1), (1, 2, 2), (0, 1, 10), (1, 2, 20), omitted=2))
    assert _rows(again) == [(0, 1, 1), (1, 2, 2), (2, 3, 10), (3, 4, 20)]
    assert list(again.omitted) == [True, True, False, False]
    on = disjoint_track(_track((0, 1, 1), (1, 2, 2), (2, 3, 10), omitted=2))
    assert _rows(on) == [(0, 1, 1), (1, 2, 2), (2, 3, 10)]
    warm_up_only = _track((0, 1, 1), (1, 2, 2), omitted=2)
    assert disjoint_track(warm_up_only) is warm_up_only


def test_drops_duplicate_host_rows() -> None:
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


def test_removes_the_server_lead_and_not_its_bytes() -> None:
    """If the lead is 1.5, no row will be left for the first byte, so it has to be moved."""
    track = _track((0, 1, 1), (1, 2, 100), (2, 3, 200))
    result = track.without_lead(1.5)
    assert result.first_data_at_s == 1001.5
    assert _rows(result) == [(0, 0.5, 101), (0.5, 1.5, 200)]
    assert list(result.rtt_s) == [1, 2]
    complete = track.without_lead(1.0)
    assert _rows(complete) == [(0, 1, 101), (1, 2, 200)]


def test_returns_tracks_without_a_lead_unchanged() -> None:
    track = _track((0, 1, 1), (1, 2, 100))
    assert track.without_lead(0.0) is track
    # We would have no row left.
    assert track.without_lead(2.0) is track
    client = _track((0, 1, 1), (1, 2, 100), side=Side.CLIENT)
    assert client.without_lead(1.0) is client
