"""What a lab looks like, as data: names, addresses, rates, the exact commands. Nothing runs here.

::

    <p>c001 --veth--+                              +--veth-- <p>s001
    <p>c002 --veth--+ <p>csw (br0) - <p>fw - <p>ssw (br0) +--veth-- <p>s002
      10.1.1.i           c0 10.1.0.1 | 10.2.0.1 s0           10.2.1.i

``<p>`` is the lab's prefix; every box is a network namespace. Each host and the firewall also
have ``mg0`` on the management switch ``<p>mg``, whose uplink is the interface ``<p>mg`` of the
namespace in which the lab was built: there a broker can listen for the agents, and over it runs
the time service, out of the way of the bursts. Management addresses are taken from 198.18.0.0/15,
which RFC 2544 keeps for benchmarks. Each lab has a /22 of it that no other interface of the machine
uses (:func:`broadside.lab.network.free_slot`): of two labs with the same one, the agents of the
second never get an answer.

Neighbour entries are static: the kernel's neighbour table is one for all namespaces and holds
1,024 dynamic entries, which 85 pairs would fill; and no burst begins with an ARP exchange.
"""

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final, Literal

from broadside.exchange.messages import Role
from broadside.lab.errors import LabMisconfigured

PAIRS_MAX: Final = 250
PREFIX_PATTERN: Final = re.compile(r"[a-z][a-z0-9]{0,8}")  # + "c001" or "mg" fits IFNAMSIZ
ETHERNET_HEADER_BYTES: Final = 14  # counted by qdiscs, not part of the IP layer
BURST_S: Final = 0.008  # s of line rate that a shaper lets through at once: two ticks at HZ=250
UNSHAPED_QUEUE_BYTES: Final = 16_000_000
CLIENT_NETWORK: Final = IPv4Address("10.1.0.0")  # /16; hosts from .1.1, the firewall is .0.1
SERVER_NETWORK: Final = IPv4Address("10.2.0.0")
MANAGEMENT_NETWORK: Final = IPv4Address("198.18.0.0")  # /15, RFC 2544 appendix C.2.2
MANAGEMENT_SLOTS_COUNT: Final = (
    127  # /22 networks of the /15; by 128 two of the demos' labs share one
)
TWIN_NETWORK: Final = IPv4Address("10.3.0.0")  # /28: a /30 a cable
TWIN_TABLES: Final = {Role.CLIENT: 101, Role.SERVER: 102}  # of routes, by where a packet came in
NTP_OVER_LOOPBACK: Final = "127.0.0.1"  # chronyd answers chronyc there, one in each namespace

