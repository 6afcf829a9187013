from typing import Any

import pytest

from broadside.coordinator.core.judge.checks.check_types import NOTHING, CheckResult
from broadside.coordinator.core.judge.checks.counter_checks import check_bypass
from broadside.coordinator.core.summary import Verdict
from tests.unit.coordinator.core.judge.checks.check_input import (
    burst,
    make_reconciliation,
    of_burst,
    weights,
)


def _run_check(crossed: float | None, **fields: Any) -> CheckResult:
    """Run the check with a 2 % limit and 0.5 % counter uncertainty."""
    of_counter = make_reconciliation(crossed, **({"bypassed": True} | fields))
    return check_bypass(of_burst(burst(reconciliation=of_counter)))


@pytest.mark.parametrize(
    ("crossed", "fields", "passes"),
    [
        pytest.param(0.015, {}, True, id="1.5 + 0.5 %"),
        pytest.param(0.016, {}, False, id="1.6 + 0.5 %"),
        pytest.param(0.01, {"unknown_ratio": 0.005}, True, id="1 + 0.5 + 0.5 % unknown"),
        pytest.param(0.01, {"unknown_ratio": 0.006}, False, id="1 + 0.5 + 0.6 % unknown"),
        pytest.param(-0.5, {"unknown_ratio": 0.015}, True, id="negative value counts as zero"),
        pytest.param(
            -0.5, {"unknown_ratio": 0.016}, False, id="negative value does not compensate"
        ),
        pytest.param(0.02, {"residual_uncertainty_ratio": None}, True, id="no uncertainty"),
    ],
)
def test_compares_bytes_that_may_have_crossed_with_the_limit(
    crossed: float, fields: dict[str, Any], passes: bool
) -> None:
    result = _run_check(crossed, **fields)
    assert result.verdict is (Verdict.PASS if passes else Verdict.INCONCLUSIVE)
    assert weights(result) == [("bypassed", 40) if passes else ("not-bypassed", 88)]


def test_reports_unknown_bins_above_the_limit() -> None:
    unknown = "3.0 % of the bytes are in unknown bins"
    assert unknown in _run_check(0.0, unknown_ratio=0.03).findings[0].sentence
    assert "does not know" not in _run_check(0.1, unknown_ratio=0.02).findings[0].sentence
    assert "+10.00 %" in _run_check(0.1).findings[0].sentence
    assert "(+-0.50 %) of the fleet's 1 GB" in _run_check(0.1).findings[0].sentence
    unsure = _run_check(0.1, residual_uncertainty_ratio=None)
    assert "(+-0.00 %)" in unsure.findings[0].sentence


def test_idle_level_is_unknown_without_quiet_bins() -> None:
    result = _run_check(0.0, baseline_how="fitted")
    assert (result.verdict, weights(result)) == (Verdict.INCONCLUSIVE, [("idle-unknown", 87)])


@pytest.mark.parametrize(
    "fields", [{"bypassed": False}, {"residual_ratio": None}, {"rejected_bins_count": 1}]
)
def test_bypass_check_does_not_repeat_other_checks(fields: dict[str, Any]) -> None:
    assert _run_check(0.5, **fields) == NOTHING
    assert check_bypass(of_burst(burst())) == NOTHING
