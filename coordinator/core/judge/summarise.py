"""Computation of the run summary from the measured bursts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import numpy as np

from broadside.coordinator.core import words
from broadside.coordinator.core.figures import FIGURES, RECEIVED, RECEIVED_HALF_WIDTH, Fold
from broadside.coordinator.core.judge.bottleneck import (
    BottleneckInput,
    common_bottleneck,
    find_bottleneck,
)
from broadside.coordinator.core.judge.bottleneck.device_drops import drops_per_second
from broadside.coordinator.core.judge.checks import (
    BURST_CHECKS,
    RUN_CHECKS,
    BurstInput,
    Result,
    RunInput,
    Stage,
    decide,
)
from broadside.coordinator.core.judge.course import burst_course, course, course_findings
from broadside.coordinator.core.judge.declaration_error import (
    counted,
    is_far_below,
    misreading,
    rates_of,
    rescaled,
    scale_of,
    with_declaration,
)
from broadside.coordinator.core.judge.drift import drift_findings
from broadside.coordinator.core.judge.observations import (
    lag_findings,
    observations,
    residual_causes,
)
from broadside.coordinator.core.judge.rates import (
    WHOLE_RATIO,
    between_bursts,
    limit_of,
    scatter_of_device,
)
from broadside.coordinator.core.judge.reconcile import Neighbour, reconcile
from broadside.coordinator.core.judge.residual_cause import Missing
from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.completeness import combine
from broadside.coordinator.core.measure.device_figures import (
    certain,
    device_figures,
    witness_findings,
)
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.measure.headers import (
    MSS_ASSUMED_BYTES,
    Headers,
    declared_headers,
)
from broadside.coordinator.core.measure.outages import coordinator_findings, outage_findings
from broadside.coordinator.core.measure.placement import place
from broadside.coordinator.core.measure.resolution import HIDDEN_RATIO
from broadside.coordinator.core.measure.series import MeasuredBurst
from broadside.coordinator.core.measure.steady import (
    VALUES_MIN,
    Stretch,
    mean_of_bursts,
    slowest_stretch,
    stretch_s,
)
from broadside.coordinator.core.measure.testimony import Witnessed
from broadside.coordinator.core.plan.spec import Plan, RunSpec
from broadside.coordinator.core.summary import (
    BurstSummary,
    Completeness,
    Finding,
    Reconciliation,
    RunSummary,
    Spread,
    State,
    Verdict,
    figure,
    note,
    order,
)
from broadside.exchange.messages import Presence, Protocol, Trouble


def fleet_alone(plan: Plan, ledger: FirewallLedger | None) -> Iterator[Finding]:
    """Yield a finding if the run has no device counter and none was expected.

    Args:
        plan: Plan for the run.
        ledger: Device counter. None if no source returned data.
    """
    if plan.ledger is None and ledger is None:
        where = "passed the firewall by" if plan.spec.bypasses_device else "crossed the firewall"
        yield note(
            id="fleet-alone",
            weight=104,
            sentence="nothing but the fleet vouches for this run: no firewall ledger was promised, "
            f"so that the traffic {where} is not shown",
            next_step="configure a firewall metric source (BROADSIDE_LEDGER) before the launch",
        )


# Above this number of pairs x bursts, the pairs are stored only in the burst documents. The summary
# is read for every list of runs. With 48 bursts of 1,000 pairs it would be 45 MB of text.
PAIR_SUMMARIES_MAX: Final = 3_000
# These aggregations compute a new value instead of selecting one from a burst. The result is
# rounded.
_COMPUTED: Final = (Fold.MEAN,)


def summarise_run(
    plan: Plan,
    bursts: Sequence[MeasuredBurst],
    ledger: FirewallLedger | None,
    now: datetime,
    *,
    testimony: Witnessed | None = None,
    fleet: Sequence[Presence] = (),
    troubles: Sequence[Trouble] = (),
    neighbours: Sequence[Neighbour] = (),
) -> RunSummary:
    """Compute the summary of a run, with a verdict for the run and for each burst.

    The same lag is used for all bursts. The run can pass only if every burst passes. If ``bursts``
    does not contain a planned burst, its pair-seconds are counted as pending.

    Args:
        plan: Plan for the run.
        bursts: Measured bursts, in any order.
        ledger: Device counter. None if no source returned data.
        now: Current time, stored as ``computed_at``.
        testimony: Telemetry of devices.
        fleet: Agents that were present at launch.
        troubles: Outages of the coordinator.
        neighbours: Bursts of other runs that the same counter includes.
    """
    if testimony is not None:
        testimony = place(testimony, _spans(plan))
    if ledger is not None:
        ledger = ledger.proving()
    whole, judged = _judged_bursts(plan, bursts, ledger, testimony, neighbours)
    pending = len(plan.pairs) * plan.spec.burst_s * (len(plan.bursts) - len(judged))
    completeness = combine(
        [*(burst.completeness for burst in judged), Completeness.of({State.PENDING: pending})]
    )
    verdict, found = _run_verdict(plan, ledger, judged, completeness)
    said = course(burst_course(burst) for burst in judged)
    silent = sum(burst.silent_controls_count for burst in judged)
    first_at, last_at = plan.bursts[0].planned_start_at, plan.bursts[-1].planned_end_at
    findings = order(
        [
            *_run_findings(judged, whole, ledger, planned=len(plan.bursts)),
            *found,
            *fleet_alone(plan, ledger),
            *lag_findings(whole, (last_at - first_at).total_seconds()),
            *course_findings(said, silent_controls_count=silent),
            *coordinator_findings(troubles),
            *drift_findings(fleet, _agents_of(plan, judged)),
            *witness_findings(testimony, first_at, last_at),
        ]
    )
    many = len(plan.pairs) * len(judged) > PAIR_SUMMARIES_MAX
    return RunSummary(
        computed_at=now,
        verdict=verdict,
        completeness_ratio=completeness.completeness_ratio,
        completeness=completeness,
        reconciliation=whole,
        findings=findings,
        course=said,
        pairs_omitted=many,
        bursts=tuple(burst.model_copy(update={"pairs": ()}) if many else burst for burst in judged),
        **_plan_fields(plan),
        **_figure_fields(plan, judged),
    )


def _judged_bursts(
    plan: Plan,
    bursts: Sequence[MeasuredBurst],
    ledger: FirewallLedger | None,
    testimony: Witnessed | None,
    neighbours: Sequence[Neighbour],
) -> tuple[Reconciliation | None, list[BurstSummary]]:
    """Return the reconciliation of the run, and the bursts in order with their verdicts."""
    measured = sorted(bursts, key=lambda burst: burst.summary.index)
    whole: Reconciliation | None = None
    held: Sequence[Reconciliation | None] = [None] * len(measured)
    if ledger is not None and measured and ledger.extreme is None:
        seen = {burst.summary.index for burst in measured}
        absent_spans = [
            span
            for burst, span in zip(plan.bursts, _spans(plan), strict=True)
            if burst.index not in seen
        ]
        whole, held = _reconciled(plan.spec, measured, ledger, neighbours, absent_spans)
    between = between_bursts([burst.summary for burst in measured])
    return whole, [
        _judged(
            plan,
            _with_devices(burst.summary, testimony),
            part,
            ledger,
            between,
            others=[other.summary for other in measured if other is not burst],
            slowest_sent=_slowest_sent(plan.spec, burst),
        )
        for burst, part in zip(measured, held, strict=True)
    ]


def _run_verdict(
    plan: Plan,
    ledger: FirewallLedger | None,
    judged: Sequence[BurstSummary],
    completeness: Completeness,
) -> tuple[Verdict, list[Finding]]:
    """Return the verdict for the run, and the findings of its checks."""
    given = RunInput(
        plan=plan,
        ledger=ledger,
        bursts=judged,
        completeness_ratio=completeness.completeness_ratio,
    )
    results = [(check.stage, check.evaluate(given)) for check in RUN_CHECKS]
    # If a burst failed, its own missing records were already taken into account. Missing bursts
    # cannot turn this fail into another verdict.
    verdict = decide([*results, *((Stage.RATE, Result(burst.verdict)) for burst in judged)])
    found = [finding for _, result in results for finding in result.findings]
    return verdict if judged else Verdict.INCONCLUSIVE, found


def _plan_fields(plan: Plan) -> dict[str, Any]:
    """Return the summary fields that are copied from the plan."""
    spec = plan.spec
    return {
        "run_id": plan.run_id,
        "scenario": spec.scenario,
        "scale": spec.scale,
        "target_bits_per_second": figure(spec.scaled_target_bits_per_second),
        "target_layer": spec.objective.layer,
        "plan_sha256": plan.seal_sha256,
        "decision_rule": plan.decision_rule,
        "limit_bits_per_second": figure(limit_of(spec)),
        "pairs_planned": len(plan.pairs),
        "bursts_planned": len(plan.bursts),
    }


def _figure_fields(plan: Plan, judged: Sequence[BurstSummary]) -> dict[str, Any]:
    """Return the summary fields that are computed from the bursts."""
    spec = plan.spec
    whole = judged if len(judged) == len(plan.bursts) else ()
    measured = [
        {pair.pair_index for pair in burst.pairs if pair.state is State.MEASURED} for burst in whole
    ]
    limiter = common_bottleneck([burst.limiter_details for burst in judged])
    folded = _folded(judged)
    return {
        "pairs_measured": len(set.intersection(*measured)) if measured else 0,
        "received_over_bursts": _spread([v for burst in judged for v in RECEIVED.values(burst)]),
        **folded,
        **_real(folded, spec.scaled_target_bits_per_second, spec.scale),
        "limiter": limiter.name,
        "limiter_details": limiter,
    }


def _spans(plan: Plan) -> list[tuple[float, float]]:
    """Return the start and end of each planned burst (epoch s)."""
    return [
        (burst.planned_start_at.timestamp(), burst.planned_end_at.timestamp())
        for burst in plan.bursts
    ]


def _reconciled(
    spec: RunSpec,
    bursts: Sequence[MeasuredBurst],
    ledger: FirewallLedger,
    neighbours: Sequence[Neighbour],
    absent: Sequence[tuple[float, float]] = (),
) -> tuple[Reconciliation, tuple[Reconciliation, ...]]:
    """Compare the counter with the run and with each burst.

    If the unit of the counter seems to be wrong, the counter is first scaled to the expected bytes.
    """
    overhead = _overhead(spec, bursts, ledger)

    def reconciled(bytes_of: FirewallLedger) -> tuple[Reconciliation, tuple[Reconciliation, ...]]:
        return reconcile(
            [counted(burst.series, ledger) for burst in bursts],
            bytes_of,
            overhead,
            [_missing(burst.summary) for burst in bursts],
            clock_bound_s=max(burst.summary.clock_bound_max_s or 0.0 for burst in bursts),
            neighbours=neighbours,
            absent=absent,
            bypassed=spec.bypasses_device,
            parts_s=[_part_s(burst.summary, ledger) for burst in bursts],
            protocol=spec.traffic.protocol,
            readings_s=[_reading_s(burst.summary) for burst in bursts],
            acknowledged=[burst.summary.acknowledged_ratio for burst in bursts],
        )

    whole, each = reconciled(ledger)
    summaries = [burst.summary for burst in bursts]
    if is_far_below(whole) and (scale := scale_of(ledger, whole)):
        # The lag and the idle level cannot be fitted while the counter has the wrong unit.
        other, parts = reconciled(replace(ledger, bytes=ledger.bytes / scale))
        other = rescaled(other, scale)
        found = misreading(other, rates_of(summaries))
        if found is not None and found.is_sure:
            whole, each = other, tuple(rescaled(part, scale) for part in parts)
    return (
        with_declaration(whole, ledger, summaries),
        tuple(
            with_declaration(held, ledger, [summary])
            for held, summary in zip(each, summaries, strict=True)
        ),
    )


def _overhead(spec: RunSpec, bursts: Sequence[MeasuredBurst], ledger: FirewallLedger) -> Headers:
    """Return the header sizes from the first burst that recorded them.

    If no burst recorded them, use the sizes that were declared for the counter (TCP only).
    Otherwise use assumed sizes.
    """
    first = next(
        (burst.summary for burst in bursts if not burst.summary.headers_assumed),
        bursts[0].summary,
    )
    declared = declared_headers(mss_bytes=ledger.mss_bytes, mtu_bytes=ledger.mtu_bytes)
    if declared is not None and first.headers_assumed and spec.traffic.protocol is Protocol.TCP:
        return declared
    return Headers(
        ip_ratio=first.header_ratio,
        wire_ratio=first.wire_ratio,
        assumed=first.headers_assumed,
        how=first.header_how,
        mss_bytes=next(
            (flow.mss_bytes for flow in first.flows if flow.mss_bytes), MSS_ASSUMED_BYTES
        ),
    )


def _part_s(burst: BurstSummary, ledger: FirewallLedger) -> int | None:
    """Return how long the parts to compare with the device counter are, in s.

    None if the counter does not count all flows, or if the burst has no window.
    """
    window = burst.window
    if window is None or len(burst.flows) > len(ledger.flows):
        return None
    return stretch_s(window.window_s)


def _slowest_sent(spec: RunSpec, burst: MeasuredBurst) -> Stretch | None:
    """Return the slowest part of the window, as the senders recorded it.

    None if too many of their seconds are missing.
    """
    series, summary = burst.series, burst.summary
    if series.window is None or not summary.flows:
        return None
    if min(flow.sent_pairs_count for flow in summary.flows) < summary.pairs_planned:
        return None
    if float(np.nan_to_num(series.coverage_ratio[slice(*series.window)]).min()) < WHOLE_RATIO:
        return None
    window = slice(*series.window)
    sent = np.nan_to_num(np.sum([flow.sent_bytes for flow in series.flows], axis=0)[window])
    received = np.nan_to_num(series.received_bytes[window])
    if float(sent.sum()) < (1 - HIDDEN_RATIO) * float(received.sum()):
        if spec.traffic.protocol is not Protocol.TCP:
            return None
        sent = _filled(sent, received)
    return slowest_stretch(sent * 8)


def _filled(sent: Floats, received: Floats) -> Floats:
    """Return the bytes of all senders in each second, with missing seconds filled.

    All received bytes must have been sent. If the receivers recorded more, the difference is spread
    evenly over the missing seconds. The slowest part then has the highest rate that is possible.
    """
    told = sent >= (1 - HIDDEN_RATIO) * received
    rest = max(0.0, float(received.sum() - sent[told].sum()))
    return np.where(told, sent, rest / max(1, int((~told).sum())))


def _reading_s(burst: BurstSummary) -> float:
    """Return how long a reading of the receivers is, in s. The default is 1 s."""
    window = burst.window
    return 1.0 if window is None or window.reading_s is None else window.reading_s


def _missing(burst: BurstSummary) -> Missing:
    """Return the missing records of pairs that may have sent traffic."""
    unseen = burst.completeness
    silent_s = unseen.null_s + unseen.abandoned_s + unseen.lost_s
    seen_s = unseen.measured_s + unseen.late_s
    maybe_sent = (State.NULL, State.ABANDONED, State.LOST)
    rates = [
        pair.received_bits_per_second or 0.0 for pair in burst.pairs if pair.state is State.MEASURED
    ]
    mean = sum(rates) / len(rates) if rates else 0.0
    return Missing(
        pairs_count=sum(pair.state in maybe_sent for pair in burst.pairs),
        share_ratio=silent_s / seen_s if seen_s else 0.0,
        planned_pairs_count=burst.pairs_planned,
        largest_ratio=max(rates) / mean if mean > 0 else 1.0,
    )


def _sku(spec: RunSpec) -> str | None:
    """Return the firewall's name in the tables of documented limits."""
    denies = spec.device.get("idps", "").lower() in ("deny", "alert-and-deny")
    return f"{spec.sku}-idps-deny" if spec.sku and denies else spec.sku


