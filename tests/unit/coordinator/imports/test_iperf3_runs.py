"""Tests to import both ends of a test if their clocks are different."""

import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.coordinator.core.measure.records.ends_offset import SHIFTS_COUNT, place_ends
from broadside.coordinator.core.summary import RunSummary, Verdict
from broadside.coordinator.imports.import_requests import Recording, Recordings, RecordingState
from broadside.coordinator.imports.stored_imports import open_import, summarise
from broadside.exchange.engines.port import StartBasis
from broadside.exchange.messages import (
    Direction,
    EngineReport,
    Flow,
    FlowTotals,
    Interval,
    Protocol,
    Side,
)
from tests.unit.coordinator.imports.small_tables import NOW

BEGAN_S = 1_764_072_000.0
# This will return bytes per second for a given time in the test.
Rate = Callable[[np.ndarray], np.ndarray]


def slow_head(at_s: np.ndarray) -> np.ndarray:
    """Return a rate that is low for 20 of 60 seconds, so that the mean is 70 %."""
    return np.where(at_s < 20, 0.1e7, 1e7)


def flat(at_s: np.ndarray) -> np.ndarray:
    return np.full(len(at_s), 1e7)


def uneven(at_s: np.ndarray) -> np.ndarray:
    """Return a rate that should vary by a third, but not repeat."""
    return np.asarray(1e7 * (1 + 0.2 * np.sin(at_s / 3.1) + 0.13 * np.sin(at_s / 1.37)))


def slower(number: int, at_s: np.ndarray) -> np.ndarray:
    """Return a rate that depends on the number of the pair."""
    return uneven(at_s + 5 * number)


def gaps(at_s: np.ndarray) -> np.ndarray:
    """Return a rate that will stop now and then, as if there were retransmission timeouts."""
    return np.where((at_s % 17 > 4) & (at_s % 17 < 5.2), 0.0, 1e7)


def rows(
    rate: Rate, length_s: float, reading_s: float, *, delay_s: float, drift: float
) -> tuple[Interval, ...]:
    """Return what an end will record, if its bytes are ``delay_s`` late."""
    fine = np.linspace(0, length_s, round(length_s * 200) + 1)
    reached = np.concatenate(([0.0], np.cumsum(rate((fine[1:] + fine[:-1]) / 2)) / 200))
    total_s = length_s * (1 + drift)
    edges = [*np.arange(0.0, total_s - 1e-6, reading_s), total_s]
    if len(edges) > 2 and edges[-1] - edges[-2] < 0.1 * reading_s:
        del edges[-2]
    so_far = np.interp(np.array(edges) / (1 + drift) - delay_s, fine, reached)
    so_far[-1] = reached[-1]
    amounts = np.diff(so_far)
    return tuple(
        Interval(start_s=start, end_s=end, transferred_bytes=round(amount))
        for start, end, amount in zip(edges, edges[1:], amounts, strict=False)
    )


def two_ends(
    number: int,
    rate: Rate = slow_head,
    *,
    gap_s: float,
    length_s: float = 60,
    readings_s: tuple[float, float] = (1, 1),
    direction: Direction = Direction.FORWARD,
    drift: float = 0.0,
    began_s: float = BEGAN_S,
    client_s: float = 0.0,
    server_rate: Rate | None = None,
) -> list[Recording]:
    """Return both recordings of a test. Use ``drift`` to change the server clock."""
    results = []
    for side, reading_s in zip((Side.CLIENT, Side.SERVER), readings_s, strict=True):
        is_server = side is Side.SERVER
        packed = {
            flow: rows(
                (server_rate or rate) if is_server else rate,
                length_s,
                reading_s,
                delay_s=0.002 if (flow is Flow.UP) == is_server else 0.0,
                drift=drift if is_server else 0.0,
            )
            for flow in direction.flows
        }
        amount = {flow: sum(row.transferred_bytes for row in packed[flow]) for flow in packed}
        stamp_s = began_s + (gap_s if is_server else client_s)
        results.append(
            Recording(
                file=f"{number}.{side.value}.json",
                state=RecordingState.MEASURED,
                side=side,
                report=EngineReport(
                    engine="iperf3",
                    cookie=f"test-{number}",
                    direction=direction,
                    protocol=Protocol.TCP,
                    duration_s=round(length_s),
                    streams_count=1,
                    mss_bytes=1448,
                    totals=tuple(
                        FlowTotals(
                            flow=flow,
                            sent_bytes=total,
                            sent_s=length_s,
                            received_bytes=total,
                            received_s=length_s,
                        )
                        for flow, total in amount.items()
                    ),
                ),
                started_at=NOW.fromtimestamp(stamp_s, NOW.tzinfo),
                first_data_at_s=stamp_s,
                start_basis=StartBasis.TIMESTAMP,
                packed=Recording.pack(packed),
            )
        )
    return results


