import pytest

from broadside.coordinator.core.judge.checks.check_types import NOTHING
from broadside.coordinator.core.judge.checks.counter_checks import check_device_fit
from broadside.coordinator.core.summary import Verdict
from tests.unit.coordinator.core.judge.checks.check_input import (
    burst,
    make_reconciliation,
    of_burst,
    weights,
)


def test_fit_distance_above_limit_is_inconclusive() -> None:
    of_counter = make_reconciliation(fit_distance_ratio=0.031, fit_limit_ratio=0.03)
    result = check_device_fit(of_burst(burst(reconciliation=of_counter)))
    assert (result.verdict, weights(result)) == (Verdict.INCONCLUSIVE, [("device-shape", 86)])
    assert result.findings[0].sentence.startswith(
        "The device counter counter has 3.1 % of the bytes"
    )
    assert "explain at most 3.0 %" in result.findings[0].sentence


@pytest.mark.parametrize(
    ("distance", "limit"), [(0.03, 0.03), (None, 0.03), (0.5, None), (None, None)]
)
def test_no_finding_for_small_or_unknown_fit_distance(
    distance: float | None, limit: float | None
) -> None:
    of_counter = make_reconciliation(fit_distance_ratio=distance, fit_limit_ratio=limit)
    assert check_device_fit(of_burst(burst(reconciliation=of_counter))) == NOTHING
    assert check_device_fit(of_burst(burst())) == NOTHING
