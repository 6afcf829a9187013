"""Documented limits of firewalls and VM sizes, each with its date and source.

The source pages can change, so the tables need to be updated. A documented limit helps to explain a
constant rate, but it is not needed to detect one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedLimit:
    """One documented limit.

    Attributes:
        bits_per_second: Documented rate.
        as_of: Date of the source.
        source: Address of the page.
    """

    bits_per_second: float
    as_of: date
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CountLimit:
    """One documented limit of a number.

    Attributes:
        count: Documented number.
        as_of: Date of the source.
        source: Address of the page.
    """

    count: int
    as_of: date
    source: str


_CONNECTIONS_PAGE: Final = (
    "learn.microsoft.com/azure/virtual-network/virtual-machine-network-throughput"
)
_OPTIMIZED_PAGE: Final = (
    "learn.microsoft.com/azure/virtual-network/network-optimized-vm-network-connection-acceleration"
)
# Sizes with hardware for new connections have an n in their name, for example Standard_D8ns_v6.
_OPTIMIZED: Final = re.compile(r"standard_[de](\d+)[a-z]*n[a-z]*_v6")
_FIREWALL_PAGE: Final = "learn.microsoft.com/azure/firewall/firewall-performance"
_SIZES_PAGE: Final = "learn.microsoft.com/azure/virtual-machines/sizes"


def _firewalls(gbits: Mapping[str, float]) -> dict[str, DocumentedLimit]:
    """Return the limits by SKU from a table in Gbit/s."""
    return {
        sku: DocumentedLimit(
            bits_per_second=gbit * 1e9, as_of=date(2026, 3, 1), source=_FIREWALL_PAGE
        )
        for sku, gbit in gbits.items()
    }


def _sizes(template: str, mbits: Mapping[int, int]) -> dict[str, DocumentedLimit]:
    """Return the egress limits by VM size, over all NICs and destinations.

    ``template`` is the name of the size, with a placeholder for the number of vCPUs.
    """
    return {
        template.format(cores).lower(): DocumentedLimit(
            bits_per_second=mbit * 1e6, as_of=date(2026, 3, 4), source=_SIZES_PAGE
        )
        for cores, mbit in mbits.items()
    }


def _optimized(counts: Mapping[int, int]) -> dict[int, CountLimit]:
    """Return the limits of network-optimized sizes, by the smallest number of vCPUs."""
    return {
        cores: CountLimit(count=count, as_of=date(2025, 5, 19), source=_OPTIMIZED_PAGE)
        for cores, count in counts.items()
    }


def _of_cores(size: str | None, limits: Mapping[int, CountLimit]) -> CountLimit | None:
    """Return the limit of a network-optimized size, or None for another size."""
    match = None if size is None else _OPTIMIZED.fullmatch(size.lower())
    steps = [] if match is None else [cores for cores in limits if cores <= int(match[1])]
    return limits[max(steps)] if steps else None


_D_V4: Final = {2: 5000, 4: 10000, 8: 12500, 16: 12500, 32: 16000, 48: 24000, 64: 30000}
_D_V5: Final = {
    2: 12500, 4: 12500, 8: 12500, 16: 12500, 32: 16000, 48: 24000, 64: 30000, 96: 35000,
}  # fmt: skip
_D_V6: Final = {
    2: 12500, 4: 12500, 8: 12500, 16: 12500, 32: 16000, 48: 24000, 64: 30000, 96: 41000,
    128: 54000, 192: 82000,
}  # fmt: skip
_F_V2: Final = {
    2: 5000, 4: 10000, 8: 12500, 16: 12500, 32: 16000, 48: 21000, 64: 28000, 72: 30000,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Documented limits for firewalls and virtual machines.

    Attributes:
        firewall: Limit of a firewall, by SKU.
        flow: Limit of one TCP connection through a firewall, by SKU.
        vm: Egress limit of a virtual machine, by size.
        vm_connections: Connections of a virtual machine at the same time, over all NICs. Each has a
            flow in both directions. Accelerated networking does not change it.
        optimized_connections: The same for network-optimized sizes, by vCPUs.
        optimized_per_second: New connections per second of network-optimized sizes, by vCPUs. There
            is no documented number for other sizes.
        firewall_snat_ports: SNAT ports of a firewall for each public address and instance.
    """

    firewall: Mapping[str, DocumentedLimit]
    flow: Mapping[str, DocumentedLimit]
    vm: Mapping[str, DocumentedLimit]
    vm_connections: CountLimit
    optimized_connections: Mapping[int, CountLimit]
    optimized_per_second: Mapping[int, CountLimit]
    firewall_snat_ports: CountLimit

    @property
    def as_of(self) -> date:
        """Date of the newest entry in the tables."""
        return max(
            limit.as_of for table in (self.firewall, self.flow, self.vm) for limit in table.values()
        )

    def of_vm(self, size: str | None) -> float | None:
        """Return the egress limit of a VM size in bit/s, or None for an unknown size.

        Names are not case-sensitive.
        """
        limit = None if size is None else self.vm.get(size.lower())
        return None if limit is None else limit.bits_per_second

    def connections_of_vm(self, size: str | None) -> CountLimit:
        """Return the connections that a VM size has at the same time."""
        return _of_cores(size, self.optimized_connections) or self.vm_connections

    def per_second_of_vm(self, size: str | None) -> CountLimit | None:
        """Return the new connections per second of a VM size, or None if not documented."""
        return _of_cores(size, self.optimized_per_second)


DOCUMENTED: Final = Limits(
    firewall=_firewalls({"basic": 0.25, "standard": 30, "premium": 100, "premium-idps-deny": 22}),
    flow=_firewalls({"basic": 0.25, "standard": 1.5, "premium": 9, "premium-idps-deny": 0.6}),
    vm=_sizes("Standard_D{}_v4", _D_V4)
    | _sizes("Standard_D{}s_v4", _D_V4)
    | _sizes("Standard_D{}s_v5", _D_V5)
    | _sizes("Standard_D{}_v5", _D_V5)
    | _sizes("Standard_D{}s_v6", _D_V6)
    | _sizes("Standard_F{}s_v2", _F_V2),
    vm_connections=CountLimit(count=500_000, as_of=date(2025, 4, 15), source=_CONNECTIONS_PAGE),
    optimized_connections=_optimized(
        {2: 500_000, 8: 600_000, 16: 700_000, 32: 800_000, 48: 1_000_000, 64: 2_000_000}
        | {192: 4_000_000}
    ),
    optimized_per_second=_optimized(
        {2: 62_500, 8: 75_000, 16: 87_500, 32: 100_000, 48: 125_000, 64: 250_000, 192: 420_000}
    ),
    firewall_snat_ports=CountLimit(
        count=2496,
        as_of=date(2025, 5, 29),
        source="learn.microsoft.com/azure/nat-gateway/tutorial-hub-spoke-nat-firewall",
    ),
)
