"""Tests for the alignment of pairs on a common grid.

This should not change the number of bytes, and gaps have to be preserved.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.core.measure.grid.align import align
from broadside.coordinator.core.measure.grid.grid_rows import FlowSeconds
from broadside.coordinator.core.measure.grid.resample import OverlapResampler
from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.run_spec import Burst
from broadside.coordinator.core.summary import ByteSource
from broadside.exchange.messages import (
    ClockReading,
    ClockSource,
    Direction,
    EngineReport,
    Flow,
    FlowTotals,
    Interval,
    JobReport,
    Outcome,
    Side,
    Track,
)
from tests.seconds_as_columns import track_columns
from tests.unit.coordinator.core.records import job_report

AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
BURST = Burst(index=0, planned_start_at=AT, duration_s=10)


def track_of(
    side: Side,
    amounts: list[int],
    *,
    start_s: float = 0.0,
    flow: Flow = Flow.UP,
    length_s: float = 1.0,
    zero_s: float | None = None,
) -> Track:
    return Track(
        side=side,
        flow=flow,
        first_data_at_s=(AT.timestamp() if zero_s is None else zero_s) + start_s,
        intervals=tuple(
            Interval(start_s=i * length_s, end_s=(i + 1) * length_s, transferred_bytes=amount)
            for i, amount in enumerate(amounts)
        ),
    )


def track(side: Side, amounts: list[int], **placed: Any) -> IntervalColumns:
    return track_columns(track_of(side, amounts, **placed))


def report(totals: tuple[FlowTotals, ...] = (), outcome: Outcome = Outcome.MEASURED) -> JobReport:
    return job_report(
        0,
        AT,
        outcome=outcome,
        reason=None if outcome is Outcome.MEASURED else "because",
        first_data_at=AT,
        engine=EngineReport(engine="iperf3", totals=totals),
    )


def evidence(*pairs: PairEvidence) -> BurstEvidence:
    return BurstEvidence(burst=BURST, pairs=pairs)


@st.composite
def intervals(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    count = draw(st.integers(1, 30))
    lengths = draw(st.lists(st.floats(0.05, 3.0), min_size=count, max_size=count))
    gaps = draw(
        st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.7, 2.5]), min_size=count, max_size=count)
    )
    amounts = draw(st.lists(st.integers(0, 10**12), min_size=count, max_size=count))
    start = np.cumsum([0.0, *np.add(lengths, gaps)[:-1]]) + draw(st.floats(-5, 5))
    return start, start + np.array(lengths), np.array(amounts, dtype=np.float64)


@given(intervals())
def test_resampling_conserves_amounts_and_time(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    start, end, amounts = rows
    edges = np.arange(np.floor(start[0]), np.ceil(end[-1]) + 1)
    cells = OverlapResampler(start, end, edges)
    assert cells.over(amounts).sum() == pytest.approx(amounts.sum(), rel=1e-9, abs=1e-3)
    assert cells.coverage.sum() == pytest.approx((end - start).sum(), rel=1e-9)
    assert (cells.coverage <= 1 + 1e-9).all()
    assert (cells.over(amounts) >= -1e-3).all()


def test_resampling_preserves_gaps() -> None:
    start, end = np.array([0.0, 5.0]), np.array([2.0, 6.0])
    cells = OverlapResampler(start, end, np.arange(7.0))
    assert cells.over(np.array([200.0, 70.0])).tolist() == [100, 100, 0, 0, 0, 70]
    assert cells.coverage.tolist() == [1, 1, 0, 0, 0, 1]
    assert np.isnan(cells.mean(np.array([1, 2], np.float32))[3])


def test_sorts_rows_of_a_track_and_drops_duplicates() -> None:
    rows = track_of(Side.SERVER, [10, 20, 30]).intervals
    again = Interval(start_s=1.0, end_s=2.0, transferred_bytes=20)
    inside = Interval(start_s=0.4, end_s=0.6, transferred_bytes=99)
    shuffled = replace(
        track_of(Side.SERVER, []), intervals=(rows[2], again, rows[0], inside, rows[1])
    )
    columns = track_columns(shuffled)
    assert columns.transferred_bytes.tolist() == [10, 20, 30]


def test_engine_time_continues_after_the_warm_up() -> None:
    rows = (
        Interval(start_s=0, end_s=1, transferred_bytes=5, omitted=True),
        Interval(start_s=1, end_s=2, transferred_bytes=6, omitted=True),
        Interval(start_s=0.001, end_s=1, transferred_bytes=7),
        Interval(start_s=1, end_s=2, transferred_bytes=8),
    )
    columns = track_columns(replace(track_of(Side.CLIENT, []), intervals=rows))
    assert columns.transferred_bytes.tolist() == [5, 6, 7, 8]
    assert columns.end_s.tolist() == [1, 2, 3, 4]


def test_uses_receiver_seconds_and_corrects_clocks() -> None:
    ahead = ClockReading(
        source=ClockSource.CHRONY, read_at=AT, synchronised=True, offset_s=2.0, bound_s=0.01
    )
    pair = PairEvidence(
        pair_index=0,
        report=report().model_copy(update={"clock_before": ahead}),
        client_tracks=(track(Side.CLIENT, [110] * 10, start_s=2.0),),
        server_tracks=(track(Side.SERVER, [100] * 10),),
    )
    aligned = align(evidence(pair), Direction.FORWARD)
    flow = aligned.flows[0]
    assert flow.basis == (ByteSource.RECEIVER,)
    assert flow.received_bytes.sum() == 1000
    assert np.nansum(flow.sent_bytes) == 1100
    assert aligned.first_data_at_s[0] == AT.timestamp()
    assert aligned.clock_bound_s[0] == pytest.approx(0.01)


def test_scales_sender_seconds_by_the_totals() -> None:
    totals = FlowTotals(flow=Flow.UP, sent_bytes=1100, received_bytes=990, received_s=10)
    pair = PairEvidence(
        pair_index=0, report=report((totals,)), client_tracks=(track(Side.CLIENT, [110] * 10),)
    )
    flow = align(evidence(pair), Direction.FORWARD).flows[0]
    assert flow.basis == (ByteSource.SENDER_SCALED,)
    assert flow.received_bytes.sum() == pytest.approx(990)
    assert flow.proven_bytes.sum() == 0


def test_fills_missing_receiver_seconds_from_the_sender() -> None:
    pair = PairEvidence(
        pair_index=0,
        report=report(),
        client_tracks=(track(Side.CLIENT, [100] * 10),),
        server_tracks=(track(Side.SERVER, [100] * 4),),
    )
    flow = align(evidence(pair), Direction.FORWARD).flows[0]
    assert flow.basis == (ByteSource.MIXED,)
    assert flow.received_bytes.sum() == pytest.approx(1000)
    assert flow.proven_bytes.sum() == pytest.approx(400)
    assert flow.proven_s[0] == 4


def test_distributes_totals_evenly_without_seconds() -> None:
    totals = FlowTotals(flow=Flow.UP, received_bytes=5000, received_s=10)
    flow = align(
        evidence(PairEvidence(pair_index=0, report=report((totals,)))), Direction.FORWARD
    ).flows[0]
    assert flow.basis == (ByteSource.TOTALS,)
    assert flow.received_bytes.sum() == pytest.approx(5000)


def test_totals_without_seconds_begin_with_the_clients_first_data() -> None:
    totals = FlowTotals(flow=Flow.UP, received_bytes=5000, received_s=5)
    late = report((totals,)).model_copy(update={"first_data_at": AT + timedelta(seconds=3)})
    aligned = align(evidence(PairEvidence(pair_index=0, report=late)), Direction.FORWARD)
    (seconds,) = np.nonzero(aligned.flows[0].received_bytes[0])
    assert (aligned.grid.start_s + seconds - int(AT.timestamp())).tolist() == [3, 4, 5, 6, 7]


def test_ignores_server_seconds_after_the_last_byte_of_a_dead_client() -> None:
    dead = PairEvidence(pair_index=0, server_tracks=(track(Side.SERVER, [9, 9, 9, 0, 0, 0]),))
    alive = replace(dead, pair_index=1, report=report())
    flow = align(evidence(dead, alive), Direction.FORWARD).flows[0]
    assert flow.engine_seen.sum(axis=1).tolist() == [3, 6]


def test_directions_have_separate_receivers() -> None:
    pair = PairEvidence(
        pair_index=0,
        report=report(),
        client_tracks=(
            track(Side.CLIENT, [1] * 10),
            track(Side.CLIENT, [20] * 10, flow=Flow.DOWN),
        ),
        server_tracks=(
            track(Side.SERVER, [10] * 10),
            track(Side.SERVER, [2] * 10, flow=Flow.DOWN),
        ),
    )
    up, down = align(evidence(pair), Direction.BIDIRECTIONAL).flows
    assert (up.received_bytes.sum(), down.received_bytes.sum()) == (100, 200)
    (only,) = align(evidence(pair), Direction.REVERSE).flows
    assert only.flow is Flow.DOWN


def test_ignores_a_track_with_an_impossible_clock() -> None:
    pair = PairEvidence(
        pair_index=0,
        report=report(),
        server_tracks=(track(Side.SERVER, [10] * 10, zero_s=0.0),),
    )
    aligned = align(evidence(pair), Direction.FORWARD)
    assert aligned.flows[0].basis == (ByteSource.NONE,)
    assert aligned.grid.count < 100


@pytest.mark.parametrize("portion_count", [1, 25, 10**6])
def test_alignment_of_single_pairs_equals_alignment_of_all(
    monkeypatch: pytest.MonkeyPatch, portion_count: int
) -> None:
    """The grid will be extended for a pair that starts early or ends late.

    This should not change the cells.
    """
    totals = (FlowTotals(flow=Flow.UP, sent_bytes=100, received_bytes=90),)
    rng = np.random.default_rng(5)

    def end(side: Side, count: int, start_s: float) -> tuple[IntervalColumns, ...]:
        amounts = rng.integers(1, 10**9, count).tolist()
        return (track(side, amounts, start_s=start_s, length_s=0.93),)

    starts_s = (0.1, -4.6, 0.3, 7.7, 0.2)
    pairs = tuple(
        PairEvidence(
            pair_index=index,
            report=report(totals),
            client_tracks=end(Side.CLIENT, 8 + 3 * index, start_s),
            server_tracks=end(Side.SERVER, 6 + 3 * index, start_s + 0.01) if index != 2 else (),
        )
        for index, start_s in enumerate(starts_s)
    )
    at_once = align(evidence(*pairs), Direction.FORWARD)
    monkeypatch.setattr("broadside.coordinator.core.measure.records.evidence._BLOCK_COUNT", 1)
    monkeypatch.setattr(
        "broadside.coordinator.core.measure.grid.grid_rows._PORTION_COUNT", portion_count
    )
    bare = tuple(replace(pair, client_tracks=(), server_tracks=()) for pair in reversed(pairs))
    requested: list[int] = []

    def unpack(part: Sequence[PairEvidence], instants_only: bool) -> Sequence[PairEvidence]:
        requested.append(len(part))
        return [pairs[pair.pair_index] for pair in part]

    packed = replace(evidence(*bare), unpack=unpack)
    one_by_one = align(packed, Direction.FORWARD)
    assert requested == [1] * len(pairs)
    assert one_by_one.grid == at_once.grid
    for name in FlowSeconds.__dataclass_fields__:
        here, there = (getattr(item.flows[0], name) for item in (at_once, one_by_one))
        if name not in ("received_bytes", "sent_bytes", "proven_bytes", "own_bytes"):
            np.testing.assert_array_equal(here, there, err_msg=name)
        # Sums should begin when a portion begins.
        else:
            np.testing.assert_allclose(here, there, rtol=1e-9, atol=1e-3, err_msg=name)
