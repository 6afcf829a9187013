"""Guards in the verdict: their values, and the impact of a stop second by second. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from broadside.coordinator.core.formatting import MetricUnit, quantity_text
from broadside.coordinator.core.guards import (
    DRY_RUN,
    NO_NEW_VALUE,
    GuardLog,
    GuardRecord,
    GuardReport,
    GuardSecond,
    GuardStop,
    stopped_by_guard,
)
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import (
    Finding,
    RunSummary,
    Verdict,
    figure,
    note,
    order,
    problem,
)
from broadside.exchange.messages import Control

# Seconds to show before a breach and after the stop.
BEFORE_S: Final = 10
AFTER_S: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardEvidence:
    """Stored data about the guards of a run.

    Attributes:
        logs: Records of the guards, one for each burst that has one.
        ended_at: End of the engine of each pair in the burst that was stopped.
        series: Seconds of all bursts.
    """

    logs: Sequence[GuardLog] = ()
    ended_at: Sequence[datetime] = ()
    series: Sequence[BurstSeries] = ()


def with_guards(
    summary: RunSummary, plan: Plan, control: Control | None, evidence: GuardEvidence
) -> RunSummary:
    """Add the guards to a summary. A run that a guard stopped is inconclusive.

    A successful dry run is ``measured``, because it shows that the guards and the stop work, and
    nothing about the device.

    Args:
        summary: The summary of the run.
        plan: The whole plan.
        control: Control row of the run, or None.
        evidence: Stored data about the guards.

    Returns:
        A copy with the guards, and with finding and verdict of a stop or a dry run. The same
        summary if the run has no guards.
    """
    if not plan.spec.is_guarded:
        return summary
    stop = _stop(plan, control, evidence)
    report = GuardReport(
        guards=tuple(_merged(plan, evidence.logs)),
        stop=stop,
        seconds=tuple(_impact(plan, stop, evidence)) if stop is not None else (),
    )
    update: dict[str, object] = {"guards": report}
    if plan.spec.dry_run:
        finding, verdict = _dry_run_finding(plan, stop, report)
        update |= {"findings": (finding,), "verdict": verdict}
    elif stop is not None:
        findings = order([*summary.findings, _stop_finding(plan, stop, report)])
        update |= {"findings": findings, "verdict": Verdict.INCONCLUSIVE}
    return summary.model_copy(update=update)


def stopped_burst(control: Control | None, plan: Plan, logs: Sequence[GuardLog]) -> int | None:
    """Return the index of the burst that a guard stopped.

    Args:
        control: Control row of the run, or None.
        plan: The whole plan.
        logs: Records of the guards.

    Returns:
        Index from 0. None if no guard stopped the run.
    """
    logged = next((log.burst_index for log in logs if log.stop is not None), None)
    if logged is not None or control is None or not stopped_by_guard(control):
        return logged
    cancelled_at = control.cancelled_at or plan.created_at
    return next((b.index for b in plan.bursts if b.planned_end_at > cancelled_at), 0)


def _stop(plan: Plan, control: Control | None, evidence: GuardEvidence) -> GuardStop | None:
    """Return the stop with the times of the agents, or None."""
    index = stopped_burst(control, plan, evidence.logs)
    if index is None or control is None or control.cancelled_at is None:
        return None
    stop = next((log.stop for log in evidence.logs if log.stop is not None), None)
    if stop is None:
        # The coordinator failed after the stop and before it stored its record.
        stop = GuardStop(
            burst_index=index,
            reason=control.cancel_reason or "unknown",
            is_before_start=control.cancelled_at < plan.bursts[index].planned_start_at,
            breached_at=control.cancelled_at,
            stop_requested_at=control.cancelled_at,
        )
    if not evidence.ended_at:
        return stop
    stopped_at = max(evidence.ended_at)
    took_s = (stopped_at - stop.breached_at).total_seconds()
    return stop.model_copy(
        update={
            "stopped_at": stopped_at,
            "stopped_pairs_count": len(evidence.ended_at),
            "took_s": figure(round(took_s, 1)),
        }
    )


def _merged(plan: Plan, logs: Sequence[GuardLog]) -> Iterator[GuardRecord]:
    """Yield the record of each guard over all bursts."""
    by_guard = zip(*(log.guards for log in logs), strict=True)
    for guard, records in zip(plan.spec.guards, by_guard, strict=bool(logs)):
        last = records[-1]
        worst = [record.worst for record in records if record.worst is not None]
        pick = min if guard.is_floor else max
        yield last.model_copy(
            update={
                "worst": pick(worst) if worst else None,
                "readings_count": sum(record.readings_count for record in records),
            }
        )


def _impact(plan: Plan, stop: GuardStop, evidence: GuardEvidence) -> Iterator[GuardSecond]:
    """Yield the seconds around a stop, with the received rate of the fleet."""
    log = next((log for log in evidence.logs if log.burst_index == stop.burst_index), None)
    series = next((s for s in evidence.series if s.burst_index == stop.burst_index), None)
    if log is None:
        return
    until_at = stop.stopped_at or stop.stop_requested_at
    zero_s = plan.bursts[stop.burst_index].planned_start_at.timestamp()
    first = math.floor(stop.breached_at.timestamp() - zero_s) - BEFORE_S
    last = math.ceil(until_at.timestamp() - zero_s) + AFTER_S
    by_second = {second.second: second for second in log.seconds}
    unknown = (None,) * len(log.guards)
    for number in range(first, last + 1):
        known = by_second.get(number, GuardSecond(second=number, values=unknown))
        yield known.model_copy(update={"received_bits_per_second": _received(series, number)})


def _received(series: BurstSeries | None, second: int) -> float | None:
    """Return the received payload in a second of the burst in bit/s, or None if unknown."""
    if series is None:
        return None
    at = round(series.planned_start_s) + second - series.start_s
    received = series.received_bytes
    return figure(float(received[at]) * 8) if 0 <= at < len(received) else None


def _took(stop: GuardStop) -> str:
    if stop.took_s is None:
        return "No agent reported when it stopped."
    count = stop.stopped_pairs_count
    pairs = f"{count} {'pair' if count == 1 else 'pairs'}"
    return f"All traffic had ended {stop.took_s:.2f} s after the breach ({pairs})."


def _stop_finding(plan: Plan, stop: GuardStop, report: GuardReport) -> Finding:
    burst = plan.bursts[stop.burst_index]
    if stop.is_before_start:
        return problem(
            "guard-not-armed",
            130,
            f"Stopped by guard before the first byte of burst {stop.burst_index + 1}: "
            f"{stop.reason}.",
            "If the value was beyond its limit, wait until the device has less load. If there was "
            "no value, check its source (`broadside doctor`). Then try again with `--dry-run`",
        )
    after_s = (stop.stop_requested_at - burst.planned_start_at).total_seconds()
    later = len(plan.bursts) - stop.burst_index - 1
    missing = f"the rest of the burst and {later} later ones" if later else "the rest of the burst"
    return problem(
        "stopped-by-guard",
        130,
        f"Stopped by guard in burst {stop.burst_index + 1} after {after_s:.1f} s of "
        f"{burst.duration_s} s: {stop.reason}. {_took(stop)} The run does not show "
        f"{missing}.",
        "Correct the source of this value (`broadside doctor` reads it), then run again"
        if NO_NEW_VALUE in stop.reason
        else "Read in the report, under Guards, how the value changed second by second. Then run "
        "again with a lower load (fewer pairs: `--set pairs_count`)",
    )


def _dry_run_finding(
    plan: Plan, stop: GuardStop | None, report: GuardReport
) -> tuple[Finding, Verdict]:
    """Return the finding of a dry run and its verdict."""
    planned = len(plan.pairs)
    if stop is not None and stop.reason == DRY_RUN and stop.stopped_pairs_count == planned:
        values = "; ".join(
            f"{record.guard}: {quantity_text(MetricUnit.of(record.quantity), record.last, 1)}"
            for record in report.guards
        )
        armed = f" All guards were armed ({values})." if values else ""
        sentence = (
            f"Dry run: {planned} of {planned} pairs were ready and stopped within "
            f"{stop.took_s or 0:.2f} s of the order, before the first byte.{armed}"
        )
        step = "Launch the run without `--dry-run`"
        finding = note("dry-run", 130, sentence, step)
        return finding.model_copy(update={"kind": "verdict"}), Verdict.MEASURED
    reason = "the run was not stopped" if stop is None else stop.reason
    stopped = 0 if stop is None else stop.stopped_pairs_count or 0
    sentence = (
        f"The dry run failed: {reason}; {stopped} of {planned} pairs reported that they stopped."
    )
    step = "Check the guards and the agents (`broadside doctor`), and repeat the dry run"
    return problem("dry-run-failed", 130, sentence, step), Verdict.INCONCLUSIVE
