"""Structure of a lab as data. Nothing is executed in this module.

The data includes names, addresses, rates and the exact commands::

    <p>c001 --veth--+                              +--veth-- <p>s001
    <p>c002 --veth--+ <p>csw (br0) - <p>fw - <p>ssw (br0) +--veth-- <p>s002
      10.1.1.i           c0 10.1.0.1 | 10.2.0.1 s0           10.2.1.i

``<p>`` is the lab's prefix, and every box is a network namespace. Each host and the firewall also
have ``mg0`` on the management switch ``<p>mg``. Its uplink is the interface ``<p>mg`` in the
namespace where the lab was built. A broker can listen for agents on this interface. It is also used
for time synchronization, so that this does not affect the bursts.

Management addresses are from 198.18.0.0/15, which RFC 2544 reserves for benchmarks. Each lab uses a
/22 that is not in use by another interface on this host (:func:`broadside.lab.network.free_slot`).
If two labs used the same one, agents in the second lab would get no response.

Neighbour entries are static. The kernel has a single neighbour table for all namespaces, with at
most 1,024 dynamic entries. 85 pairs would fill it. With static entries, no burst begins with an ARP
exchange.
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
# After we add "c001" or "mg", the name should fit in IFNAMSIZ.
PREFIX_PATTERN: Final = re.compile(r"[a-z][a-z0-9]{0,8}")
# Qdiscs count these bytes, but they are not part of the IP layer.
ETHERNET_HEADER_BYTES: Final = 14
# Burst size of a shaper as time at line rate, which is two ticks at HZ=250.
BURST_S: Final = 0.008
UNSHAPED_QUEUE_BYTES: Final = 16_000_000
# These are /16 networks. Hosts start at .1.1 and the firewall is .0.1.
CLIENT_NETWORK: Final = IPv4Address("10.1.0.0")
SERVER_NETWORK: Final = IPv4Address("10.2.0.0")
# A /15 network (RFC 2544, appendix C.2.2).
MANAGEMENT_NETWORK: Final = IPv4Address("198.18.0.0")
MANAGEMENT_SLOTS_COUNT: Final = (
    # Number of /22 networks in the /15. With 128, the hashes of two demo prefixes would be equal.
    127
)
# A /28 network, with a /30 for each link.
TWIN_NETWORK: Final = IPv4Address("10.3.0.0")
# Routing tables by the side where a packet arrives.
TWIN_TABLES: Final = {Role.CLIENT: 101, Role.SERVER: 102}
# In each namespace, chronyd listens for chronyc on this address.
NTP_OVER_LOOPBACK: Final = "127.0.0.1"

NetworkTool = Literal["ip", "tc", "nft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSpec:
    """Specification of a lab.

    Measurements with the default values are accurate at 8 streams per pair. Rates are for the IP
    layer and already scaled. With ``scale`` 100, 100 Mbit/s simulates a VM with 10 Gbit/s.

    Attributes:
        pairs_count: Number of pairs.
        prefix: Prefix for all names.
        scale: The lab is a 1:scale model. This value is only shown, not applied.
        nic_bits_per_second: Rate for each host link and direction, or ``None`` for no limit.
        firewall_bits_per_second: Egress rate for both firewall links, or ``None`` for no limit.
        mtu: MTU in bytes.
        queue_s: Size of a shaper's queue, as seconds at line rate.
        initcwnd: Initial window in packets. With the usual 10, a scaled link starts with a loss.
        notsent_lowat_bytes: Limit to avoid counting unsent payload as sent.
        wmem_bytes: Minimum, default and maximum of ``tcp_wmem``.
        congestion: TCP congestion control.
        management_slot: Index of the management network, chosen when the lab is built. ``None``
            uses the first one to try.

    Raises:
        LabMisconfigured: A field is out of range.
    """

    pairs_count: int
    prefix: str = "bs"
    scale: int = 100
    nic_bits_per_second: int | None = 100_000_000
    firewall_bits_per_second: int | None = 1_800_000_000
    mtu: int = 1500
    queue_s: float = 0.1
    initcwnd: int = 4
    notsent_lowat_bytes: int = 16_384
    wmem_bytes: tuple[int, int, int] = (4096, 16_384, 262_144)
    congestion: str = "cubic"
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
class LabHost:
    """Client or server VM in the lab.

    Attributes:
        name: Name, such as "c001" or "s001".
        role: Client or server.
        namespace: Network namespace, or ``None`` to use the host's network.
        address: Address for the traffic of its pair.
        nic: Interface with this address.
        management_address: Address in the management network.
        chrony: Value for ``chronyc -h`` inside the namespace, or ``None`` without a chronyd.
    """

    name: str
    role: Role
    namespace: str | None
    address: str
    nic: str
    management_address: str | None = None
    chrony: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Running lab, or its replacement on loopback.

    Attributes:
        spec: Specification.
        path: Folder for the state (spec.json, counter.csv, logs).
        clients: Client hosts.
        servers: Server hosts.
        firewall_namespace: Namespace of the firewall, or ``None`` on loopback.
        counter_path: Path to the file of :mod:`broadside.lab.byte_counter`, or ``None`` without it.
        management_address: Address where agents can connect to a broker, or ``None``.
        limits: A sentence for each limitation of this lab.
    """

    spec: LabSpec
    path: Path
    clients: tuple[LabHost, ...]
    servers: tuple[LabHost, ...]
    firewall_namespace: str | None = None
    counter_path: Path | None = None
    management_address: str | None = None
    limits: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[LabHost, ...]:
        return self.clients + self.servers


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Commands to pass to ``ip -batch``, ``tc -batch`` or ``nft -f`` in a namespace.

    Attributes:
        namespace: Namespace to use, or ``None`` for the one where the lab is built.
        tool: Program to run.
        lines: Lines to pass to it.
    """

    namespace: str | None
    tool: NetworkTool
    lines: tuple[str, ...]


def check_prefix(prefix: str) -> None:
    """Check the length and the characters of a prefix.

    Raises:
        LabMisconfigured: The prefix is too long or has other characters.
    """
    if not PREFIX_PATTERN.fullmatch(prefix):
        raise LabMisconfigured(
            f"prefix {prefix!r}: use a lower-case letter and up to eight letters or digits"
        )


# Names and addresses ----------------------------------------------------------------------------


def host_names(spec: LabSpec, role: Role) -> tuple[str, ...]:
    """Return ``c001``, ``c002``... or ``s001``, ``s002``...

    Args:
        spec: Specification with the number of pairs.
        role: Role of the hosts, which decides the letter.

    Returns:
        Names in ascending order, one for each pair.
    """
    return tuple(f"{role.value[0]}{index:03d}" for index in range(1, spec.pairs_count + 1))


def firewall_namespace(prefix: str) -> str:
    """Return the namespace of the firewall."""
    return prefix + "fw"


def switch_namespace(prefix: str, role: Role) -> str:
    """Return the namespace of the switch for a role.

    Args:
        prefix: Prefix of all namespaces of the lab.
        role: Role of the hosts at the switch.
    """
    return f"{prefix}{role.value[0]}sw"


def management_name(prefix: str) -> str:
    """Return the name of the management switch's namespace and of the uplink."""
    return prefix + "mg"