def _agents_of(plan: Plan, bursts: Sequence[BurstSummary]) -> list[str]:
    """Return the ids of the agents that took part, as far as they are known."""
    clients = {pair.client_agent_id for burst in bursts for pair in burst.pairs}
    servers = {pair.endpoint.agent_id for pair in plan.pairs}
    return [name for name in (clients | servers) if name is not None]


def _with_devices(burst: BurstSummary, testimony: Witnessed | None) -> BurstSummary:
    if testimony is None:
        return burst
    whole, each = device_figures(testimony, burst)
    return burst.model_copy(update={"device": whole, "devices": each})


def _judged(
    plan: Plan,
    burst: BurstSummary,
    held: Reconciliation | None,
    ledger: FirewallLedger | None,
    between: float | None,
    *,
    others: Sequence[BurstSummary] = (),
    slowest_sent: Stretch | None = None,
) -> BurstSummary:
    limiter = find_bottleneck(_bottleneck_input(plan, burst, held, ledger))
    judged = burst.model_copy(
        update={
            "reconciliation": held,
            "firewall_bits_per_second": None if held is None else held.firewall_bits_per_second,
            "limiter": limiter.name,
            "limiter_details": limiter,
        }
    )
    if between is None and not plan.clocks_promised:
        between = scatter_of_device(judged)
    given = BurstInput(
        spec=plan.spec,
        burst=judged,
        between_bits_per_second=between,
        clocks_promised=plan.clocks_promised,
        clocks_shared=plan.shared_boot_id is not None,
        others=others,
        slowest_sent=slowest_sent,
    )
    results = [(check.stage, check.evaluate(given)) for check in BURST_CHECKS]
    findings = [finding for _, result in results for finding in result.findings]
    lived_through = outage_findings(
        burst.outages,
        late_count=burst.late_reports_count,
        whole=burst.completeness.completeness_ratio >= WHOLE_RATIO,
    )
    return judged.model_copy(
        update={
            "verdict": decide(results),
            "findings": order([*findings, *observations(judged), *lived_through]),
        }
    )


