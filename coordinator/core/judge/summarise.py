"""Computation of the run summary and its verdict from the measured bursts.

The device counter is reconciled with the fleet, then each burst gets its bottleneck, its verdict
and its findings, and then the run. The decision table is in
:mod:`broadside.coordinator.core.judge.checks.decision`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import numpy as np

from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.bottleneck import (
    bottleneck_input,
    common_bottleneck,
    find_bottleneck,
)
from broadside.coordinator.core.judge.checks.check_types import BurstInput, RunInput
from broadside.coordinator.core.judge.checks.decision import evaluate_burst, evaluate_run
from broadside.coordinator.core.judge.checks.rate_checks import (
    COMPLETE_RATIO,
    half_width_of_bursts,
    half_width_of_device,
    limit_of,
)
from broadside.coordinator.core.judge.checks.shape_check import slowest_sent
from broadside.coordinator.core.judge.early_end import early_end_findings
from broadside.coordinator.core.judge.guard_report import with_guards
from broadside.coordinator.core.judge.observations import (
    host_difference_findings,
    lag_findings,
    observations,
    residual_findings,
)
from broadside.coordinator.core.judge.reconciliation.mixed_parts import part_beside
from broadside.coordinator.core.judge.reconciliation.overlapping_bursts import Neighbour
from broadside.coordinator.core.judge.reconciliation.reconcile import reconcile_run
from broadside.coordinator.core.judge.verdict_inputs import RunContext, VerdictInputs
from broadside.coordinator.core.measure.completeness import combine
from broadside.coordinator.core.measure.device.device_metrics import (
    device_figures,
    telemetry_findings,
    with_device_cpu,
)
from broadside.coordinator.core.measure.device.placement import place
from broadside.coordinator.core.measure.device.seen_units import with_seen_units
from broadside.coordinator.core.measure.device.session_counts import session_counts
from broadside.coordinator.core.measure.formulas.steady import VALUES_MIN, mean_of_bursts
from broadside.coordinator.core.measure.grid.series import BurstMeasurement
from broadside.coordinator.core.measure.outages import coordinator_findings, outage_findings
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import DeviceTelemetry
from broadside.coordinator.core.metrics import (
    ALL_METRICS,
    RECEIVED,
    RECEIVED_HALF_WIDTH,
)
from broadside.coordinator.core.plan.budget import ran, with_abort, with_budget
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.run_trends import (
    burst_trend_values,
    compute_run_trends,
    trend_findings,
)
from broadside.coordinator.core.summary import (
    BurstDistribution,
    BurstPart,
    BurstSummary,
    Completeness,
    Finding,
    FindingValue,
    MeasuredFinding,
    Reconciliation,
    RunSummary,
    SecondState,
    figure,
    named_finding,
    note,
    order,
    worse,
)
from broadside.exchange.engines import find
from broadside.exchange.messages import Aggregation

# Above this number of pairs x bursts, the pairs are stored only in the burst documents. The summary
# is read for every list of runs. With 48 bursts of 1,000 pairs it would be 45 MB of text.
PAIR_SUMMARIES_MAX: Final = 3_000
# Notes that would be the same for all parts of a mixed run.
_OF_ALL_PARTS: Final = frozenset({"clocks-self-reported", "no-target", "short-sustain"})
# How the extreme value of a note is named, which is not a problem.
_EXTREMES: Final = {
    "low": "lowest",
    "high": "highest",
    "magnitude": "largest",
}


def judge_run(
    plan: Plan, bursts: Sequence[BurstMeasurement], inputs: VerdictInputs, now: datetime
) -> RunSummary:
    """Return the summary of the bursts that ran, with the effects of a stop of the run.

    Args:
        plan: The whole plan.
        bursts: Measured bursts, in any order.
        inputs: All other inputs.
        now: Current time, stored as ``computed_at``.
    """
    control = inputs.control
    summary = summarise_run(ran(plan, control), bursts, inputs.device_counter, now, inputs.context)
    summary = with_abort(with_budget(summary, plan, control), control)
    guards = replace(inputs.guards, series=[burst.series for burst in bursts])
    return with_guards(summary, plan, control, guards)


def summarise_run(
    plan: Plan,
    bursts: Sequence[BurstMeasurement],
    device_counter: CounterRecord | None,
    now: datetime,
    context: RunContext | None = None,
) -> RunSummary:
    """Compute the summary of a run, with a verdict for the run and for each burst.

    The same lag is used for all bursts. The run can pass only if every burst passes. If ``bursts``
    does not contain a planned burst, its pair-seconds will be counted as pending.

    Args:
        plan: Plan for the run.
        bursts: Measured bursts, in any order.
        device_counter: Device counter. None if no source returned data.
        now: Current time, stored as ``computed_at``.
        context: Other records of the run. None if there are none.

    Returns:
        The summary, as it is stored. Values that were not measured are None.
    """
    context = context or RunContext()
    parts, names = plan.parts, plan.spec.part_names if plan.spec.mix else ()
    if plan.spec.mix:
        plan = parts[0]
    telemetry = context.telemetry
    measured = sorted(bursts, key=lambda burst: burst.summary.index)
    if telemetry is not None:
        others = [
            one.span_s for one in context.neighbours if device_counter is None or one.has_traffic
        ]
        telemetry = place(telemetry, list(_burst_times(plan).values()), others)
    device_counter = None if device_counter is None else device_counter.proving()
    counter, counters = _reconcile(plan, measured, device_counter, context.neighbours)
    between = half_width_of_bursts([burst.summary for burst in measured])
    evidence = _Evidence(
        plan,
        measured,
        device_counter,
        telemetry,
        between,
        context.telemetry,
        is_mixed=len(parts) > 1,
    )
    summary = [
        _judge_parts(evidence, number, _judge_burst(evidence, number, part), parts)
        for number, part in enumerate(counters)
    ]
    pending = len(plan.pairs) * plan.spec.burst_s * (len(plan.bursts) - len(summary))
    completeness = combine(
        [
            *(burst.completeness for burst in summary),
            Completeness.of({SecondState.PENDING: pending}),
        ]
    )
    verdict, check_findings = evaluate_run(
        RunInput(
            plan=plan,
            device_counter=device_counter,
            bursts=summary,
            completeness_ratio=completeness.completeness_ratio,
        )
    )
    trends = compute_run_trends(burst_trend_values(burst) for burst in summary)
    silent = sum(burst.silent_controls_count for burst in summary)
    first_at, last_at = plan.bursts[0].planned_start_at, plan.bursts[-1].planned_end_at
    findings = [
        *_burst_findings(summary, counter, planned=len(plan.bursts)),
        *check_findings,
        *_counter_findings(plan, counter, device_counter),
        *lag_findings(counter, (last_at - first_at).total_seconds()),
        *trend_findings(trends, silent_controls_count=silent),
        *coordinator_findings(context.troubles),
        *host_difference_findings(context.fleet, _agents_of(plan, summary)),
        *telemetry_findings(telemetry, first_at, last_at),
    ]
    pairs_count = sum(len(part.pairs) for part in parts)
    omit_pairs = pairs_count * len(summary) > PAIR_SUMMARIES_MAX
    stored = [_without_values(burst, omit_pairs=omit_pairs) for burst in summary]
    return RunSummary(
        computed_at=now,
        verdict=verdict,
        completeness_ratio=completeness.completeness_ratio,
        completeness=completeness,
        reconciliation=counter,
        findings=order(findings),
        run_trends=trends,
        part_names=names,
        pairs_omitted=omit_pairs,
        bursts=tuple(stored),
        **_plan_fields(plan),
        **_metric_fields(plan, summary),
    )


def _burst_times(plan: Plan) -> dict[int, tuple[float, float]]:
    """Return the start and end of each planned burst (epoch s), by burst index."""
    return {
        burst.index: (burst.planned_start_at.timestamp(), burst.planned_end_at.timestamp())
        for burst in plan.bursts
    }


def _reconcile(
    plan: Plan,
    measured: Sequence[BurstMeasurement],
    device_counter: CounterRecord | None,
    neighbours: Sequence[Neighbour],
) -> tuple[Reconciliation | None, Sequence[Reconciliation | None]]:
    """Return the reconciliation of the run and of each burst, or None without a usable counter."""
    # The check counter-record reports a promised counter without data.
    is_missing = device_counter is None or (plan.ledger is not None and not len(device_counter))
    if device_counter is None or is_missing or not measured or device_counter.extreme is not None:
        return None, [None] * len(measured)
    beside = [
        item
        for burst in measured
        for part in burst.summary.parts
        if (item := part_beside(part, burst.summary, device_counter.flows)) is not None
    ]
    indices = {burst.summary.index for burst in measured}
    absent = [times for index, times in _burst_times(plan).items() if index not in indices]
    return reconcile_run(plan.spec, measured, device_counter, [*neighbours, *beside], absent)


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Evidence of a run, with the half width from the scatter between its bursts."""

    plan: Plan
    measured: Sequence[BurstMeasurement]
    device_counter: CounterRecord | None
    telemetry: DeviceTelemetry | None
    between: float | None
    # Telemetry at its own times. With runs in quick succession, an offset can be that of another
    # run, and counts of sessions need a checked clock in any case.
    unplaced: DeviceTelemetry | None = None
    is_mixed: bool = False


