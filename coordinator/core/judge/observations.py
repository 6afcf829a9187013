"""Findings that do not change a verdict but that its reader should know."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.checks.counter_checks import CAUSE_STEPS, UNKNOWN_STEP
from broadside.coordinator.core.judge.checks.pair_texts import LISTED_COUNT, list_pairs, state_texts
from broadside.coordinator.core.judge.reconciliation.lag import CLOCK_PPM_MAX, is_clock
from broadside.coordinator.core.judge.reconciliation.residual_causes import OTHER_TRAFFIC
from broadside.coordinator.core.plain_fields import UNKNOWN_TEXTS, plain_fields
from broadside.coordinator.core.summary import (
    BurstSummary,
    CanarySummary,
    DeviceSummary,
    Finding,
    FindingValue,
    Latency,
    PairSummary,
    Reconciliation,
    SecondState,
    SilentStream,
    caution,
    describe_change,
    describe_failures,
    describe_limit,
    describe_units,
    note,
    warning,
)
from broadside.exchange.engines.downloads import UNPLACED
from broadside.exchange.messages import SILENT_STREAMS_MAX_COUNT, Presence, Role, pair_name

# If the hypervisor takes this share of a host's CPU time, the effect is visible in the seconds.
TAKEN_RATIO: Final = 0.05
# If this share of a pair's probes is lost, the answered ones do not describe the path.
UNANSWERED_RATIO: Final = 0.9
# Fields of an agent that should be the same on all hosts of a role.
COMPARED: Final = ("kernel", "engine_version", "vm_size", "cpu_count", "nic_mtu_bytes", "gate")
# Below this share of the planned attempts, or above this delay, the client was too slow.
ATTEMPTED_MIN_RATIO: Final = 0.999
ATTEMPT_DELAY_MAX_S: Final = 0.5
# Largest difference between the sessions of a device and the connections of the fleet.
SESSIONS_RESIDUAL_MAX_RATIO: Final = 0.005
# Weight of the finding for each state of pairs.
_STATE_WEIGHTS: Final = {
    SecondState.MISSED: 66,
    SecondState.LOST: 65,
    SecondState.NULL: 64,
    SecondState.ABANDONED: 63,
    SecondState.REFUSED: 62,
    SecondState.LATE: 61,
}


def observations(burst: BurstSummary) -> Iterator[Finding]:
    """Yield the findings for a burst that do not change its verdict, in no particular order."""
    yield from _pair_findings(burst)
    yield from _foreign_findings(burst)
    yield from _host_findings(burst)
    yield from _silent_stream_findings(burst.silent_streams)
    yield from _unit_findings(burst)
    yield from _canary_findings(burst.canary)
    yield from residual_findings(burst.reconciliation)
    yield from _latency_findings(burst.latency)
    yield from _generator_findings(burst)
    yield from _session_findings(burst)
    yield from _unanswered_finding(burst.pairs)
    devices = [text for device in burst.devices if (text := _describe_device(device))]
    if devices:
        yield note("device-load", 39, f"{'; '.join(devices)}.")
    if burst.cliff is not None:
        before, after = burst.cliff.before_bits_per_second, burst.cliff.after_bits_per_second
        yield warning(
            "collapse",
            74,
            f"At {burst.cliff.at:%H:%M:%S} UTC the received rate fell by "
            f"{formatting.ratio(1 - after / before, 0)}, from {formatting.rate(before)} to "
            f"{formatting.rate(after)} of payload, and stayed low until the end of the burst.",
            "Read the logs of the firewall and of the hosts at that second",
            FindingValue.rate(after),
        ).model_copy(update={"severity": "problem"})
    yield burst.bottleneck_details.finding()
    if burst.window is not None and burst.window.short:
        yield note(
            "short-sustain",
            10,
            f"The window is {burst.window.window_s} s. RFC 9411 recommends a sustain phase of at "
            "least 300 s, so the verdict is only for the measured time.",
            "To comply with RFC 9411, run bursts of more than 300 s (`burst_s`)",
            FindingValue.time(burst.window.window_s, "low"),
        )


def _generator_findings(burst: BurstSummary) -> Iterator[Finding]:
    """Yield a finding if the clients did not make all planned attempts, or made them late."""
    measured = {measure.name: measure.value for measure in burst.measures}
    made, delay_s = measured.get("attempted_ratio"), measured.get("attempt_delay_max", 0.0)
    if made is None:
        return
    yield from _queue_finding(measured)
    failed = measured.get("failed_count", 0)
    reasons = describe_failures(measured)
    if made >= ATTEMPTED_MIN_RATIO and not failed and delay_s <= ATTEMPT_DELAY_MAX_S:
        return
    yield caution(
        "generator-limit",
        60,
        f"The clients made {formatting.ratio(made, 1)} of the planned attempts, at most "
        f"{formatting.time(delay_s)} late, and {failed:.0f} failed on their hosts"
        f"{': ' + ', '.join(reasons) if reasons else ''}. The clients were a limit, not only the "
        "path.",
        "Use more pairs or a lower rate. For ports, use `close=rst` or more addresses; for file "
        "descriptors, raise LimitNOFILE of the agent",
    )


def _queue_finding(measured: Mapping[str, float]) -> Iterator[Finding]:
    """Yield a finding if the listen queues of the servers were full."""
    dropped, attempted = (
        measured.get("server_backlog_dropped_count", 0),
        measured.get("attempted_count", 0),
    )
    if dropped > (1 - ATTEMPTED_MIN_RATIO) * attempted:
        yield caution(
            "listen-queue-full",
            59,
            f"The servers dropped {dropped:.0f} connections because their listen queue was full"
            f"{describe_limit(measured.get('server_backlog_limit_count'))}. Clients try again "
            "after a second, so handshakes are slower, and this is not the device.",
            "Raise net.core.somaxconn of the servers, or use more servers",
            FindingValue.count(dropped),
        )


def _session_findings(burst: BurstSummary) -> Iterator[Finding]:
    """Yield a finding for each device whose sessions agree with the fleet's, or do not."""
    for one in burst.sessions:
        residuals = [
            (name, residual)
            for name, residual in (
                ("set up", one.set_up_residual_ratio),
                ("ended", one.ended_residual_ratio),
            )
            if residual is not None
        ]
        if not residuals:
            continue
        worst = max((residual for _, residual in residuals), key=abs)
        texts = [f"{name} {formatting.signed_ratio(residual)}" for name, residual in residuals]
        sentence = (
            f"{one.device} set up {one.set_up_count:.0f} sessions for {one.fleet_count:.0f} "
            f"connections of the fleet. Residuals: {', '.join(texts)} (limit "
            f"{formatting.ratio(SESSIONS_RESIDUAL_MAX_RATIO, 1)})."
        )
        value = FindingValue.residual(worst)
        if abs(worst) <= SESSIONS_RESIDUAL_MAX_RATIO:
            yield note("sessions-agree", 23, sentence, value=value)
        else:
            yield caution(
                "sessions-residual",
                58,
                f"{sentence} Other sessions crossed the device, or it lost some of them.",
                "Find other traffic through the device, and read its log of ended sessions",
                value,
            )


