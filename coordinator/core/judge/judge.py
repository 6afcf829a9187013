"""Objective in, verdict and findings out.

Three rules make a pass mean something:

- below the coverage floor nothing is a pass;
- a burst with anything missing passes only if it would have passed over *every* window that the
  missing rows could have made the common one, on what receivers themselves recorded
  (:func:`broadside.coordinator.core.measure.aggregate._worst`), so leaving rows out never helps;
- a limit that was not measured for every pair is not met.
"""

from collections.abc import Iterator, Sequence
from typing import Final, assert_never

from broadside.coordinator.core import words
from broadside.coordinator.core.figures import RECEIVED
from broadside.coordinator.core.goals import GOALS, Goal, Teller
from broadside.coordinator.core.judge.contradictions import contradicted, stray_findings
from broadside.coordinator.core.judge.residual_cause import UNSEEN_BY_BYTES
from broadside.coordinator.core.judge.streams import silent_stream_findings
from broadside.coordinator.core.judge.target import WHOLE_RATIO, hold_rate, hold_shape
from broadside.coordinator.core.judge.timing import hold_clocks, hold_starts
from broadside.coordinator.core.measure.measures import find
from broadside.coordinator.core.plan.spec import RunSpec
from broadside.coordinator.core.summary import (
    BurstSummary,
    Check,
    DeviceSummary,
    Finding,
    Latency,
    PairSummary,
    Reconciliation,
    State,
    Verdict,
    caution,
    inconclusive,
    note,
    order,
    problem,
    warning,
    worse,
)

DEVICE_KNOWN_RATIO: Final = 0.8  # of a window's seconds: its first and last readings reach out
TAKEN_RATIO: Final = 0.05  # of a host's CPU time by its hypervisor: seconds of a burst show it
UNANSWERED_RATIO: Final = 0.9  # of a pair's probes lost: what is left says nothing of the path


def judge(
    spec: RunSpec,
    burst: BurstSummary,
    *,
    between: float | None = None,
    clocks_promised: bool = True,
    clocks_shared: bool = False,
) -> tuple[Verdict, tuple[Finding, ...]]:
    """Judge one burst; ``between`` is the scatter of its run's (see :mod:`.target`), in bit/s."""
    checks = (
        _coverage(spec, burst, clocks_promised=clocks_promised, clocks_shared=clocks_shared),
        hold_rate(spec, burst, between),
        hold_shape(spec, burst),
        _limits(spec, burst),
        _residual(spec, burst),
        contradicted(burst.contradictions),
        hold_starts(spec, burst),
    )
    findings = [finding for _, found in checks for finding in found]
    findings += _observations(spec, burst)
    verdict = worse(verdict for verdict, _ in checks)
    if verdict is Verdict.FAIL and checks[0][0] is Verdict.INCONCLUSIVE:
        # Only what no missing row could have saved is a failure below the floor.
        verdict = checks[1][0] if checks[1][0] is Verdict.FAIL else Verdict.INCONCLUSIVE
    return verdict, order(findings)


def _coverage(
    spec: RunSpec, burst: BurstSummary, *, clocks_promised: bool, clocks_shared: bool
) -> Check:
    floor = spec.objective.coverage_floor_ratio
    seen = burst.completeness
    if seen.completeness_ratio < floor:
        return inconclusive(
            id="below-floor",
            weight=95,
            sentence=f"{seen.measured_s} of {seen.planned_s} planned pair-seconds were "
            f"measured, {words.ratio(seen.completeness_ratio, 1)}; a verdict needs "
            f"{words.ratio(floor, 1)}",
            next_step="mend what the findings below name, then run again",
        )
    if burst.proven_ratio < floor:
        return inconclusive(
            id="receiver-unseen",
            weight=90,
            sentence=f"receivers' own seconds cover {words.ratio(burst.proven_ratio, 1)} of "
            "the planned "
            f"pair-seconds; a verdict needs {words.ratio(floor, 1)}, the rest rests on senders",
            next_step="check that the server agents run and can write their records",
        )
    return hold_clocks(spec, burst, promised=clocks_promised, shared=clocks_shared)


