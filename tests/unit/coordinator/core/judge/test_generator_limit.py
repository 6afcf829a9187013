from dataclasses import replace

import pytest

from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.exchange.messages import Aggregation, Measure
from tests.judged import judged_first
from tests.synthetic import Plant, fleet


def sentences(
    made: float, *, delay_s: float = 0.0, finding: str = "generator-limit", **counts: int
) -> list[str]:
    """Return the findings of a fleet whose clients made this share of their attempts."""
    measures = (
        Measure(
            name="attempted_ratio", value=made, unit="ratio", combine=Aggregation.MEAN, weight=100
        ),
        Measure(name="attempt_delay_max", value=delay_s, unit="s", combine=Aggregation.MAX),
        *(Measure(name=name, value=count, unit="count") for name, count in counts.items()),
    )

    def change(pair: PairEvidence) -> PairEvidence:
        assert pair.report is not None and pair.report.engine is not None
        engine = pair.report.engine.model_copy(update={"measures": measures})
        return replace(pair, report=pair.report.model_copy(update={"engine": engine}))

    planted = fleet(Plant(pairs=2, bursts=1, burst_s=10, period_s=25))
    summary = judged_first(planted.told(change))
    return [one.sentence for one in summary.findings if one.id == finding]


def test_names_what_the_hosts_lacked() -> None:
    (sentence,) = sentences(0.8, delay_s=0.25, failed_count=7, failed_ports_count=7)
    assert "80.0 % of the planned attempts, at most 250 ms late" in sentence
    assert "14 failed on their hosts: 14 because no local port was left." in sentence


@pytest.mark.parametrize(("made", "delay_s"), [(0.998, 0.0), (1.0, 0.6)])
def test_reports_missing_or_late_attempts(made: float, delay_s: float) -> None:
    assert len(sentences(made, delay_s=delay_s)) == 1


def test_has_no_finding_if_all_attempts_were_made() -> None:
    assert sentences(1.0, delay_s=0.5, failed_count=0) == []
    assert judged_first(fleet(Plant(pairs=2, bursts=1, burst_s=10, period_s=25))).findings


def test_full_listen_queue_is_reported_also_if_no_attempt_was_lost() -> None:
    counts = {"attempted_count": 1000, "server_backlog_limit_count": 8}
    few = sentences(1.0, finding="listen-queue-full", server_backlog_dropped_count=1, **counts)
    assert few == []
    (sentence,) = sentences(
        1.0, finding="listen-queue-full", server_backlog_dropped_count=40, **counts
    )
    assert "dropped 80 connections because their listen queue was full (limit" in sentence
