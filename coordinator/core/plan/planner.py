"""Planner that converts a specification and the live fleet to a plan. Pure."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network

from broadside.coordinator.core import formatting
from broadside.coordinator.core.documented_limits import DOCUMENTED
from broadside.coordinator.core.guards import PROBE_QUANTITIES
from broadside.coordinator.core.long_run_checks import control_warning, hard_end_problem
from broadside.coordinator.core.measure.formulas.headers import (
    OVERHEAD_MORE_RATIO,
    segment_max_bytes,
)
from broadside.coordinator.core.plan.host_limits import host_limit_warnings
from broadside.coordinator.core.plan.nightly_stop import NightlyStop
from broadside.coordinator.core.plan.reserved import NOTHING, Reserved, first_announcements
from broadside.coordinator.core.run_spec import Burst, CounterRequirement, Pair, Plan, RunSpec
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS, DEVICE_TELEMETRY
from broadside.exchange.engines import find, tls_of
from broadside.exchange.messages import DEFAULT_ENGINE, Endpoint, Presence, Role, Traffic

# Seconds after the last heartbeat when an agent is no longer live.
PRESENCE_STALE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A reason why a run cannot be planned.

    Attributes:
        field: Field name in the RunSpec, or id of the agent.
        message: Description with values.
        fix: Action to solve the problem.
    """

    field: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}; {self.fix}"


