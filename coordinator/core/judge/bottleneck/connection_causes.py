"""Causes that limit connections: the generator, the listen queue of servers, and the device."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.bottleneck.bottleneck_evidence import (
    ABSENT,
    CPU_FULL_RATIO,
    HALF,
    BottleneckInput,
    Cause,
    Evidence,
    cpu_use,
    found,
    unknown,
)
from broadside.coordinator.core.summary import BottleneckName
from broadside.exchange.messages import Side

# From this share of the planned attempts on, the generator made all of them. Also the share of
# attempts that a device or a server has to complete.
COMPLETE_RATIO: Final = 0.999
# Largest difference between the sessions of the device and the connections of the fleet.
AGREE_RATIO: Final = 0.02
# Measures of attempts that failed on the client, and their reasons.
HOST_FAILURES: Final = {
    "failed_ports_count": "no local port was left",
    "failed_files_count": "no file descriptor was left",
}


def _count(given: BottleneckInput, name: str) -> float:
    return given.measures.get(f"{name}_count", 0.0)


def _lost(given: BottleneckInput) -> float:
    """Return the number of attempts without a connection, without failures on the client."""
    tried = _count(given, "attempted") - _count(given, "failed")
    return max(0.0, tried - _count(given, "established"))


def _is_lossy(given: BottleneckInput) -> bool:
    return _lost(given) > (1 - COMPLETE_RATIO) * _count(given, "attempted")


def _generator(given: BottleneckInput) -> Evidence:
    """Check that the clients could not make the planned attempts.

    Evidence: less than 99.9 % of the planned attempts were made, or more than 0.1 % failed on the
        client (no local port, no file descriptor).
    Reads: the outcomes of the attempts; the sockets in TIME_WAIT.
    If absent: not this cause.
    """
    made, planned = given.measures.get("attempted_ratio", 1.0), 1 - COMPLETE_RATIO
    failed, attempted = _count(given, "failed"), _count(given, "attempted")
    facts = []
    if made < COMPLETE_RATIO:
        late_s = given.measures.get("attempt_delay_max", 0.0)
        facts.append(
            f"the clients made {formatting.ratio(made, 1)} of the planned attempts, up to "
            f"{formatting.time(late_s)} late"
        )
    if failed > planned * attempted:
        reasons = [
            f"{given.measures[name]:.0f} because {why}"
            for name, why in HOST_FAILURES.items()
            if name in given.measures
        ]
        text = f"{failed:.0f} of {attempted:.0f} attempts failed on the clients"
        facts.append(f"{text}: {', '.join(reasons)}" if reasons else text)
        if left := given.measures.get("time_wait_count"):
            facts.append(f"up to {left:.0f} sockets of a client were in TIME_WAIT")
    return found(*facts) if facts else ABSENT


GENERATOR: Final = Cause(
    id="generator",
    name=BottleneckName.GENERATOR,
    refuted_by="the same rate with more pairs",
    advice="Use more pairs, clients with faster cores, close=rst, more addresses "
    "(source_addresses=all), or a higher LimitNOFILE of the agents",
    evaluate=_generator,
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
    return found(
        f"the servers dropped {dropped:.0f} connections because their listen queue was full; "
        f"{_lost(given):.0f} attempts have no connection"
    )


BACKLOG: Final = Cause(
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


DEVICE_SESSIONS: Final = Cause(
    id="device-sessions",
    name=BottleneckName.FIREWALL,
    refuted_by="the same rate without the device (device.path=bypass)",
    advice="Lower the rate or the number of connections, or use a larger device",
    evaluate=_device,
)


def _cpu(given: BottleneckInput, side: Side) -> Evidence:
    """Check that the CPUs of the hosts are full.

    Evidence: attempts were lost, and the hosts of half of the pairs or more have all cores, or one
        core, 95 % busy.
    Reads: /proc/stat of the hosts.
    If absent: missing: the CPU counters.
    """
    if not _is_lossy(given):
        return ABSENT
    uses = [cpu_use(pair, side) for pair in given.pairs]
    full = [use for use in uses if use is not None and use >= CPU_FULL_RATIO]
    if full and len(full) >= HALF * len(uses):
        return found(f"{len(full)} of {len(uses)} pairs have a {side} with a full core or CPU")
    return unknown(f"the CPU load of the {side}s") if None in uses else ABSENT


def _cpu_cause(side: Side) -> Cause:
    return Cause(
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


OFFERED_CONNECTIONS: Final = Cause(
    id="offered-connections",
    name=BottleneckName.OFFERED_LOAD,
    refuted_by="the same number of connections when more are requested",
    advice="Raise the requested rate, or search for the highest one",
    evaluate=_offered,
)

CONNECTION_CAUSES: Final[Sequence[Cause]] = (
    GENERATOR,
    BACKLOG,
    DEVICE_SESSIONS,
    _cpu_cause(Side.CLIENT),
    _cpu_cause(Side.SERVER),
    OFFERED_CONNECTIONS,
)