def _judge_burst(evidence: _Evidence, number: int, counter: Reconciliation | None) -> BurstSummary:
    """Return the summary of one burst with its bottleneck, verdict and findings."""
    plan, between = evidence.plan, evidence.between
    burst = evidence.measured[number].summary
    if evidence.telemetry is not None:
        total, devices = device_figures(evidence.telemetry, burst)
        engine = find(plan.spec.traffic.engine)
        grace_s = 0.0 if engine is None else engine.shutdown_grace_s(plan.spec.traffic)
        counted = evidence.unplaced or evidence.telemetry
        sessions = tuple(session_counts(counted, burst, grace_s))
        if evidence.is_mixed:
            # Sessions of the other traffic end in the same seconds.
            sessions = tuple(
                one.model_copy(update={"ended_count": None, "fleet_ended_count": None})
                for one in sessions
            )
        canary = burst.canary and with_device_cpu(burst.canary, evidence.telemetry)
        burst = burst.model_copy(
            update={"device": total, "devices": devices, "sessions": sessions, "canary": canary}
        )
    burst = with_seen_units(burst)
    bottleneck = find_bottleneck(bottleneck_input(plan, burst, counter, evidence.device_counter))
    burst = burst.model_copy(
        update={
            "reconciliation": counter,
            "firewall_bits_per_second": counter and counter.firewall_bits_per_second,
            "bottleneck": bottleneck.name,
            "bottleneck_details": bottleneck,
        }
    )
    if between is None and not plan.clocks_promised:
        between = half_width_of_device(burst)
    verdict, findings = evaluate_burst(
        BurstInput(
            spec=plan.spec,
            burst=burst,
            between_bits_per_second=between,
            clocks_promised=plan.clocks_promised,
            clocks_shared=plan.shared_boot_id is not None,
            others=[item.summary for i, item in enumerate(evidence.measured) if i != number],
            slowest_sent=slowest_sent(plan.spec, evidence.measured[number]),
        )
    )
    outages = outage_findings(
        burst.outages,
        late_count=burst.late_reports_count,
        whole=burst.completeness.completeness_ratio >= COMPLETE_RATIO,
    )
    return burst.model_copy(
        update={
            "verdict": verdict,
            "findings": order(
                [
                    *findings,
                    *early_end_findings(plan.spec, burst),
                    *observations(burst),
                    *outages,
                ]
            ),
        }
    )


