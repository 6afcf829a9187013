"""Findings that do not change a verdict but that its reader should know."""

from collections.abc import Iterator, Sequence
from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.judge.lag import CLOCK_PPM_MAX, is_clock
from broadside.coordinator.core.judge.streams import silent_stream_findings
from broadside.coordinator.core.summary import (
    BurstSummary,
    DeviceSummary,
    Finding,
    ForeignRow,
    Latency,
    MeasureSummary,
    PairSummary,
    Reconciliation,
    State,
    Stray,
    caution,
    note,
    warning,
)
from broadside.exchange.engines.downloads import UNPLACED
from broadside.exchange.messages import pair_name

# Number of foreign tests or rows to list in a finding.
NAMED_COUNT: Final = 3
# If the hypervisor takes this share of a host's CPU time, the effect is visible in the seconds.
TAKEN_RATIO: Final = 0.05
# If this share of a pair's probes is lost, the answered ones do not describe the path.
UNANSWERED_RATIO: Final = 0.9


def observations(burst: BurstSummary) -> Iterator[Finding]:
    """Yield the findings for a burst that do not change its verdict, in no particular order."""
    for state, weight, what, step in (
        (State.MISSED, 66, "never started", "start a client agent for every pair"),
        (State.LOST, 65, "were taken and never reported", "look at the agent's log and uplink"),
        (State.NULL, 64, "ended without a byte", "look at the engine's error"),
        (State.ABANDONED, 63, "were cut short", "look at the agent's log"),
        (State.REFUSED, 62, "stood down", "mend what the reason names"),
        (State.LATE, 61, "ran off the instant", "check clocks, the start gate and the queue"),
    ):
        named = [pair for pair in burst.pairs if pair.state is state]
        if named:
            yield warning(
                id=f"{state}-pairs",
                weight=weight,
                sentence=f"{len(named)} of {len(burst.pairs)} pairs {what}: {_names(named)}",
                next_step=step,
            )
    yield from stray_findings(burst.strays)
    yield from foreign_row_findings(burst.foreign_rows, burst.foreign_rows_count)
    yield from unplaced_findings(burst.measures)
    yield from silent_stream_findings(burst.silent_streams)
    yield from residual_causes(burst.reconciliation)
    yield from _latency_findings(burst.latency)
    yield from _unanswered_finding(burst.pairs)
    yield from _device_findings(burst.devices)
    if burst.differences:
        yield warning(
            id="engine-differs",
            weight=67,
            sentence="the engine did other than it was asked: "
            + "; ".join(map(str, burst.differences)),
            next_step="mend the host's limits (net.core, tcp_allowed_congestion_control, the "
            "path's MTU), or ask for what it can do",
        )
    if burst.unsteady_clocks is not None:
        unsteady = burst.unsteady_clocks
        yield warning(
            id="clock-moved",
            weight=68,
            sentence=f"{unsteady.pairs_count} of {len(burst.pairs)} pairs ran by a clock that "
            "did not hold, so their seconds may be misplaced: "
            + ", ".join(unsteady.said)
            + (", ..." if unsteady.pairs_count > len(unsteady.said) else ""),
            next_step="look at `chronyc tracking` and `chronyc sources` of those hosts; "
            "their agents stand down while the clock is over the gate",
        )
    if (taken := burst.taken_cpu) is not None and taken.worst_ratio >= TAKEN_RATIO:
        yield warning(
            id="cpu-taken",
            weight=69,
            sentence="hypervisors gave the hosts' cores to others while they tested: "
            f"{words.ratio(taken.mean_ratio, 1)} of {taken.hosts_count} hosts' CPU time, of "
            f"{taken.worst_host} {words.ratio(taken.worst_ratio, 1)}; late starts and slow "
            "seconds may be theirs, not the firewall's",
            next_step="use sizes or hosts whose cores are not shared, or launch again when "
            "the neighbours are quiet",
        )
    if burst.cliff is not None:
        fall = 1 - burst.cliff.after_bits_per_second / burst.cliff.before_bits_per_second
        yield Finding(
            id="collapse",
            kind="cause",
            severity="problem",
            weight=74,
            sentence=f"at {burst.cliff.at:%H:%M:%S} UTC the fleet fell by "
            f"{words.ratio(fall, 0)}, from {words.rate(burst.cliff.before_bits_per_second)} to "
            f"{words.rate(burst.cliff.after_bits_per_second)} of payload, and stayed there",
            next_step="look at what the firewall and the hosts logged at that second",
        )
    late = sum(flow.late_bits_per_second or 0.0 for flow in burst.flows)
    if late:
        yield caution(
            id="late-traffic",
            weight=45,
            sentence=f"{words.rate(late)} of the fleet's payload came from late pairs; it is "
            "in the fleet's rate, not in its coverage",
        )
    yield burst.limiter_details.finding()
    if burst.window is not None and burst.window.short:
        yield note(
            id="short-sustain",
            weight=10,
            sentence=f"the window is {burst.window.window_s} s; RFC 9411 recommends a "
            "sustain phase of at least 300 s",
        )