def _pair_findings(burst: BurstSummary) -> Iterator[Finding]:
    """Yield findings for pairs that were not measured completely."""
    for state, count, text in state_texts(burst):
        yield warning(
            f"{state.state}-pairs",
            _STATE_WEIGHTS[state.state],
            text,
            state.next_step,
            FindingValue(value=count, text=f"{count} of the pairs", worst="high"),
        )
    late = sum(flow.late_bits_per_second or 0.0 for flow in burst.flows)
    if late:
        yield caution(
            "late-traffic",
            45,
            f"Late pairs received {formatting.rate(late)} of payload. It is included in the "
            "fleet's rate, but not in the completeness.",
            "Check clocks, start gate and queue of the late pairs",
            FindingValue.rate(late),
        )


def _foreign_findings(burst: BurstSummary) -> Iterator[Finding]:
    """Yield findings for tests and rows that do not belong to the run, and are not counted."""
    if foreign_tests := burst.foreign_tests:
        listed = "; ".join(
            f"{stray.address} port {stray.port} ({pair_name(stray.pair_index)}) from "
            f"{stray.client_address or 'an unknown address'}, "
            f"{formatting.size(stray.received_bytes)}"
            for stray in foreign_tests[:LISTED_COUNT]
        )
        yield warning(
            "foreign-tests",
            69,
            f"{len(foreign_tests)} tests that belong to no pair used the endpoints of this run: "
            f"{listed}"
            f"{'; ...' if len(foreign_tests) > LISTED_COUNT else ''}. They are not counted.",
            "Find out if another run or a person uses these servers, and stop it",
            FindingValue.count(len(foreign_tests)),
        )
    if burst.foreign_rows:
        count = burst.foreign_rows_count
        listed = "; ".join(f"{row.row}: {row.problem}" for row in burst.foreign_rows[:LISTED_COUNT])
        yield warning(
            "foreign-rows",
            71,
            f"{count} rows are for an agent, endpoint, pair or burst for which their writer has no "
            f"permission: {listed}{'; ...' if count > LISTED_COUNT else ''}. They are not used.",
            "Find the host that wrote these rows and revoke its credential. On Azure every "
            "identity with the agent role can write them",
            FindingValue.count(count),
        )
    unplaced = next((item for item in burst.measures if item.name == UNPLACED), None)
    if unplaced is not None:
        yield warning(
            "unplaced-log-lines",
            68,
            f"{unplaced.value:.0f} transfers in the logs of {unplaced.pairs_count} servers have "
            "times outside their test. Their bytes are not counted.",
            "Check that the servers' clocks are not set during a test, and that the log is written "
            "without delay",
            FindingValue.count(unplaced.value),
        )


