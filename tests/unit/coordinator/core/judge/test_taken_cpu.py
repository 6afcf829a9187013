from dataclasses import replace

from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.summary import BurstSummary
from tests.judged import judged_first
from tests.synthetic import Plant, fleet


def burst_with_steal_time(*ratios: float | None) -> BurstSummary:
    """Return a burst with these client steal times. Server steal time is zero."""
    made = fleet(Plant(pairs=len(ratios), bursts=1, burst_s=10, period_s=25))

    def change(pair: PairEvidence) -> PairEvidence:
        assert pair.report is not None and pair.report.engine is not None
        assert pair.server_test is not None
        taken = {"host_taken_ratio": ratios[pair.pair_index]}
        client = pair.report.engine.model_copy(update=taken)
        server = pair.server_test.engine.model_copy(update={"host_taken_ratio": 0.0})
        return replace(
            pair,
            report=pair.report.model_copy(update={"engine": client}),
            server_test=pair.server_test.model_copy(update={"engine": server}),
        )

    return judged_first(made.told(change))


def sentences(summary: BurstSummary) -> list[str]:
    return [finding.sentence for finding in summary.findings if finding.id == "cpu-taken"]


def test_names_worst_host_without_changing_the_verdict() -> None:
    quiet, noisy = burst_with_steal_time(0.0, 0.0, 0.0), burst_with_steal_time(0.03, 0.27, None)
    assert noisy.taken_cpu is not None
    assert (noisy.taken_cpu.hosts_count, noisy.taken_cpu.worst_ratio) == (5, 0.27)
    assert noisy.taken_cpu.mean_ratio == 0.06
    [sentence] = sentences(noisy)
    assert "6.0 % of the CPU time of 5 hosts" in sentence
    assert f"({noisy.taken_cpu.worst_host}: 27.0 %" in sentence
    assert sentences(quiet) == []
    assert noisy.verdict is quiet.verdict


def test_no_finding_for_little_or_unknown_steal_time() -> None:
    assert sentences(burst_with_steal_time(0.04, 0.01)) == []
    silent = judged_first(fleet(Plant(pairs=2, bursts=1, burst_s=10, period_s=25)))
    assert silent.taken_cpu is None