def _judge_parts(
    evidence: _Evidence, number: int, burst: BurstSummary, plans: Sequence[Plan]
) -> BurstSummary:
    """Return the burst of a mixed run with its judged parts, and with one verdict for all.

    The device counter counts the bytes of all parts, so it is compared only in the first one, with
    the bytes of the others subtracted.
    """
    judged: list[BurstPart] = []
    findings = list(burst.findings)
    for part in burst.parts:
        plan = plans[part.part_index]
        measured = replace(evidence.measured[number], summary=part.summary)
        part_evidence = replace(
            evidence, plan=plan, measured=[measured], device_counter=None, between=None
        )
        summary = _judge_burst(part_evidence, 0, None)
        judged.append(part.model_copy(update={"summary": summary}))
        findings += [
            named_finding(finding, part.name)
            for finding in summary.findings
            if finding.id not in _OF_ALL_PARTS
        ]
    if not judged:
        return burst
    verdict = worse([burst.verdict, *(part.summary.verdict for part in judged)])
    return burst.model_copy(
        update={
            "verdict": verdict,
            "first_part_verdict": burst.verdict,
            "parts": tuple(judged),
            "findings": order(findings),
        }
    )


def _burst_findings(
    bursts: Sequence[BurstSummary], counter: Reconciliation | None, *, planned: int
) -> Iterator[Finding]:
    """Yield the findings of the bursts, grouped by id, and residual causes of the whole run.

    From each group the worst finding is used. The number of affected bursts and the range of its
    value are added to its text.
    """
    by_id: dict[tuple[str, str | None], list[tuple[int, Finding]]] = {}
    for burst in bursts:
        for finding in burst.findings:
            by_id.setdefault((finding.id, finding.part), []).append((burst.index, finding))
    for group in by_id.values():
        index, finding = max(group, key=_badness)
        sentence = finding.sentence
        if planned > 1:
            sentence = f"Burst {index + 1}: {sentence}{_repeats(group, index, planned)}"
        yield _plain(finding).model_copy(update={"sentence": sentence})
    yield from (
        finding for finding in residual_findings(counter) if (finding.id, None) not in by_id
    )


