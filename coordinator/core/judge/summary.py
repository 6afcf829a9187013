"""From evidence to summary: what a burst and a run showed, as values that recompute to the byte.

:func:`measure_burst` needs only the agents' records and may run as soon as a burst is over; its
result (figures and packed series) is all that :func:`summarise_run` needs besides the ledger, so a
long run never holds more than one burst's rows in memory.

Rates are as measured. In a scaled lab ``real_*`` fields carry the same times the scale.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import numpy as np

from coordinator.core.judge.course import Course, burst_course, course, course_findings
from coordinator.core.judge.documented_limits import DOCUMENTED, Limits
from coordinator.core.judge.judge import (
    WHOLE_RATIO,
    BurstFigures,
    Finding,
    Verdict,
    judge,
    order,
    residual_causes,
    worse,
)
from coordinator.core.judge.limiter import UNKNOWN, Limiter, LimiterName, find_limiter
from coordinator.core.judge.reconcile import Missing, Neighbour, Reconciliation, reconcile
from coordinator.core.live.status import due_at
from coordinator.core.measure.aggregate import (
    Aggregate,
    CliffSummary,
    FlowSummary,
    HostSummary,
    PairSummary,
    Window,
    aggregate,
    figure,
)
from coordinator.core.measure.align import Aligned, align
from coordinator.core.measure.asked import Difference, find_differences
from coordinator.core.measure.completeness import (
    Completeness,
    PairGrade,
    State,
    combine,
    grade,
)
from coordinator.core.measure.cpu_cost import CpuCost, cpu_cost, per_gigabyte
from coordinator.core.measure.disruptions import Availability, Disruption, find_disruptions
from coordinator.core.measure.evidence import BurstEvidence, FirewallLedger
from coordinator.core.measure.headers import Headers, headers
from coordinator.core.measure.latency import Latency, find_latency
from coordinator.core.measure.measures import MeasureSummary, measure_pairs
from coordinator.core.measure.outages import (
    Outage,
    coordinator_findings,
    outage_findings,
    outages,
)
from coordinator.core.measure.series import BurstSeries
from coordinator.core.measure.unsteady_clocks import UnsteadyClocks, find_unsteady
from coordinator.core.plan.endurance import silent_controls_count
from coordinator.core.plan.spec import Layer, Plan, RunSpec
from exchange.messages import Message, RunId, Side, Trouble, UtcDatetime

# Pairs x bursts beyond which a run's summary leaves the pairs to the bursts' own documents: 48
# bursts of 1,000 pairs would be 45 MB of text, read for every list of runs.
PAIR_SUMMARIES_MAX: Final = 3_000


class BurstSummary(Message):
    """One burst. Rates are as measured, payload at the receiver unless named otherwise."""

    index: int
    planned_start_at: UtcDatetime
    planned_end_at: UtcDatetime
    duration_s: int
    pairs_planned: int
    pairs_measured: int
    completeness_ratio: float
    completeness: Completeness
    proven_ratio: float  # of planned pair-seconds, covered by receivers' own seconds
    null_pairs: tuple[str, ...] = ()
    late_pairs: tuple[str, ...] = ()
    missing_pairs: tuple[str, ...] = ()  # missed, refused, abandoned or lost
    window: Window | None = None
    fleet_received_bits_per_second: float | None = None
    fleet_received_half_width_bits_per_second: float | None = None  # 95 % CI
    fleet_sent_bits_per_second: float | None = None
    fleet_ip_bits_per_second: float | None = None
    firewall_bits_per_second: float | None = None
    header_ratio: float  # IP bytes / payload bytes
    header_how: str
    wire_ratio: float
    headers_assumed: bool
    start_spread_s: float | None = None  # largest minus smallest first data, pairs on time
    start_error_max_s: float | None = None  # first data minus planned start
    start_error_p99_s: float | None = None
    clock_bound_max_s: float | None = None
    worst_bits_per_second: float | None = None  # see judge: the pass that missing rows allow
    peak_pair_bits_per_second: float | None = None  # busiest pair-second
    flows: tuple[FlowSummary, ...] = ()
    client: HostSummary = HostSummary()
    server: HostSummary = HostSummary()
    cliff: CliffSummary | None = None
    reconciliation: Reconciliation | None = None
    limiter: LimiterName = LimiterName.UNKNOWN
    limiter_details: Limiter = UNKNOWN  # its confidence, evidence and advice
    verdict: Verdict = Verdict.INCONCLUSIVE
    findings: tuple[Finding, ...] = ()
    availability: Availability | None = None  # None: without seconds
    disruptions: tuple[Disruption, ...] = ()  # in time order, the gravest of them
    disruptions_count: int = 0  # how many there were
    silent_controls_count: int = 0  # pairs whose control connection was idle for over 4 minutes
    outages: tuple[Outage, ...] = ()  # what its agents lived through with queue, table and disk
    late_reports_count: int = 0  # that waited on an agent's disk
    measures: tuple[MeasureSummary, ...] = ()  # what the engine tells beside bytes, all pairs
    differences: tuple[Difference, ...] = ()  # what engines did otherwise than asked
    unsteady_clocks: UnsteadyClocks | None = None  # None: every clock held, as far as is known
    client_cpu: CpuCost | None = None  # None: not told
    server_cpu: CpuCost | None = None
    latency: Latency | None = None  # of probes; None: there were none
    pairs: tuple[PairSummary, ...] = ()  # see RunSummary.pairs_omitted


class Spread(Message):
    """One figure over a run's bursts."""

    bursts_count: int
    mean: float
    median: float
    p5: float
    p95: float
    cov_ratio: float | None = None  # standard deviation / mean; None: under two bursts