Tool = Literal["ip", "tc", "nft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSpec:
    """What to build. The defaults are the ones measured to be faithful at 8 streams a pair.

    Rates are those of the IP layer and already scaled: 100 Mbit/s stands for a 10 Gbit/s VM at
    ``scale`` 100. ``None`` leaves a link unshaped. Raises :class:`LabMisconfigured`.
    """

    pairs_count: int
    prefix: str = "bs"
    scale: int = 100  # the lab is 1:scale of the real thing; told, not applied
    nic_bits_per_second: int | None = 100_000_000  # each host's link, each way
    firewall_bits_per_second: int | None = 1_800_000_000  # each of its two links, outward
    mtu: int = 1500
    queue_s: float = 0.1  # s of line rate that a shaper holds before it drops
    initcwnd: int = 4  # packets; a scaled link with the usual 10 starts with a loss
    notsent_lowat_bytes: int = 16_384  # keeps unsent payload out of the sender's account
    wmem_bytes: tuple[int, int, int] = (4096, 16_384, 262_144)  # min, default, max
    congestion: str = "cubic"
    # Which /22 is its management network: chosen when it is built. None: the first to try.
    management_slot: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.pairs_count <= PAIRS_MAX:
            raise LabMisconfigured(f"pairs_count {self.pairs_count}: use 1 to {PAIRS_MAX}")
        check_prefix(self.prefix)
        if not 576 <= self.mtu <= 9216:
            raise LabMisconfigured(f"mtu {self.mtu}: use 576 to 9216")
        if not 0 < self.queue_s <= 10:
            raise LabMisconfigured(f"queue_s {self.queue_s}: use a time above 0 and up to 10")
        for name, rate in (
            ("nic_bits_per_second", self.nic_bits_per_second),
            ("firewall_bits_per_second", self.firewall_bits_per_second),
        ):
            if rate is not None and rate < 100_000:
                raise LabMisconfigured(f"{name} {rate}: use at least 100000, or none for no limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One client or server VM of the lab."""

    name: str  # "c001", "s001"
    role: Role
    namespace: str | None  # None: it shares the machine's own network
    address: str  # where the pair's traffic leaves or arrives
    nic: str  # the interface with that address
    management_address: str | None = None
    chrony: str | None = None  # what `chronyc -h` needs inside the namespace; None: no own chronyd


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A lab that stands, or the loopback in place of one."""

    spec: LabSpec
    path: Path  # folder of its state: spec.json, ledger.csv, logs
    clients: tuple[Host, ...]
    servers: tuple[Host, ...]
    firewall_namespace: str | None = None
    ledger_path: Path | None = None  # broadside.lab.ledger describes the file; None: nothing counts
    management_address: str | None = None  # where agents find a broker on this side; None: nowhere
    limits: tuple[str, ...] = ()  # what this lab cannot show, a sentence each

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self.clients + self.servers


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Lines for one run of ``ip -batch``, ``tc -batch`` or ``nft -f`` in one namespace."""

    namespace: str | None  # None: the one in which the lab is built
    tool: Tool
    lines: tuple[str, ...]


def check_prefix(prefix: str) -> None:
    """Raises :class:`LabMisconfigured` for a prefix that names would not fit."""
    if not PREFIX_PATTERN.fullmatch(prefix):
        raise LabMisconfigured(
            f"prefix {prefix!r}: use a lower-case letter and up to eight letters or digits"
        )


# Names and addresses ----------------------------------------------------------------------------


def host_names(spec: LabSpec, role: Role) -> tuple[str, ...]:
    """``c001``.. or ``s001``.."""
    return tuple(f"{role.value[0]}{index:03d}" for index in range(1, spec.pairs_count + 1))


def firewall_namespace(prefix: str) -> str:
    return prefix + "fw"


def switch_namespace(prefix: str, role: Role) -> str:
    return f"{prefix}{role.value[0]}sw"


def management_name(prefix: str) -> str:
    """The management switch's namespace, and the interface that leads to it."""
    return prefix + "mg"


def namespaces(spec: LabSpec) -> tuple[str, ...]:
    """Every namespace of the lab."""
    hosts = host_names(spec, Role.CLIENT) + host_names(spec, Role.SERVER)
    fixed = (
        firewall_namespace(spec.prefix),
        switch_namespace(spec.prefix, Role.CLIENT),
        switch_namespace(spec.prefix, Role.SERVER),
        management_name(spec.prefix),
    )
    return fixed + tuple(spec.prefix + name for name in hosts)


def belongs(namespace: str, prefix: str) -> bool:
    """Whether a namespace's name is one that a lab of this prefix, of any size, would use."""
    suffix = namespace.removeprefix(prefix)
    return namespace.startswith(prefix) and bool(
        re.fullmatch(r"[cs]\d{3}|f[abw]|[cs]sw|mg", suffix)
    )


def data_address(role: Role, index: int) -> IPv4Address:
    """The address of host ``index`` (from 1) on its subnet; index 0 is the firewall's."""
    network = CLIENT_NETWORK if role is Role.CLIENT else SERVER_NETWORK
    return network + (256 + index if index else 1)


def first_slot(prefix: str) -> int:
    """The management network that a lab of this prefix takes where it is free."""
    return zlib.crc32(prefix.encode()) % MANAGEMENT_SLOTS_COUNT


def management_network(spec: LabSpec) -> IPv4Network:
    """The lab's own /22."""
    slot = first_slot(spec.prefix) if spec.management_slot is None else spec.management_slot
    return slot_network(slot)


def slot_network(slot: int) -> IPv4Network:
    """The /22 of a slot."""
    return IPv4Network((MANAGEMENT_NETWORK + 1024 * slot, 22))


def management_address(
    spec: LabSpec, member: Literal["broker", "firewall"] | Role, index: int = 0
) -> IPv4Address:
    """The broker's side of the uplink, the firewall, or host ``index`` (from 1)."""
    offset = {"broker": 1, "firewall": 2, Role.CLIENT: 256 + index, Role.SERVER: 512 + index}
    return management_network(spec)[offset[member]]


def mac(address: IPv4Address) -> str:
    """A locally administered MAC that spells the address, so that neighbours need not ask."""
    return ":".join(f"{byte:02x}" for byte in b"\x02\x00" + address.packed)


def build_lab(spec: LabSpec, path: Path) -> Lab:
    """The lab that :func:`batches` builds, as its users see it."""

    def hosts(role: Role) -> tuple[Host, ...]:
        return tuple(
            Host(
                name=name,
                role=role,
                namespace=spec.prefix + name,
                address=str(data_address(role, index)),
                nic="eth0",
                management_address=str(management_address(spec, role, index)),
                chrony=NTP_OVER_LOOPBACK,
            )
            for index, name in enumerate(host_names(spec, role), 1)
        )

    return Lab(
        spec=spec,
        path=path,
        clients=hosts(Role.CLIENT),
        servers=hosts(Role.SERVER),
        firewall_namespace=firewall_namespace(spec.prefix),
        ledger_path=path / "ledger.csv",
        management_address=str(management_address(spec, "broker")),
    )


# Two firewalls behind a balancer -----------------------------------------------------------------
#
#             ca -- c0 <p>fa s0 -- sa
#   c0 <p>fw                          <p>fw s0      the same namespace at both ends: the balancer
#             cb -- c0 <p>fb s0 -- sb


TWIN_LETTERS: Final = "ab"


def twin_namespaces(prefix: str) -> tuple[str, str]:
    """The two firewalls that a balancer spreads flows over."""
    return prefix + "fa", prefix + "fb"


def twin_batches(spec: LabSpec, bits_per_second: int | None) -> tuple[Batch, ...]:
    """Lay both firewalls, each with a rate of its own; one after another."""
    balancer = firewall_namespace(spec.prefix)
    twins = twin_namespaces(spec.prefix)
    cables, plugs = [], []
    insides = []
    for letter, twin in zip(TWIN_LETTERS, twins, strict=True):
        lines = ["link set lo up"]
        for role, side in ((Role.CLIENT, "c"), (Role.SERVER, "s")):
            near, far = twin_addresses(letter, role)
            network = CLIENT_NETWORK if role is Role.CLIENT else SERVER_NETWORK
            cables.append(
                f"link add {side}{letter} netns {balancer} mtu {spec.mtu} type veth "
                f"peer name {side}0 netns {twin} mtu {spec.mtu}"
            )
            plugs += [f"addr add {near}/30 dev {side}{letter}", f"link set {side}{letter} up"]
            lines += [
                f"addr add {far}/30 dev {side}0",
                f"link set {side}0 up",
                f"route add {network}/16 via {near} dev {side}0",
            ]
        insides.append(Batch(namespace=twin, tool="ip", lines=tuple(lines)))
    shapers = tuple(shaper(device, bits_per_second, spec) for device in ("c0", "s0"))
    return (
        Batch(namespace=None, tool="ip", lines=tuple(cables)),
        Batch(namespace=balancer, tool="ip", lines=tuple(plugs)),
        *insides,
        *(Batch(namespace=twin, tool="tc", lines=shapers) for twin in twins),
    )


def twin_addresses(letter: str, role: Role) -> tuple[IPv4Address, IPv4Address]:
    """The balancer's and the firewall's end of one cable."""
    at = TWIN_NETWORK + 8 * TWIN_LETTERS.index(letter) + (4 if role is Role.SERVER else 0)
    return at + 1, at + 2


def twin_ways(weights: Mapping[str, int]) -> tuple[str, ...]:
    """``ip`` lines: what arrives at the balancer goes to these firewalls, by flow."""
    lines = []
    for role, table in TWIN_TABLES.items():
        side = role.value[0]
        ways = " ".join(
            f"nexthop via {twin_addresses(letter, role)[1]} dev {side}{letter} weight {weight}"
            for letter, weight in weights.items()
        )
        lines.append(f"route replace table {table} default {ways}")
    return tuple(lines)


# Commands ---------------------------------------------------------------------------------------


def namespace_batch(spec: LabSpec) -> Batch:
    """First: make the namespaces."""
    lines = tuple(f"netns add {namespace}" for namespace in namespaces(spec))
    return Batch(namespace=None, tool="ip", lines=lines)


def sysctls(spec: LabSpec, namespace: str) -> dict[str, str]:
    """Second: settings of one namespace, by path below ``/proc/sys/net``."""
    values = {"ipv6/conf/all/disable_ipv6": "1"}  # only where the kernel has IPv6
    if namespace == firewall_namespace(spec.prefix):
        return values | {"ipv4/ip_forward": "1"}
    return values | {
        "ipv4/tcp_notsent_lowat": str(spec.notsent_lowat_bytes),
        "ipv4/tcp_wmem": " ".join(map(str, spec.wmem_bytes)),
    }


def link_batch(spec: LabSpec) -> Batch:
    """Third: every cable, made from outside so that one process lays them all."""
    prefix = spec.prefix
    management = management_name(prefix)
    lines = []

    def cable(switch: str, port: str, namespace: str, device: str, address: IPv4Address) -> None:
        where = f"netns {namespace} " if namespace else ""
        lines.append(
            f"link add {port} netns {switch} mtu {spec.mtu} type veth "
            f"peer name {device} {where}mtu {spec.mtu} address {mac(address)}"
        )

    for role, device in ((Role.CLIENT, "c0"), (Role.SERVER, "s0")):
        switch = switch_namespace(prefix, role)
        cable(switch, "fw", firewall_namespace(prefix), device, data_address(role, 0))
        for index, name in enumerate(host_names(spec, role), 1):
            cable(switch, f"p{index}", prefix + name, "eth0", data_address(role, index))
            mine = management_address(spec, role, index)
            cable(management, name, prefix + name, "mg0", mine)
    gate = management_address(spec, "firewall")
    cable(management, "fw", firewall_namespace(prefix), "mg0", gate)
    cable(management, "uplink", "", management, management_address(spec, "broker"))
    return Batch(namespace=None, tool="ip", lines=tuple(lines))


def address_batches(spec: LabSpec) -> tuple[Batch, ...]:
    """Fourth: bridges, addresses, routes and neighbours; independent of each other."""
    prefix = spec.prefix
    return (
        *(_switch_batch(spec, switch) for switch in switch_ports(spec)),
        _firewall_batch(spec),
        Batch(
            namespace=None,
            tool="ip",
            lines=(
                f"addr add {management_address(spec, 'broker')}/22 dev {management_name(prefix)}",
                f"link set {management_name(prefix)} up",
                *_management_neighbours(spec, management_name(prefix)),
            ),
        ),
        *(
            _host_batch(spec, role, index)
            for role in Role
            for index in range(1, spec.pairs_count + 1)
        ),
    )


def switch_ports(spec: LabSpec) -> dict[str, tuple[str, ...]]:
    """The ports of each switch, by its namespace."""
    data = ("fw", *(f"p{index}" for index in range(1, spec.pairs_count + 1)))
    hosts = host_names(spec, Role.CLIENT) + host_names(spec, Role.SERVER)
    return {
        switch_namespace(spec.prefix, Role.CLIENT): data,
        switch_namespace(spec.prefix, Role.SERVER): data,
        management_name(spec.prefix): ("fw", "uplink", *hosts),
    }


def _switch_batch(spec: LabSpec, switch: str) -> Batch:
    lines = [
        f"link add br0 mtu {spec.mtu} type bridge mcast_snooping 0",
        "link set br0 up",
        *(f"link set dev {port} master br0 up" for port in switch_ports(spec)[switch]),
    ]
    return Batch(namespace=switch, tool="ip", lines=tuple(lines))


def _firewall_batch(spec: LabSpec) -> Batch:
    lines = ["link set lo up"]
    for role, device in ((Role.CLIENT, "c0"), (Role.SERVER, "s0")):
        lines += [f"addr add {data_address(role, 0)}/16 dev {device}", f"link set {device} up"]
        lines += [
            _neighbour(data_address(role, index), device)
            for index in range(1, spec.pairs_count + 1)
        ]
    mine = management_address(spec, "firewall")
    lines += [f"addr add {mine}/22 dev mg0", "link set mg0 up"]
    lines += _management_neighbours(spec, "mg0")
    return Batch(namespace=firewall_namespace(spec.prefix), tool="ip", lines=tuple(lines))


def _host_batch(spec: LabSpec, role: Role, index: int) -> Batch:
    # Congestion control goes with the route: a namespace may not choose one by sysctl that the
    # machine does not allow everybody, and would inherit the machine's default.
    gateway = data_address(role, 0)
    way = f"route add default via {gateway} initcwnd {spec.initcwnd} congctl {spec.congestion}"
    mine = management_address(spec, role, index)
    return Batch(
        namespace=spec.prefix + host_names(spec, role)[index - 1],
        tool="ip",
        lines=(
            "link set lo up",
            f"addr add {data_address(role, index)}/16 dev eth0",
            "link set eth0 up",
            _neighbour(gateway, "eth0"),
            way,
            f"addr add {mine}/22 dev mg0",
            "link set mg0 up",
            _neighbour(management_address(spec, "broker"), "mg0"),
            _neighbour(management_address(spec, "firewall"), "mg0"),
        ),
    )


def _neighbour(address: IPv4Address, device: str) -> str:
    return f"neigh replace {address} lladdr {mac(address)} dev {device} nud permanent"


def _management_neighbours(spec: LabSpec, device: str) -> Iterator[str]:
    for role in Role:
        for index in range(1, spec.pairs_count + 1):
            yield _neighbour(management_address(spec, role, index), device)


def rules_batch(spec: LabSpec) -> Batch:
    """The firewall's rules: count what is *offered* each way, forward nothing else.

    The hook comes before the egress shaper, so these counters hold what arrived to be forwarded;
    the shaper's own hold what was delivered. Sending the batch again starts them at zero.
    """
    return Batch(
        namespace=firewall_namespace(spec.prefix),
        tool="nft",
        lines=(
            "add table ip broadside",
            "delete table ip broadside",
            "table ip broadside {",
            "  counter offered_up { }",
            "  counter offered_down { }",
            "  chain forward {",
            "    type filter hook forward priority 0; policy drop;",
            '    iifname "c0" oifname { "s0", "ca", "cb" } counter name offered_up accept',
            '    iifname "s0" oifname { "c0", "sa", "sb" } counter name offered_down accept',
            '    iifname { "sa", "sb" } oifname "s0" accept',  # back from one of two firewalls
            '    iifname { "ca", "cb" } oifname "c0" accept',
            "  }",
            "}",
        ),
    )


FLOW: Final = "ip saddr . tcp sport . ip daddr . tcp dport"


def limits_batch(namespace: str, rules: Sequence[str]) -> Batch:
    """Rules of a profile, before a firewall's own; none: what was there goes."""
    lines = ["add table ip limits", "delete table ip limits"]
    if rules:
        lines += [
            "table ip limits {",
            f"  set known {{ typeof {FLOW}; flags dynamic; size 65535; }}",
            "  chain forward {",
            "    type filter hook forward priority -10; policy accept;",
            *(f"    {rule}" for rule in rules),
            "  }",
            "}",
        ]
    return Batch(namespace=namespace, tool="nft", lines=tuple(lines))


# Shaping ----------------------------------------------------------------------------------------


def shaper(device: str, bits_per_second: int | None, spec: LabSpec) -> str:
    """One ``tc`` line: a token bucket whose IP-layer rate is the one asked for.

    The bucket counts frames, header included; with full frames the IP layer gets ``mtu`` of
    every ``mtu + 14`` bytes. Without a rate a plain queue still counts what leaves. The two kinds
    have different handles because ``replace`` refuses to change the kind under one handle.
    """
    if bits_per_second is None:
        return f"qdisc replace dev {device} root handle 2: bfifo limit {UNSHAPED_QUEUE_BYTES}"
    frame_bytes = spec.mtu + ETHERNET_HEADER_BYTES
    frame_rate = round(bits_per_second * frame_bytes / spec.mtu)
    burst_bytes = max(round(frame_rate / 8 * BURST_S), 2 * frame_bytes)
    limit_bytes = round(frame_rate / 8 * spec.queue_s) + burst_bytes
    return (
        f"qdisc replace dev {device} root handle 1: "
        f"tbf rate {frame_rate}bit burst {burst_bytes} limit {limit_bytes}"
    )


def nic_batches(
    spec: LabSpec, bits_per_second: int | None, hosts: Sequence[Host] | None = None
) -> tuple[Batch, ...]:
    """Shape the hosts' links both ways: egress in the host, ingress as egress of its switch port.

    ``hosts`` limits it to some, such as one slow NIC.
    """
    chosen = {host.name for host in hosts} if hosts is not None else None
    batches = []
    for role in Role:
        at_switch = []
        for index, name in enumerate(host_names(spec, role), 1):
            if chosen is not None and name not in chosen:
                continue
            line = shaper("eth0", bits_per_second, spec)
            batches.append(Batch(namespace=spec.prefix + name, tool="tc", lines=(line,)))
            at_switch.append(shaper(f"p{index}", bits_per_second, spec))
        if at_switch:
            switch = switch_namespace(spec.prefix, role)
            batches.append(Batch(namespace=switch, tool="tc", lines=tuple(at_switch)))
    return tuple(batches)


def firewall_batch(spec: LabSpec, bits_per_second: int | None) -> Batch:
    """Shape what leaves the firewall, each way by itself."""
    lines = tuple(shaper(device, bits_per_second, spec) for device in ("c0", "s0"))
    return Batch(namespace=firewall_namespace(spec.prefix), tool="tc", lines=lines)