def _bottleneck_input(
    plan: Plan, burst: BurstSummary, held: Reconciliation | None, ledger: FirewallLedger | None
) -> BottleneckInput:
    """Return the input to find the bottleneck of a burst."""
    spec = plan.spec
    return BottleneckInput(
        traffic=spec.traffic,
        flows=burst.flows,
        pairs=burst.pairs,
        reconciliation=held,
        devices=tuple(map(certain, burst.devices)),
        drops_per_second=drops_per_second(
            ledger,
            burst.window,
            None if held is None else held.lag_s,
            [(each.planned_start_at, each.planned_end_at) for each in plan.bursts],
        ),
        window_s=None if burst.window is None else burst.window.window_s,
        crosses=not spec.bypasses_device,
        sku=_sku(spec),
        snat_utilization_ratio=None if ledger is None else ledger.snat_utilization_ratio,
        scale=spec.scale,
    )


def _half_width(bursts: Sequence[BurstSummary]) -> float | None:
    """Return the half width of the 95 % interval for the run's rate.

    It includes the scatter between bursts and within bursts. None if a burst is too short for an
    interval of its own. The scatter between short bursts does not show the loss at the start, which
    is the same in each.
    """
    known = [burst for burst in bursts if RECEIVED.of_burst(burst) is not None]
    if any(burst.window is not None and burst.window.window_s < VALUES_MIN for burst in known):
        return None
    rates = [rate for burst in known for rate in RECEIVED.values(burst)]
    halves = [RECEIVED_HALF_WIDTH.of_burst(burst) for burst in known]
    return figure(mean_of_bursts(rates, halves).half_width)