class RunSummary(Message):
    """A run. Rates are as measured; ``real_*`` are the same times ``scale``."""

    run_id: RunId
    scenario: str
    computed_at: UtcDatetime  # the `now` it was computed with
    scale: float
    target_bits_per_second: float | None  # divided by scale, at target_layer
    target_layer: Layer
    pairs_planned: int
    pairs_measured: int  # in every burst
    bursts_planned: int
    verdict: Verdict
    completeness_ratio: float
    completeness: Completeness
    fleet_received_bits_per_second: float | None = None
    fleet_received_half_width_bits_per_second: float | None = None  # 95 % CI
    fleet_sent_bits_per_second: float | None = None
    fleet_ip_bits_per_second: float | None = None
    firewall_bits_per_second: float | None = None
    real_target_bits_per_second: float | None = None
    real_fleet_received_bits_per_second: float | None = None
    real_fleet_sent_bits_per_second: float | None = None
    real_fleet_ip_bits_per_second: float | None = None
    real_firewall_bits_per_second: float | None = None
    received_over_bursts: Spread | None = None  # of fleet_received_bits_per_second
    rtt_mean_s: float | None = None  # mean over bursts and flows
    retransmits_count: int | None = None  # in the bursts' windows
    retransmit_ratio: float | None = None  # of segments sent; mean over bursts and flows
    client_cpu_mean_ratio: float | None = None
    server_cpu_mean_ratio: float | None = None
    client_cpu_s_per_gigabyte: float | None = None  # of the engines' processes, mean over bursts
    server_cpu_s_per_gigabyte: float | None = None
    probe_p50_s: float | None = None  # of all pairs' probes while loaded: mean over bursts
    probe_p99_s: float | None = None  # worst burst
    probe_loss_ratio: float | None = None  # worst burst
    start_spread_s: float | None = None  # worst burst
    start_error_max_s: float | None = None
    start_error_p99_s: float | None = None
    reconciliation: Reconciliation | None = None
    limiter: LimiterName = LimiterName.UNKNOWN
    limiter_details: Limiter = UNKNOWN  # its confidence, evidence and advice
    findings: tuple[Finding, ...] = ()
    course: Course | None = None  # set by summarise_run
    pairs_omitted: bool = False  # bursts' pairs are in their own documents only: there are many
    bursts: tuple[BurstSummary, ...] = ()


