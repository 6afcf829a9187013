"""Warnings for traffic that needs more connections than its hosts can have. Pure.

Agents report the limits of their hosts. A limit that is unknown causes no warning.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from broadside.coordinator.core.documented_limits import DOCUMENTED, CountLimit
from broadside.coordinator.core.run_spec import RunSpec
from broadside.exchange.engines import find, scaled
from broadside.exchange.engines.port import HostNeeds
from broadside.exchange.messages import Presence

# A process may not get a CPU for this time, in seconds. New connections wait in queues meanwhile.
STALL_S: Final = 0.1
# Descriptors that a process needs for everything else.
OTHER_FILES_COUNT: Final = 32
# Without SYN cookies, the last quarter of the SYN queue is for peers that are known.
SYN_QUEUE_RATIO: Final = 0.75
# Smallest number of instances of an Azure firewall.
INSTANCES_MIN: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """What an agent needs of a resource, and what it has.

    Attributes:
        agent: The agent.
        needed: Number that is needed.
        limit: Number that it has. None if unknown.
        source: Page and date of a documented limit.
    """

    agent: Presence
    needed: float
    limit: float | None
    source: str = ""

    @property
    def ratio(self) -> float:
        return 0.0 if self.limit is None else self.needed / max(1.0, self.limit)


def host_limit_warnings(
    spec: RunSpec, clients: Sequence[Presence], servers: Sequence[Presence]
) -> Iterator[str]:
    """Yield a warning for each limit of the hosts that a part of a run can reach.

    Args:
        spec: Specification of the part.
        clients: All client agents. Any of them can get a job.
        servers: Server agent of each pair.
    """
    engine, traffic = find(spec.traffic.engine), scaled(spec.traffic, spec.scale)
    needs = None if engine is None else engine.needs(traffic, spec.burst_s * spec.bursts_count)
    if needs is None or not servers:
        return
    pairs = Counter(server.agent_id for server in servers)
    pairs.update({client.agent_id: 1 for client in clients})
    agents = list({agent.agent_id: agent for agent in (*clients, *servers)}.values())
    ends = [*clients[: len(servers)], *servers]
    for what, uses, fix in (
        ("local ports", _ports(needs, clients), _PORTS_FIX),
        ("file descriptors", _files(needs, agents), "raise LimitNOFILE of its unit (ulimit -Hn)"),
        ("entries in its conntrack table", _tracked(needs, agents, pairs), _TRACKED_FIX),
        ("places in its accept queue", _accepts(needs, servers), "raise net.core.somaxconn"),
        ("places in its SYN queue", _syns(needs, servers), "set net.ipv4.tcp_syncookies=1"),
        ("connections of its VM", _of_vm(needs, agents, pairs), "use a larger VM size"),
        ("new connections/s of its VM", _new_of_vm(needs, agents, pairs), "use a larger VM size"),
        ("connections/s of a core", _core(needs, agents), "use faster cores"),
        ("connections/s of all its cores", _cores(needs, ends), "use larger hosts"),
    ):
        yield from _warning(needs, what, uses, fix)
    yield from _snat_warning(spec, needs, servers)


_PORTS_FIX: Final = (
    "raise net.ipv4.ip_local_port_range, or add addresses to its interface and set "
    "source_addresses=all"
)
_TRACKED_FIX: Final = (
    "raise net.netfilter.nf_conntrack_max, or exclude the traffic from conntrack (notrack)"
)


def _warning(needs: HostNeeds, what: str, uses: Iterable[_Use], fix: str) -> Iterator[str]:
    """Yield a warning with the agent that has least of a resource, if any has too little."""
    known = [use for use in uses if use.limit is not None]
    short = [use for use in known if use.ratio > 1]
    if short:
        worst = max(short, key=lambda use: (use.ratio, use.agent.agent_id))
        yield (
            f"traffic.options.{needs.field}: {worst.agent.agent_id} needs up to "
            f"{worst.needed:,.0f} {what} and has {worst.limit:,.0f}{worst.source} ({len(short)} of "
            f"{len(known)} agents have too few); {needs.fix}, or {fix}"
        )


def _sysctl(agent: Presence, name: str, place: int = 0) -> float | None:
    """Return a number in a kernel setting of an agent's host, or None if it is unknown."""
    values = agent.passport.sysctls.get(name, "").split() if agent.passport else []
    return float(values[place]) if len(values) > place and values[place].isdigit() else None