def lag_findings(held: Reconciliation | None, over_s: float) -> Iterator[Finding]:
    """Yield a finding if the lag of the device counter grows or shrinks.

    Args:
        held: Reconciliation for the run.
        over_s: Time from the start of the first burst to the end of the last one.
    """
    if held is None or held.lag_s is None or not held.lag_drift_s:
        return
    way = "grows" if held.lag_drift_s > 0 else "shrinks"
    grown = (
        f"the lag of the ledger {held.source} {way} by {words.time(abs(held.lag_drift_s))} from "
        f"the first burst to the last ({abs(held.lag_drift_s) / over_s * 1e6:.0f} ppm)"
    )
    if is_clock(held.lag_drift_s, over_s):
        yield note(
            id="lag-drift",
            weight=24,
            sentence=f"{grown}: the counter's clock drifts",
            next_step="synchronise the device's clock",
        )
    else:
        yield note(
            id="lag-drift",
            weight=24,
            sentence=f"{grown}, more than the {CLOCK_PPM_MAX:.0f} ppm of any clock: a delay that "
            "changes, between the counter and who reads it",
            next_step="look at how the metric is collected",
        )


def residual_causes(held: Reconciliation | None) -> Iterator[Finding]:
    """Yield a finding for each possible cause of a residual."""
    if held is None or held.residual_ratio is None:
        return
    for rank, cause in enumerate(held.causes):
        yield warning(
            id=cause.id,
            weight=72 - rank,
            sentence=cause.sentence
            if cause.id == "foreign-traffic"
            else f"of the ledgers' difference of {words.signed_ratio(held.residual_ratio)}, "
            f"{words.signed_ratio(cause.share_ratio)} may be {cause.id}: {cause.sentence}",
        )


def stray_findings(strays: Sequence[Stray]) -> Iterator[Finding]:
    """Yield a finding for tests that used the run's endpoints but belong to no pair.

    Their traffic is not counted.
    """
    if not strays:
        return
    named = "; ".join(
        f"{stray.address} port {stray.port} ({pair_name(stray.pair_index)}'s), from "
        f"{stray.client_address or 'an unknown address'}, "
        f"{words.size(stray.received_bytes)}"
        for stray in strays[:NAMED_COUNT]
    )
    more = "; ..." if len(strays) > NAMED_COUNT else ""
    yield warning(
        id="stray-tests",
        weight=69,
        sentence=f"{len(strays)} tests that belong to no pair of this run ran on its endpoints "
        f"during the burst: {named}{more}; they are not counted",
        next_step="check whether another run or a person tests against these servers; give every "
        "run its own endpoints",
    )


def foreign_row_findings(rows: Sequence[ForeignRow], count: int) -> Iterator[Finding]:
    """Yield a finding for rows that an agent was not allowed to write.

    Such a row names another agent, endpoint, run, pair or burst.

    Args:
        rows: Examples of these rows.
        count: Total number of these rows.
    """
    if not rows:
        return
    named = "; ".join(f"{row.row}: {row.said}" for row in rows[:NAMED_COUNT])
    more = "; ..." if count > NAMED_COUNT else ""
    yield warning(
        id="foreign-rows",
        weight=71,
        sentence=f"{count} rows of agents name another agent, endpoint, pair or burst than their "
        f"writer may: {named}{more}; they are no evidence",
        next_step="check which host wrote these rows and revoke its credential; on Azure, every "
        "identity with the agents' role may write them",
    )


def unplaced_findings(measures: Sequence[MeasureSummary]) -> Iterator[Finding]:
    """Yield a finding for server log lines with a time that is outside their test."""
    found = next((measure for measure in measures if measure.name == UNPLACED), None)
    if found is None:
        return
    yield warning(
        id="unplaced-log-lines",
        weight=68,
        sentence=f"{found.value:.0f} transfers in the logs of {found.pairs_count} servers have a "
        "time that cannot be of their test: they began before it could begin, ended after their "
        "line was read, or lasted longer than the job may; their bytes are not counted",
        next_step="check that the servers' clocks are not stepped, and that their disks and CPUs "
        "let the log be written in time",
    )


