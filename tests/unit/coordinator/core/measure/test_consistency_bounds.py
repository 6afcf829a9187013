"""Tests for the consistency rules at their limits."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from broadside.coordinator.core.measure import consistency_checks as rules
from broadside.coordinator.core.measure.consistency_checks import ConsistencyChecker
from broadside.coordinator.core.measure.formulas.headers import Headers
from broadside.coordinator.core.measure.records.columns import HostColumns, IntervalColumns
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.summary import Contradiction, Rule
from broadside.exchange.messages import (
    ClockReading,
    ClockSource,
    Endpoint,
    EngineReport,
    Flow,
    FlowTotals,
    Pacing,
    ServerTest,
    Side,
    Traffic,
)
from tests.unit.coordinator.core.records import job_report, seconds

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
AT_S = AT.timestamp()
HEADERS = Headers(ip_ratio=1.04, wire_ratio=1.05, assumed=False, how="")
BLOCK = 1000
TRAFFIC = Traffic(streams_count=2, block_bytes=BLOCK)
MEAN = 1_000_000
# This is 10,045,000 bytes in total.
SENT = [MEAN + 1000 * second for second in range(10)]
TOTAL = sum(SENT)


def _track(side: Side, amounts: list[Any] = SENT, *, at_s: float = AT_S) -> IntervalColumns:
    return seconds(side, at_s, amounts)


def _pair(
    received: IntervalColumns | None, sent: IntervalColumns | None, index: int = 0, **fields: Any
) -> PairEvidence:
    """Return a client that sends and a server that receives."""
    return PairEvidence(
        pair_index=index,
        client_tracks=() if sent is None else (sent,),
        server_tracks=() if received is None else (received,),
        **fields,
    )


def _contradictions(*pairs: PairEvidence, traffic: Traffic = TRAFFIC) -> list[Contradiction]:
    checker = ConsistencyChecker(traffic, HEADERS, 0.05)
    checker.add(pairs)
    return list(checker.done())


def _rules(*pairs: PairEvidence, traffic: Traffic = TRAFFIC) -> list[Rule]:
    return [item.rule for item in _contradictions(*pairs, traffic=traffic)]


def _plus(track: IntervalColumns, more: float, second: int = -1) -> IntervalColumns:
    amounts = track.transferred_bytes.copy()
    amounts[second] += more
    return replace(track, transferred_bytes=amounts)


SENDER = _track(Side.CLIENT)
RECEIVER = _track(Side.SERVER)
# Use a relative tolerance, and add one block per stream.
SLACK = TOTAL * rules.SAME_BYTES_RATIO + 2 * BLOCK


@pytest.mark.parametrize(("more", "broken"), [(SLACK - 1, False), (SLACK + 1, True)])
def test_received_bytes_exceed_sent_by_at_most_a_block_per_stream(
    more: float, broken: bool
) -> None:
    result = _contradictions(_pair(_plus(RECEIVER, more), SENDER))
    assert [item.rule for item in result] == [Rule.RECEIVED_OVER_SENT] * broken
    if broken:
        (one,) = result
        assert (one.pair, one.flow, one.side) == ("pair-001", Flow.UP, None)
        assert (one.observed, one.limit) == (TOTAL + more, TOTAL)


def test_received_bytes_never_exceed_sent_bytes_at_any_time() -> None:
    """Use the bytes that can be sent in 3 seconds plus the allowed lag."""
    lag = rules.LAG_S
    sent = [*SENT, 0, 0]
    by_then = float(np.interp(3 + lag, np.arange(13), np.concatenate(([0.0], np.cumsum(sent)))))
    slack = by_then * (1 + rules.SAME_BYTES_RATIO) + 2 * BLOCK - sum(SENT[:3])
    for more, broken in ((slack - 1, False), (slack + 1, True)):
        early = _plus(_plus(_track(Side.SERVER, sent), more, 2), -more, 8)
        result = _rules(_pair(early, _track(Side.CLIENT, sent)))
        assert result == [Rule.RECEIVED_OVER_SENT] * broken


def test_incomplete_sender_record_gives_no_limit() -> None:
    more = _plus(RECEIVER, 10 * SLACK)
    recorded = np.ones(10, bool)
    for lost in (0, 5, 9):
        complete = recorded.copy()
        complete[lost] = False
        assert _rules(_pair(more, SENDER.rows(complete))) == []
    assert _rules(_pair(more, None)) == []
    assert _rules(_pair(None, SENDER)) == []


def test_sum_of_many_pairs_has_a_smaller_tolerance() -> None:
    blocks = 2 * BLOCK
    tolerance = TOTAL * rules.FLEET_BYTES_RATIO + blocks
    assert tolerance < SLACK
    for more, broken in ((tolerance - 1, False), (tolerance + 1, True)):
        one = _pair(_plus(RECEIVER, more), SENDER)
        other = _pair(_plus(_plus(RECEIVER, more + 7), -7, 0), SENDER, 1)
        result = _contradictions(one, other)
        assert [item.rule for item in result] == [Rule.RECEIVED_OVER_SENT] * broken
        if broken:
            assert (result[0].pair, result[0].flow) == (None, Flow.UP)
            assert (result[0].observed, result[0].limit) == (2 * (TOTAL + more), 2 * TOTAL)
        # For a single pair, a larger tolerance is used.
        assert _rules(one) == []


def test_equal_byte_counts_of_two_receivers_are_a_copy() -> None:
    """If four different values are equal it can be chance, but not if there are five."""
    count = rules.COPIED_COUNT
    varied = [MEAN + 977 * second for second in range(count)]
    ends = _track(Side.SERVER, varied), _track(Side.CLIENT, varied)
    result = _contradictions(_pair(*ends), _pair(*ends, 1))
    assert [(item.rule, item.pair) for item in result] == [(Rule.COPIED, "pair-002")]
    assert (result[0].observed, result[0].limit, result[0].flow) == (sum(varied), 0.0, Flow.UP)
    fewer = varied[:-1]
    ends = _track(Side.SERVER, fewer), _track(Side.CLIENT, fewer)
    assert _rules(_pair(*ends), _pair(*ends, 1)) == []
    # These are found even if they are not among the values that will be compared first.
    late = [MEAN] * 70 + varied
    ends = _track(Side.SERVER, late), _track(Side.CLIENT, late)
    assert _rules(_pair(*ends), _pair(*ends, 1)) == [Rule.COPIED]


def test_paced_pairs_with_complete_blocks_can_be_equal_for_longer() -> None:
    paced = TRAFFIC.model_copy(update={"stream_bits_per_second": 100_000_000})
    blocks = [MEAN + BLOCK * second for second in range(rules.COPIED_PACED_COUNT)]
    for count, offset, broken in (
        (rules.COPIED_PACED_COUNT, 0, True),
        (rules.COPIED_PACED_COUNT - 1, 0, False),
        (rules.COPIED_PACED_COUNT - 1, 1, True),
    ):
        amounts = [blocks[0] + offset, *blocks[1:count]]
        ends = _track(Side.SERVER, amounts), _track(Side.CLIENT, amounts)
        result = _rules(_pair(*ends), _pair(*ends, 1), traffic=paced)
        assert result == [Rule.COPIED] * broken


@pytest.mark.parametrize(("unit_bytes", "is_copy"), [(100_000, False), (1_000, False), (999, True)])
def test_paced_pairs_with_complete_bodies_can_have_equal_seconds(
    unit_bytes: int, is_copy: bool
) -> None:
    """An HTTP client will only count complete bodies, such as 20 per second."""
    paced = TRAFFIC.model_copy(update={"stream_bits_per_second": 100_000_000})
    amounts = [unit_bytes * bodies for bodies in (20, 19, 21, 22, 18, 20)]
    ends = _track(Side.SERVER, amounts), _track(Side.CLIENT, amounts)
    assert _rules(_pair(*ends), _pair(*ends, 1), traffic=paced) == [Rule.COPIED] * is_copy


def _totals(side: Side, **totals: int) -> dict[str, Any]:
    engine = EngineReport(engine="iperf3", totals=(FlowTotals(flow=Flow.UP, **totals),))
    if side is Side.CLIENT:
        return {"report": job_report(0, AT, engine=engine)}
    return {
        "server_test": ServerTest(
            agent_id="s",
            endpoint=Endpoint(agent_id="s", address="10.0.0.1", port=5201),
            started_at=AT,
            ended_at=AT + timedelta(seconds=10),
            engine=engine,
        )
    }


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize("name", ["sent_bytes", "received_bytes"])
def test_sum_of_seconds_does_not_exceed_the_total_of_the_end(side: Side, name: str) -> None:
    least = (TOTAL - 2 * BLOCK) / (1 + rules.SAME_BYTES_RATIO)
    for total, broken in ((int(least) + 1, False), (int(least) - 1, True)):
        result = _contradictions(_pair(RECEIVER, SENDER, **_totals(side, **{name: total})))
        assert [item.rule for item in result] == [Rule.TOTALS] * broken
        if broken:
            assert (result[0].observed, result[0].limit, result[0].side) == (TOTAL, total, side)


def test_checks_received_against_sent_total_and_ignores_zero() -> None:
    reported = _totals(Side.CLIENT, sent_bytes=TOTAL, received_bytes=TOTAL + int(SLACK) + 2)
    assert _rules(_pair(None, None, **reported)) == [Rule.TOTALS]
    reported = _totals(Side.CLIENT, sent_bytes=TOTAL, received_bytes=TOTAL + int(SLACK) - 2)
    assert _rules(_pair(None, None, **reported)) == []
    assert _rules(_pair(RECEIVER, SENDER, **_totals(Side.CLIENT, sent_bytes=0))) == []


def test_totals_exclude_the_warm_up() -> None:
    warm = replace(RECEIVER, omitted=np.arange(10) < 4)
    reported = _totals(Side.SERVER, received_bytes=sum(SENT[4:]))
    assert _rules(_pair(warm, None, **reported)) == []
    assert _rules(_pair(RECEIVER, None, **reported)) == [Rule.TOTALS]


@pytest.mark.parametrize("wrong", [{"error": "broken pipe"}, {"truncated": True}])
def test_ignores_totals_of_an_aborted_engine(wrong: dict[str, Any]) -> None:
    reported = _totals(Side.SERVER, received_bytes=5)
    test = reported["server_test"]
    engine = test.engine.model_copy(update=wrong)
    reported = {"server_test": test.model_copy(update={"engine": engine})}
    assert _rules(_pair(RECEIVER, SENDER, **reported)) == []


def _paced(bits_per_second: float, **fields: Any) -> Traffic:
    """Return the traffic with a given pace, to be shared by both streams."""
    update = {"stream_bits_per_second": round(bits_per_second / 2)} | fields
    return TRAFFIC.model_copy(update=update)


@pytest.mark.parametrize("track", [SENDER, RECEIVER])
def test_bytes_do_not_exceed_the_pace(track: IntervalColumns) -> None:
    offered = (TOTAL - 2 * BLOCK) / (1 + rules.OFFERED_RATIO) / 10 * 8
    ends = (None, track) if track is SENDER else (track, None)
    assert _rules(_pair(*ends), traffic=_paced(offered + 8)) == []
    result = _contradictions(_pair(*ends), traffic=_paced(offered - 8))
    assert [(item.rule, item.side) for item in result] == [(Rule.SENT_OVER_OFFERED, track.side)]
    assert (result[0].observed, result[0].limit) == pytest.approx(
        (TOTAL, offered / 8 * 10), rel=1e-5
    )


def test_kernel_pacing_allows_more_bytes_written_than_sent() -> None:
    slow = _paced(1_000_000, pacing=Pacing.KERNEL)
    assert _rules(_pair(None, SENDER), traffic=slow) == []
    assert _rules(_pair(RECEIVER, SENDER), traffic=slow) == [Rule.SENT_OVER_OFFERED]


def test_received_bytes_do_not_exceed_the_nic_rate_of_the_sender() -> None:
    """The limit is the NIC rate for 10 seconds, plus 5 % and a credit of 0.5 seconds."""
    cap = TOTAL * HEADERS.wire_ratio * 8 / (10 * (1 + rules.CAP_RATIO) + rules.CAP_CREDIT_S)
    fits = _pair(RECEIVER, SENDER, client_nic_bits_per_second=cap * 1.0001)
    assert _rules(fits) == []
    result = _contradictions(_pair(RECEIVER, SENDER, client_nic_bits_per_second=cap * 0.9999))
    assert [(item.rule, item.side) for item in result] == [(Rule.OVER_NIC, Side.CLIENT)]
    assert result[0].observed == pytest.approx(TOTAL * 1.05)
    assert result[0].limit == pytest.approx(cap * 0.9999 / 8 * 10)
    assert _rules(_pair(RECEIVER, SENDER, server_nic_bits_per_second=1.0)) == []


def _host(
    counted: float, *, first_s: float = -3, count: int = 16, side: Side = Side.SERVER
) -> HostColumns:
    """Return a host with the given number of bytes in all seconds, also around the test."""
    at = AT_S + first_s + np.arange(count, dtype=np.float64)
    none = np.zeros(count)
    unknown = np.full(count, np.nan, np.float32)
    columns = {"nic_rx_bytes": none, "nic_tx_bytes": none}
    columns["nic_rx_bytes" if side is Side.SERVER else "nic_tx_bytes"] = np.full(count, counted)
    return HostColumns(
        start_at_s=at,
        end_at_s=at + 1,
        drops_count=unknown,
        cpu_busy_ratio=unknown,
        cpu_busiest_core_ratio=unknown,
        **columns,
    )


@pytest.mark.parametrize("side", list(Side))
def test_nic_counters_include_the_received_bytes(side: Side) -> None:
    """Use fourteen seconds, with two on both sides of the test."""
    edge = TOTAL / 10 * rules.HOST_EDGE_S
    least = (TOTAL - edge) / (1 + rules.HOST_RATIO) / 14
    for counted, broken in ((least * 1.001, False), (least * 0.999, True)):
        fields: dict[str, Any] = {f"{side}_host": _host(counted, side=side)}
        result = _contradictions(_pair(RECEIVER, SENDER, **fields))
        assert [item.rule for item in result] == [Rule.HOST_COUNTERS] * broken
        if broken:
            assert (result[0].observed, result[0].side) == (TOTAL, side)
            assert result[0].limit == pytest.approx(14 * counted)


def test_ignores_counters_of_another_interface_or_a_short_part() -> None:
    other = rules.HOST_OTHER_RATIO * TOTAL / 14
    assert _rules(_pair(RECEIVER, SENDER, server_host=_host(other * 0.999))) == []
    assert _rules(_pair(RECEIVER, SENDER, server_host=_host(other * 1.001))) == [Rule.HOST_COUNTERS]
    covered = round(rules.HOST_COVERED_RATIO * 10)
    part = _host(0.6 * MEAN, first_s=0, count=covered)
    assert _rules(_pair(RECEIVER, SENDER, server_host=part)) == [Rule.HOST_COUNTERS]
    less = _host(0.6 * MEAN, first_s=0, count=covered - 1)
    assert _rules(_pair(RECEIVER, SENDER, server_host=less)) == []


def _windows(track: IntervalColumns, most: float, known: int = 10) -> IntervalColumns:
    """Return a track that cannot transfer more than ``most`` bytes.

    Set all round trips to 10 ms.
    """
    rtt_s = np.full(10, 0.01, np.float32)
    rtt_s[known:] = np.nan
    cwnd = np.full(10, most / 10 * float(np.float32(0.01)), np.float32)
    return replace(track, rtt_s=rtt_s, cwnd_bytes=cwnd)


def test_bytes_do_not_exceed_the_limit_of_window_and_round_trip() -> None:
    most = (TOTAL - 2 * BLOCK) / rules.WINDOW_FACTOR
    assert _rules(_pair(RECEIVER, _windows(SENDER, most * 1.001))) == []
    result = _contradictions(_pair(RECEIVER, _windows(SENDER, most * 0.999)))
    assert [(item.rule, item.side) for item in result] == [
        (Rule.OVER_WINDOW, Side.CLIENT),
        (Rule.OVER_WINDOW, Side.SERVER),
    ]
    assert result[0].observed == TOTAL
    assert result[0].limit == pytest.approx(most * 0.999, rel=1e-5)


def test_partly_known_windows_count_for_the_complete_test() -> None:
    least = round(rules.WINDOW_KNOWN_RATIO * 10)
    most = (TOTAL - 2 * BLOCK) / rules.WINDOW_FACTOR * 0.999
    assert _rules(_pair(None, _windows(SENDER, most, least))) == [Rule.OVER_WINDOW]
    assert _rules(_pair(None, _windows(SENDER, most, least - 1))) == []


def test_window_of_zero_is_unknown() -> None:
    most = (TOTAL - 2 * BLOCK) / rules.WINDOW_FACTOR * 1.001
    sent = _windows(SENDER, most)
    cwnd = sent.cwnd_bytes.copy()
    cwnd[9] = 0.0
    assert _rules(_pair(None, replace(sent, cwnd_bytes=cwnd))) == []


def _clocked(client_s: float, server_s: float, *, bound_s: float | None = 0.01) -> PairEvidence:
    """Return ends that start at the given times, using clocks with a bound."""
    reading = ClockReading(
        source=ClockSource.CHRONY, read_at=AT, synchronised=True, offset_s=0.0, bound_s=bound_s
    )
    clocks = {"clock_before": reading, "clock_after": reading}
    test = _totals(Side.SERVER)["server_test"].model_copy(update=clocks)
    return _pair(
        _track(Side.SERVER, at_s=AT_S + server_s),
        _track(Side.CLIENT, at_s=AT_S + client_s),
        report=job_report(0, AT, **clocks),
        server_test=test,
    )


@pytest.mark.parametrize(("ahead", "lead_s"), [(1, 0.0), (-1, 0.0045)])
def test_start_times_of_both_ends_agree(ahead: int, lead_s: float) -> None:
    """If the server starts early, there will be 0.45 % less in its first second."""
    most = rules.STAMPS_APART_S + 0.02
    within, beyond = (ahead * (most + lead_s + by) for by in (-0.001, 0.001))
    assert Rule.STAMPS not in _rules(_clocked(0.0, within))
    (result,) = (
        item for item in _contradictions(_clocked(0.0, beyond)) if item.rule is Rule.STAMPS
    )
    assert (result.pair, result.flow) == ("pair-001", None)
    assert result.observed == pytest.approx(most + 0.001, abs=1e-4)
    assert result.limit == pytest.approx(0.02)
    assert Rule.STAMPS not in _rules(_clocked(0.0, 9.0 * ahead, bound_s=None))
