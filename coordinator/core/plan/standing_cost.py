"""Cost per hour of the resources of a range on Azure, with or without runs. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from broadside.coordinator.core.plan.price import (
    Bill,
    FirewallPrices,
    Price,
    Prices,
    bill_line,
    exactly,
    sum_bill,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeState:
    """State of a range for which the cost is computed.

    Attributes:
        agents_count: Number of agent VMs.
        parked: True if the firewall and Bastion are deallocated (``broadside park``).
    """

    agents_count: int = 0
    parked: bool = False


def standing_bill(needs: Mapping[str, Any], state: RangeState, prices: Prices) -> Bill:
    """Return the cost of a range for one hour.

    The coordinator is included for the whole hour, although it can stop in the evening. A firewall
    that existed before the range is not included.

    Args:
        needs: Requirements that Terraform computes from the variables (``local.needs``).
        state: State of the range.
        prices: The price table to use.
    """
    return sum_bill(
        [
            bill_line(f"{count} {name}", "hours", exactly(float(count)), price)
            for name, count, price in _items(needs, state, prices)
            if count
        ]
    )


def _items(
    needs: Mapping[str, Any], state: RangeState, prices: Prices
) -> Iterator[tuple[str, int, Price | None]]:
    """Yield name, number and price of all resources that are billed by the hour."""
    machines = Counter({str(needs["vm_size"]): state.agents_count})
    machines[str(needs["coordinator_size"])] += 1
    if needs["nva_count"]:
        machines[str(needs["nva_size"])] += int(needs["nva_count"])
    for size, count in machines.items():
        yield f"VM {size}", count, prices.of_vm(size)
    if needs["appliance"] == "azure-firewall" and not state.parked:
        tier = str(needs["firewall_tier"])
        firewall = prices.firewall.get(tier.lower(), FirewallPrices())
        yield f"Azure Firewall {tier}", 1, firewall.deployment_hour
    counts = {
        "bastion": int(needs["bastion"] and not state.parked),
        "nat_gateway": int(needs["nat_gateways_count"]),
        "public_address": int(needs["public_addresses_count"]),
        "disk": machines.total(),
        "servicebus_premium": int(needs["private_endpoints"]),
        "servicebus_standard": int(not needs["private_endpoints"]),
        # They are used for blobs, tables and the queue.
        "private_endpoint": 3 * int(needs["private_endpoints"]),
        "storage": 1,
    }
    for name, count in counts.items():
        yield name.replace("_", " "), count, prices.standing_hour.get(name)
