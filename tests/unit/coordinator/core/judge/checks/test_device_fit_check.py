"""A counter whose bytes lie at another time than the fleet's is no evidence."""

import pytest

from broadside.coordinator.core.judge.checks.check_types import NOTHING
from broadside.coordinator.core.judge.checks.device_fit_check import DEVICE_FIT
from broadside.coordinator.core.summary import Verdict
from tests.unit.coordinator.core.judge.checks.check_input import burst, held, of_burst, weights


def test_a_distance_over_its_limit_is_no_pass() -> None:
    of_counter = held(fit_distance_ratio=0.031, fit_limit_ratio=0.03)
    found = DEVICE_FIT.evaluate(of_burst(burst(reconciliation=of_counter)))
    assert (found.verdict, weights(found)) == (Verdict.INCONCLUSIVE, [("device-shape", 86)])
    assert found.findings[0].sentence.startswith("3.1 % of the burst's bytes")
    assert "at most 3.0 % agree" in found.findings[0].sentence


@pytest.mark.parametrize(
    ("distance", "limit"), [(0.03, 0.03), (None, 0.03), (0.5, None), (None, None)]
)
def test_what_is_within_or_not_assessed_has_no_finding(
    distance: float | None, limit: float | None
) -> None:
    of_counter = held(fit_distance_ratio=distance, fit_limit_ratio=limit)
    assert DEVICE_FIT.evaluate(of_burst(burst(reconciliation=of_counter))) == NOTHING
    assert DEVICE_FIT.evaluate(of_burst(burst())) == NOTHING