class Infeasible(Exception):
    """The live fleet cannot execute the run."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(" | ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def is_live(presence: Presence, now: datetime) -> bool:
    """Return True if the last heartbeat of an agent is recent.

    The agent's own clock sets this time. A time in the future is rejected too, because the agent
    would otherwise always be live.

    Args:
        presence: The heartbeat of the agent.
        now: Current time to use.
    """
    return abs((now - presence.beat_at).total_seconds()) <= PRESENCE_STALE_S


def live(presences: Sequence[Presence], now: datetime) -> list[Presence]:
    """Return the agents with a recent heartbeat and no problem, sorted by agent id.

    Args:
        presences: Heartbeats of all agents.
        now: Current time to use.
    """
    return sorted(
        (presence for presence in presences if is_live(presence, now) and presence.problem is None),
        key=lambda presence: presence.agent_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext:
    """Other runs, and the sources for the device under test.

    Attributes:
        reserved: Ports that are used by other runs.
        device_counter: Device counter that the verdict will use, or None.
        telemetry: Devices with telemetry, and the quantities that are available for each.
        nightly_stop: When the VMs of the agents stop, or None.
    """

    reserved: Reserved = NOTHING
    device_counter: CounterRequirement | None = None
    telemetry: Mapping[str, Collection[str]] = field(default_factory=dict)
    nightly_stop: NightlyStop | None = None


def plan(
    spec: RunSpec,
    presences: Sequence[Presence],
    now: datetime,
    run_id: str,
    site: PlanContext = PlanContext(),
) -> Plan:
    """Select endpoints and start times for a run.

    Each server gives one port before any server gives a second one, so that pairs use many hosts.
    Clients are not selected: the client that takes a job is used for this burst.

    Args:
        spec: The specification.
        presences: Heartbeats of all agents.
        now: Launch time.
        run_id: Id for the new run.
        site: Other runs, and the sources for the device under test.

    Returns:
        The sealed plan with endpoints, bursts and warnings. It is not stored yet.

    Raises:
        Infeasible: The run cannot be planned. The error contains all problems.
    """
    reserved, device_counter, telemetry = site.reserved, site.device_counter, site.telemetry
    fleet = live(presences, now)
    holders, twice = first_announcements([agent for agent in fleet if agent.role is Role.SERVER])
    servers = reserved.without(holders)
    clients = [agent for agent in fleet if agent.role is Role.CLIENT]
    pairs = _pairs(servers, clients, spec)
    unwell = _reserved_text(reserved) + _unwell(presences, now)
    problems = [
        *_port_shortage(spec, servers, len(pairs), unwell),
        *_client_shortage(spec, clients, reserved, unwell),
        *(
            problem
            for part in spec.parts
            for problem in _engine_problems(part, servers=servers, clients=clients)
        ),
        *(problem for part in spec.parts for problem in _probe_problems(part, servers)),
        *_canary_problems(spec, servers),
        *_tunnel_problems(spec, [*clients, *servers]),
        *_telemetry_problems(spec, telemetry),
        *_guard_problems(spec, telemetry),
        *_network_problems(spec, pairs, clients),
    ]
    bursts = _bursts(spec, now)
    if (unfit := hard_end_problem(spec, bursts, now)) is not None:
        fix = "set an end after the last burst and within 7 days of launch, or request fewer bursts"
        field = "unattended_s" if spec.unattended_until_at is None else "unattended_until_at"
        problems.append(Problem(field=field, message=unfit, fix=fix))
    if problems:
        raise Infeasible(problems)
    used = {pair.endpoint.agent_id for pair in pairs}
    shared_boot_id = _shared_boot_id(
        spec, [*clients, *(server for server in servers if server.agent_id in used)]
    )
    by_name = {server.agent_id: server for server in servers}
    ends = [*clients[: len(pairs)], *(by_name[pair.endpoint.agent_id] for pair in pairs)]
    return Plan(
        run_id=run_id,
        created_at=now,
        spec=spec,
        pairs=tuple(pairs),
        bursts=tuple(bursts),
        ledger=device_counter,
        witnesses=tuple(telemetry),
        limits_as_of=DOCUMENTED.as_of.isoformat(),
        shared_boot_id=shared_boot_id,
        warnings=(
            *twice,
            *_warnings(spec, clients, device_counter, shared=shared_boot_id is not None),
            *_host_limits(
                spec, clients, [(pair, by_name[pair.endpoint.agent_id]) for pair in pairs]
            ),
            *_early_stop_warnings(spec, telemetry),
            *_crowded(spec, ends),
            *_segment_warnings(spec, [*clients, *servers]),
            *_host_warnings([*clients, *servers]),
            *_stop_warnings(site.nightly_stop, now, bursts),
        ),
    ).sealed()


def _telemetry_problems(
    spec: RunSpec, telemetry: Mapping[str, Collection[str]]
) -> Iterator[Problem]:
    """Yield a problem for each device threshold when telemetry is missing for any device."""
    for threshold in ALL_THRESHOLDS:
        bound = getattr(spec.objective, threshold.bound)
        if threshold.requires != DEVICE_TELEMETRY or bound is None:
            continue
        quantity = threshold.metric.partition(".")[0]
        unreported = [
            device for device, requested in telemetry.items() if quantity not in requested
        ]
        if unreported or not telemetry:
            missing = (
                f"{', '.join(unreported)} has no {quantity}"
                if unreported
                else "no device has telemetry"
            )
            yield Problem(
                field=f"objective.{threshold.bound}",
                message=f"the limit is {threshold.format(bound)}, but {missing}",
                fix="configure device telemetry (BROADSIDE_TELEMETRY_FILE), or remove it",
            )


def _guard_problems(spec: RunSpec, telemetry: Mapping[str, Collection[str]]) -> Iterator[Problem]:
    """Yield a problem for each guard on a quantity that no telemetry source reads."""
    for guard in spec.guards:
        if guard.is_probe:
            continue
        devices = [name for name in telemetry if guard.device in (None, name)]
        if not any(guard.quantity in telemetry[name] for name in devices):
            known = sorted({*PROBE_QUANTITIES, *(q for name in devices for q in telemetry[name])})
            place = "no device" if guard.device is None else f"no device {guard.device}"
            yield Problem(
                field="guards",
                message=f"{guard}: {place} reports {guard.quantity}",
                fix="configure a telemetry source for it (BROADSIDE_TELEMETRY_FILE), or use one of "
                f"{', '.join(known)}",
            )


def first_start(spec: RunSpec, now: datetime) -> datetime:
    """Return the first start time that is at least ``lead_s`` after ``now``.

    Args:
        spec: The specification. With ``align_to_period``, the start is at a multiple of the period
            since the epoch. Otherwise it is at a whole second.
        now: Launch time.
    """
    step_s = spec.period_s if spec.align_to_period else 1
    earliest_s = (now + timedelta(seconds=spec.lead_s)).timestamp()
    return datetime.fromtimestamp(math.ceil(earliest_s / step_s) * step_s, UTC)


def _bursts(spec: RunSpec, now: datetime) -> list[Burst]:
    start_at = first_start(spec, now)
    return [
        Burst(
            index=index,
            planned_start_at=start_at + timedelta(seconds=index * spec.period_s),
            duration_s=spec.burst_s,
            omit_s=spec.traffic.omit_s,
        )
        for index in range(spec.bursts_count)
    ]


def _pairs(servers: Sequence[Presence], clients: Sequence[Presence], spec: RunSpec) -> list[Pair]:
    """Return up to ``pairs_count`` pairs of all parts, with one port for each process."""
    assigned: list[Pair] = []
    for number, part in enumerate(spec.parts):
        taken = {
            (pair.endpoint.agent_id, port) for pair in assigned for port in pair.endpoint.ports
        }
        # Parts begin with different servers, so that a host has pairs of one part, if possible.
        turn = len(assigned) % max(1, len(servers))
        rotated = [*servers[turn:], *servers[:turn]]
        new = _pairs_of_part(rotated, clients, part, taken)
        first = len(assigned)
        assigned += [
            pair.model_copy(update={"index": first + pair.index, "part_index": number})
            for pair in new
        ]
    return assigned


def _pairs_of_part(
    servers: Sequence[Presence],
    clients: Sequence[Presence],
    spec: RunSpec,
    taken: Collection[tuple[str, int]],
) -> list[Pair]:
    """Return up to ``pairs_count`` pairs of one part, without the ports that are taken."""
    processes_count = spec.traffic.processes_count
    clients_mtu_bytes = _smallest([client.nic_mtu_bytes for client in clients])
    groups = [
        [
            ports
            for ports in port_groups(server, spec.traffic, processes_count)
            if not any((server.agent_id, port) in taken for port in ports)
        ]
        for server in servers
    ]
    turns = max(map(len, groups), default=0)
    offers = (
        (server, ports[turn])
        for turn in range(turns)
        for server, ports in zip(servers, groups, strict=True)
        if turn < len(ports)
    )
    return [
        Pair(
            index=index,
            endpoint=endpoint_of(server, ports, spec.traffic),
            server_nic_bits_per_second=server.nic_bits_per_second,
            nic_mtu_bytes=_smallest([server.nic_mtu_bytes, clients_mtu_bytes]),
        )
        for index, (server, ports) in zip(range(spec.pairs_count), offers, strict=False)
    ]


def endpoint_of(server: Presence, ports: Sequence[int], traffic: Traffic) -> Endpoint:
    """Return the endpoint to use for a pair.

    Args:
        server: The server agent.
        ports: One port for each process.
        traffic: The traffic. With probes, the endpoint includes the echo port.
    """
    return Endpoint(
        agent_id=server.agent_id,
        address=server.address,
        port=ports[0],
        more_ports=tuple(ports[1:]),
        echo_port=server.echo_port if traffic.probe is not None else None,
    )


def _network_problems(
    spec: RunSpec, pairs: Sequence[Pair], clients: Sequence[Presence]
) -> Iterator[Problem]:
    """Yield problems for targets that clients may not send to. Any client can take any job."""
    servers = sorted({pair.endpoint.address for pair in pairs})
    yield from _outside(
        servers, clients, "endpoint.address", "set BROADSIDE_AGENT_ADDRESS on the servers"
    )
    for part in spec.parts:
        if (probe := part.traffic.probe) is None or probe.device is None:
            continue
        yield from _outside([probe.device], clients, "traffic.probe.device", "remove it")


def _outside(
    targets: Sequence[str], clients: Sequence[Presence], field: str, otherwise: str
) -> Iterator[Problem]:
    strict = [
        (client, refused)
        for client in clients
        if client.allowed_networks
        and (
            refused := [
                target for target in targets if not _lies_in(target, client.allowed_networks)
            ]
        )
    ]
    if strict:
        client, refused = strict[0]
        yield Problem(
            field=field,
            message=f"{len(strict)} of {len(clients)} client agents would refuse "
            f"{_first(refused)}, "
            f"which is outside the allowed networks of {client.agent_id} "
            f"({', '.join(client.allowed_networks)})",
            fix="add their network to BROADSIDE_AGENT_ALLOWED_NETWORKS on the client agents, or "
            f"{otherwise}",
        )


def _lies_in(address: str, networks: Sequence[str]) -> bool:
    return any(ip_address(address) in ip_network(network) for network in networks)


def _smallest(sizes: Sequence[int | None]) -> int | None:
    """Return the smallest size, or None if one is unknown or the list is empty."""
    known = [size for size in sizes if size is not None]
    return min(known) if known and len(known) == len(sizes) else None


def port_groups(server: Presence, traffic: Traffic, ports_count: int) -> list[tuple[int, ...]]:
    """Return the free ports of a server for the traffic, in groups.

    Args:
        server: The server agent.
        traffic: The traffic.
        ports_count: Number of ports in a group.
    """
    state = server.engine(traffic.engine, tls_of(traffic))
    ports = () if state is None or state.problem is not None else state.ports
    return [
        ports[at : at + ports_count] for at in range(0, len(ports) - ports_count + 1, ports_count)
    ]


def _engine_problems(
    spec: RunSpec, *, servers: Sequence[Presence], clients: Sequence[Presence]
) -> Iterator[Problem]:
    """Yield problems for agents that cannot run the engine. Any client can take any job."""
    name = spec.traffic.engine
    if name == DEFAULT_ENGINE:
        # An agent that cannot use this engine will report a problem, so it is not in the live list.
        return
    yield from _lacking(
        "traffic.engine",
        [_without(client, name) for client in clients if _without(client, name)],
        f"of {len(clients)} client agents cannot run {name}, and any client can take a job",
        "install the coordinator's Broadside, and what `broadside doctor` lists, on them, or stop "
        "them",
    )
    tls = tls_of(spec.traffic)
    service = f"{name}:{tls}" if tls else name
    absent = [why for server in servers if (why := _without(server, name, tls))]
    if absent and len(absent) == len(servers):
        yield Problem(
            field="traffic.options.tls" if tls else "traffic.engine",
            message=f"no server agent offers {service} ({_first(absent)})",
            fix=f"set BROADSIDE_AGENT_SERVICES={service}=PORT on server agents",
        )
    yield from _new_option_problems(spec.traffic, [*clients, *servers])
    signed = [
        server.agent_id
        for server in servers
        if (state := server.engine(name, tls)) is not None and state.self_signed
    ]
    if spec.traffic.options.get("verify") is True:
        yield from _lacking(
            "traffic.options.verify",
            signed,
            "server agents have only a self-signed certificate",
            "set BROADSIDE_AGENT_CERTIFICATE and BROADSIDE_AGENT_CERTIFICATE_KEY on them, or "
            "remove it",
        )


def _new_option_problems(traffic: Traffic, agents: Sequence[Presence]) -> Iterator[Problem]:
    """Yield a problem for each option that agents of an older version do not know."""
    engine = find(traffic.engine)
    name, tls = traffic.engine, tls_of(traffic)
    states = {agent.agent_id: agent.engine(name, tls) or agent.engine(name) for agent in agents}
    for used in sorted(engine.used_new_options(traffic)) if engine is not None else ():
        yield from _lacking(
            f"traffic.{used}" if used in Traffic.model_fields else f"traffic.options.{used}",
            [
                agent_id
                for agent_id, state in states.items()
                if state is not None and used not in state.new_options
            ],
            f"of {len(agents)} agents have a version of Broadside that does not support it",
            "upgrade them, or remove it",
        )


def _lacking(field: str, lacking: Sequence[str | None], what: str, fix: str) -> Iterator[Problem]:
    """Yield a problem if some agents do not support a feature. The message shows the first ones."""
    if lacking:
        yield Problem(field=field, message=f"{len(lacking)} {what} ({_first(lacking)})", fix=fix)


def _probe_problems(spec: RunSpec, servers: Sequence[Presence]) -> Iterator[Problem]:
    """Yield a problem if servers have no echo port. Any server can be used for a pair."""
    if spec.traffic.probe is not None:
        yield from _lacking(
            "traffic.probe",
            [server.agent_id for server in servers if server.echo_port is None],
            f"of {len(servers)} server agents do not answer probes",
            "set BROADSIDE_AGENT_ECHO_PORT on them to a free UDP port, or remove it",
        )


def answers_canary(server: Presence, traffic: Traffic) -> bool:
    """Return True if a server listens on the ports of the canary, or if there is none.

    Args:
        server: Heartbeat of the server agent.
        traffic: Traffic of the run, with its canary.
    """
    canary = traffic.canary
    return canary is None or {canary.port, canary.forbidden_port} <= {*server.canary_ports}


def _canary_problems(spec: RunSpec, servers: Sequence[Presence]) -> Iterator[Problem]:
    """Yield a problem if servers do not answer canaries. Any server can be used for a pair."""
    if (canary := spec.traffic.canary) is not None:
        yield from _lacking(
            "traffic.canary",
            [server.agent_id for server in servers if not answers_canary(server, spec.traffic)],
            f"of {len(servers)} server agents do not answer canaries on ports {canary.port} and "
            f"{canary.forbidden_port}",
            f"set BROADSIDE_AGENT_CANARY_PORTS={canary.port},{canary.forbidden_port} on them, "
            "or remove it",
        )


def _tunnel_problems(spec: RunSpec, agents: Sequence[Presence]) -> Iterator[Problem]:
    """Yield problems for agents that are not allowed to create VXLAN devices, or not able to."""
    if spec.traffic.encapsulation is None:
        return
    yield from _lacking(
        "traffic.encapsulation",
        [agent.agent_id for agent in agents if not agent.tunnels],
        f"of {len(agents)} agents cannot create VXLAN devices",
        "set BROADSIDE_AGENT_ALLOW_TUNNELS=true on them and give them CAP_NET_ADMIN, or remove it",
    )
    if spec.traffic.options.get("verify") is True:
        yield Problem(
            field="traffic.options.verify",
            message="certificates contain the agents' outer addresses, but a tunnel uses inner "
            "ones",
            fix="remove it, or remove traffic.encapsulation",
        )
    if any(":" in agent.address for agent in agents):
        yield Problem(
            field="traffic.encapsulation",
            message="an agent has an IPv6 address, but VXLAN is supported only over IPv4",
            fix="set BROADSIDE_AGENT_ADDRESS to IPv4 addresses, or remove it",
        )


def _without(agent: Presence, engine: str, tls: str = "") -> str | None:
    """Return the reason why an agent cannot use an engine, or None if it can."""
    state = agent.engine(engine, tls)
    if state is None:
        service = f"{engine}:{tls}" if tls else engine
        return (
            f"{agent.agent_id}: it does not report {service} (Broadside {agent.broadside_version})"
        )
    return None if state.problem is None else f"{agent.agent_id}: {state.problem}"


def _first(texts: Sequence[str | None]) -> str:
    return "; ".join(filter(None, texts[:3])) + ("; ..." if len(texts) > 3 else "")


def _port_shortage(
    spec: RunSpec, servers: Sequence[Presence], pairs: int, unwell: str
) -> Iterator[Problem]:
    if pairs < spec.pairs_count:
        yield Problem(
            field="pairs_count",
            message=f"{spec.pairs_count} pairs requested, but {len(servers)} live server agents "
            f"have {pairs} free ports{_per_pair_text(spec)}{_without_ports(spec, servers)}{unwell}",
            fix="wait until other runs and tests end, start more server agents, give them more "
            "ports, or request fewer pairs",
        )


def _client_shortage(
    spec: RunSpec, clients: Sequence[Presence], reserved: Reserved, unwell: str
) -> Iterator[Problem]:
    if len(clients) - reserved.clients_count < spec.pairs_count:
        yield Problem(
            field="pairs_count",
            message=f"{spec.pairs_count} pairs requested, but {len(clients)} client agents are "
            f"live{unwell}",
            fix="wait until other runs end, start more client agents, or request fewer pairs",
        )


def _reserved_text(reserved: Reserved) -> str:
    """Return a text on the ports and clients that are reserved for other runs."""
    if not reserved.ports:
        return ""
    return (
        f"; {len(reserved.ports)} ports and {reserved.clients_count} clients are reserved for "
        f"{_first(reserved.run_ids)}"
    )


def without_ports(spec: RunSpec, fleet: Sequence[Presence]) -> list[str]:
    """Return the ids of servers that do not have enough free ports for a pair at this time.

    Args:
        spec: The specification.
        fleet: Live agents.
    """
    count = spec.traffic.processes_count
    servers = [agent for agent in fleet if agent.role is Role.SERVER]
    return [server.agent_id for server in servers if not port_groups(server, spec.traffic, count)]


def _without_ports(spec: RunSpec, servers: Sequence[Presence]) -> str:
    """Return a text on servers that have no free ports, for the error message."""
    none = without_ports(spec, servers)
    if not none:
        return ""
    return f" (none at {', '.join(none[:3])}{', ...' if len(none) > 3 else ''})"


def _per_pair_text(spec: RunSpec) -> str:
    """Return a text on special port requirements, or an empty string."""
    count, engine = spec.traffic.processes_count, spec.traffic.engine
    text = f" for {engine}" if engine != DEFAULT_ENGINE else ""
    return text + (f", {count} per pair (traffic.processes_count)" if count > 1 else "")


def _unwell(presences: Sequence[Presence], now: datetime) -> str:
    """Return a text on agents that are not used because of a problem or an old heartbeat."""
    lines = [f"{p.agent_id}: {p.problem}" for p in presences if p.problem is not None]
    silent = [p.agent_id for p in presences if p.problem is None and not is_live(p, now)]
    parts = lines[:3]
    if silent:
        parts.append(
            f"{len(silent)} without heartbeat for {PRESENCE_STALE_S:g} s, or with a wrong clock"
        )
    return f" ({'; '.join(parts)})" if parts else ""


def _keeps_time(agent: Presence, spec: RunSpec) -> bool:
    """Return True if the clock error of an agent is within the limit now."""
    bound_s = None if agent.clock is None else agent.clock.bound_s
    return bound_s is not None and bound_s <= spec.clock_bound_max_s


def _shared_boot_id(spec: RunSpec, agents: Sequence[Presence]) -> str | None:
    """Return the boot id if all agents use the clock of one kernel and the clock gate needs it."""
    if all(_keeps_time(agent, spec) for agent in agents):
        return None
    boots = {None if agent.clock is None else agent.clock.boot_id for agent in agents}
    return boots.pop() if len(boots) == 1 else None


# Streams per core. Measured: 240 streams start within 45 ms, 1,920 within 782 ms.
CROWDED_STREAMS_COUNT = 500


def _crowded(spec: RunSpec, ends: Sequence[Presence]) -> Iterator[str]:
    """Yield a warning for the host with most streams per core if they cannot start together.

    ``ends`` contains an agent for each end of each pair. Agents with the same boot id, or else with
    the same address, are on the same host.
    """
    streams: Counter[str] = Counter()
    cores: dict[str, int] = {}
    for end in ends:
        host = (end.clock.boot_id if end.clock else None) or end.address
        if end.cpu_count:
            cores[host] = end.cpu_count
            streams[host] += spec.traffic.streams_count
    crowd = {host: count / cores[host] for host, count in streams.items()}
    host = max(crowd, key=lambda item: crowd[item], default="")
    if crowd.get(host, 0.0) > CROWDED_STREAMS_COUNT:
        yield (
            f"traffic.streams_count: one host would start {streams[host]} streams on {cores[host]} "
            "cores, so their starts would differ by hundreds of milliseconds; request fewer "
            "streams or pairs per host, or raise objective.start_spread_max_s (now "
            f"{spec.objective.start_spread_max_s:g} s)"
        )


def _warnings(
    spec: RunSpec,
    clients: Sequence[Presence],
    device_counter: CounterRequirement | None,
    *,
    shared: bool,
) -> Iterator[str]:
    """Yield warnings that an operator should see before the launch."""
    yield from _reach_warnings(spec, clients)
    yield from _proof_warnings(spec, device_counter)
    if (silent := control_warning(spec, clients)) is not None:
        yield silent
    if spec.budget_usd is not None and spec.is_unattended:
        yield (
            "budget_usd: an unattended run is not stopped at its budget while no coordinator runs; "
            "keep `broadside serve` running, or request a run that is within the budget"
        )
    loose = [client.agent_id for client in clients if not _keeps_time(client, spec)]
    if shared:
        yield (
            "clocks: all agents use the clock of one host, so their seconds agree by definition; "
            "the difference of this clock to UTC is unknown, so start chronyd before its times "
            "are compared with another host"
        )
    elif loose:
        yield (
            f"clock_bound_max_s: {len(loose)} client agents have a clock error above "
            f"{spec.clock_bound_max_s:g} s "
            f"({', '.join(loose[:3])}{', ...' if len(loose) > 3 else ''}) and would refuse jobs"
        )
    ungated = sum(not client.gate for client in clients)
    engine = find(spec.traffic.engine)
    if ungated and engine is not None and engine.gated and not engine.waits_itself:
        yield (
            f"start gate: {ungated} client agents have none and start by timed exec, so the "
            "starts differ by tens of milliseconds or more"
        )


def _host_limits(
    spec: RunSpec, clients: Sequence[Presence], pairs: Sequence[tuple[Pair, Presence]]
) -> Iterator[str]:
    """Yield warnings for hosts that cannot have the connections of a part."""
    for number, part in enumerate(spec.parts):
        servers = [server for pair, server in pairs if pair.part_index == number]
        yield from host_limit_warnings(part, clients, servers)


def _early_stop_warnings(spec: RunSpec, telemetry: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yield a warning if bursts may end before a device has changed its size."""
    if spec.objective.stop is None or spec.device.get("capacity_units", "").isdigit():
        return
    counted = [name for name, quantities in telemetry.items() if "units_count" in quantities]
    device = f"an Azure Firewall ({spec.sku})" if spec.sku is not None else ", ".join(counted)
    if device:
        yield (
            f"objective.stop: {device} may change its number of instances under load, within "
            "minutes; a burst that ends early does not show the rate after that; set "
            "objective.sustain_min_s to the time that it needs, or device.capacity_units if the "
            "number is fixed"
        )