def _host_findings(burst: BurstSummary) -> Iterator[Finding]:
    """Yield findings for engines, clocks and CPUs."""
    if burst.differences:
        yield warning(
            "engine-differs",
            67,
            "The engine used other settings than requested: "
            f"{'; '.join(map(str, burst.differences))}.",
            "Raise the limits of the hosts (sysctl net.core, tcp_allowed_congestion_control; MTU "
            "of the path), or request supported values",
        )
    if (unsteady := burst.unsteady_clocks) is not None:
        more = ", ..." if unsteady.pairs_count > len(unsteady.examples) else ""
        yield warning(
            "clock-moved",
            68,
            f"{unsteady.pairs_count} of {len(burst.pairs)} pairs had a clock error above the limit "
            f"before or after the burst: {', '.join(unsteady.examples)}{more}. The times of their "
            "seconds may be wrong.",
            "Check `chronyc tracking` and `chronyc sources` on these hosts. Their agents refuse "
            "jobs while the clock error is above the limit",
            FindingValue.count(unsteady.pairs_count),
        )
    cpu = burst.taken_cpu
    if cpu is not None and cpu.worst_ratio >= TAKEN_RATIO:
        yield warning(
            "cpu-taken",
            69,
            f"Hypervisors gave {formatting.ratio(cpu.mean_ratio, 1)} of the CPU time of "
            f"{cpu.hosts_count} hosts to other virtual machines ({cpu.worst_host}: "
            f"{formatting.ratio(cpu.worst_ratio, 1)}; limit {formatting.ratio(TAKEN_RATIO, 1)}). "
            "This can cause late starts and slow seconds.",
            "Use VM sizes or hosts with dedicated cores, or run again at another time",
            FindingValue.share(cpu.worst_ratio, "high"),
        )


def _unit_findings(burst: BurstSummary) -> Iterator[Finding]:
    """Yield findings about the units of a device that translates source addresses per unit."""
    units = burst.units
    if units is None or not units.units:
        return
    reported = None if burst.device is None else burst.device.units_count
    telemetry = "" if reported is None else f" Telemetry reports {reported.max:g}."
    yield note(
        "units",
        22,
        f"{describe_units(units)} The busiest carried "
        f"{formatting.ratio(units.imbalance_ratio, 0)} of the mean (Jain's index "
        f"{formatting.number(units.jain_ratio)}).{telemetry}",
    )
    if units.slow is not None:
        slow = units.of_address(units.slow).received_bits_per_second
        rates = (unit.received_bits_per_second or 0.0 for unit in units.units)
        usual = median(rate for rate in rates if rate != slow)
        yield warning(
            "slow-unit",
            57,
            f"Unit {units.slow} carried {formatting.rate(slow)}; the median of the other units is "
            f"{formatting.rate(usual)}. Its streams are slower.",
            "Compare the CPU, health and version of this unit with the others",
        )
    if units.changes:
        listed = "; ".join(map(describe_change, units.changes[:LISTED_COUNT]))
        more = len(units.changes) - LISTED_COUNT
        yield warning(
            "unit-changes",
            56,
            f"Units joined or left: {listed}{f'; and {more} more' if more > 0 else ''}.",
            "Read the scaling and maintenance events of the device at these seconds",
        )


