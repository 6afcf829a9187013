"""Tests for contradictions between sources, which are reported.

If all sources can be true, nothing is reported.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from broadside.coordinator.core.measure.consistency_checks import ConsistencyChecker
from broadside.coordinator.core.measure.formulas.headers import tcp_headers
from broadside.coordinator.core.measure.records.columns import (
    HostColumns,
    IntervalColumns,
    disjoint_track,
)
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.summary import Contradiction, Rule, RunSummary, Verdict
from broadside.exchange.engines import engines, traffic_of
from broadside.exchange.messages import (
    Endpoint,
    EngineReport,
    Flow,
    FlowTotals,
    Measure,
    ServerTest,
    Side,
    Traffic,
)
from tests.planted import summarise
from tests.synthetic import Fleet, Plant, fleet
from tests.unit.coordinator.core.records import seconds

PLANT = Plant(pairs=6, bursts=1, burst_s=30, firewall_bits_per_second=None, device_counter=False)
MADE = fleet(PLANT, target_bits_per_second=20e9)

Change = Callable[[PairEvidence], PairEvidence]


def _summary(
    change: Change, *, pairs: tuple[int, ...] = (2,), made: Fleet = MADE, **traffic: object
) -> RunSummary:
    """Return the summary when some evidence is changed, for a fleet that should pass."""
    requested = Traffic.model_validate(made.plan.spec.traffic.model_dump() | traffic)
    return summarise(made.asked(traffic=requested).told(change, pairs))


def _rules(summary: RunSummary) -> set[Rule]:
    return {
        contradiction.rule for burst in summary.bursts for contradiction in burst.contradictions
    }


def _at(side: Side, change: Callable[[IntervalColumns], IntervalColumns]) -> Change:
    """Change the rows for one end, using the form in which they will be stored."""

    def rewrite(pair: PairEvidence) -> PairEvidence:
        name = "server_tracks" if side is Side.SERVER else "client_tracks"
        tracks = tuple(disjoint_track(change(track)) for track in getattr(pair, name))
        return replace(pair, **{name: tracks})  # type: ignore[arg-type]

    return rewrite


def _times(factor: float) -> Callable[[IntervalColumns], IntervalColumns]:
    return lambda track: replace(track, transferred_bytes=track.transferred_bytes * factor)


def _row(index: int, value: float) -> Callable[[IntervalColumns], IntervalColumns]:
    def change(track: IntervalColumns) -> IntervalColumns:
        amounts = track.transferred_bytes.copy()
        amounts[index] = value
        return replace(track, transferred_bytes=amounts)

    return change


def test_unchanged_fleet_has_no_contradiction() -> None:
    summary = _summary(lambda pair: pair)
    assert summary.verdict is Verdict.PASS
    assert _rules(summary) == set()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        pytest.param(_at(Side.SERVER, _times(1.05)), Rule.RECEIVED_OVER_SENT, id="5 % more"),
        pytest.param(_at(Side.SERVER, _row(9, 1e15)), Rule.RECEIVED_OVER_SENT, id="huge"),
        pytest.param(_at(Side.SERVER, _row(9, -5.0)), Rule.ROWS, id="negative"),
        pytest.param(_at(Side.CLIENT, _row(9, np.nan)), Rule.ROWS, id="no number"),
        pytest.param(_at(Side.SERVER, _row(9, np.inf)), Rule.ROWS, id="infinite"),
        pytest.param(
            _at(Side.SERVER, lambda t: replace(t, start_s=t.end_s.copy(), end_s=t.start_s.copy())),
            Rule.ROWS,
            id="reversed",
        ),
        pytest.param(
            _at(Side.SERVER, lambda t: replace(t, end_s=t.end_s + 0.5)), Rule.ROWS, id="over"
        ),
        pytest.param(
            _at(Side.CLIENT, lambda t: replace(t, first_data_at_s=t.first_data_at_s - 3)),
            Rule.STAMPS,
            id="moved",
        ),
        pytest.param(
            lambda pair: replace(pair, client_nic_bits_per_second=3e9), Rule.OVER_NIC, id="cap"
        ),
        pytest.param(
            _at(Side.CLIENT, lambda t: replace(t, cwnd_bytes=t.cwnd_bytes / np.float32(100))),
            Rule.OVER_WINDOW,
            id="window",
        ),
    ],
)
def test_contradiction_is_reported_and_prevents_a_pass(change: Change, rule: Rule) -> None:
    summary = _summary(change)
    assert rule in _rules(summary)
    assert summary.verdict is Verdict.INCONCLUSIVE
    result = next(f for f in summary.findings if f.id == f"contradiction-{rule}")
    assert "pair-003" in result.sentence


def test_finds_a_moved_start_without_seconds() -> None:
    def moved(pair: PairEvidence) -> PairEvidence:
        assert pair.report is not None
        assert pair.report.first_data_at is not None
        first = pair.report.first_data_at - timedelta(seconds=2)
        report = pair.report.model_copy(update={"first_data_at": first})
        return replace(pair, report=report, client_tracks=())

    assert Rule.STAMPS in _rules(_summary(moved))


@pytest.mark.parametrize(
    ("engine", "gap_s", "contradicts"),
    [("iperf3", 0.3, False), ("iperf3", 0.7, True), ("ftp", 6.5, False), ("ftp", 8.0, True)],
)
def test_ends_with_a_login_can_have_larger_start_differences(
    engine: str, gap_s: float, contradicts: bool
) -> None:
    earlier = _at(Side.CLIENT, lambda t: replace(t, first_data_at_s=t.first_data_at_s - gap_s))
    summary = _summary(earlier, engine=engine, streams_count=1)
    assert (Rule.STAMPS in _rules(summary)) is contradicts


@pytest.mark.parametrize(("silent_s", "contradicts"), [(1.75, False), (1.4, False), (0.0, True)])
def test_server_can_start_before_a_late_client_sends(silent_s: float, contradicts: bool) -> None:
    """The gate can start the server early, when the client is not able to send.

    If there are no bytes until the client starts, this is not a contradiction.
    """

    def served(track: IntervalColumns) -> IntervalColumns:
        share = 1 - np.clip(silent_s - track.start_s, 0, 1)
        bytes_then = track.transferred_bytes * share
        zero_s = track.first_data_at_s - 0.25
        return replace(track, first_data_at_s=zero_s, transferred_bytes=bytes_then)

    late = _at(Side.CLIENT, lambda t: replace(t, first_data_at_s=t.first_data_at_s + 1.5))
    summary = _summary(lambda pair: _at(Side.SERVER, served)(late(pair)))
    assert (Rule.STAMPS in _rules(summary)) is contradicts


@pytest.mark.parametrize(
    ("times", "rules"),
    [(0.5, {Rule.HOST_COUNTERS}), (1e-4, set())],
    ids=["half", "another interface"],
)
def test_nic_counter_below_the_received_bytes_is_a_contradiction(
    times: float, rules: set[Rule]
) -> None:
    def counted(pair: PairEvidence) -> PairEvidence:
        host = pair.server_host
        return replace(pair, server_host=replace(host, nic_rx_bytes=host.nic_rx_bytes * times))

    assert _rules(_summary(counted)) == rules


def test_unknown_seconds_of_a_nic_are_not_zero() -> None:
    def unknown(pair: PairEvidence) -> PairEvidence:
        host = pair.server_host
        known = np.arange(len(host)) % 2 == 0
        half = np.where(known, host.nic_rx_bytes, np.nan)
        return replace(pair, server_host=replace(host, nic_rx_bytes=half))

    assert _rules(_summary(unknown)) == set()


def test_ignores_counters_that_end_before_the_test() -> None:
    """If the end is missing, it is not replaced by what was counted before the start."""

    def cut(pair: PairEvidence) -> PairEvidence:
        host = pair.server_host
        before_s = host.start_at_s[0] - np.arange(2, 0, -1.0)
        rows = {
            item.name: np.concatenate((np.zeros(2), getattr(host, item.name)[:-2]))
            for item in fields(host)
        }
        rows["start_at_s"][:2], rows["end_at_s"][:2] = before_s, before_s + 1
        return replace(pair, server_host=HostColumns(**rows))

    short = fleet(replace(PLANT, burst_s=10), target_bits_per_second=20e9)
    assert _rules(_summary(cut, made=short)) == set()


def test_bytes_above_the_pace_are_a_contradiction() -> None:
    """A pair sends 6 Gbit/s on 8 streams, which are limited to 0.5 Gbit/s."""
    summary = _summary(lambda pair: pair, streams_count=8, stream_bits_per_second=500_000_000)
    assert Rule.SENT_OVER_OFFERED in _rules(summary)


def test_total_below_the_seconds_is_a_contradiction() -> None:
    def fewer(pair: PairEvidence) -> PairEvidence:
        report = pair.report
        assert report is not None
        assert report.engine is not None
        totals = tuple(
            total.model_copy(update={"received_bytes": (total.received_bytes or 0) // 2})
            for total in report.engine.totals
        )
        engine = report.engine.model_copy(update={"totals": totals})
        return replace(pair, report=report.model_copy(update={"engine": engine}))

    assert _rules(_summary(fewer)) == {Rule.TOTALS}


# The number of bytes in a download.
RECEIVED = 100_000_000


def _downloaded(
    sent_ratio: float, engine: str, transfers_count: int = 1, *, over: bool = True
) -> list[Contradiction]:
    """Return what is reported if a daemon should have sent ``sent_ratio`` of the received bytes."""
    at = datetime(2026, 11, 20, 12, tzinfo=UTC)
    sent = FlowTotals(flow=Flow.DOWN, sent_bytes=round(RECEIVED * sent_ratio))
    count = Measure(name="server_transfers_count", value=transfers_count, unit="count")
    test = ServerTest(
        agent_id="s",
        endpoint=Endpoint(agent_id="s", address="10.2.0.4", port=8080),
        started_at=at,
        first_data_at=at,
        ended_at=at + timedelta(seconds=10) if over else None,
        engine=EngineReport(engine=engine, totals=(sent,), measures=(count,)),
    )
    track = seconds(Side.CLIENT, at.timestamp(), [RECEIVED // 10] * 10, flow=Flow.DOWN)
    pair = PairEvidence(pair_index=0, server_test=test, client_tracks=(track,))
    requested = traffic_of(engine=engine, streams_count=1)
    examination = ConsistencyChecker(requested, tcp_headers(()), 0.05)
    examination.add([pair])
    return list(examination.done())


@pytest.mark.parametrize("engine", ["http", "https", "ftp"])
def test_more_bytes_received_than_a_daemon_sent_is_a_contradiction(engine: str) -> None:
    """The server log can show 8 of 40 Mbit/s, or it can have lost 1 of 30 seconds."""
    for sent_ratio in (0.2, 29 / 30):
        (result,) = _downloaded(sent_ratio, engine)
        assert (result.rule, result.observed) == (Rule.RECEIVED_OVER_SENT, RECEIVED)
        assert result.limit == pytest.approx(RECEIVED * sent_ratio)
    # If a transfer is aborted, more bytes can be sent than received.
    for sent_ratio in (1.0, 1.3):
        assert _downloaded(sent_ratio, engine) == []


def test_protocol_replies_are_not_payload() -> None:
    """For a file of 1,000 bytes, there will be another 350 bytes for replies."""
    count = RECEIVED // 1350
    assert _downloaded(1000 * count / RECEIVED, "ftp", count) == []
    (result,) = _downloaded(0.3, "ftp", 100)
    assert result.rule is Rule.RECEIVED_OVER_SENT


def test_unfinished_daemon_test_gives_no_limit() -> None:
    assert _downloaded(0.2, "http", over=False) == []


def test_small_surplus_of_all_pairs_is_a_contradiction_of_the_fleet() -> None:
    """All pairs are within the tolerance, but not their sum."""
    summary = _summary(_at(Side.SERVER, _times(1.008)), pairs=tuple(range(6)))
    assert _rules(summary) == {Rule.RECEIVED_OVER_SENT}
    assert {
        contradiction.pair for burst in summary.bursts for contradiction in burst.contradictions
    } == {None}
    assert summary.verdict is Verdict.INCONCLUSIVE


def test_sender_without_its_last_seconds_gives_no_limit() -> None:
    def cut(pair: PairEvidence) -> PairEvidence:
        short = _at(Side.CLIENT, lambda track: track.rows(slice(20)))(pair)
        return replace(short, report=None)

    short = fleet(replace(PLANT, burst_s=10), target_bits_per_second=20e9)
    assert _rules(_summary(cut, made=short)) == set()


def test_rows_stored_twice_are_not_a_contradiction() -> None:
    twice = _at(Side.SERVER, lambda track: track.rows(np.repeat(np.arange(len(track)), 2)))
    summary = _summary(twice)
    assert _rules(summary) == set()
    assert summary.verdict is Verdict.PASS


def test_allows_one_block_per_stream_more_at_the_end_of_iperf3() -> None:
    blocks = 131_072 * PLANT.streams
    one_more = _at(
        Side.SERVER,
        lambda track: _row(-1, float(track.transferred_bytes[-1]) + blocks - 1)(track),
    )
    assert _rules(_summary(one_more)) == set()


def test_rows_of_another_pair_are_a_copy() -> None:
    """Use the rows of another pair to replace those that are missing (T12)."""
    model = MADE.evidence[0].pairs[4]

    def copied(pair: PairEvidence) -> PairEvidence:
        return replace(pair, client_tracks=model.client_tracks, server_tracks=model.server_tracks)

    summary = _summary(copied)
    assert Rule.COPIED in _rules(summary)
    assert summary.verdict is not Verdict.PASS
    assert Rule.COPIED not in _rules(_summary(lambda pair: pair))


def test_sender_rows_of_another_pair_are_a_copy() -> None:
    model = MADE.evidence[0].pairs[4]

    def copied(pair: PairEvidence) -> PairEvidence:
        return replace(pair, client_tracks=model.client_tracks)

    summary = _summary(copied)
    assert Rule.COPIED in _rules(summary)
    assert summary.verdict is not Verdict.PASS


def test_senders_of_few_blocks_can_have_equal_seconds() -> None:
    """On a slow path without a pace, a pair can send two to ten blocks."""

    def in_blocks(track: IntervalColumns) -> IntervalColumns:
        blocks = np.resize([4.0, 2, 6, 8, 3, 10, 7], len(track))
        return replace(track, transferred_bytes=blocks * 131_072 * 1000)

    assert Rule.COPIED not in _rules(_summary(_at(Side.CLIENT, in_blocks), pairs=(2, 4)))


@pytest.mark.parametrize(
    ("stream_bits_per_second", "surplus_bytes", "is_copy"),
    [(10_000_000, 0, False), (10_000_000, 1, True), (None, 0, True)],
    ids=["paced", "paced, partial blocks", "unpaced"],
)
def test_paced_pairs_can_receive_equal_blocks(
    stream_bits_per_second: int | None, surplus_bytes: int, is_copy: bool
) -> None:
    """This was seen in a lab on a busy host, for pairs that used four streams."""

    def in_blocks(track: IntervalColumns) -> IntervalColumns:
        blocks = np.resize([36.0, 38, 39, 38, 40, 38, 37], len(track))
        return replace(track, transferred_bytes=blocks * 131_072 + surplus_bytes)

    summary = _summary(
        _at(Side.SERVER, in_blocks),
        pairs=(2, 4),
        streams_count=4,
        stream_bits_per_second=stream_bits_per_second,
    )
    assert (Rule.COPIED in _rules(summary)) is is_copy


def test_scheduled_messages_give_all_pairs_equal_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MADE.evidence[0].pairs[4]

    def copied(pair: PairEvidence) -> PairEvidence:
        return replace(pair, client_tracks=model.client_tracks, server_tracks=model.server_tracks)

    assert Rule.COPIED in _rules(_summary(copied))
    monkeypatch.setattr(type(engines()["iperf3"]), "sets_each_second", True)
    assert Rule.COPIED not in _rules(_summary(copied))