def _limits(spec: RunSpec, burst: BurstSummary) -> Check:
    """The goals that were set; one that was not measured for every pair is not met."""
    count = len(burst.pairs)
    whole = burst.completeness.completeness_ratio >= WHOLE_RATIO
    verdicts, findings = [Verdict.PASS], []
    for goal in GOALS:
        bound = getattr(spec.objective, goal.bound)
        for where, value, told_count, of_what in () if bound is None else _told(goal, burst):
            if value is not None and goal.broken_by(value, bound):
                verdicts.append(Verdict.FAIL)
                findings.append(
                    problem(
                        id=f"{goal.id}-limit",
                        weight=90,
                        sentence=f"{where}the {goal.words} is {goal.say(value)}, "
                        f"the limit {goal.say(bound)}",
                        next_step=goal.next_step,
                    )
                )
            elif value is None or told_count < count or not whole:
                verdicts.append(Verdict.INCONCLUSIVE)
                findings.append(
                    problem(
                        id=f"{goal.id}-unproven",
                        weight=70,
                        sentence=f"{where}the {goal.words} {goal.teller} {of_what}; its limit of "
                        f"{goal.say(bound)} needs all of them",
                        next_step="make the witness answer, then run again"
                        if goal.teller is Teller.DEVICE
                        else "run again with every pair",
                    )
                )
    return worse(verdicts), findings


def _told(goal: Goal, burst: BurstSummary) -> Iterator[tuple[str, float | None, int, str]]:
    """Whose figure it is, the figure, how many pairs told it, and that in words."""
    if goal.teller is Teller.DEVICE:
        yield from _told_of_devices(goal, burst)
        return
    for where, value, told_count in _told_by_pairs(goal, burst):
        yield where, value, told_count, f"{told_count} of {len(burst.pairs)} pairs"


def _told_of_devices(
    goal: Goal, burst: BurstSummary
) -> Iterator[tuple[str, float | None, int, str]]:
    """Each device's own; one of which too little of the window is known is not told of."""
    quantity, _, statistic = goal.figure.partition(".")
    if not burst.devices:
        yield "", None, 0, "no device"
    for device in burst.devices:
        seen = getattr(device, quantity)
        known = 0.0 if seen is None else seen.covered_ratio
        value = None if seen is None else getattr(seen, statistic)
        told_count = len(burst.pairs) if known >= DEVICE_KNOWN_RATIO else 0
        said = f"{words.ratio(known, 0)} of the window's seconds"
        yield f"{device.device}: ", value, told_count, said


def _told_by_pairs(goal: Goal, burst: BurstSummary) -> Iterator[tuple[str, float | None, int]]:
    match goal.teller:
        case Teller.FLOW:
            for flow in burst.flows:
                yield f"{flow.flow}: ", getattr(flow, goal.figure), getattr(flow, goal.pairs_count)
        case Teller.MEASURE:
            found = find(burst.measures, goal.figure)
            yield ("", None, 0) if found is None else ("", found.value, found.pairs_count)
        case Teller.PROBE:
            seen = burst.latency
            if seen is None:
                yield "", None, 0
            else:
                yield "", getattr(seen.fleet.during, goal.figure), seen.whole_pairs_count
        case Teller.DEVICE:
            return
        case _:
            assert_never(goal.teller)


def _latency_findings(seen: Latency | None) -> Iterator[Finding]:
    """What the load did to the path, with the worst pair and the worst second named."""
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
    """What witnesses say of each device, in a sentence."""
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
    """Pairs whose probes went out and (nearly) none came back, under load or already before it."""
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