def canonical(summary: BurstSummary | RunSummary) -> bytes:
    """The one text of a summary: equal values give equal bytes."""
    return summary.model_dump_json().encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBurst:
    """What the agents' records alone say of a burst; no ledger, limiter or verdict yet."""

    summary: BurstSummary
    series: BurstSeries


def measure_burst(
    spec: RunSpec, evidence: BurstEvidence, now: datetime, *, limits: Limits = DOCUMENTED
) -> MeasuredBurst:
    """Align, grade and aggregate one burst's records.

    ``now`` decides what is still pending; ``limits`` gives the NIC caps of hosts that named their
    VM size and no cap.
    """
    burst = evidence.burst
    aligned = align(_with_caps(evidence, limits, spec.scale), spec.traffic.direction)
    grades = grade(evidence, aligned, spec.late_after_s, now)
    overhead = _headers(spec, aligned)
    figures = aggregate(
        burst,
        aligned,
        grades,
        overhead,
        late_after_s=spec.late_after_s,
        clock_bound_max_s=spec.clock_bound_max_s,
    )
    completeness = combine(grade.completeness for grade in grades)
    broken = None
    if not all(flow.means_only for flow in aligned.flows):
        broken = find_disruptions(spec, burst, aligned, grades, over=now >= due_at(burst))
    latency, by_pair = find_latency(
        burst, {pair.pair_index: pair.probes for pair in aligned.pairs if pair.probes is not None}
    )
    spread, largest, p99 = _start_errors(grades if evidence.start_known else ())
    bounds = aligned.clock_bound_s[~np.isnan(aligned.clock_bound_s)]
    received = _sum([flow.received_bits_per_second for flow in figures.flows])
    summary = BurstSummary(
        index=burst.index,
        planned_start_at=burst.planned_start_at,
        planned_end_at=burst.planned_end_at,
        duration_s=burst.duration_s,
        pairs_planned=len(grades),
        pairs_measured=sum(grade.measured for grade in grades),
        completeness_ratio=completeness.completeness_ratio,
        completeness=completeness,
        proven_ratio=figure(_proven(grades)) or 0.0,
        null_pairs=_named(figures, State.NULL),
        late_pairs=_named(figures, State.LATE),
        missing_pairs=_named(figures, State.MISSED, State.REFUSED, State.ABANDONED, State.LOST),
        window=figures.window,
        fleet_received_bits_per_second=received,
        fleet_received_half_width_bits_per_second=_root(
            [flow.received_half_width_bits_per_second for flow in figures.flows]
        ),
        fleet_sent_bits_per_second=_sum([flow.sent_bits_per_second for flow in figures.flows]),
        fleet_ip_bits_per_second=_sum([flow.ip_bits_per_second for flow in figures.flows]),
        header_ratio=figure(overhead.ip_ratio) or 1.0,
        header_how=overhead.how,
        wire_ratio=figure(overhead.wire_ratio) or 1.0,
        headers_assumed=overhead.assumed,
        start_spread_s=figure(spread),
        start_error_max_s=figure(largest),
        start_error_p99_s=figure(p99),
        clock_bound_max_s=figure(float(bounds.max())) if len(bounds) else None,
        worst_bits_per_second=figures.worst_bits_per_second,
        peak_pair_bits_per_second=figures.peak_pair_bits_per_second,
        flows=figures.flows,
        client=figures.client,
        server=figures.server,
        cliff=figures.cliff,
        availability=broken.availability if broken else None,
        disruptions=broken.disruptions if broken else (),
        disruptions_count=broken.disruptions_count if broken else 0,
        silent_controls_count=silent_controls_count(
            spec, burst, [pair.report for pair in aligned.pairs if pair.report is not None]
        ),
        outages=outages(evidence),
        late_reports_count=sum(
            pair.report is not None and pair.report.delivered_at is not None
            for pair in evidence.pairs
        ),
        measures=measure_pairs(aligned),
        differences=find_differences(
            spec.traffic.scaled(spec.scale), evidence.burst.duration_s, aligned
        ),
        unsteady_clocks=find_unsteady(aligned, grades, spec.clock_bound_max_s),
        client_cpu=cpu_cost(aligned, Side.CLIENT),
        server_cpu=cpu_cost(aligned, Side.SERVER),
        latency=latency,
        pairs=tuple(
            pair.model_copy(
                update={
                    "latency": by_pair.get(pair.pair_index),
                    # Nobody planned an instant that was inferred from the starts.
                    "start_error_s": pair.start_error_s
                    if evidence.start_known or pair.state is State.LATE
                    else None,
                }
            )
            for pair in figures.pairs
        ),
    )
    return MeasuredBurst(summary=summary, series=figures.series)


