"""Tests for price tables."""

import pytest

from broadside.coordinator import prices
from broadside.exchange.outage_log import utc_now
from tests.unit.coordinator.core.plan.test_cost_estimate import (
    D4_FLEET,
    TABLE,
    estimated,
    line,
    spec,
)


def test_user_prices_override_the_table() -> None:
    user_prices = prices.override(
        {
            "name": "ours",
            "firewall": {"premium": {"gb": 0.01}},
            "peering": {"usd": 0.0},
            "vm_hour": {"standard_d4_v4": 0.1},
        }
    )
    cost = estimated(spec(bursts_count=1), D4_FLEET, table=user_prices)
    assert cost.prices == "ours"
    assert line(cost, "firewall data").usd == pytest.approx(391.5)
    assert line(cost, "firewall data").source == "your own figure"
    assert (line(cost, "peering data").usd, line(cost, "peering data").low_usd) == (0, 0)
    assert line(cost, "VMs Standard_D4_v4").unit_price_usd == pytest.approx(0.1)
    # This is the price in the table.
    assert line(cost, "firewall deployment").unit_price_usd == pytest.approx(1.75)


@pytest.mark.parametrize(
    ("overrides", "pattern"),
    [
        ({"peering": -1}, "prices: peering.usd: .* greater than or equal to 0"),
        ({"firewal": {}}, "prices: firewal: Extra inputs"),
        ({"peering": {"usd": "cheap"}}, "prices: peering.usd: .*cheap"),
    ],
)
def test_rejects_invalid_user_prices(overrides: dict[str, object], pattern: str) -> None:
    with pytest.raises(prices.BadPrices, match=pattern):
        prices.override(overrides)


def test_finds_vm_price_by_size() -> None:
    assert TABLE.of_vm("standard_d16s_v5") is not None
    assert TABLE.of_vm("Standard_D16s_v5") == TABLE.of_vm("standard_d16S_v5")
    assert getattr(TABLE.of_vm("Standard_D16s_v5"), "usd", None) == pytest.approx(16 * 0.048)
    assert TABLE.of_vm("Standard_Z1") is None
    assert TABLE.of_vm(None) is None


def test_price_table_has_a_date() -> None:
    assert TABLE.as_of <= utc_now().date()