def run_summary(recordings: Sequence[Recording], target: float | None = None) -> RunSummary:
    overrides = {} if target is None else {"objective.target_bits_per_second": target}
    files = Recordings(recordings=tuple(recordings), overrides=overrides)
    plan = open_import(files).plan("imported-1", NOW).sealed()
    return summarise(plan, open_import(files).measure(plan), NOW)


def ids(summary: RunSummary) -> set[str]:
    return {finding.id for finding in summary.findings}


@pytest.mark.parametrize("gap_s", [0.3, -0.7, 5.0, 20.0, -20.0, 59.0, 3600.0, -3723.4, 86_400.0])
@pytest.mark.parametrize("rate", [slow_head, uneven, gaps])
def test_different_clocks_lose_no_second(gap_s: float, rate: Rate) -> None:
    summary = run_summary(two_ends(1, rate, gap_s=gap_s))
    (burst,) = summary.bursts
    (pair,) = burst.pairs
    assert burst.window is not None
    assert burst.window.common_s >= 58
    carried = float(rate(np.linspace(0, 60, 12_001)).mean()) * 8
    assert burst.fleet_received_bits_per_second == pytest.approx(carried, rel=0.03)
    assert burst.fleet_sent_bits_per_second == pytest.approx(carried, rel=0.03)
    assert pair.ends_offset_s == pytest.approx(gap_s, abs=0.05)
    assert pair.ends_offset_bound_s is not None
    assert pair.ends_offset_bound_s <= 2.1
    assert ("clocks-apart" in ids(summary)) == (abs(gap_s) > pair.ends_offset_bound_s)


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("gap_s", [-20.0, 20.0, 3600.0])
@pytest.mark.parametrize("readings_s", [(1, 1), (1, 10), (10, 1), (10, 10)])
def test_slow_start_never_passes(
    direction: Direction, gap_s: float, readings_s: tuple[float, float]
) -> None:
    recordings = two_ends(1, gap_s=gap_s, readings_s=readings_s, direction=direction)
    summary = run_summary(recordings, 7.6e7 * len(direction.flows))
    assert summary.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE)
    (burst,) = summary.bursts
    assert burst.fleet_received_bits_per_second == pytest.approx(
        5.6e7 * len(direction.flows), rel=0.04
    )


@pytest.mark.parametrize("count", [3, 8])
def test_pairs_have_separate_offsets(count: int) -> None:
    offsets = [20.0, -7.0, 3600.0, 0.0, 1.7, -90.0, 45.0, 12.0][:count]
    recordings = [
        end
        for number, gap_s in enumerate(offsets)
        for end in two_ends(number, partial(slower, number), gap_s=gap_s)
    ]
    summary = run_summary(recordings)
    (burst,) = summary.bursts
    assert burst.pairs_measured == count
    assert burst.window is not None
    assert burst.window.common_s >= 58
    assert burst.contradictions == ()
    for pair, gap_s in zip(burst.pairs, offsets, strict=True):
        assert pair.ends_offset_s == pytest.approx(gap_s, abs=0.05)


@pytest.mark.parametrize("count", [3, 8])
@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_places_clients_with_different_clocks_by_their_servers(count: int, scale: float) -> None:
    """The client stamps can differ by up to an hour, but not those of the servers."""
    offsets = [20.0, -7.0, 3600.0, 0.0, 1.7, -90.0, 45.0, 12.0][:count]
    recordings = [
        end
        for number, client_s in enumerate(offsets)
        for end in two_ends(number, partial(slower, number), gap_s=0.0, client_s=scale * client_s)
    ]
    (burst,) = run_summary(recordings).bursts
    assert burst.pairs_measured == count
    assert burst.window is not None
    assert burst.window.common_s >= 58
    assert burst.contradictions == ()