def summarise_run(
    plan: Plan,
    bursts: Sequence[MeasuredBurst],
    ledger: FirewallLedger | None,
    now: datetime,
    *,
    limits: Limits = DOCUMENTED,
    troubles: Sequence[Trouble] = (),
    neighbours: Sequence[Neighbour] = (),
) -> RunSummary:
    """Everything about a run: one lag for all bursts, a verdict for each, and one for the whole.

    Every burst must pass for the run to pass; a planned burst that is not in ``bursts`` counts
    its pair-seconds as pending. The order of ``bursts`` does not matter. ``troubles`` are what the
    coordinator itself lived through; ``neighbours`` the bursts of other runs in the same ledger.
    """
    spec = plan.spec
    measured = sorted(bursts, key=lambda burst: burst.summary.index)
    whole: Reconciliation | None = None
    held: Sequence[Reconciliation | None] = [None] * len(measured)
    if ledger is not None and measured:
        whole, held = _reconciled(spec, measured, ledger, neighbours)
    judged = [
        _judged(spec, burst.summary, part, ledger, limits)
        for burst, part in zip(measured, held, strict=True)
    ]
    absent = len(plan.bursts) - len(judged)
    pending = len(plan.pairs) * spec.burst_s * absent
    completeness = combine(
        [*(burst.completeness for burst in judged), Completeness.of({State.PENDING: pending})]
    )
    verdict = worse(burst.verdict for burst in judged)
    if verdict is Verdict.PASS and (
        absent or completeness.completeness_ratio < spec.objective.coverage_floor_ratio
    ):
        verdict = Verdict.INCONCLUSIVE
    rates = {
        name: _mean(getattr(burst, name) for burst in judged)
        for name in (
            "fleet_received_bits_per_second",
            "fleet_sent_bits_per_second",
            "fleet_ip_bits_per_second",
            "firewall_bits_per_second",
        )
    }
    target = spec.scaled_target_bits_per_second
    in_all = (
        set.intersection(
            *({p.pair_index for p in burst.pairs if p.state is State.MEASURED} for burst in judged)
        )
        if judged
        else set()
    )
    limiter = _common_limiter(judged)
    silent = sum(burst.silent_controls_count for burst in judged)
    said = course(burst_course(burst) for burst in judged)
    findings = _run_findings(judged, whole, ledger, absent=absent, planned=len(plan.bursts))
    loaded = [burst.latency.fleet.during for burst in judged if burst.latency is not None]
    many = len(plan.pairs) * len(judged) > PAIR_SUMMARIES_MAX
    return RunSummary(
        run_id=plan.run_id,
        scenario=spec.scenario,
        computed_at=now,
        scale=spec.scale,
        target_bits_per_second=figure(target),
        target_layer=spec.objective.layer,
        pairs_planned=len(plan.pairs),
        pairs_measured=0 if absent else len(in_all),
        bursts_planned=len(plan.bursts),
        verdict=verdict,
        completeness_ratio=completeness.completeness_ratio,
        completeness=completeness,
        fleet_received_half_width_bits_per_second=_root(
            [
                burst.fleet_received_half_width_bits_per_second / len(judged)
                for burst in judged
                if burst.fleet_received_half_width_bits_per_second is not None
            ]
        ),
        **rates,
        **{
            f"real_{name}": figure(None if rate is None else rate * spec.scale)
            for name, rate in {**rates, "target_bits_per_second": target}.items()
        },
        received_over_bursts=_spread(
            [
                burst.fleet_received_bits_per_second
                for burst in judged
                if burst.fleet_received_bits_per_second is not None
            ]
        ),
        rtt_mean_s=_mean(flow.rtt_mean_s for burst in judged for flow in burst.flows),
        retransmits_count=_total(
            flow.retransmits_count for burst in judged for flow in burst.flows
        ),
        retransmit_ratio=_mean(flow.retransmit_ratio for burst in judged for flow in burst.flows),
        client_cpu_mean_ratio=_mean(burst.client.cpu_mean_ratio for burst in judged),
        server_cpu_mean_ratio=_mean(burst.server.cpu_mean_ratio for burst in judged),
        client_cpu_s_per_gigabyte=_mean(per_gigabyte(burst.client_cpu) for burst in judged),
        server_cpu_s_per_gigabyte=_mean(per_gigabyte(burst.server_cpu) for burst in judged),
        probe_p50_s=_mean(phase.p50_s for phase in loaded),
        probe_p99_s=_largest(phase.p99_s for phase in loaded),
        probe_loss_ratio=_largest(phase.loss_ratio for phase in loaded),
        start_spread_s=_largest(burst.start_spread_s for burst in judged),
        start_error_max_s=_largest(burst.start_error_max_s for burst in judged),
        start_error_p99_s=_largest(burst.start_error_p99_s for burst in judged),
        reconciliation=whole,
        limiter=limiter.name,
        limiter_details=limiter,
        findings=order(
            [
                *findings,
                *course_findings(said, silent_controls_count=silent),
                *coordinator_findings(troubles),
            ]
        ),
        course=said,
        pairs_omitted=many,
        bursts=tuple(burst.model_copy(update={"pairs": ()}) if many else burst for burst in judged),
    )