def _proof_warnings(spec: RunSpec, device_counter: CounterRequirement | None) -> Iterator[str]:
    """Yield warnings on results that no burst can prove."""
    # This import loads NumPy.
    from broadside.coordinator.core.measure.formulas.steady import RAMP_MAX_RATIO, VALUES_MIN

    # Starts can be spread over one additional second.
    least_s = math.ceil(VALUES_MIN / (1 - RAMP_MAX_RATIO)) + 1
    if spec.scaled_target_bits_per_second is not None and spec.burst_s < least_s:
        yield (
            f"burst_s: a verdict on a target needs {VALUES_MIN} s that are common to all pairs, "
            f"after a ramp of up to {RAMP_MAX_RATIO:.0%}; bursts of {spec.burst_s} s may be too "
            f"short; request at least {least_s} s, better 30 s"
        )
    engine, allowed = find(spec.traffic.engine), spec.objective.residual_max_ratio
    silent = engine is not None and "mss_bytes" not in engine.supported_fields
    if silent and device_counter is not None and allowed <= OVERHEAD_MORE_RATIO:
        yield (
            f"objective.residual_max_ratio: {spec.traffic.engine} does not report its segment "
            f"size, so headers may be {formatting.ratio(OVERHEAD_MORE_RATIO)} larger than those of "
            "1500-byte packets and no device counter can agree within "
            f"{formatting.ratio(allowed)}; allow 0.08, or use iperf3"
        )


