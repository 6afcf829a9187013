"""Tests for the expected usage of runs."""

import pytest

from broadside.coordinator.core.plan.expected_usage import expect_usage
from broadside.coordinator.core.plan.price import CostRange
from broadside.exchange.messages import Role
from tests.unit.coordinator.core.plan.test_cost_estimate import D4_FLEET, spec
from tests.unit.coordinator.presences import presence


@pytest.mark.parametrize(
    ("sku", "target", "nics", "expected", "low", "high"),
    [
        # A low target does not lower the price, because the traffic is not paced.
        ("premium", 1, 300e9, 100e9, 1, 100e9),
        ("premium", 1, 60e9, 60e9, 1, 60e9),
        ("premium", 1, None, 100e9, 1, 100e9),
        ("premium", 180e9, 300e9, 180e9, 180e9, 300e9),
        ("premium", 180e9, None, 180e9, 180e9, None),
        (None, 1, 300e9, 300e9, 1, 300e9),
        (None, 180e9, None, 180e9, 180e9, None),
        (None, None, 300e9, 300e9, None, 300e9),
    ],
)
def test_prices_what_unpaced_traffic_can_carry(
    sku: str | None,
    target: float | None,
    nics: float | None,
    expected: float,
    low: float | None,
    high: float | None,
) -> None:
    objective = {} if target is None else {"target_bits_per_second": target, "layer": "ip"}
    requested = spec(device={} if sku is None else {"sku": sku}, objective=objective)
    agents = [
        presence(Role.CLIENT, index, nic_bits_per_second=None if nics is None else round(nics / 30))
        for index in range(1, 31)
    ]
    assert expect_usage(requested, agents).rate == CostRange(value=expected, low=low, high=high)


def test_fleet_on_azure_without_sku_is_priced_up_to_the_limit_of_premium() -> None:
    objective = {"target_bits_per_second": 1, "layer": "ip"}
    requested = spec(device={}, objective=objective)
    assert expect_usage(requested, D4_FLEET).rate == CostRange(value=100e9, low=1, high=100e9)
