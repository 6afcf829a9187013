"""Tests to match server tests to pairs by cookie, or by endpoint and time."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from broadside.coordinator.core.measure.records.columns import NO_HOST, IntervalColumns
from broadside.coordinator.core.measure.records.evidence import clock_correction
from broadside.coordinator.core.measure.records.server_tests import (
    Summed,
    foreign_tests_during,
    summed,
)
from broadside.coordinator.core.run_spec import Burst, Pair
from broadside.exchange.messages import (
    ClockReading,
    ClockSource,
    Distribution,
    Endpoint,
    EngineReport,
    Flow,
    FlowTotals,
    ServerTest,
    Side,
    StreamSilence,
)
from tests.unit.coordinator.core.records import seconds

AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
BURST = Burst(index=0, planned_start_at=AT, duration_s=10)


def pair(index: int) -> Pair:
    return Pair(index=index, endpoint=Endpoint(agent_id="s", address="10.2.0.4", port=5201 + index))


def record(
    port: int,
    cookie: str | None,
    *,
    started_s: float = -3.0,
    rows: int = 10,
    ended: bool = True,
    client: str | None = None,
) -> Summed:
    started_at = AT + timedelta(seconds=started_s)
    return Summed(
        test=ServerTest(
            agent_id="s",
            endpoint=Endpoint(agent_id="s", address="10.2.0.4", port=port),
            client_address=client,
            started_at=started_at,
            first_data_at=max(AT, started_at) if started_s > -20 else started_at,
            ended_at=started_at + timedelta(seconds=14) if ended else None,
            engine=EngineReport(engine="iperf3", cookie=cookie),
        ),
        tracks=(seconds(Side.SERVER, AT.timestamp(), [100] * rows),),
        host=NO_HOST,
    )


def test_tests_before_or_after_a_burst_are_not_foreign_to_it() -> None:
    before, after = record(5201, "old", started_s=-25.0), record(5201, "new", started_s=12.0)
    assert foreign_tests_during(BURST, [pair(0)], [before, after, record(5999, "elsewhere")]) == ()


def test_unsynchronised_clocks_give_no_correction_and_no_bound() -> None:
    good = ClockReading(
        source=ClockSource.CHRONY, read_at=AT, synchronised=True, offset_s=0.01, bound_s=0.02
    )
    wild = good.model_copy(update={"synchronised": False, "offset_s": 9.0})
    assert clock_correction(good, wild, None) == (0.01, 0.02)
    assert clock_correction(wild) == (0.0, None)


def _process(port: int, **values: Any) -> Summed:
    """Return the record of one process."""
    complete = record(port, None)
    fields = {"first_data_at", "ended_at"} & values.keys()
    engine = {name: value for name, value in values.items() if name not in {*fields, "tracks"}}
    test = complete.test.model_copy(
        update={name: values[name] for name in fields}
        | {"engine": complete.test.engine.model_copy(update=engine)}
    )
    return replace(complete, test=test, tracks=values.get("tracks", complete.tracks))


def _distribution(counts: dict[int, int], largest: float) -> Distribution:
    return Distribution(name="rtt", unit="s", counts=counts, max=largest)


def _silent(from_s: float, to_s: float) -> StreamSilence:
    return StreamSilence(flow=Flow.UP, client_port=1, from_s=from_s, to_s=to_s)


def test_sums_processes_over_the_complete_span() -> None:
    one = _process(
        5201,
        first_data_at=AT + timedelta(seconds=2),
        ended_at=AT + timedelta(seconds=12),
        cpu_s=1.5,
        cpu_payload_bytes=100,
        host_cpu_s=4.0,
        distributions=(_distribution({1: 2, 3: 1}, 0.5),),
        silent_streams=(_silent(1, 5),),
    )
    other = _process(
        5202,
        first_data_at=AT + timedelta(seconds=1),
        ended_at=AT + timedelta(seconds=11),
        cpu_s=2.0,
        cpu_payload_bytes=300,
        host_cpu_s=5.0,
        distributions=(_distribution({3: 4}, 0.7),),
        silent_streams=(_silent(2, 9),),
    )
    both = summed([one, other]).test
    assert both.endpoint == one.test.endpoint
    assert both.first_data_at == AT + timedelta(seconds=1)
    assert both.ended_at == AT + timedelta(seconds=12)
    assert (both.engine.cpu_s, both.engine.cpu_payload_bytes) == (3.5, 400)
    # Both processes use the same host, so its CPU time is used once.
    assert both.engine.host_cpu_s == 5.0
    assert both.engine.distributions == (_distribution({1: 2, 3: 5}, 0.7),)
    assert set(both.engine.silent_streams) == {_silent(1, 5), _silent(2, 9)}


def test_value_missing_in_one_process_is_unknown_for_the_pair() -> None:
    one = _process(5201, cpu_s=1.5, cpu_payload_bytes=100, host_cpu_s=4.0)
    silent = _process(5202, first_data_at=None, ended_at=None, tracks=())
    both = summed([one, silent])
    # The other process did start, so this is still set.
    assert both.test.first_data_at == one.test.first_data_at
    assert both.test.ended_at is None
    engine = both.test.engine
    assert (engine.cpu_s, engine.cpu_payload_bytes, engine.host_cpu_s) == (None, None, None)
    assert list(both.tracks) == []
    assert summed([silent, silent]).test.first_data_at is None


def test_sums_totals_that_all_processes_report() -> None:
    one = FlowTotals(
        flow=Flow.UP, sent_bytes=100, sent_s=10.0, received_bytes=90, received_s=9.5,
        retransmits_count=3, rtt_max_s=0.2, packets_count=7, lost_count=2,
    )  # fmt: skip
    other = FlowTotals(
        flow=Flow.UP, sent_bytes=200, sent_s=11.0, received_bytes=None, received_s=None,
        retransmits_count=4, rtt_max_s=0.1, packets_count=8, lost_count=1,
    )  # fmt: skip
    down = FlowTotals(flow=Flow.DOWN, sent_bytes=5)
    engine = summed([_process(5201, totals=(one, down)), _process(5202, totals=(other,))])
    # No total is given for a flow that only one process reports.
    (total,) = engine.test.engine.totals
    assert (total.flow, total.sent_bytes, total.received_bytes) == (Flow.UP, 300, None)
    assert (total.retransmits_count, total.packets_count, total.lost_count) == (7, 15, 3)
    assert (total.sent_s, total.received_s, total.rtt_max_s) == (11.0, 9.5, 0.2)


def _rows(first_data_s: float, amounts: list[float], **columns: float) -> IntervalColumns:
    """Return the seconds of a server, using a constant value for all other columns."""
    track = seconds(Side.SERVER, AT.timestamp() + first_data_s, amounts)  # type: ignore[arg-type]
    levels = {name: np.full(len(amounts), level, np.float32) for name, level in columns.items()}
    return replace(track, **levels)  # type: ignore[arg-type]


def test_sums_seconds_of_processes_on_the_longest_track() -> None:
    """The shorter process starts 0.5 seconds late, so its bytes are split.

    The sums are 0 + 20 + 100, 20 + 20 + 100 and 20 + 0 + 100.
    """
    columns = {"rtt_s": 0.01, "cwnd_bytes": 1000.0, "retransmits_count": 2.0}
    longer = _rows(0.0, [100, 100, 100], **columns, packets_count=4.0, lost_count=1.0)
    shorter = _rows(
        0.5, [40, 40], rtt_s=0.03, cwnd_bytes=500.0, retransmits_count=4.0, packets_count=8.0,
        lost_count=2.0,
    )  # fmt: skip
    (track,) = summed([_process(5201, tracks=(longer,)), _process(5202, tracks=(shorter,))]).tracks
    assert track.first_data_at_s == AT.timestamp()
    assert list(track.start_s) == [0, 1, 2]
    assert list(track.end_s) == [1, 2, 3]
    assert list(track.transferred_bytes) == pytest.approx([120, 140, 120])
    assert list(track.retransmits_count) == pytest.approx([4, 6, 4])
    assert list(track.packets_count) == pytest.approx([8, 12, 8])
    assert list(track.lost_count) == pytest.approx([2, 3, 2])
    assert list(track.rtt_s) == pytest.approx([0.02] * 3)
    assert list(track.cwnd_bytes) == pytest.approx([1500] * 3)


def test_early_and_late_processes_widen_the_span_without_loss() -> None:
    longest = _rows(1.0, [100, 100, 100])
    early = _rows(0.0, [50, 50])
    late = _rows(3.0, [30, 30])
    (track,) = summed(
        [_process(5201 + at, tracks=(part,)) for at, part in enumerate((longest, early, late))]
    ).tracks
    assert track.first_data_at_s == AT.timestamp()
    assert (track.start_s[0], track.end_s[-1]) == (0, 5)
    assert track.transferred_bytes.sum() == pytest.approx(460)


def test_flow_without_recorded_seconds_has_no_rows() -> None:
    nothing = _rows(2.0, [])
    (track,) = summed([_process(5201 + at, tracks=(nothing,)) for at in (0, 1)]).tracks
    assert len(track) == 0


def test_foreign_test_is_reported_with_its_bytes() -> None:
    stray = record(5201, "other", client="10.1.0.9")
    (result,) = foreign_tests_during(BURST, [pair(0)], [stray])
    assert (result.pair_index, result.address, result.port) == (0, "10.2.0.4", 5201)
    assert (result.client_address, result.cookie, result.received_bytes) == (
        "10.1.0.9",
        "other",
        1000,
    )
    (unreported,) = foreign_tests_during(BURST, [pair(0)], [replace(stray, tracks=())])
    assert unreported.received_bytes is None


def test_correction_is_the_mean_and_bound_is_the_worst_reading() -> None:
    def reading(offset_s: float | None, bound_s: float | None) -> ClockReading:
        return ClockReading(
            source=ClockSource.CHRONY,
            synchronised=True,
            offset_s=offset_s,
            bound_s=bound_s,
            read_at=AT,
        )

    fix_s, bound_s = clock_correction(reading(0.1, 0.02), None, reading(0.3, 0.01))
    assert fix_s == pytest.approx(0.2)
    assert bound_s == 0.02
    assert clock_correction(reading(None, None)) == (0.0, None)