def namespaces(spec: LabSpec) -> tuple[str, ...]:
    """Return all namespaces of the lab."""
    hosts = host_names(spec, Role.CLIENT) + host_names(spec, Role.SERVER)
    fixed = (
        firewall_namespace(spec.prefix),
        switch_namespace(spec.prefix, Role.CLIENT),
        switch_namespace(spec.prefix, Role.SERVER),
        management_name(spec.prefix),
    )
    return fixed + tuple(spec.prefix + name for name in hosts)


def belongs(namespace: str, prefix: str) -> bool:
    """Return True if a lab with this prefix, of any size, would use this namespace.

    Args:
        namespace: Name of the namespace.
        prefix: Prefix of the lab.
    """
    suffix = namespace.removeprefix(prefix)
    return namespace.startswith(prefix) and bool(
        re.fullmatch(r"[cs]\d{3}|f[abw]|[cs]sw|mg", suffix)
    )


def data_address(role: Role, index: int) -> IPv4Address:
    """Return the address of a host on its subnet.

    Args:
        role: Subnet to use.
        index: Index of the host, starting at 1. Use 0 for the firewall.
    """
    network = CLIENT_NETWORK if role is Role.CLIENT else SERVER_NETWORK
    return network + (256 + index if index else 1)


def first_slot(prefix: str) -> int:
    """Return the management network to try first for this prefix."""
    return zlib.crc32(prefix.encode()) % MANAGEMENT_SLOTS_COUNT


def management_network(spec: LabSpec) -> IPv4Network:
    """Return the lab's management network (a /22)."""
    slot = first_slot(spec.prefix) if spec.management_slot is None else spec.management_slot
    return slot_network(slot)