def _without_values(burst: BurstSummary, *, omit_pairs: bool) -> BurstSummary:
    """Return the burst as it is stored: findings without values, and without pairs if requested."""
    findings = tuple(map(_plain, burst.findings))
    pairs = () if omit_pairs else burst.pairs
    parts = tuple(
        part.model_copy(update={"summary": _without_values(part.summary, omit_pairs=omit_pairs)})
        for part in burst.parts
    )
    return burst.model_copy(update={"findings": findings, "pairs": pairs, "parts": parts})


def _plain(finding: Finding) -> Finding:
    return finding.without_value() if isinstance(finding, MeasuredFinding) else finding


def _value_of(finding: Finding) -> FindingValue | None:
    return finding.value if isinstance(finding, MeasuredFinding) else None


def _badness(item: tuple[int, Finding]) -> tuple[float, float, int]:
    """Return a sort key for a burst index and its finding. The worst has the largest key."""
    index, finding = item
    value = _value_of(finding)
    return finding.weight, -math.inf if value is None else value.badness, -index


def _repeats(group: Sequence[tuple[int, Finding]], worst: int, planned: int) -> str:
    """Return the text that says how many bursts have a finding, with the range of its value.

    Args:
        group: Burst indexes with the finding of each.
        worst: Index of the worst burst.
        planned: Number of planned bursts.
    """
    if len(group) == 1:
        return ""
    text = f" {len(group)} of {planned} bursts have this finding"
    values = sorted(
        (value for _, finding in group if (value := _value_of(finding)) is not None),
        key=lambda value: value.value,
    )
    if len(values) < len(group):
        return f"{text}."
    low, high = values[0].text, values[-1].text
    if low == high:
        return f"{text}: each {low}."
    extreme = _EXTREMES[values[0].worst] if group[0][1].severity == "note" else "worst"
    return f"{text}: {low} to {high}, {extreme} in burst {worst + 1}."


