"""Causes that limit connections: the generator, the listen queue of servers, and the device."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.bottleneck.bottleneck_evidence import (
    ABSENT,
    CPU_FULL_RATIO,
    HALF,
    BottleneckCause,
    BottleneckInput,
    Evidence,
    cpu_use,
    found,
    unknown,
)
from broadside.coordinator.core.judge.bottleneck.device_causes import SNAT_PORTS
from broadside.coordinator.core.summary import (
    BottleneckName,
    describe_failures,
    describe_limit,
)
from broadside.exchange.messages import Side

# From this share of the planned attempts on, the generator made all of them. Also the share of
# attempts that a device or a server has to complete.
COMPLETE_RATIO: Final = 0.999
# Largest difference between the sessions of the device and the connections of the fleet.
AGREE_RATIO: Final = 0.02


def _count(given: BottleneckInput, name: str) -> float:
    return given.measures.get(f"{name}_count", 0.0)


def _lost(given: BottleneckInput) -> float:
    """Return the number of attempts without a connection, without failures on the client."""
    tried = _count(given, "attempted") - _count(given, "failed")
    return max(0.0, tried - _count(given, "established"))


def _is_lossy(given: BottleneckInput) -> bool:
    return _lost(given) > (1 - COMPLETE_RATIO) * _count(given, "attempted")


def _incomplete(given: BottleneckInput) -> float:
    """Return the number of attempts that were not complete, or 0 if nearly all of them were."""
    attempted = _count(given, "attempted")
    success = given.measures.get("success_ratio")
    count = _lost(given) if success is None else (1 - success) * attempted
    return count if count > (1 - COMPLETE_RATIO) * attempted else 0.0


def _cpu_text(given: BottleneckInput, side: Side) -> str | None:
    """Return a text if the CPU at one end is full, or None."""
    used = given.measures.get(f"{side}_program_core_ratio", 0.0)
    if used >= CPU_FULL_RATIO:
        return f"the program of a {side} used {formatting.ratio(used, 0)} of a core"
    full = [pair for pair in given.pairs if (cpu_use(pair, side) or 0.0) >= CPU_FULL_RATIO]
    if not full or len(full) < HALF * len(given.pairs):
        return None
    limit = formatting.ratio(CPU_FULL_RATIO, 0)
    return f"{given.of_pairs(full)} have a {side} with a core or all cores {limit} busy or more"


def _generator(given: BottleneckInput) -> Evidence:
    """Check that the clients could not make the planned attempts.

    Evidence: more than 0.1 % of the planned attempts were not made, or failed on the client (no
        local port, no file descriptor), and these are half of the missing connections or more.
    Reads: the outcomes of the attempts; the sockets in TIME_WAIT; the CPU time of the program.
    If absent: not this cause.
    """
    made, attempted = given.measures.get("attempted_ratio", 1.0), _count(given, "attempted")
    failed, planned = _count(given, "failed"), attempted / made if made else 0.0
    missing = failed + planned - attempted
    if missing <= (1 - COMPLETE_RATIO) * planned or missing < HALF * (missing + _lost(given)):
        return ABSENT
    facts = []
    if made < COMPLETE_RATIO:
        late_s = given.measures.get("attempt_delay_max", 0.0)
        facts.append(
            f"the clients made {formatting.ratio(made, 1)} of the planned attempts, up to "
            f"{formatting.time(late_s)} late"
        )
        if (cpu := _cpu_text(given, Side.CLIENT)) is not None:
            facts.append(cpu)
    if failed > (1 - COMPLETE_RATIO) * attempted:
        reasons = describe_failures(given.measures)
        text = f"{failed:.0f} of {attempted:.0f} attempts failed on the clients"
        facts.append(f"{text}: {', '.join(reasons)}" if reasons else text)
        if left := given.measures.get("time_wait_count"):
            facts.append(f"up to {left:.0f} sockets of a client were in TIME_WAIT")
    return found(*facts) if facts else ABSENT


def _generator_advice(given: BottleneckInput) -> str:
    """Return what helps against the resource that was missing."""
    if "failed_ports_count" in given.measures:
        return (
            "Use close=rst, a shorter timeout_s, more addresses (source_addresses=all), a larger "
            "net.ipv4.ip_local_port_range, or more pairs"
        )
    if "failed_files_count" in given.measures:
        return "Raise LimitNOFILE of the client agents, or hold fewer connections per pair"
    return "Use more pairs on more hosts, or clients with faster cores"


GENERATOR: Final = BottleneckCause(
    id="generator",
    name=BottleneckName.GENERATOR,
    refuted_by="the same rate with more pairs",
    advice="Use more pairs, or larger clients",
    evaluate=_generator,
    advise=_generator_advice,
)


def _server_files(given: BottleneckInput) -> Evidence:
    """Check that the servers had no file descriptor left.

    Evidence: the servers closed connections without a file descriptor, half of the incomplete
        attempts or more.
    Reads: the outcomes of the attempts; the servers' own count.
    If absent: not this cause.
    """
    closed, incomplete = _count(given, "server_failed_files"), _incomplete(given)
    if not closed or not incomplete or closed < HALF * incomplete:
        return ABSENT
    limit = describe_limit(given.measures.get("server_files_limit_count"))
    return found(
        f"the servers closed {closed:.0f} connections because no file descriptor was left{limit}; "
        f"{incomplete:.0f} attempts are not complete"
    )


SERVER_FILES: Final = BottleneckCause(
    id="server-files",
    name=BottleneckName.GENERATOR,
    refuted_by="the same number of connections with more file descriptors",
    advice="Raise LimitNOFILE of the server agents, or hold fewer connections per pair",
    evaluate=_server_files,
)


def _conntrack(given: BottleneckInput) -> Evidence:
    """Check that the conntrack table of the hosts was full.

    Evidence: the hosts' kernels dropped packets because their conntrack table was full, half of the
        incomplete attempts or more.
    Reads: the outcomes of the attempts; /proc/net/stat/nf_conntrack of the hosts.
    If absent: not this cause.
    """
    incomplete = _incomplete(given)
    facts = [
        f"the conntrack table of the {side}s was full and dropped {dropped:.0f} packets; "
        f"{incomplete:.0f} attempts are not complete"
        for side, name in ((Side.CLIENT, ""), (Side.SERVER, "server_"))
        if (dropped := _count(given, f"{name}conntrack_dropped"))
        and incomplete
        and dropped >= HALF * incomplete
    ]
    return found(*facts) if facts else ABSENT


CONNTRACK: Final = BottleneckCause(
    id="host-conntrack",
    name=BottleneckName.GENERATOR,
    refuted_by="the same number of connections without conntrack on the hosts",
    advice="Raise net.netfilter.nf_conntrack_max of these hosts, or exclude the traffic from "
    "conntrack (notrack)",
    evaluate=_conntrack,
)


def _backlog(given: BottleneckInput) -> Evidence:
    """Check that the listen queue of the servers was full.

    Evidence: the servers' kernels dropped connections of a full listen queue, half of the lost
        attempts or more.
    Reads: ListenOverflows and ListenDrops of the servers (/proc/net/netstat).
    If absent: not this cause.
    """
    dropped = _count(given, "server_backlog_dropped")
    if not _is_lossy(given) or dropped < HALF * _lost(given):
        return ABSENT
    fact = (
        f"the servers dropped {dropped:.0f} connections because their listen queue was full"
        f"{describe_limit(given.measures.get('server_backlog_limit_count'))}, "
        f"{_count(given, 'server_backlog_overflowed'):.0f} of them at the accept queue; "
        f"{_lost(given):.0f} attempts have no connection"
    )
    return found(*filter(None, (fact, _cpu_text(given, Side.SERVER))))


BACKLOG: Final = BottleneckCause(
    id="server-backlog",
    name=BottleneckName.SERVER_BACKLOG,
    refuted_by="the same rate with more servers",
    advice="Raise net.core.somaxconn and net.ipv4.tcp_max_syn_backlog of the servers, or use more "
    "servers",
    evaluate=_backlog,
)


def _device(given: BottleneckInput) -> Evidence:
    """Check that the device did not set up the missing sessions.

    Evidence: more than 0.1 % of the attempts have no connection; the sessions that the device set
        up agree with the connections of the fleet, to 2 %; the servers' listen queues
        dropped less than half of the lost attempts.
    Reads: the outcomes of the attempts; connections_per_second in the telemetry of the device.
    If absent: missing: the count of new sessions.
    """
    if not given.crosses or not _is_lossy(given):
        return ABSENT
    if not given.sessions:
        return unknown("the new sessions of the device (telemetry of connections_per_second)")
    attempted = _count(given, "attempted")
    facts = [
        f"{one.device} set up {one.set_up_count:.0f} sessions for {attempted:.0f} attempts, and "
        f"{one.fleet_count:.0f} were established"
        for one in given.sessions
        if abs(one.set_up_count - one.fleet_count) <= AGREE_RATIO * attempted
        and attempted - one.set_up_count >= HALF * _lost(given)
    ]
    rejected = _count(given, "refused")
    how = "rejected" if rejected >= HALF * _lost(given) else "dropped"
    return found(*facts, f"the others were {how} before a session existed") if facts else ABSENT


DEVICE_SESSIONS: Final = BottleneckCause(
    id="device-sessions",
    name=BottleneckName.FIREWALL,
    refuted_by="the same rate without the device (device.path=bypass)",
    advice="Lower the rate or the number of connections, or use a larger device",
    evaluate=_device,
)


def _snat(given: BottleneckInput) -> Evidence:
    """Check that attempts were lost and the firewall has run out of SNAT ports.

    Evidence: attempts were lost, and 95 % of its SNAT ports are in use.
    Reads: the telemetry of the device.
    If absent: not this cause.
    """
    return SNAT_PORTS.evaluate(given) if _is_lossy(given) else ABSENT


def _cpu(given: BottleneckInput, side: Side) -> Evidence:
    """Check that the CPUs of the hosts are full.

    Evidence: the program, or a core or all cores in half of the pairs, is 95 % busy; half of the
        incomplete attempts or more timed out. Clients: the servers accepted half of the attempts
        that have no connection at the client. Servers: attempts were established.
    Reads: the outcomes of the attempts at both ends; the CPU time of the program; /proc/stat.
    If absent: missing: the CPU counters.
    """
    incomplete = _incomplete(given)
    if not incomplete or _count(given, "timed_out") < HALF * incomplete:
        return ABSENT
    if _is_lossy(given):
        accepted = _count(given, "server_established") - _count(given, "established")
        if side is Side.SERVER or accepted < HALF * _lost(given):
            return ABSENT
    if (text := _cpu_text(given, side)) is not None:
        return found(f"{_count(given, 'timed_out'):.0f} attempts timed out", text)
    blind = any(cpu_use(pair, side) is None for pair in given.pairs)
    return unknown(f"the CPU load of the {side}s") if blind else ABSENT


def _cpu_cause(side: Side) -> BottleneckCause:
    return BottleneckCause(
        id=f"{side}-connections-cpu",
        name=BottleneckName.CLIENT_CPU if side is Side.CLIENT else BottleneckName.SERVER_CPU,
        refuted_by="the same rate with more cores",
        advice=f"Use {side}s with faster cores, or more pairs",
        evaluate=partial(_cpu, side=side),
    )


def _offered(given: BottleneckInput) -> Evidence:
    """Check that all planned attempts are connections.

    Evidence: 99.9 % of the planned attempts were made, established and complete.
    Reads: the outcomes of the attempts.
    If absent: not this cause.
    """
    attempted = _count(given, "attempted")
    complete = given.measures.get("success_ratio", 1.0)
    if not attempted or _is_lossy(given) or complete < COMPLETE_RATIO:
        return ABSENT
    return found(f"all {attempted:.0f} planned attempts were made and complete")


OFFERED_CONNECTIONS: Final = BottleneckCause(
    id="offered-connections",
    name=BottleneckName.OFFERED_LOAD,
    refuted_by="the same number of connections when more are requested",
    advice="Raise the requested rate, or search for the highest one",
    evaluate=_offered,
)

CONNECTION_CAUSES: Final[Sequence[BottleneckCause]] = (
    GENERATOR,
    SERVER_FILES,
    CONNTRACK,
    BACKLOG,
    replace(SNAT_PORTS, evaluate=_snat),
    DEVICE_SESSIONS,
    _cpu_cause(Side.CLIENT),
    _cpu_cause(Side.SERVER),
    OFFERED_CONNECTIONS,
)
