from types import SimpleNamespace

import pytest

from broadside.coordinator.core.judge.checks.check_types import NOTHING, CheckResult
from broadside.coordinator.core.judge.checks.counter_checks import check_metric_aggregation
from broadside.coordinator.core.judge.checks.coverage_checks import check_run_coverage, check_seal
from broadside.coordinator.core.summary import Verdict
from tests.unit.coordinator.core.judge.checks.check_input import (
    burst,
    counter,
    of_run,
    plan,
    weights,
)


@pytest.mark.parametrize(
    ("ratio", "result"), [(0.95, NOTHING), (0.949, CheckResult(Verdict.INCONCLUSIVE))]
)
def test_compares_run_coverage_with_the_floor(ratio: float, result: CheckResult) -> None:
    assert check_run_coverage(of_run(plan(), burst(), completeness_ratio=ratio)) == result


def test_reports_pending_bursts() -> None:
    three = plan(bursts=plan().bursts * 3)
    result = check_run_coverage(of_run(three, burst()))
    assert (result.verdict, weights(result)) == (Verdict.INCONCLUSIVE, [("bursts-pending", 99)])
    assert result.findings[0].sentence.startswith("2 of 3 bursts have not ended")


def test_rejects_maximum_aggregation_as_byte_counter() -> None:
    result = check_metric_aggregation(
        of_run(plan(), device_counter=counter(0, 9, extreme="maximum"))
    )
    assert (result.verdict, weights(result)) == (Verdict.INCONCLUSIVE, [("metric-aggregation", 88)])
    assert check_metric_aggregation(of_run(plan(), device_counter=counter(0, 9))) == NOTHING
    assert check_metric_aggregation(of_run(plan())) == NOTHING


@pytest.mark.parametrize("seal", ["0123456789abcdefXYZ", None])
def test_altered_plan_shows_both_digests(seal: str | None) -> None:
    altered = plan(is_intact=False, seal_sha256=seal, digest=lambda: "fedcba9876543210XYZ")
    result = check_seal(of_run(SimpleNamespace(**vars(altered))))
    assert (result.verdict, weights(result)) == (Verdict.INCONCLUSIVE, [("plan-altered", 106)])
    assert "fedcba9876543210..., the seal is " in result.findings[0].sentence
    assert result.findings[0].sentence.endswith(f"{(seal or '')[:16]}....")
    assert check_seal(of_run(plan())) == NOTHING