def _counter_findings(
    plan: Plan, counter: Reconciliation | None, device_counter: CounterRecord | None
) -> Iterator[Finding]:
    """Yield notes about the device counter, or that there was none."""
    if plan.ledger is None and device_counter is None:
        path = "bypassed" if plan.spec.bypasses_device else "crossed"
        yield note(
            "fleet-alone",
            104,
            "No device counter was configured, so this run does not prove that the traffic "
            f"{path} the firewall.",
            "Configure a `byte_counter` (BROADSIDE_TELEMETRY_FILE) before the launch",
        )
    if counter is not None and counter.unplanned_bytes is not None:
        yield note(
            "unplanned-burst",
            41,
            f"{formatting.size(counter.unplanned_bytes)} crossed the device in one burst of "
            "traffic that was not planned. It is not counted as other traffic during the planned "
            "bursts.",
            "Find out who sent it, and prevent it during the next run",
        )
    for text in () if device_counter is None else device_counter.notes:
        yield note(
            "device-counter-note",
            25,
            f"The source of the device counter reports: {text.rstrip('.')}.",
            "If a burst lacks values because of this, remove the cause, then run again",
        )


def _agents_of(plan: Plan, bursts: Sequence[BurstSummary]) -> list[str]:
    """Return the ids of the agents that took part, as far as they are known."""
    clients = {pair.client_agent_id for burst in bursts for pair in burst.pairs}
    servers = {pair.endpoint.agent_id for pair in plan.pairs}
    return [name for name in (clients | servers) if name is not None]


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


def _metric_fields(plan: Plan, summaries: Sequence[BurstSummary]) -> dict[str, Any]:
    """Return the summary fields that are aggregated from the bursts."""
    metrics: dict[str, float | None] = {}
    for metric in ALL_METRICS:
        if metric.name in RunSummary.model_fields and metric.aggregation is not None:
            value = metric.of_bursts(summaries)
            # We need to round the mean, because it is a new value and not selected from a burst.
            metrics[metric.name] = (
                figure(value) if metric.aggregation is Aggregation.MEAN else value
            )
    metrics[RECEIVED_HALF_WIDTH.name] = _half_width(summaries)
    # Rates from a scaled lab are converted to real rates.
    rates = {"target_bits_per_second": plan.spec.scaled_target_bits_per_second, **metrics}
    real = {
        f"real_{name}": figure(None if rate is None else rate * plan.spec.scale)
        for name, rate in rates.items()
        if f"real_{name}" in RunSummary.model_fields
    }
    measured = [
        {pair.pair_index for pair in burst.pairs if pair.state is SecondState.MEASURED}
        for burst in summaries
        if len(summaries) == len(plan.bursts)
    ]
    bottleneck = common_bottleneck([burst.bottleneck_details for burst in summaries])
    return {
        "pairs_measured": len(set.intersection(*measured)) if measured else 0,
        "received_over_bursts": _spread([v for burst in summaries for v in RECEIVED.values(burst)]),
        **metrics,
        **real,
        "bottleneck": bottleneck.name,
        "bottleneck_details": bottleneck,
    }


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


def _spread(values: Sequence[float]) -> BurstDistribution | None:
    if not values:
        return None
    array = np.array(values)
    cov = float(array.std(ddof=1) / array.mean()) if len(values) > 1 and array.mean() else None
    return BurstDistribution(
        bursts_count=len(values),
        mean=figure(float(array.mean())) or 0.0,
        median=figure(float(np.median(array))) or 0.0,
        p5=figure(float(np.quantile(array, 0.05))) or 0.0,
        p95=figure(float(np.quantile(array, 0.95))) or 0.0,
        cov_ratio=figure(cov),
    )