def _segment_warnings(spec: RunSpec, agents: Sequence[Presence]) -> Iterator[str]:
    """Yield a warning if a TCP segment is too large for the interfaces of the agents."""
    requested, vxlan = spec.traffic.mss_bytes, spec.traffic.encapsulation is not None
    known = [(agent.nic_mtu_bytes, agent) for agent in agents if agent.nic_mtu_bytes is not None]
    if requested is None or not known:
        return
    mtu, agent = min(known, key=lambda one: one[0])
    most = segment_max_bytes(mtu, ipv6=":" in agent.address, vxlan=vxlan)
    if requested > most:
        yield (
            f"traffic.mss_bytes: {requested} is above {most}, the largest segment for an MTU of "
            f"{mtu}{' in VXLAN' if vxlan else ''} ({agent.agent_id}), so segments will be smaller; "
            f"request at most {most}"
        )


def _host_warnings(agents: Sequence[Presence]) -> Iterator[str]:
    """Yield a warning for agents that cannot read all host metrics.

    A bottleneck on such a host may not be detected.
    """
    partly = [agent for agent in agents if agent.warnings]
    if partly:
        lines = [f"{agent.agent_id}: {agent.warnings[0]}" for agent in partly]
        yield (
            f"agents: {len(partly)} of {len(agents)} cannot read all metrics of their host, so a "
            f"bottleneck there may stay unknown; {_first(lines)}"
        )