def _residual(spec: RunSpec, burst: BurstSummary) -> Check:
    held = burst.reconciliation
    if held is None:  # see promises
        return Verdict.PASS, []
    if held.residual_ratio is None and held.baseline_how is not None and held.lag_s is None:
        return inconclusive(
            id="lag-unknown",
            weight=76,
            sentence=f"how far the ledger {held.source} runs behind is not told by its bins of "
            f"{held.grain_s:g} s: the fleet's ups and downs are not in it, or in more than one "
            "place, so the ledgers cannot be held together",
            next_step="keep the ledger from before the first burst to after the last one, use "
            "finer bins, or leave time between bursts",
        )
    if held.residual_ratio is None:
        return inconclusive(
            id="ledger-empty",
            weight=75,
            sentence=f"the ledger {held.source} knows no bin of this burst",
            next_step="wait until the metric has settled, then recompute the verdict",
        )
    if held.rejected_bins_count:
        return inconclusive(
            id="ledger-untrue",
            weight=89,
            sentence=f"{held.rejected_bins_count} bins of the ledger {held.source} hold what "
            "no device can have counted: negative, infinite, reversed or repeated",
            next_step="find out why the metric says so, then read it again",
        )
    if held.bypassed:
        return _crossed(spec, held, held.residual_ratio)
    limit = spec.objective.residual_max_ratio
    planned = burst.completeness.planned_s
    unseen_s = planned - burst.completeness.measured_s
    received = RECEIVED.of_burst(burst) or 0.0
    fill = (
        (burst.peak_pair_bits_per_second or 0.0) * unseen_s / max(1, burst.duration_s) / received
        if received > 0
        else 0.0
    )
    low, high = held.residual_ends
    reach = max(abs(low - fill), abs(high)) + held.unknown_ratio
    said = (
        "the firewall's ledger and the fleet's differ by "
        f"{words.signed_ratio(held.residual_ratio)} "
        f"({words.signed_ratio(low)} to {words.signed_ratio(high)} at 95 %) of "
        f"{words.size(held.expected_bytes)} at its layer"
    )
    if held.lag_s is None or reach > limit:
        return inconclusive(
            id="residual",
            weight=88,
            sentence=f"{said}, more than the {words.ratio(limit, 1)} allowed"
            + (
                f" (up to {words.ratio(reach, 1)} with what is unsure, missing or not known yet)"
                if abs(held.residual_ratio) <= limit
                else ""
            ),
            next_step="find out what the firewall saw and the fleet did not, or the reverse"
            if abs(held.residual_ratio) > limit
            else "make the ledger tell more: finer bins, quiet before and after, more bursts",
        )
    return Verdict.PASS, [
        note(
            id="reconciled",
            weight=40,
            sentence=said,
        ),
        note(
            id="unseen-by-bytes",
            weight=11,
            sentence=UNSEEN_BY_BYTES,
        ),
    ]


def _crossed(spec: RunSpec, held: Reconciliation, crossed_ratio: float) -> Check:
    """Of a run that was to pass the firewall by, its ledger must show nothing."""
    if held.baseline_how != "quiet":
        return inconclusive(
            id="idle-unknown",
            weight=87,
            sentence=f"the ledger {held.source} has no quiet bins beside the bursts, so that "
            "its idle level is not known and nothing says that the run passed the firewall by",
            next_step="keep the ledger from some minutes before the first burst to some after "
            "the last one",
        )
    limit = spec.objective.residual_max_ratio
    said = (
        f"above its idle level the ledger {held.source} shows {words.signed_ratio(crossed_ratio)} "
        f"(+-{words.ratio(held.residual_uncertainty_ratio or 0.0)}) of the fleet's "
        f"{words.size(held.expected_bytes)}"
    )
    uncertainty = held.residual_uncertainty_ratio or 0.0
    if max(0.0, crossed_ratio) + uncertainty + held.unknown_ratio <= limit:
        return Verdict.PASS, [
            note(
                id="bypassed",
                weight=40,
                sentence=f"bypassed, as planned: {said}",
            )
        ]
    unknown = (
        f"; {words.ratio(held.unknown_ratio, 1)} of the fleet's bytes are in bins that it does "
        "not know"
        if held.unknown_ratio > limit
        else ""
    )
    return inconclusive(
        id="not-bypassed",
        weight=88,
        sentence=f"the run was to pass the firewall by (device.path=bypass), and {said}, more "
        f"than the {words.ratio(limit, 1)} allowed{unknown}: it is no reference",
        next_step="take the firewall out of the route, or launch without device.path=bypass",
    )


def _observations(spec: RunSpec, burst: BurstSummary) -> Iterator[Finding]:
    """What a reader should know beside the verdict."""
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


def residual_causes(held: Reconciliation | None) -> Iterator[Finding]:
    """The named causes of a reconciliation's residual, as findings."""
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


def _names(pairs: Sequence[PairSummary]) -> str:
    said = [f"{pair.pair} ({pair.reason})" if pair.reason else pair.pair for pair in pairs[:3]]
    more = f" and {len(pairs) - 3} more" if len(pairs) > 3 else ""
    return ", ".join(said) + more
