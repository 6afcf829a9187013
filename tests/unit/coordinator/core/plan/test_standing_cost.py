"""Tests for the cost per hour of a range."""

import pytest

from broadside.coordinator import prices
from broadside.coordinator.core.plan.standing_cost import RangeState, standing_bill

TABLE = prices.load()
NEEDS = {
    "vm_size": "Standard_D4_v4",
    "coordinator_size": "Standard_B2als_v2",
    "appliance": "azure-firewall",
    "firewall_tier": "Premium",
    "bastion": True,
    "nva_size": None,
    "nva_count": 0,
    "nat_gateways_count": 3,
    "private_endpoints": False,
    "public_addresses_count": 5,
}
PRIVATE = NEEDS | {
    "appliance": "nva",
    "nva_size": "Standard_D16_v4",
    "nva_count": 2,
    "private_endpoints": True,
    "nat_gateways_count": 1,
}


def items(needs: dict[str, object], state: RangeState) -> list[str]:
    return [line.item for line in standing_bill(needs, state, TABLE).lines]


def test_includes_agents_firewall_and_bastion_only_while_they_run() -> None:
    running = items(NEEDS, RangeState(agents_count=60))
    assert running[:4] == [
        "60 VM Standard_D4_v4", "1 VM Standard_B2als_v2", "1 Azure Firewall Premium", "1 bastion"
    ]  # fmt: skip
    assert "61 disk" in running
    parked = items(NEEDS, RangeState(parked=True))
    assert parked == [
        "1 VM Standard_B2als_v2", "3 nat gateway", "5 public address", "1 disk",
        "1 servicebus standard", "1 storage",
    ]  # fmt: skip


def test_parked_range_still_pays_for_appliances_and_private_endpoints() -> None:
    parked = items(PRIVATE, RangeState(parked=True))
    assert {"2 VM Standard_D16_v4", "1 servicebus premium", "3 private endpoint"} <= set(parked)
    total_usd = standing_bill(PRIVATE, RangeState(parked=True), TABLE).total_usd
    assert total_usd is not None
    assert total_usd == pytest.approx(
        2 * 16 * 0.048 + 0.0376 + 0.045 + 5 * 0.005 + 3 * 0.0033 + 0.928 + 3 * 0.01 + 0.005
    )


def test_unknown_prices_are_listed() -> None:
    bill = standing_bill(NEEDS | {"coordinator_size": "Standard_Z1"}, RangeState(), TABLE)
    assert bill.unknown == ("1 VM Standard_Z1",)