def _stop_warnings(
    stop: NightlyStop | None, now: datetime, bursts: Sequence[Burst]
) -> Iterator[str]:
    """Yield when the range stops. It is shown at every launch, also if the run ends before it."""
    if stop is not None:
        yield stop.describe(now, bursts[-1].planned_end_at)


def _reach_warnings(spec: RunSpec, clients: Sequence[Presence]) -> Iterator[str]:
    """Yield warnings if the fleet or the documented firewall limits cannot reach the target."""
    target = spec.scaled_target_bits_per_second
    if target is None:
        return
    caps = [
        cap
        for client in clients
        if (cap := client.nic_bits_per_second or DOCUMENTED.of_vm(client.vm_size)) is not None
    ]
    if caps and len(caps) == len(clients):
        reach = sum(sorted(caps, reverse=True)[: spec.pairs_count])
        if reach < target:
            yield (
                f"pairs_count: {spec.pairs_count} clients can send at most "
                f"{formatting.rate(reach)}, which is below the target {formatting.rate(target)}"
            )
    sku = spec.sku or ""
    flow = DOCUMENTED.flow.get(sku)
    flows_count = spec.pairs_count * spec.traffic.streams_count
    if flow is not None and flows_count * flow.bits_per_second / spec.scale < target:
        yield (
            f"traffic.streams_count: {flows_count} flows of at most "
            f"{formatting.rate(flow.bits_per_second)} each ({sku}, {flow.source}, {flow.as_of}) "
            f"cannot reach {formatting.rate(target * spec.scale)}; use more streams or pairs"
        )
    device = DOCUMENTED.firewall.get(sku)
    if device is not None and device.bits_per_second / spec.scale < target:
        yield (
            f"objective.target_bits_per_second: {formatting.rate(target * spec.scale)} is above "
            f"the documented rate of {sku}, {formatting.rate(device.bits_per_second)} "
            f"({device.source}, {device.as_of})"
        )
