"""Device of several units that spread flows by hash and translate the source address per unit.

All units are in the firewall's namespace. A new flow gets a unit by the hash of its source address
and port, and keeps it as its conntrack mark. Each unit has an address for translation and a class
with its own rate towards the servers. Changes affect only new flows, unless a unit leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from broadside.exchange.messages import Role
from broadside.lab import network, topology
from broadside.lab.errors import LabMisconfigured
from broadside.lab.namespaces import run_batch, run_ip
from broadside.lab.topology import ETHERNET_HEADER_BYTES, Batch, Lab, LabSpec

UNITS_MAX: Final = 16
# Unit i has the address .255.i in the network of the servers.
_FIRST_ADDRESS: Final = topology.SERVER_NETWORK + 255 * 256
# Handle of the root queue in place of the firewall's shaper, which has 1: or 2:.
_ROOT: Final = "3:"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUnit:
    """One unit of the device.

    Attributes:
        number: Number from 1, which is also its mark.
        bits_per_second: Rate towards the servers at the IP layer. None for no limit.
        takes_flows: False if it gets no new flows (drain).
        carries: False if it has left, so that its flows are dropped.
    """

    number: int
    bits_per_second: int | None = None
    takes_flows: bool = True
    carries: bool = True

    @property
    def address(self) -> IPv4Address:
        return _FIRST_ADDRESS + self.number


def units(count: int, bits_per_second: int | None = None) -> tuple[DeviceUnit, ...]:
    """Return equal units.

    Args:
        count: Number of units, from 1.
        bits_per_second: Rate of each unit, or None for no limit.

    Returns:
        Units with the numbers 1, 2 and so on.

    Raises:
        LabMisconfigured: There are too many units, or none.
    """
    if not 1 <= count <= UNITS_MAX:
        raise LabMisconfigured(f"{count} units: use 1 to {UNITS_MAX}")
    return tuple(DeviceUnit(number=i + 1, bits_per_second=bits_per_second) for i in range(count))


def has_units(lab: Lab) -> bool:
    """Return True if the device consists of units."""
    return (lab.path / "units").exists()


def set_units(lab: Lab, chosen: Sequence[DeviceUnit]) -> None:
    """Make the device one of these units. Existing flows keep their unit.

    Without units, the device becomes what it was before.

    Args:
        lab: The lab.
        chosen: All units, or none.

    Raises:
        LabMisconfigured: No unit takes new flows, or the lab has no device.
        LabBroken: A command failed.
    """
    if lab.firewall_namespace is None:
        raise LabMisconfigured("this is plain loopback: it has no device with units")
    marker = lab.path / "units"
    if not chosen:
        if has_units(lab):
            run_batch(rules_batch(lab.firewall_namespace, ()))
            line = f"qdisc delete dev s0 root handle {_ROOT}"
            run_batch(Batch(namespace=lab.firewall_namespace, tool="tc", lines=(line,)))
            network.set_firewall_rate(lab, lab.spec.firewall_bits_per_second)
            marker.unlink()
        return
    if not any(unit.takes_flows and unit.carries for unit in chosen):
        raise LabMisconfigured("no unit would accept new flows; keep at least one")
    if not has_units(lab):
        _prepare(lab)
        marker.touch()
    run_batch(Batch(namespace=lab.firewall_namespace, tool="tc", lines=_classes(lab.spec, chosen)))
    run_batch(rules_batch(lab.firewall_namespace, chosen))


def _prepare(lab: Lab) -> None:
    """Add the addresses of all units, and replace the shaper towards the servers."""
    every = units(UNITS_MAX)
    mac = topology.mac(topology.data_address(Role.SERVER, 0))
    run_ip(lab.firewall_namespace, *(f"addr replace {unit.address}/32 dev s0" for unit in every))
    for host in lab.servers:
        run_ip(
            host.namespace,
            *(
                f"neigh replace {unit.address} lladdr {mac} dev {host.nic} nud permanent"
                for unit in every
            ),
        )
    lines = ("qdisc delete dev s0 root", f"qdisc add dev s0 root handle {_ROOT} htb")
    run_batch(Batch(namespace=lab.firewall_namespace, tool="tc", lines=lines))


def _classes(spec: LabSpec, chosen: Sequence[DeviceUnit]) -> tuple[str, ...]:
    """Return ``tc`` lines for a class with rate and queue for each unit."""
    frame_bytes = spec.mtu + ETHERNET_HEADER_BYTES
    lines = []
    for unit in chosen:
        rate = round((unit.bits_per_second or 10_000_000_000) * frame_bytes / spec.mtu)
        burst_bytes = max(round(rate / 8 * topology.BURST_S), 2 * frame_bytes)
        limit_bytes = max(round(rate / 8 * spec.queue_s), 8 * frame_bytes)
        name, handle = f"{_ROOT}{unit.number:x}", f"{100 + unit.number}:"
        shape = f"htb rate {rate}bit ceil {rate}bit burst {burst_bytes} cburst {burst_bytes}"
        lines += [
            f"class replace dev s0 parent {_ROOT} classid {name} {shape}",
            f"qdisc replace dev s0 parent {name} handle {handle} bfifo limit {limit_bytes}",
        ]
    return tuple(lines)


def rules_batch(namespace: str, chosen: Sequence[DeviceUnit]) -> Batch:
    """Return the rules to choose a unit for each flow, to translate and to count.

    Args:
        namespace: Namespace of the firewall.
        chosen: All units. Without units, the rules are removed.
    """
    lines = ["add table ip units", "delete table ip units"]
    if chosen:
        lines += ["table ip units {", *_counters(chosen), *_chains(chosen), "}"]
    return Batch(namespace=namespace, tool="nft", lines=tuple(lines))


def _counters(chosen: Sequence[DeviceUnit]) -> list[str]:
    return [f"  counter unit_{unit.number} {{ }}" for unit in chosen]


def _chains(chosen: Sequence[DeviceUnit]) -> list[str]:
    open_units = [unit.number for unit in chosen if unit.takes_flows and unit.carries]
    gone = [str(unit.number) for unit in chosen if not unit.carries]
    places = ", ".join(f"{place} : {number}" for place, number in enumerate(open_units))
    addresses = ", ".join(f"{unit.number} : {unit.address}" for unit in chosen)
    return [
        "  chain choose {",
        "    type filter hook prerouting priority mangle; policy accept;",
        *(
            f'    iifname "c0" ct state new ct mark set jhash ip saddr . {protocol} sport '
            f"mod {len(open_units)} map {{ {places} }}"
            for protocol in ("tcp", "udp")
        ),
        '    iifname "c0" meta mark set ct mark',
        "  }",
        "  chain shape {",
        "    type filter hook postrouting priority mangle; policy accept;",
        *(
            f'    oifname "s0" meta mark {unit.number} meta priority set {_ROOT}{unit.number:x} '
            f"counter name unit_{unit.number}"
            for unit in chosen
        ),
        "  }",
        "  chain translate {",
        "    type nat hook postrouting priority srcnat; policy accept;",
        f'    oifname "s0" snat to meta mark map {{ {addresses} }}',
        "  }",
        *(
            [
                "  chain gone {",
                "    type filter hook forward priority -5; policy accept;",
                f"    ct mark {{ {', '.join(gone)} }} drop",
                "  }",
            ]
            if gone
            else []
        ),
    ]