@pytest.mark.parametrize("gap_s", [0.4, 20.0, 3600.0])
def test_places_a_constant_series_by_its_start(gap_s: float) -> None:
    summary = run_summary(two_ends(1, flat, gap_s=gap_s), 7.6e7)
    (burst,) = summary.bursts
    assert summary.verdict is Verdict.PASS
    assert burst.pairs[0].ends_offset_s == pytest.approx(gap_s, abs=1e-3)


@pytest.mark.parametrize("drift", [0.002, -0.002, 0.02, -0.05])
@pytest.mark.parametrize("readings_s", [(1, 1), (1, 5)])
def test_corrects_a_fast_or_slow_clock(drift: float, readings_s: tuple[float, float]) -> None:
    recordings = two_ends(1, uneven, gap_s=20.0, drift=drift, length_s=300, readings_s=readings_s)
    summary = run_summary(recordings)
    finding = next(f for f in summary.findings if f.id == "clocks-apart")
    assert "ppm" in finding.sentence
    (burst,) = summary.bursts
    assert burst.window is not None
    assert burst.window.common_s >= 298
    assert burst.fleet_received_bits_per_second == pytest.approx(
        burst.fleet_sent_bits_per_second or 0.0, rel=0.005
    )


def test_does_not_place_series_that_contradict_the_common_start() -> None:
    def late(at_s: np.ndarray) -> np.ndarray:
        return uneven(at_s + 23)

    summary = run_summary(two_ends(1, uneven, gap_s=5.0, server_rate=late), 7.6e7)
    assert "ends-not-placed" in ids(summary)
    assert summary.verdict is Verdict.INCONCLUSIVE
    assert summary.bursts[0].pairs[0].ends_offset_s is None


def test_end_without_a_stamp_uses_the_start_of_the_other() -> None:
    client, server = two_ends(1, uneven, gap_s=5.0)
    bare = server.model_copy(update={"first_data_at_s": None})
    for recordings in (
        [client, bare],
        [client.model_copy(update={"first_data_at_s": None}), server],
    ):
        (burst,) = run_summary(recordings).bursts
        assert burst.window is not None
        assert burst.window.common_s >= 58
        assert burst.fleet_received_bits_per_second == pytest.approx(
            burst.fleet_sent_bits_per_second or 0.0, rel=0.01
        )


def test_reports_clients_that_start_at_different_times() -> None:
    """Only the common time is used, and if it is too short this is reported."""
    near = [*two_ends(1, flat, gap_s=0.0), *two_ends(2, flat, gap_s=0.0, began_s=BEGAN_S + 2)]
    far = [*two_ends(1, flat, gap_s=0.0), *two_ends(2, flat, gap_s=0.0, began_s=BEGAN_S + 20)]
    assert "outside-window" not in ids(run_summary(near, 7.6e7))
    summary = run_summary(far, 7.6e7)
    finding = next(f for f in summary.findings if f.id == "outside-window")
    assert "20 of 60 s" in finding.sentence
    assert summary.verdict is Verdict.INCONCLUSIVE
    assert [pair.outside_ratio for pair in summary.bursts[0].pairs] == [
        pytest.approx(1 / 3, abs=0.01)
    ] * 2


def test_placement_of_a_long_test_needs_little_memory() -> None:
    """This would need 80 times the memory if all shifts were made at once."""
    count = 100_000
    unknown = np.full(count, np.nan, np.float32)
    tracks = [
        IntervalColumns(
            side=side,
            flow=Flow.UP,
            first_data_at_s=BEGAN_S,
            start_s=np.arange(count) / 10,
            end_s=np.arange(1, count + 1) / 10,
            transferred_bytes=uneven(np.arange(count) / 10) / 10,
            omitted=np.zeros(count, np.bool_),
            retransmits_count=unknown,
            rtt_s=unknown,
            cwnd_bytes=unknown,
            packets_count=unknown,
            lost_count=unknown,
        )
        for side in (Side.CLIENT, Side.SERVER)
    ]
    tracemalloc.start()
    try:
        offset = place_ends(tracks[:1], tracks[1:])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert offset is not None
    assert abs(offset.offset_s) < 0.1
    assert peak_bytes < SHIFTS_COUNT * count * 8
