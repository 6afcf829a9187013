"""Tests for streams that are silent when others in the same pair are not."""

from dataclasses import replace
from datetime import timedelta

import pytest

from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.summary import RunSummary, Verdict
from broadside.exchange.messages import ClockReading, EngineReport, Flow, StreamSilence
from tests.planted import summarise
from tests.synthetic import Plant, fleet

MADE = fleet(Plant(pairs=3, bursts=1, burst_s=30, device_counter=False), target_bits_per_second=1e9)


def silence(port: int, from_s: float, to_s: float) -> StreamSilence:
    return StreamSilence(flow=Flow.UP, client_port=port, from_s=from_s, to_s=to_s)


def run_summary(
    client: tuple[StreamSilence, ...] = (),
    server: tuple[StreamSilence, ...] = (),
    *,
    server_ahead_s: float = 0.0,
    server_reports: bool = True,
) -> RunSummary:
    """Return the summary if these silences are reported for one pair."""

    def with_silences(
        engine: EngineReport | None, silences: tuple[StreamSilence, ...]
    ) -> EngineReport:
        assert engine is not None
        return engine.model_copy(update={"silent_streams": silences, "streams_count": 64})

    def change(pair: PairEvidence) -> PairEvidence:
        report, test = pair.report, pair.server_test
        assert report is not None
        assert test is not None
        report = report.model_copy(update={"engine": with_silences(report.engine, client)})
        if not server_reports:
            return replace(pair, report=report, server_test=None)
        assert report.first_data_at is not None
        reading = test.clock_before or ClockReading(
            synchronised=True, source="chronyd", read_at=MADE.now
        )
        clock = reading.model_copy(update={"offset_s": server_ahead_s, "bound_s": 0.001})
        test = test.model_copy(
            update={
                "engine": with_silences(test.engine, server),
                "first_data_at": report.first_data_at + timedelta(seconds=server_ahead_s),
                "clock_before": clock,
                "clock_after": clock,
            }
        )
        return replace(pair, report=report, server_test=test)

    return summarise(MADE.told(change, [1]))


def sentence(summary: RunSummary) -> str | None:
    return next((f.sentence for f in summary.findings if f.id == "silent-streams"), None)


def test_dead_stream_is_dated_by_the_receiver() -> None:
    summary = run_summary((silence(40001, 12, 30),), (silence(40001, 10, 30),), server_ahead_s=0.02)
    [one] = summary.bursts[0].silent_streams
    begun_at = MADE.plan.bursts[0].planned_start_at
    assert (one.pair, one.client_port, one.duration_s) == ("pair-002", 40001, 20)
    assert (one.from_at - begun_at).total_seconds() == pytest.approx(10, abs=0.2)
    text = sentence(summary)
    assert text is not None
    assert "pair-002, stream with client port 40001 (one of 64) from " in text
    assert "UTC for 20 s" in text
    assert summary.verdict is run_summary().verdict is Verdict.PASS


def test_uses_the_sender_if_the_receiver_is_missing() -> None:
    assert run_summary((silence(40001, 12, 30),)).bursts[0].silent_streams == ()
    [one] = run_summary((silence(40001, 12, 30),), server_reports=False).bursts[0].silent_streams
    assert one.duration_s == 18


def test_lists_the_longest_of_many_silent_streams() -> None:
    many = tuple(silence(40000 + n, 5, 10 + n / 10) for n in range(32))
    text = sentence(run_summary(server=many))
    assert text is not None
    assert text.count("stream with client port") == 3
    assert "port 40031" in text
    assert text.endswith("and at least 29 more.")
    assert sentence(run_summary()) is None