def _latency_findings(seen: Latency | None) -> Iterator[Finding]:
    """Yield findings for latency under load, with the worst pair and the worst second."""
    if seen is None or seen.fleet.during.p99_s is None:
        return
    idle, during = seen.fleet.before, seen.fleet.during
    against = "" if idle.p50_s is None else f" (idle {words.time(idle.p50_s)})"
    delay = seen.fleet.buffer_delay_ratio
    lost = f", {words.ratio(during.loss_ratio)} lost" if during.loss_ratio else ""
    yield note(
        id="latency-under-load",
        weight=38,
        sentence=f"probes of {seen.pairs_count} pairs took {words.time(during.p50_s or 0.0)}"
        f"{against}, p99 {words.time(during.p99_s or 0.0)}{lost} under load"
        + ("" if delay is None else f"; buffer delay {words.ratio(delay, 0)}")
        + (
            ""
            if seen.worst_pair is None
            else f"; worst {seen.worst_pair}, p99 {words.time(seen.worst_p99_s or 0.0)}"
        ),
    )
    if seen.spikes:
        worst = max(
            seen.spikes,
            key=lambda spike: (spike.pairs_count, (spike.to_at - spike.from_at).total_seconds()),
        )
        slow = "no answer" if worst.rtt_max_s is None else f"up to {words.time(worst.rtt_max_s)}"
        times = "once" if seen.spikes_count == 1 else f"{seen.spikes_count} times"
        yield warning(
            id="latency-spikes",
            weight=60,
            sentence=f"probes went a second or more without a good answer {times}; "
            f"the worst at {worst.from_at:%H:%M:%S} UTC for "
            f"{(worst.to_at - worst.from_at).total_seconds():.1f} s on {worst.pairs_count} "
            f"pairs ({', '.join(worst.pairs)}{', ...' if worst.pairs_count > 3 else ''}): "
            f"{slow}, {worst.lost_count} lost",
            next_step="look at what the firewall and the hosts did at that second",
        )


def _device_findings(devices: Sequence[DeviceSummary]) -> Iterator[Finding]:
    """Yield a finding with the telemetry of all devices."""
    told = [said for each in devices if (said := _device_said(each))]
    if told:
        yield note(id="device-load", weight=39, sentence="; ".join(told))


def _device_said(device: DeviceSummary) -> str:
    parts = []
    if device.cpu_ratio is not None:
        idle = device.cpu_ratio.idle
        before = "" if idle is None else f", idle {words.ratio(idle, 1)}"
        parts.append(
            f"CPU {words.ratio(device.cpu_ratio.mean, 1)} "
            f"(p95 {words.ratio(device.cpu_ratio.p95, 1)}{before})"
        )
    if device.share_ratio is not None:
        parts.append(f"{words.ratio(device.share_ratio, 1)} of what the devices carried")
    if device.sessions_count is not None:
        parts.append(f"{words.count(device.sessions_count.max)} sessions")
    if device.drops_per_second is not None and device.drops_per_second.mean:
        parts.append(f"{words.number(device.drops_per_second.mean)} drops a second")
    if device.health_ratio is not None and device.health_ratio.min < 1:
        parts.append(f"health {words.ratio(device.health_ratio.min, 0)} at its lowest")
    for way, seen in (("ICMP", device.ping_icmp_s), ("TCP", device.ping_tcp_s)):
        if seen is not None:
            before = "" if seen.idle is None else f", idle {words.time(seen.idle)}"
            parts.append(f"answers {way} in {words.time(seen.mean)} itself{before}")
    if device.ping_loss_ratio is not None and device.ping_loss_ratio.mean:
        parts.append(f"{words.ratio(device.ping_loss_ratio.mean, 1)} of pings lost")
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
        id="probes-unanswered",
        weight=59,
        sentence=f"{len(silent)} of {len(probed)} probed pairs had (nearly) no answer to their "
        f"probes under load, {before} of them had some before it: "
        f"{_names([pair for pair, _ in silent])}",
        next_step="look for what drops small UDP datagrams under load"
        if 2 * before > len(silent)
        else "let the server agents' echo port (BROADSIDE_AGENT_ECHO_PORT, 5200/udp) through "
        "the firewall and the servers' own rules, and see in the agents' logs that it is bound",
    )


def _names(pairs: Sequence[PairSummary]) -> str:
    said = [f"{pair.pair} ({pair.reason})" if pair.reason else pair.pair for pair in pairs[:3]]
    more = f" and {len(pairs) - 3} more" if len(pairs) > 3 else ""
    return ", ".join(said) + more