def _ports(needs: HostNeeds, clients: Sequence[Presence]) -> Iterator[_Use]:
    for client in clients:
        first = _sysctl(client, "net.ipv4.ip_local_port_range")
        last = _sysctl(client, "net.ipv4.ip_local_port_range", 1)
        if first is not None and last is not None:
            known = client.passport.nic_addresses_count if client.passport else None
            addresses = known or 1 if needs.uses_all_addresses else 1
            limit = (last - first + 1) * addresses
            yield _Use(agent=client, needed=needs.ports_count, limit=limit)


def _files(needs: HostNeeds, agents: Sequence[Presence]) -> Iterator[_Use]:
    """Yield the descriptors of a process. Each pair has its own at both ends."""
    for agent in agents:
        limit = agent.passport.files_max_count if agent.passport else None
        yield _Use(agent=agent, needed=needs.open_count + OTHER_FILES_COUNT, limit=limit)


def _tracked(
    needs: HostNeeds, agents: Sequence[Presence], pairs: Mapping[str, int]
) -> Iterator[_Use]:
    for agent in agents:
        needed = pairs[agent.agent_id] * needs.tracked_count
        limit = _sysctl(agent, "net.netfilter.nf_conntrack_max")
        yield _Use(agent=agent, needed=needed, limit=limit)


def _accepts(needs: HostNeeds, servers: Sequence[Presence]) -> Iterator[_Use]:
    """Yield the accept queue of each port, while the server does not get a CPU."""
    for server in servers:
        limit = _sysctl(server, "net.core.somaxconn")
        yield _Use(agent=server, needed=needs.per_second * STALL_S, limit=limit)


def _syns(needs: HostNeeds, servers: Sequence[Presence]) -> Iterator[_Use]:
    """Yield the SYN queue. With SYN cookies (the default), it has no end."""
    for server in servers:
        queue = _sysctl(server, "net.ipv4.tcp_max_syn_backlog")
        if queue is not None and _sysctl(server, "net.ipv4.tcp_syncookies") == 0:
            needed = needs.per_second * STALL_S
            yield _Use(agent=server, needed=needed, limit=SYN_QUEUE_RATIO * queue)


def _documented(agent: Presence, needed: float, limit: CountLimit | None) -> Iterator[_Use]:
    if agent.vm_size and limit is not None:
        source = f" ({limit.source}, {limit.as_of})"
        yield _Use(agent=agent, needed=needed, limit=limit.count, source=source)


def _of_vm(
    needs: HostNeeds, agents: Sequence[Presence], pairs: Mapping[str, int]
) -> Iterator[_Use]:
    for agent in agents:
        needed = pairs[agent.agent_id] * needs.flows_count
        yield from _documented(agent, needed, DOCUMENTED.connections_of_vm(agent.vm_size))


def _new_of_vm(
    needs: HostNeeds, agents: Sequence[Presence], pairs: Mapping[str, int]
) -> Iterator[_Use]:
    for agent in agents:
        needed = pairs[agent.agent_id] * needs.per_second
        yield from _documented(agent, needed, DOCUMENTED.per_second_of_vm(agent.vm_size))


def _core(needs: HostNeeds, agents: Sequence[Presence]) -> Iterator[_Use]:
    """Yield the core that the process of a pair uses."""
    for agent in agents:
        yield _Use(agent=agent, needed=needs.per_second, limit=needs.core_per_second)


def _cores(needs: HostNeeds, ends: Sequence[Presence]) -> Iterator[_Use]:
    """Yield all cores of each host. Agents with the same boot id are on the same host."""
    hosts = {
        end.agent_id: (end.clock.boot_id if end.clock else None) or end.address for end in ends
    }
    count = Counter(hosts[end.agent_id] for end in ends)
    for end in ends:
        processes = count[hosts[end.agent_id]]
        if end.cpu_count and processes > 1:
            limit = end.cpu_count * needs.core_per_second
            yield _Use(agent=end, needed=processes * needs.per_second, limit=limit)


def _snat_warning(spec: RunSpec, needs: HostNeeds, servers: Sequence[Presence]) -> Iterator[str]:
    """Yield a warning for an Azure firewall, which translates traffic to public addresses."""
    limit = DOCUMENTED.firewall_snat_ports
    public = sum(ip_address(server.address).is_global for server in servers)
    units = spec.device.get("capacity_units", "")
    ports = limit.count * (int(units) if units.isdigit() else INSTANCES_MIN)
    if spec.sku is not None and public * needs.flows_count > ports:
        yield (
            f"traffic.options.{needs.field}: {public} pairs to public addresses need up to "
            f"{public * needs.flows_count:,.0f} SNAT ports, and the firewall has {ports:,} for "
            f"each of its public addresses ({limit.count:,} per instance, {limit.source}, "
            f"{limit.as_of}); {needs.fix}, or give it more public addresses"
        )
