"""Quota check for ``broadside up --check``, to be used before any resource is created."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from broadside.coordinator.core.plan.price import Prices

Record = Mapping[str, Any]
STANDING: Final = ("coordinator", "nat_gateways", "public_addresses", "exchange", "disk")


def shortages(
    needs: Record,
    *,
    compute: Sequence[Record],
    network: Sequence[Record],
    sizes: Sequence[Record],
    locations: Sequence[Record],
) -> Iterator[str]:
    """Yield a line for each quota or size that the subscription lacks.

    Args:
        needs: Requirements that Terraform computes from the variables.
        compute: Compute usages, as az lists them, like the following ones.
        network: Network usages.
        sizes: VM sizes.
        locations: Regions that the subscription can use.
    """
    region = needs["location"]
    known = {each["name"] for each in locations}
    if region not in known:
        yield f"location {region!r}: no region of this subscription; see: az account list-locations"
        return
    yield from _sizes(needs, sizes)
    for family, count in sorted(_vcpus(needs, sizes).items()):
        yield from _quota(compute, family, count, f"vCPUs of the family {family}", region)
    total = sum(_vcpus(needs, sizes).values())
    yield from _quota(compute, "cores", total, "regional vCPUs", region)
    count = int(needs["public_addresses_count"])
    for name in ("StandardSkuPublicIpAddresses", "PublicIPAddresses"):
        yield from _quota(network, name, count, "public addresses", region)


def _of_size(sizes: Sequence[Record], size: str) -> Record | None:
    return next((each for each in sizes if each["name"].lower() == size.lower()), None)


def _wanted(needs: Record) -> dict[str, int]:
    """Return how many machines are needed by VM size."""
    wanted = {str(needs["vm_size"]): 2 * int(needs["instances"])}
    coordinator = str(needs["coordinator_size"])
    wanted[coordinator] = wanted.get(coordinator, 0) + 1
    return wanted


def _vcpus(needs: Record, sizes: Sequence[Record]) -> dict[str, int]:
    """Return how many vCPUs are needed by family.

    Sizes that are not offered are skipped here. ``_sizes`` reports them.
    """
    found: dict[str, int] = {}
    for size, count in _wanted(needs).items():
        if offer := _of_size(sizes, size):
            each = next(
                int(told["value"]) for told in offer["capabilities"] if told["name"] == "vCPUs"
            )
            found[offer["family"]] = found.get(offer["family"], 0) + each * count
    return found


def _sizes(needs: Record, sizes: Sequence[Record]) -> Iterator[str]:
    region = needs["location"]
    for size in _wanted(needs):
        offer = _of_size(sizes, size)
        if offer is None:
            yield f"{size} is not offered in {region}; take another vm_size or location"
            continue
        for limit in offer.get("restrictions") or ():
            reason = limit.get("reasonCode", "unknown")
            yield (
                f"{size} in {region} is closed to this subscription ({reason}); ask for it: "
                "portal, Help + support, service and subscription limits"
            )
    zones = {zone for size in [needs["vm_size"]] for zone in _zones(_of_size(sizes, size))}
    for zone in sorted(set(needs.get("fleet_zones") or ()) - zones):
        yield f"{needs['vm_size']} is not offered in zone {zone} of {region}; see fleet_zones"


def _zones(offer: Record | None) -> Iterable[str]:
    return [zone for each in (offer or {}).get("locationInfo") or () for zone in each["zones"]]


def _quota(
    usages: Sequence[Record], name: str, count: int, what: str, region: str
) -> Iterator[str]:
    for each in usages:
        if each["name"]["value"].lower() != name.lower():
            continue
        used, limit = int(each["currentValue"]), int(each["limit"])
        if limit - used < count:
            label = re.sub(r"\s+", " ", each["name"]["localizedValue"])
            yield (
                f"{what} in {region}: {count} needed, {limit - used} free (limit {limit}, in use "
                f"{used}); ask for a limit of {used + count}: portal, Quotas, {label!r}"
            )


def usd_a_day(needs: Record, prices: Prices) -> tuple[float, float]:
    """Return the cost in USD for a parked day, and for a running day when there are no agents.

    Args:
        needs: Requirements that Terraform computes from the variables.
        prices: The prices to use.
    """
    standing = sum(prices.standing_hour[name].usd for name in STANDING)
    running = standing
    if needs["appliance"] == "azure-firewall":
        firewall = prices.firewall[str(needs["firewall_tier"]).lower()].deployment_hour
        running += firewall.usd if firewall else 0.0
    if needs["bastion"]:
        running += prices.standing_hour["bastion"].usd
    return 24 * standing, 24 * running
