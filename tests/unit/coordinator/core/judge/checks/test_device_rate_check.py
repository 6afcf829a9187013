import pytest

from broadside.coordinator.core.judge.checks.check_types import NOTHING
from broadside.coordinator.core.judge.checks.rate_checks import check_device_rate
from broadside.coordinator.core.summary import Verdict
from tests.unit.coordinator.core.judge.checks.check_input import (
    burst,
    make_reconciliation,
    of_burst,
    spec,
    weights,
)


def test_device_rate_below_limit_is_inconclusive() -> None:
    """The device rate is 1.2 Gbit/s - 20 % = 0.96 Gbit/s."""
    result = check_device_rate(of_burst(burst(reconciliation=make_reconciliation(-0.2))))
    assert (result.verdict, weights(result)) == (Verdict.INCONCLUSIVE, [("device-unproven", 84)])
    assert "The rate by the device counter is 960 Mbit/s" in result.findings[0].sentence
    assert "The rate by the fleet is 1.2 Gbit/s +- 10 Mbit/s" in result.findings[0].sentence


@pytest.mark.parametrize(("residual", "undecided"), [(-0.153, False), (-0.156, True), (0.0, False)])
def test_lower_bound_of_device_rate_decides(residual: float, undecided: bool) -> None:
    """The first two device rates are 1.0164 Gbit/s and 1.0128 Gbit/s.

    Their uncertainties are hypot(10, 1200 x 0.005) = 11.7 Mbit/s and
    hypot(10, 1200 x 0.01) = 15.6 Mbit/s. Only the first rate is clearly above the limit.
    """
    of_counter = make_reconciliation(
        residual, residual_uncertainty_ratio=0.005 if not undecided else 0.01
    )
    result = check_device_rate(of_burst(burst(reconciliation=of_counter)))
    assert bool(result.findings) is undecided


def test_no_result_if_fleet_is_below_limit_or_has_none() -> None:
    slow = burst(0.9e9, reconciliation=make_reconciliation(-0.5))
    assert check_device_rate(of_burst(slow)) == NOTHING
    at_limit = burst(1.01e9, 0.01e9, reconciliation=make_reconciliation(-0.5))
    assert check_device_rate(of_burst(at_limit)) == NOTHING
    unlimited = of_burst(
        burst(reconciliation=make_reconciliation(-0.5)), spec(scaled_target_bits_per_second=None)
    )
    assert check_device_rate(unlimited) == NOTHING
    assert (
        check_device_rate(of_burst(burst(half=None, reconciliation=make_reconciliation(-0.5))))
        == NOTHING
    )
    assert check_device_rate(of_burst(burst())) == NOTHING
