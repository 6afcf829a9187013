from types import SimpleNamespace
from typing import cast

import pytest

from broadside.coordinator.core.judge.checks.check_types import BurstInput
from broadside.coordinator.core.judge.checks.coverage_checks import check_coverage
from broadside.coordinator.core.summary import Verdict


@pytest.mark.parametrize(
    ("measured", "proven", "findings"),
    [
        (0.95, 0.95, []),
        (0.949, 0.95, ["below-floor"]),
        (0.95, 0.949, ["receiver-unseen"]),
        (0.0, 0.0, ["below-floor"]),
    ],
)
def test_compares_coverage_with_its_floor(
    measured: float, proven: float, findings: list[str]
) -> None:
    seen = SimpleNamespace(completeness_ratio=measured, measured_s=measured * 100, planned_s=100)
    objective = SimpleNamespace(coverage_floor_ratio=0.95)
    given = SimpleNamespace(
        spec=SimpleNamespace(objective=objective),
        burst=SimpleNamespace(completeness=seen, proven_ratio=proven),
    )
    result = check_coverage(cast(BurstInput, given))
    assert [finding.id for finding in result.findings] == findings
    assert result.verdict is (Verdict.INCONCLUSIVE if findings else Verdict.PASS)