def _headers(spec: RunSpec, aligned: Aligned) -> Headers:
    reports = [pair.report for pair in aligned.pairs if pair.report is not None]
    tests = [pair.server_test for pair in aligned.pairs if pair.server_test is not None]
    engines = [report.engine for report in reports if report.engine is not None]
    return headers(
        spec.traffic.protocol,
        [engine.mss_bytes for engine in engines] or [test.engine.mss_bytes for test in tests],
        asked_mss_bytes=spec.traffic.mss_bytes,
        mtu_bytes=min((p.nic_mtu_bytes for p in aligned.pairs if p.nic_mtu_bytes), default=None),
        block_bytes=spec.traffic.block_bytes
        or next((engine.block_bytes for engine in engines if engine.block_bytes), None),
        ipv6=any(":" in test.endpoint.address for test in tests),
        vxlan=spec.traffic.encapsulation is not None,
    )


def _start_errors(
    grades: Sequence[PairGrade],
) -> tuple[float | None, float | None, float | None]:
    """Spread, largest and 99th percentile (nearest rank) of the start errors of pairs on time."""
    errors = sorted(
        grade.start_error_s
        for grade in grades
        if grade.start_error_s is not None and not grade.completeness.late_s
    )
    if not errors:
        return None, None, None
    return errors[-1] - errors[0], errors[-1], errors[math.ceil(0.99 * len(errors)) - 1]