def _canary_findings(canary: CanarySummary | None) -> Iterator[Finding]:
    """Yield findings about blocked allowed requests, and about blocks that came too late."""
    if canary is None:
        return
    during, before = canary.during, canary.before
    if during.allowed_blocked_count:
        idle = (
            f" Before the burst: {before.allowed_blocked_count} of {before.allowed_count}."
            if before.allowed_count
            else ""
        )
        yield warning(
            "canary-allowed-blocked",
            58,
            f"{during.allowed_blocked_count} of {during.allowed_count} allowed canaries "
            f"({formatting.ratio(during.allowed_blocked_ratio)}) did not arrive during the burst."
            f"{idle} The device may drop allowed flows under load.",
            "Compare with the drops of the device, and with the loss of the traffic itself",
            FindingValue.share(during.allowed_blocked_ratio or 0.0, "high"),
        )
    if during.late_count:
        delay = (
            ""
            if during.decision_p50_s is None
            else f" Median time until the block was visible: "
            f"{formatting.time(during.decision_p50_s)}."
        )
        yield warning(
            "canary-late",
            57,
            f"{during.late_count} of {during.leaked_count} leaked canaries were blocked after "
            f"their request had arrived at the server.{delay}",
            "Check whether the device passes data before it has inspected it",
            FindingValue.count(during.late_count),
        )


def _silent_stream_findings(silent: Sequence[SilentStream]) -> Iterator[Finding]:
    """Yield a finding that lists the streams with the longest silence, if there are any."""
    if not silent:
        return
    listed = []
    for stream in sorted(silent, key=lambda stream: -stream.duration_s)[:LISTED_COUNT]:
        port = "" if stream.client_port is None else f" with client port {stream.client_port}"
        of = f" (one of {stream.streams_count})" if stream.streams_count else ""
        listed.append(
            f"{stream.pair}, stream{port}{of} from {stream.from_at:%H:%M:%S} UTC for "
            f"{formatting.time(stream.duration_s)}"
        )
    more = len(silent) - len(listed)
    least = "at least " if len(silent) == SILENT_STREAMS_MAX_COUNT else ""
    yield warning(
        "silent-streams",
        60,
        "Single streams carried no traffic while other streams of their pair did: "
        f"{'; '.join(listed)}{f'; and {least}{more} more' if more else ''}.",
        "Look for these ports in the session table and the log of the device at these seconds. A "
        "session may have been dropped, or one of several links may be down",
        FindingValue.time(max(stream.duration_s for stream in silent)),
    )


_CAUSE_STEPS: Final[Mapping[str, str]] = {
    **CAUSE_STEPS,
    OTHER_TRAFFIC: "Stop the other traffic if the residual is too large",
    "unknown": UNKNOWN_STEP,
}


def residual_findings(counter: Reconciliation | None) -> Iterator[Finding]:
    """Yield a finding for each possible cause of a residual."""
    if counter is None or counter.residual_ratio is None:
        return
    for rank, cause in enumerate(counter.causes):
        part = (
            f" This may explain {formatting.signed_ratio(cause.share_ratio)} of the residual "
            f"{formatting.signed_ratio(counter.residual_ratio)}."
        )
        explains_all = abs(cause.share_ratio) >= abs(counter.residual_ratio)
        is_other = cause.id == OTHER_TRAFFIC
        part = "" if is_other or explains_all else part
        value = None if is_other else FindingValue.residual(cause.share_ratio)
        yield warning(
            cause.id, 72 - rank, f"{cause.sentence}.{part}", _CAUSE_STEPS[cause.id], value
        )