def _folded(bursts: Sequence[BurstSummary]) -> dict[str, float | None]:
    """Aggregate the metrics of the bursts for the run, by field."""
    found = {}
    for each in FIGURES:
        if each.name in RunSummary.model_fields and each.fold is not Fold.NONE:
            value = each.of_bursts(bursts)
            found[each.name] = figure(value) if each.fold in _COMPUTED else value
    found[RECEIVED_HALF_WIDTH.name] = _half_width(bursts)
    return found


def _real(
    folded: Mapping[str, float | None], target: float | None, scale: float
) -> dict[str, float | None]:
    """Convert the rates from a scaled lab to real rates, by field."""
    rates = {"target_bits_per_second": target, **folded}
    return {
        f"real_{name}": figure(None if rate is None else rate * scale)
        for name, rate in rates.items()
        if f"real_{name}" in RunSummary.model_fields
    }


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


def _run_findings(
    bursts: Sequence[BurstSummary],
    whole: Reconciliation | None,
    ledger: FirewallLedger | None,
    *,
    planned: int,
) -> tuple[Finding, ...]:
    """Return the findings for the run.

    Findings of the bursts are grouped by id. From each group the one with the highest weight is
    used, and the number of affected bursts is added to its text. Causes that only the whole run
    shows, and notes about the device counter, are added.
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
    if whole is not None and whole.unplanned_bytes is not None:
        found.append(
            note(
                id="unplanned-burst",
                weight=41,
                sentence=f"{words.size(whole.unplanned_bytes)} crossed the device in one burst "
                "that is in no plan; it is not counted as other traffic during the planned bursts",
                next_step="find out who sent it, and keep it away from the next run",
            )
        )
    found += [
        note(id="ledger-note", weight=25, sentence=said)
        for said in (ledger.notes if ledger is not None else ())
    ]
    return order(found)