def _proven(grades: Sequence[PairGrade]) -> float:
    """Share of planned pair-seconds that on-time pairs' receivers recorded themselves."""
    if not grades:
        return 0.0
    return sum(0.0 if grade.completeness.late_s else grade.proven_ratio for grade in grades) / len(
        grades
    )


def _named(figures: Aggregate, *states: State) -> tuple[str, ...]:
    return tuple(pair.pair for pair in figures.pairs if pair.state in states)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return figure(sum(known)) if known and len(known) == len(values) else None


def _root(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return figure(math.hypot(*known)) if known and len(known) == len(values) else None


def _reconciled(
    spec: RunSpec,
    bursts: Sequence[MeasuredBurst],
    ledger: FirewallLedger,
    neighbours: Sequence[Neighbour],
) -> tuple[Reconciliation, tuple[Reconciliation, ...]]:
    first = next(
        (burst.summary for burst in bursts if not burst.summary.headers_assumed),
        bursts[0].summary,
    )
    return reconcile(
        [burst.series for burst in bursts],
        ledger,
        Headers(
            ip_ratio=first.header_ratio,
            wire_ratio=first.wire_ratio,
            assumed=first.headers_assumed,
            how=first.header_how,
        ),
        [_missing(burst.summary) for burst in bursts],
        clock_bound_s=max(burst.summary.clock_bound_max_s or 0.0 for burst in bursts),
        neighbours=neighbours,
        bypassed=spec.bypasses_device,
    )


def _missing(burst: BurstSummary) -> Missing:
    """What the records lack that may have been sent all the same: begun, and not on record."""
    unseen = burst.completeness
    silent_s = unseen.null_s + unseen.abandoned_s + unseen.lost_s
    seen_s = unseen.measured_s + unseen.late_s
    maybe_sent = (State.NULL, State.ABANDONED, State.LOST)
    return Missing(
        pairs_count=sum(pair.state in maybe_sent for pair in burst.pairs),
        share_ratio=silent_s / seen_s if seen_s else 0.0,
        planned_pairs_count=burst.pairs_planned,
    )


def _with_caps(evidence: BurstEvidence, limits: Limits, scale: float) -> BurstEvidence:
    """NIC caps by VM size, for hosts that did not name a cap."""

    def cap(said: float | None, size: str | None) -> float | None:
        known = limits.of_vm(size)
        return said if said is not None or known is None else known.bits_per_second / scale

    return replace(
        evidence,
        pairs=tuple(
            replace(
                pair,
                client_nic_bits_per_second=cap(
                    pair.client_nic_bits_per_second, pair.client_vm_size
                ),
                server_nic_bits_per_second=cap(
                    pair.server_nic_bits_per_second, pair.server_vm_size
                ),
            )
            for pair in evidence.pairs
        ),
    )


def _sku(spec: RunSpec) -> str | None:
    """The firewall's name in the table of limits, from what the run says of the device."""
    sku = spec.device.get("sku")
    if sku is not None and spec.device.get("idps", "").lower() in ("deny", "alert-and-deny"):
        return f"{sku.lower()}-idps-deny"
    return sku


def _judged(
    spec: RunSpec,
    burst: BurstSummary,
    held: Reconciliation | None,
    ledger: FirewallLedger | None,
    limits: Limits,
) -> BurstSummary:
    limiter = find_limiter(
        spec.traffic,
        burst.flows,
        burst.pairs,
        burst.client,
        burst.server,
        held,
        crosses=not spec.bypasses_device,
        sku=_sku(spec),
        snat_utilization_ratio=None if ledger is None else ledger.snat_utilization_ratio,
        limits=limits,
        scale=spec.scale,
    )
    verdict, findings = judge(
        spec,
        BurstFigures(
            completeness=burst.completeness,
            proven_ratio=burst.proven_ratio,
            window=burst.window,
            flows=burst.flows,
            pairs=burst.pairs,
            received_bits_per_second=burst.fleet_received_bits_per_second,
            ip_ratio=burst.header_ratio,
            worst_bits_per_second=burst.worst_bits_per_second,
            peak_pair_bits_per_second=burst.peak_pair_bits_per_second,
            duration_s=burst.duration_s,
            reconciliation=held,
            limiter=limiter,
            cliff=burst.cliff,
            measures=burst.measures,
            differences=burst.differences,
            unsteady_clocks=burst.unsteady_clocks,
            latency=burst.latency,
        ),
    )
    lived_through = outage_findings(
        burst.outages,
        late_count=burst.late_reports_count,
        whole=burst.completeness.completeness_ratio >= WHOLE_RATIO,
    )
    return burst.model_copy(
        update={
            "reconciliation": held,
            "firewall_bits_per_second": None if held is None else held.firewall_bits_per_second,
            "limiter": limiter.name,
            "limiter_details": limiter,
            "verdict": verdict,
            "findings": order([*findings, *lived_through]),
        }
    )


def _mean(values: Iterable[float | None]) -> float | None:
    """Mean of what is known, each weighted alike; None where nothing is."""
    known = [value for value in values if value is not None]
    return figure(sum(known) / len(known)) if known else None


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    array = np.array(values)
    cov = float(array.std(ddof=1) / array.mean()) if len(values) > 1 and array.mean() else None
    return Spread(
        bursts_count=len(values),
        mean=figure(float(array.mean())) or 0.0,
        median=figure(float(np.median(array))) or 0.0,
        p5=figure(float(np.quantile(array, 0.05))) or 0.0,
        p95=figure(float(np.quantile(array, 0.95))) or 0.0,
        cov_ratio=figure(cov),
    )


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _common_limiter(bursts: Sequence[BurstSummary]) -> Limiter:
    """The limiter that most confidence over the bursts speaks for."""
    weight: dict[LimiterName, float] = {}
    for burst in bursts:
        found = burst.limiter_details
        weight[found.name] = weight.get(found.name, 0.0) + found.confidence_ratio
    if not weight:
        return UNKNOWN
    best = max(sorted(weight), key=lambda name: weight[name])
    if weight[best] <= 0:
        return UNKNOWN
    return max(
        (burst.limiter_details for burst in bursts if burst.limiter is best),
        key=lambda limiter: limiter.confidence_ratio,
    )


def _run_findings(
    bursts: Sequence[BurstSummary],
    whole: Reconciliation | None,
    ledger: FirewallLedger | None,
    *,
    absent: int,
    planned: int,
) -> tuple[Finding, ...]:
    """Bursts' findings by id: the heaviest one speaks, and says in how many bursts it was.

    A cause that only the whole run's longer ledgers show is added, and what the firewall's ledger
    says of itself.
    """
    by_id: dict[str, list[tuple[int, Finding]]] = {}
    for burst in bursts:
        for finding in burst.findings:
            by_id.setdefault(finding.id, []).append((burst.index, finding))
    found = []
    for where in by_id.values():
        index, heaviest = max(where, key=lambda item: (item[1].weight, -item[0]))
        if planned > 1:
            places = (
                f"burst {index + 1}" if len(where) == 1 else f"{len(where)} of {planned} bursts"
            )
            lead = places if len(where) == 1 else f"{places}, first burst {index + 1}"
            heaviest = heaviest.model_copy(update={"sentence": f"{lead}: {heaviest.sentence}"})
        found.append(heaviest)
    found += [finding for finding in residual_causes(whole) if finding.id not in by_id]
    found += [
        Finding(id="ledger-note", kind="context", severity="note", weight=25, sentence=note)
        for note in (ledger.notes if ledger is not None else ())
    ]
    if absent:
        found.append(
            Finding(
                id="bursts-pending",
                kind="verdict",
                severity="problem",
                weight=99,
                sentence=f"{absent} of {planned} bursts are not over or not summarised",
                next_step="wait for the run to end",
            )
        )
    return order(found)