def lag_findings(counter: Reconciliation | None, over_s: float) -> Iterator[Finding]:
    """Yield a finding if the lag of the device counter grows or shrinks.

    Args:
        counter: Reconciliation for the run. None if no source returned data.
        over_s: Time from the start of the first burst to the end of the last one.
    """
    if counter is None or counter.lag_s is None or not counter.lag_drift_s:
        return
    direction = "grows" if counter.lag_drift_s > 0 else "shrinks"
    drift_s, ppm = abs(counter.lag_drift_s), abs(counter.lag_drift_s) / over_s * 1e6
    measured = (
        f"The lag of the device counter {counter.source} {direction} by "
        f"{formatting.time(drift_s)} from the first burst to the last ({ppm:.0f} ppm)."
    )
    if is_clock(counter.lag_drift_s, over_s):
        yield note(
            "lag-drift",
            24,
            f"{measured} The clock of the counter drifts.",
            "Synchronise the clock of the device",
        )
    else:
        yield note(
            "lag-drift",
            24,
            f"{measured} A clock drifts by at most {CLOCK_PPM_MAX:.0f} ppm, so the delay between "
            "the counter and its reader changes.",
            "Check how the metric is collected",
        )


def _latency_findings(latency: Latency | None) -> Iterator[Finding]:
    """Yield findings for latency under load, with the worst pair and the worst second."""
    if latency is None or latency.fleet.during.p99_s is None:
        return
    idle, during = latency.fleet.before, latency.fleet.during
    delay = latency.fleet.buffer_delay_ratio
    median, p99 = formatting.time(during.p50_s or 0.0), formatting.time(during.p99_s)
    probes = f"Probes of {latency.pairs_count} pairs under load"
    parts = [f"{probes}: median {median}, 99th percentile {p99}"]
    if idle.p50_s is not None:
        parts.append(f"median without load {formatting.time(idle.p50_s)}")
    if during.loss_ratio:
        parts.append(f"{formatting.ratio(during.loss_ratio)} lost")
    if delay is not None:
        parts.append(f"buffer delay {formatting.ratio(delay, 0)}")
    if latency.worst_pair is not None:
        worst = formatting.time(latency.worst_p99_s or 0.0)
        parts.append(f"worst {latency.worst_pair}, 99th percentile {worst}")
    p99_s = FindingValue.time(during.p99_s or 0.0)
    yield note("latency-under-load", 38, f"{'; '.join(parts)}.", value=p99_s)
    if latency.spikes:
        spike = max(
            latency.spikes,
            key=lambda item: (item.pairs_count, (item.to_at - item.from_at).total_seconds()),
        )
        slow = (
            "no answer" if spike.rtt_max_s is None else f"up to {formatting.time(spike.rtt_max_s)}"
        )
        times = "once" if latency.spikes_count == 1 else f"{latency.spikes_count} times"
        yield warning(
            "latency-spikes",
            60,
            f"Probes were lost or slow for one second or more, {times}. Worst: "
            f"{spike.from_at:%H:%M:%S} UTC for {(spike.to_at - spike.from_at).total_seconds():.1f} "
            f"s on {spike.pairs_count} pairs ({', '.join(spike.pairs)}"
            f"{', ...' if spike.pairs_count > len(spike.pairs) else ''}): {slow}, "
            f"{spike.lost_count} lost.",
            "Read the logs of the firewall and of the hosts at that second",
            FindingValue.count(latency.spikes_count),
        )