def slot_network(slot: int) -> IPv4Network:
    """Return the /22 network for a slot."""
    return IPv4Network((MANAGEMENT_NETWORK + 1024 * slot, 22))


def management_address(
    spec: LabSpec, member: Literal["broker", "firewall"] | Role, index: int = 0
) -> IPv4Address:
    """Return an address in the management network.

    Args:
        spec: Specification of the lab.
        member: Broker, firewall, or the role of a host.
        index: Index of the host, starting at 1.
    """
    offset = {"broker": 1, "firewall": 2, Role.CLIENT: 256 + index, Role.SERVER: 512 + index}
    return management_network(spec)[offset[member]]


def mac(address: IPv4Address) -> str:
    """Return a locally administered MAC address that contains the IP address."""
    return ":".join(f"{byte:02x}" for byte in b"\x02\x00" + address.packed)


def build_lab(spec: LabSpec, path: Path) -> Lab:
    """Return the lab for a specification. Nothing is executed.

    Args:
        spec: Specification of the lab.
        path: Folder for the state.
    """

    def hosts(role: Role) -> tuple[LabHost, ...]:
        return tuple(
            LabHost(
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
        counter_path=path / "counter.csv",
        management_address=str(management_address(spec, "broker")),
    )


# Two firewalls behind a balancer -----------------------------------------------------------------
#
#             ca -- c0 <p>fa s0 -- sa
#   c0 <p>fw                          <p>fw s0      the same namespace at both ends: the balancer
#             cb -- c0 <p>fb s0 -- sb


TWIN_LETTERS: Final = "ab"


def twin_namespaces(prefix: str) -> tuple[str, str]:
    """Return the namespaces of the two firewalls behind the balancer."""
    return prefix + "fa", prefix + "fb"


def twin_batches(spec: LabSpec, bits_per_second: int | None) -> tuple[Batch, ...]:
    """Return the commands to create both twins, to be run in this order.

    Args:
        spec: Specification of the lab.
        bits_per_second: Rate of each twin, or ``None`` for no limit.

    Returns:
        Batches of commands.
    """
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
    """Return the addresses of the balancer and of the twin on a link.

    Args:
        letter: Letter of the twin.
        role: Side of the link.

    Returns:
        Address of the balancer, and address of the twin.
    """
    at = TWIN_NETWORK + 8 * TWIN_LETTERS.index(letter) + (4 if role is Role.SERVER else 0)
    return at + 1, at + 2


def twin_routes(weights: Mapping[str, int]) -> tuple[str, ...]:
    """Return ``ip`` lines to spread flows over the twins by weight."""
    lines = []
    for role, table in TWIN_TABLES.items():
        side = role.value[0]
        text = " ".join(
            f"nexthop via {twin_addresses(letter, role)[1]} dev {side}{letter} weight {weight}"
            for letter, weight in weights.items()
        )
        lines.append(f"route replace table {table} default {text}")
    return tuple(lines)


# Commands ---------------------------------------------------------------------------------------


def namespace_batch(spec: LabSpec) -> Batch:
    """Return the first step, to create the namespaces."""
    lines = tuple(f"netns add {namespace}" for namespace in namespaces(spec))
    return Batch(namespace=None, tool="ip", lines=lines)


def sysctls(spec: LabSpec, namespace: str) -> dict[str, str]:
    """Return the second step, settings for a namespace by path below ``/proc/sys/net``.

    Args:
        spec: Specification of the lab.
        namespace: Namespace to configure.

    Returns:
        Value by path, as text.
    """
    # This will be skipped if the kernel does not support IPv6.
    values = {"ipv6/conf/all/disable_ipv6": "1"}
    if namespace == firewall_namespace(spec.prefix):
        return values | {"ipv4/ip_forward": "1"}
    return values | {
        "ipv4/tcp_notsent_lowat": str(spec.notsent_lowat_bytes),
        "ipv4/tcp_wmem": " ".join(map(str, spec.wmem_bytes)),
    }


def link_batch(spec: LabSpec) -> Batch:
    """Return the third step, to create all links with a single process from outside."""
    prefix = spec.prefix
    management = management_name(prefix)
    lines = []

    def cable(switch: str, port: str, namespace: str, device: str, address: IPv4Address) -> None:
        place = f"netns {namespace} " if namespace else ""
        lines.append(
            f"link add {port} netns {switch} mtu {spec.mtu} type veth "
            f"peer name {device} {place}mtu {spec.mtu} address {mac(address)}"
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
    """Return the fourth step, for bridges, addresses, routes and neighbours.

    The batches can be run in any order.
    """
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
    """Return the ports of each switch by its namespace."""
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
    # Congestion control is set on the route. We cannot use sysctl in a namespace to select one that
    # the host does not allow for all users. If we did not set it, the default of the host would be
    # used.
    gateway = data_address(role, 0)
    text = f"route add default via {gateway} initcwnd {spec.initcwnd} congctl {spec.congestion}"
    mine = management_address(spec, role, index)
    return Batch(
        namespace=spec.prefix + host_names(spec, role)[index - 1],
        tool="ip",
        lines=(
            "link set lo up",
            f"addr add {data_address(role, index)}/16 dev eth0",
            "link set eth0 up",
            _neighbour(gateway, "eth0"),
            text,
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
    """Return the firewall rules, which count *offered* bytes.

    Only traffic between both sides is forwarded. The hook is before the egress shaper. These
    counters therefore include everything that arrived to be forwarded, and the shaper counts the
    delivered bytes. Running the batch again resets the counters.
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
            # This is traffic that returns from a twin.
            '    iifname { "sa", "sb" } oifname "s0" accept',
            '    iifname { "ca", "cb" } oifname "c0" accept',
            "  }",
            "}",
        ),
    )


FLOW: Final = "ip saddr . tcp sport . ip daddr . tcp dport"
# The same flow in a packet of the other direction.
FLOW_BACK: Final = "ip daddr . tcp dport . ip saddr . tcp sport"


def limits_batch(
    namespace: str,
    rules: Sequence[str],
    *,
    translates: bool = False,
    held_count: int | None = None,
) -> Batch:
    """Return the rules of a profile, which run before the firewall's own rules.

    Args:
        namespace: Namespace of the firewall.
        rules: Rules to set. Without rules, existing ones are removed.
        translates: Whether the source addresses of clients are translated (NAT).
        held_count: Size of the set ``held``. None if the rules do not use it.
    """
    lines = ["add table ip limits", "delete table ip limits"]
    lines += ["add table ip translation", "delete table ip translation"]
    if translates:
        lines += [
            "table ip translation {",
            "  chain postrouting {",
            "    type nat hook postrouting priority 100;",
            '    oifname "s0" masquerade',
            "  }",
            "}",
        ]
    if rules:
        lines += [
            "table ip limits {",
            f"  set known {{ typeof {FLOW}; flags dynamic; size 65535; }}",
            *_held_set(held_count),
            "  chain forward {",
            "    type filter hook forward priority -10; policy accept;",
            *(f"    {rule}" for rule in rules),
            "  }",
            "}",
        ]
    return Batch(namespace=namespace, tool="nft", lines=tuple(lines))


def _held_set(count: int | None) -> tuple[str, ...]:
    # A set has garbage collection, which frees the room of deleted flows, only with a timeout.
    flags = f"flags dynamic,timeout; timeout 1d; size {count}; gc-interval 1s;"
    return () if count is None else (f"  set held {{ typeof {FLOW}; {flags} }}",)


# Shaping ----------------------------------------------------------------------------------------


def shaper(device: str, bits_per_second: int | None, spec: LabSpec) -> str:
    """Return a ``tc`` line for a token bucket with the given rate at the IP layer.

    The bucket counts frames with their header. With full frames, ``mtu`` of every ``mtu + 14``
    bytes belong to the IP layer. Without a rate, a plain queue will be used to count packets. Both
    kinds have different handles, because ``replace`` cannot change the kind for a handle.

    Args:
        device: Interface to shape.
        bits_per_second: Rate at the IP layer, or ``None`` for no limit.
        spec: Specification of the lab.
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
    spec: LabSpec, bits_per_second: int | None, hosts: Sequence[LabHost] | None = None
) -> tuple[Batch, ...]:
    """Return the commands to shape host links in both directions.

    Egress is shaped in the host, ingress on the switch port.

    Args:
        spec: Specification of the lab.
        bits_per_second: Rate at the IP layer, or ``None`` for no limit.
        hosts: Hosts to change, or ``None`` for all.

    Returns:
        One batch for each namespace.
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
    """Return the commands to shape the firewall's egress, separately for each direction.

    Args:
        spec: Specification of the lab.
        bits_per_second: Rate at the IP layer, or ``None`` for no limit.
    """
    lines = tuple(shaper(device, bits_per_second, spec) for device in ("c0", "s0"))
    return Batch(namespace=firewall_namespace(spec.prefix), tool="tc", lines=lines)