def _describe_device(device: DeviceSummary) -> str:
    """Return a text with the known telemetry of a device, or an empty text."""
    parts = []
    if (cpu := device.cpu_ratio) is not None:
        idle = "" if cpu.idle is None else f", without load {formatting.ratio(cpu.idle, 1)}"
        parts.append(
            f"CPU {formatting.ratio(cpu.mean, 1)} (95th percentile "
            f"{formatting.ratio(cpu.p95, 1)}{idle})"
        )
    if device.share_ratio is not None:
        parts.append(f"{formatting.ratio(device.share_ratio, 1)} of the traffic of all devices")
    if device.sessions_count is not None:
        parts.append(f"{formatting.count(device.sessions_count.max)} sessions")
    if device.drops_per_second is not None and device.drops_per_second.mean:
        parts.append(f"{formatting.number(device.drops_per_second.mean)} drops/s")
    if device.health_ratio is not None and device.health_ratio.min < 1:
        parts.append(f"lowest health {formatting.ratio(device.health_ratio.min, 0)}")
    for protocol, ping in (("ICMP", device.ping_icmp_s), ("TCP", device.ping_tcp_s)):
        if ping is not None:
            idle = "" if ping.idle is None else f", without load {formatting.time(ping.idle)}"
            parts.append(f"{protocol} ping {formatting.time(ping.mean)}{idle}")
    if device.ping_loss_ratio is not None and device.ping_loss_ratio.mean:
        parts.append(f"{formatting.ratio(device.ping_loss_ratio.mean, 1)} of pings lost")
    return f"{device.device}: {', '.join(parts)}" if parts else ""


def _unanswered_finding(pairs: Sequence[PairSummary]) -> Iterator[Finding]:
    """Yield a finding for pairs that received almost no answers to probes under load."""
    probed = [
        (pair, pair.latency)
        for pair in pairs
        if pair.latency is not None and pair.latency.during.sent_count
    ]
    silent = [
        (pair, path) for pair, path in probed if (path.during.loss_ratio or 0.0) >= UNANSWERED_RATIO
    ]
    if not silent:
        return
    before = sum(bool(path.before.answered_count) for _, path in silent)
    yield warning(
        "probes-unanswered",
        59,
        f"{len(silent)} of {len(probed)} probed pairs lost "
        f"{formatting.ratio(UNANSWERED_RATIO, 0)} or more of their probes under load; {before} of "
        f"them had answers before: {list_pairs([pair for pair, _ in silent])}.",
        "Find out what drops small UDP datagrams under load"
        if 2 * before > len(silent)
        else "Allow the echo port of the server agents (BROADSIDE_AGENT_ECHO_PORT, 5200/udp) in "
        "the firewall and in the servers' own rules, and check in the agents' logs that it is open",
        FindingValue.count(len(silent)),
    )


def host_difference_findings(
    fleet: Sequence[Presence], agent_ids: Sequence[str]
) -> Iterator[Finding]:
    """Yield a finding if hosts in the same role are different.

    An unknown value does not count as a difference.

    Args:
        fleet: Agents that were present at launch.
        agent_ids: Ids of the agents that took part in the run.
    """
    hosts = [agent for agent in fleet if agent.agent_id in agent_ids]
    lines = [
        line
        for role in Role
        for line in _differences([host for host in hosts if host.role is role])
    ]
    if lines:
        more = f"; and {len(lines) - 5} more" if len(lines) > 5 else ""
        yield warning(
            "hosts-differ",
            55,
            f"Hosts in the same role differ: {'; '.join(lines[:5])}{more}.",
            "Make the hosts equal, or do not use the hosts that differ",
        )


def _differences(hosts: Sequence[Presence]) -> Iterator[str]:
    """Yield a text for each field that has different values.

    The text lists the most common value and the hosts that have another one.
    """
    values: dict[str, dict[str, str]] = {}
    for host in hosts:
        for name, text in host_properties(host).items():
            values.setdefault(name, {})[host.agent_id] = text
    for name, by_host in values.items():
        counts = Counter(by_host.values())
        if len(counts) < 2:
            continue
        usual, most_count = counts.most_common(1)[0]
        invalid = [f"{host} has {text}" for host, text in by_host.items() if text != usual]
        more = f" and {len(invalid) - LISTED_COUNT} more" if len(invalid) > LISTED_COUNT else ""
        yield f"{name}: {', '.join(invalid[:LISTED_COUNT])}{more}, {most_count} have {usual}"


def host_properties(host: Presence) -> Mapping[str, str]:
    """Return the known properties of a host that should be the same in a role."""
    switches = {"True": "on", "False": "off"}
    return {
        name.removeprefix("passport.")
        .removeprefix("offloads.")
        .removeprefix("sysctls."): switches.get(text, text)
        for name, text in plain_fields(host).items()
        if (name in COMPARED or name.startswith("passport.")) and text not in UNKNOWN_TEXTS
    }
