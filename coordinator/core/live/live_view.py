"""Messages for the live page, with the burst so far and the changes to it. Pure.

The metrics are computed using the same code as for the verdict, on the data that has been reported
so far. A burst of 300 s that is at second 40 is measured as if it had been planned for 40 s. The
values will therefore not jump when the burst ends. Completeness so far should only include seconds
that could have been reported.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.live.progress import progress
from broadside.coordinator.core.live.status import BurstPhase, BurstStatus, RunState, RunStatus
from broadside.coordinator.core.measure.aggregate import series_of
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.formulas.phases import TrafficPhase, sustain_of
from broadside.coordinator.core.measure.formulas.quantiles import column_quantiles
from broadside.coordinator.core.measure.grid.align import Chosen, align
from broadside.coordinator.core.measure.grid.grid_rows import Grid
from broadside.coordinator.core.measure.grid.series import BurstMeasurement, BurstSeries
from broadside.coordinator.core.measure.mixed import part_evidence, part_of
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, CounterRecord
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.core.summary import (
    BottleneckName,
    BurstPart,
    BurstSummary,
    Finding,
    RunSummary,
    SecondState,
    instant,
    named_finding,
)
from broadside.coordinator.core.verdict_reason import explain_verdict
from broadside.exchange.messages import BurstIndex, Message, RunId, UtcDatetime

# Time to wait for a second to be reported before it is counted as missing.
REPORT_LAG_S: Final = 8.0
# Number of bins after the traffic that the idle level needs.
QUIET_BINS_COUNT: Final = 2
# Seconds by which an interval can be shorter than a whole second.
EDGE_S: Final = 0.1
# Maximum number of pair-seconds to store for viewers. For longer bursts, only the newest are
# stored.
CELLS_MAX_COUNT: Final = 1_000_000
# Findings that are based on the residual.
_OF_THE_RESIDUAL: Final = ("reconciled", "bypassed", "idle-unknown", "unseen-by-bytes")
# Value in `pairs` for a second that has no data.
UNKNOWN_CELL: Final = 0xFFFF_FFFF
# Rate of one step in a cell.
CELL_BITS_PER_SECOND: Final = 1_000.0

Cells = NDArray[np.uint32]
# Start and end of the reported time by pair index, in seconds from the planned start.
_Spans = Mapping[int, tuple[float, float]]


class LiveStatus(Message):
    """Event ``status`` with the state of the run and of the burst that is shown."""

    # Time on the coordinator's clock. A page should use it for the countdown.
    now: UtcDatetime
    run_id: RunId
    scenario: str
    state: RunState
    created_at: UtcDatetime
    ends_at: UtcDatetime
    bursts_count: int
    bursts_over_count: int
    # Start of the next burst, or None if all have begun.
    next_start_at: UtcDatetime | None = None
    # Status of the burst that is shown.
    burst: BurstStatus
    # Seconds of traffic in this burst.
    duration_s: int
    omit_s: int = 0
    # Phase of the load, or None if it has no ramps.
    load_phase: TrafficPhase | None = None
    # Reason if the burst ends before its planned end.
    early_end_reason: str | None = None
    pairs_count: int
    # Names of the parts of a mixed run. The seconds are those of the first one.
    part_names: tuple[str, ...] = ()
    # Real rate divided by the measured rate.
    scale: float
    # Target as measured (divided by the scale), at target_layer.
    target_bits_per_second: float | None
    target_layer: Layer
    tolerance_ratio: float
    coverage_floor_ratio: float
    clock_bound_max_s: float
    late_after_s: float
    labels: Mapping[str, str] = {}
    cancelled_by: str | None = None
    cancel_reason: str | None = None
    warnings: tuple[str, ...] = ()
    # Format that the data was imported from, or None.
    imported: Literal["original", "iperf3"] | None = None
    # Reason why no new data can be read now, or None.
    problem: str | None = None


class UnmeasuredPair(Message):
    """A pair that is not measured, or not yet."""

    pair_index: int
    pair: str
    state: SecondState
    reason: str | None = None


class FigureState(Message):
    """State of a live metric.

    A *waiting* metric has no value yet. A *provisional* one can still change and must not be
    scaled, compared or judged. A *known* one is that of the verdict.
    """

    state: Literal["waiting", "provisional", "known"]
    # Seconds until it is expected to be known. None if this is not known.
    wait_s: float | None = None


class LiveMetrics(Message):
    """Event ``figures`` with the main metrics of the burst so far. Rates are as measured."""

    burst_index: BurstIndex
    # True if the burst is over and measured.
    final: bool
    # States of the metrics by the name in FIGURE_NAMES.
    states: Mapping[str, FigureState] = {}
    # Reason for the verdict of the burst, and what to do. None before the verdict.
    reason: str | None = None
    next_step: str | None = None
    # Summary without pairs and findings. Its `parts` have the other traffic of a mixed run.
    summary: BurstSummary
    # Number of seconds that were used for the metrics.
    known_s: int
    unmeasured_pairs: tuple[UnmeasuredPair, ...] = ()


class LiveCounterBin(Message):
    """Rate in one bin of the device counter, without a correction for lag."""

    # Seconds from the planned burst start.
    from_s: float
    before_s: float
    # Rate at the layer of the counter.
    bits_per_second: float | None


class LiveSeconds(Message):
    """Event ``seconds`` with seconds that are new or have changed, as parallel lists.

    ``pairs`` contains ``len(second) * pairs_count`` cells, base64 of little-endian unsigned 32-bit
    kbit/s, second by second, pair 0 first. The value 4294967295 is unknown.
    """

    burst_index: BurstIndex
    # Time of second 0.
    start_at: UtcDatetime
    pairs_count: int
    # Seconds below this number are complete. They are final if the state ``seconds`` of the figures
    # is *known*. Later ones can still change.
    known_s: int
    # ``link`` is used for engines without interval reports. Rates are then from the senders' NICs.
    layer: Literal["payload", "link"] = "payload"
    second: tuple[int, ...]
    coverage_ratio: tuple[float | None, ...]
    # Received payload.
    fleet_bits_per_second: tuple[float | None, ...]
    pair_p5_bits_per_second: tuple[float | None, ...]
    pair_p50_bits_per_second: tuple[float | None, ...]
    pair_p95_bits_per_second: tuple[float | None, ...]
    retransmits_count: tuple[float | None, ...]
    rtt_mean_s: tuple[float | None, ...]
    client_cpu_ratio: tuple[float | None, ...]
    server_cpu_ratio: tuple[float | None, ...]
    pairs: str


class LiveCounter(Message):
    """Event ``counter`` with the bins of the device counter that overlap the burst."""

    burst_index: BurstIndex
    source: str
    layer: str
    grain_s: float
    problem: str | None = None
    bins: tuple[LiveCounterBin, ...] = ()


class LiveFinding(Message):
    """Event ``finding`` for a finding that is new, has changed or was withdrawn."""

    burst_index: BurstIndex
    id: str
    # None if the finding was withdrawn. The id of a finding about other traffic of a mixed run ends
    # with the name of the part.
    finding: Finding | None = None


FIGURE_NAMES: Final = (
    "seconds",
    "received",
    "interval",
    "completeness",
    "device_counter",
    "lag",
    "residual",
    "bottleneck",
)
COLUMNS: Final = tuple(
    name
    for name, field in LiveSeconds.model_fields.items()
    if field.annotation == tuple[float | None, ...]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSnapshot:
    """Snapshot of one burst.

    Attributes:
        burst_index: Burst index.
        start_at: Time of second 0.
        first_second: Number of the first stored second.
        known_s: Number of seconds that are final.
        layer: Layer of the rates.
        columns: Array (COLUMNS, seconds) with NaN for unknown values.
        cells: Array (seconds, pairs) in kbit/s.
        figures: Main metrics, or None if there are no measured data yet.
        findings: Findings for the burst so far.
    """

    burst_index: int
    start_at: datetime
    first_second: int
    known_s: int
    layer: Literal["payload", "link"]
    columns: Floats
    cells: Cells
    figures: LiveMetrics | None
    findings: tuple[Finding, ...] = ()

    def __len__(self) -> int:
        return len(self.cells)


def live_status(
    plan: Plan, status: RunStatus, burst_index: int, now: datetime, problem: str | None = None
) -> LiveStatus:
    """Return the status of a run for a viewer of one burst.

    Args:
        plan: The plan.
        status: The current status.
        burst_index: Index of the burst that is shown.
        now: Current time to use.
        problem: Reason why no new data can be read, or None.
    """
    burst = plan.bursts[burst_index]
    to_come = [b.planned_start_at for b in plan.bursts if b.planned_start_at > now]
    return LiveStatus(
        now=now,
        run_id=plan.run_id,
        scenario=plan.spec.scenario,
        state=status.state,
        created_at=plan.created_at,
        ends_at=status.ends_at,
        bursts_count=len(plan.bursts),
        bursts_over_count=sum(b.phase is BurstPhase.OVER for b in status.bursts),
        next_start_at=to_come[0] if to_come and status.state is not RunState.CANCELLED else None,
        burst=status.bursts[burst_index],
        duration_s=burst.duration_s,
        omit_s=burst.omit_s,
        load_phase=_load_phase(plan, burst, now),
        early_end_reason=None if burst.end is None else burst.end.reason,
        pairs_count=len(plan.pairs),
        part_names=plan.spec.part_names if plan.spec.mix else (),
        scale=plan.spec.scale,
        target_bits_per_second=plan.spec.scaled_target_bits_per_second,
        target_layer=plan.spec.objective.layer,
        tolerance_ratio=plan.spec.objective.tolerance_ratio,
        coverage_floor_ratio=plan.spec.objective.coverage_floor_ratio,
        clock_bound_max_s=plan.spec.clock_bound_max_s,
        late_after_s=plan.spec.late_after_s,
        labels=plan.spec.labels,
        cancelled_by=status.cancelled_by,
        cancel_reason=status.cancel_reason,
        warnings=status.warnings,
        imported=status.imported,
        problem=problem,
    )


def _load_phase(plan: Plan, burst: Burst, now: datetime) -> TrafficPhase | None:
    """Return the phase of the first part's load, or None if it has no ramps."""
    sustain = sustain_of(plan.spec.traffic, plan.spec.burst_s, burst.duration_s)
    after_s = (now - burst.planned_start_at).total_seconds()
    return None if sustain is None else sustain.phase_at(after_s, burst.duration_s)


def shown_burst(plan: Plan, status: RunStatus) -> int:
    """Select the burst to show, which is the current one or the last one that has begun.

    A burst is shown until the next one is armed. If no burst has begun, the first one is used.

    Args:
        plan: The plan.
        status: The current status.

    Returns:
        Index of the burst, from 0.
    """
    phases = [burst.phase for burst in status.bursts]
    for wanted in (BurstPhase.RUNNING, BurstPhase.ARMING, BurstPhase.COLLECTING):
        if wanted in phases:
            return phases.index(wanted)
    over = [index for index, phase in enumerate(phases) if phase is BurstPhase.OVER]
    return over[-1] if over else 0


def full_snapshot(
    plan: Plan, evidence: BurstEvidence, device_counter: CounterRecord | None, now: datetime
) -> LiveSnapshot:
    """Measure a running burst from all data that has been reported.

    The parts of a mixed run are measured apart, and the seconds are those of the first one.

    Args:
        plan: The plan.
        evidence: Evidence for the burst.
        device_counter: Data from the device counter, or None.
        now: Current time to use.

    Returns:
        Metrics so far, findings, and the seconds of each pair.
    """
    if not plan.spec.mix:
        return _measured_so_far(plan, evidence, device_counter, now)[0]
    of_parts = [
        _measured_so_far(part, part_records, None if number else device_counter, now)
        for number, (part, part_records) in enumerate(part_evidence(plan, evidence))
    ]
    first = of_parts[0][0]
    if first.figures is None:
        return first
    parts: list[BurstPart] = []
    findings = list(first.findings)
    for number, (shown, measured) in enumerate(of_parts):
        if not number or measured is None or shown.figures is None:
            continue
        name, engine = plan.spec.part_names[number], plan.spec.parts[number].traffic.engine
        part = part_of(name, engine, number, measured)
        known_s = shown.known_s + math.floor(measured.series.planned_start_s)
        parts.append(_until(part, known_s - measured.series.start_s, shown.figures.summary))
        findings += [named_finding(finding, name) for finding in shown.findings]
    summary = first.figures.summary.model_copy(update={"parts": tuple(parts)})
    figures = first.figures.model_copy(update={"summary": summary})
    return replace(first, figures=figures, findings=tuple(findings))


def _until(part: BurstPart, stop: int, summary: BurstSummary) -> BurstPart:
    """Return a part with its complete seconds and a summary for display."""
    rows = {
        name: getattr(part, name)[: max(0, stop)]
        for name in ("received_bits_per_second", "connections_per_second", "open_count")
    }
    return part.model_copy(update={**rows, "summary": summary})


def _measured_so_far(
    plan: Plan, evidence: BurstEvidence, device_counter: CounterRecord | None, now: datetime
) -> tuple[LiveSnapshot, BurstMeasurement | None]:
    """Return the burst of one kind of traffic so far. None if no seconds are reported."""
    burst = evidence.burst
    spans = _spans(evidence)
    if not spans:
        return _from_hosts(plan, evidence), None
    reach = _reach(spans, len(plan.pairs))
    elapsed_s = (now - burst.planned_start_at).total_seconds()
    known_s = _known(burst, reach, elapsed_s)
    shorter = burst.model_copy(update={"duration_s": max(1, known_s - burst.omit_s)})
    measured = measure_burst(plan.spec, replace(evidence, burst=shorter), now)
    one = plan.model_copy(update={"bursts": (burst,), "clocks_promised": False})
    levels_of_flows = (
        summarise_run(one, [measured], device_counter, now).bursts[0]
        if known_s
        else measured.summary
    )
    planned_s = burst.duration_s + burst.omit_s
    reported = known_s == planned_s and _have_reported(burst, spans, reach, elapsed_s)
    end_s = min(max(float(planned_s), float(reach[-1])), planned_s + REPORT_LAG_S)
    end_s += burst.planned_start_at.timestamp()
    counted = reported and _reaches_past(device_counter, end_s, levels_of_flows)
    if not counted:
        levels_of_flows = _without_residual(levels_of_flows)
    snapshot = make_snapshot(
        levels_of_flows,
        measured.series,
        PlannedCells(pairs_count=len(plan.pairs), seconds=planned_s),
        known_s=known_s,
        final=False,
    )
    snapshot = _without_parts(snapshot, spans, plan.pairs[0].index)
    if snapshot.figures is None:
        return snapshot, None
    left_s = (burst.planned_end_at - now).total_seconds()
    states = figure_states(
        levels_of_flows,
        left_s=left_s
        + (0.0 if device_counter is None else QUIET_BINS_COUNT * device_counter.grain_s),
        reported=reported,
        # The lag is that of all bursts, so it changes until the last one is measured.
        counted=counted and len(plan.bursts) == 1,
        has_counter=device_counter is not None or plan.ledger is not None,
    )
    # Until the end, later records correct the start of an engine's time, and so all its seconds.
    seconds = FigureState(state="known") if known_s and reported else states["received"]
    figures = snapshot.figures.model_copy(update={"states": {**states, "seconds": seconds}})
    return replace(snapshot, figures=figures), measured


def figure_states(
    summary: BurstSummary, *, left_s: float, reported: bool, counted: bool, has_counter: bool
) -> Mapping[str, FigureState]:
    """Return the state of each live metric.

    Args:
        summary: Summary of the burst so far.
        left_s: Seconds until the burst and its counter are complete.
        reported: True if every pair has reported the whole burst.
        counted: True if the device counter covers the burst and its lag.
        has_counter: True if the run has a device counter.

    Returns:
        State by name of the metric: known, provisional or waiting, with the wait in seconds.
    """
    counter = summary.reconciliation
    values: Mapping[str, tuple[object, bool]] = {
        "received": (summary.fleet_received_bits_per_second, reported),
        "interval": (summary.fleet_received_half_width_bits_per_second, reported),
        "completeness": (summary.completeness_ratio, reported),
        "device_counter": (counter and counter.firewall_bits_per_second, reported and counted),
        "lag": (counter and counter.lag_s, reported and counted),
        "residual": (counter and counter.residual_ratio, reported and counted),
        "bottleneck": (
            None if summary.bottleneck is BottleneckName.UNKNOWN else summary.bottleneck,
            reported and (counted or not has_counter),
        ),
    }
    wait_s = max(0.0, round(left_s + REPORT_LAG_S))
    return {
        name: FigureState(state="known")
        if is_known
        else FigureState(state="waiting" if value is None else "provisional", wait_s=wait_s)
        for name, (value, is_known) in values.items()
    }


def incremental_snapshot(
    plan: Plan,
    before: LiveSnapshot,
    evidence: BurstEvidence,
    now: datetime,
    known: dict[int, Chosen] | None = None,
) -> LiveSnapshot | None:
    """Add new seconds from the newest rows to a snapshot. The metrics stay the same.

    Args:
        plan: The plan.
        before: The last snapshot.
        evidence: Evidence with only the tails of the tracks.
        now: Current time to use.
        known: Selected tracks from earlier calls, updated by :func:`align`. None selects them
            again.

    Returns:
        The new snapshot. None if there is a gap between the snapshot and the tails, so that the
        whole burst needs to be read.
    """
    if plan.spec.mix:
        plan, evidence = next(part_evidence(plan, evidence))
    burst, spans = evidence.burst, _spans(evidence)
    if before.figures is None or not spans:
        return None
    reach = _reach(spans, len(plan.pairs))
    zero_s = burst.planned_start_at.timestamp()
    known_s = _known(burst, reach, (now - burst.planned_start_at).total_seconds())
    first = math.ceil(_tails_begin_s(evidence, reach[-1] + zero_s) - zero_s)
    if first > before.known_s or first < before.first_second:
        return None
    count = max(1, math.ceil(reach[-1]) + 1 - first)
    part = burst.model_copy(update={"omit_s": first, "duration_s": count})
    grid = Grid(start_s=math.floor(zero_s) + first, count=count)
    aligned = align(replace(evidence, burst=part), plan.spec.traffic.direction, grid, known)
    new = make_snapshot(
        before.figures.summary,
        series_of(part, aligned),
        PlannedCells(pairs_count=len(plan.pairs), seconds=burst.duration_s + burst.omit_s),
        known_s=known_s,
        final=False,
    )
    new = _without_parts(new, spans, plan.pairs[0].index)
    return _followed(before, new, known_s)


def newest_of(full_snapshot: LiveSnapshot, shown: LiveSnapshot) -> LiveSnapshot:
    """Combine a full measurement with the seconds that have been shown since.

    Args:
        full_snapshot: Snapshot from the full measurement.
        shown: The last snapshot that was shown.

    Returns:
        The full measurement with the later seconds of ``shown`` appended.
    """
    if (
        shown.known_s <= full_snapshot.known_s
        or shown.cells.shape[1] != full_snapshot.cells.shape[1]
    ):
        return full_snapshot
    after = slice(max(0, full_snapshot.known_s - shown.first_second), None)
    later = replace(
        shown,
        first_second=shown.first_second + after.start,
        columns=shown.columns[:, after],
        cells=shown.cells[after],
    )
    return _followed(full_snapshot, later, shown.known_s) if len(later) else full_snapshot


def _followed(before: LiveSnapshot, later: LiveSnapshot, known_s: int) -> LiveSnapshot:
    """Append a snapshot to another one. Metrics and findings are from the first one."""
    selected = slice(0, max(0, later.first_second - before.first_second))
    cells = np.concatenate((before.cells[selected], later.cells))
    cut = max(0, len(cells) - CELLS_MAX_COUNT // max(1, cells.shape[1]))
    columns = np.concatenate((before.columns[:, selected], later.columns), axis=1)
    return replace(
        before,
        first_second=before.first_second + cut,
        known_s=known_s,
        columns=columns[:, cut:],
        cells=cells[cut:],
    )


def _tails_begin_s(evidence: BurstEvidence, newest_s: float) -> float:
    """Return the epoch seconds from which the tails of all active ends have data."""
    begins = [
        track.first_data_at_s + float(track.start_s[0])
        for pair in evidence.pairs
        for track in (*pair.client_tracks, *pair.server_tracks)
        if len(track)
        if track.first_data_at_s + track.end_s[-1] > newest_s - REPORT_LAG_S
    ]
    return max(begins, default=newest_s)


def _reaches_past(
    device_counter: CounterRecord | None, end_s: float, measured: BurstSummary
) -> bool:
    """Return True if the device counter covers the traffic, the lag, and some quiet bins after it.

    Without quiet bins, the last bin of the traffic could be taken for the idle level.

    Args:
        device_counter: Data from the device counter, or None.
        end_s: End of the traffic in epoch seconds.
        measured: Burst summary with the lag.
    """
    previous = measured.reconciliation
    if (
        device_counter is None
        or previous is None
        or previous.lag_s is None
        or not len(device_counter)
    ):
        return False
    known = device_counter.end_s[np.isfinite(device_counter.bytes)]
    lag_s = previous.lag_s + (previous.lag_uncertainty_s or 0.0)
    needed_s = end_s + lag_s + QUIET_BINS_COUNT * device_counter.grain_s
    return bool(len(known) and known[-1] >= needed_s)


def _without_residual(summary: BurstSummary) -> BurstSummary:
    """Return the summary, but remove the residual.

    Until both the fleet and the counter have all data for the burst, a difference between them
    would look like foreign or missing traffic.
    """
    previous = summary.reconciliation
    if previous is None:
        return summary
    unknown = dict.fromkeys(("residual_ratio", "residual_uncertainty_ratio"))
    unknown |= dict.fromkeys(("residual_low_ratio", "residual_high_ratio"))
    dropped = {*_OF_THE_RESIDUAL, *(cause.id for cause in previous.causes)}
    return summary.model_copy(
        update={
            "reconciliation": previous.model_copy(update={**unknown, "causes": ()}),
            "findings": tuple(f for f in summary.findings if f.id not in dropped),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCells:
    """Planned number of rows (pairs) and columns (seconds) of the heat map."""

    pairs_count: int
    seconds: int


def make_snapshot(
    summary: BurstSummary,
    series: BurstSeries,
    planned: PlannedCells,
    *,
    known_s: int,
    final: bool,
) -> LiveSnapshot:
    """Create a snapshot from a summary and series.

    If no pair was late, seconds after the planned ones are not shown. They contain only parts of a
    second, and would look like a sudden fall.

    Args:
        summary: Burst summary.
        series: Data for each second in the burst.
        planned: Planned pairs and seconds.
        known_s: Number of seconds that are final.
        final: True if the burst is over and measured.

    Returns:
        The snapshot. Its cells have the shape (seconds, pairs), in kbit/s.
    """
    # Number of the first column.
    offset = series.start_s - math.floor(series.planned_start_s)
    recorded = np.flatnonzero(_recorded(series))
    stop = (int(recorded[-1]) + 1 if len(recorded) else 0) + offset
    if not summary.late_pairs:
        stop = min(stop, planned.seconds)
    rates = _pair_rates(series, planned.pairs_count)
    first = max(0, offset, stop - CELLS_MAX_COUNT // max(1, len(rates)))
    span = slice(first - offset, max(first, stop) - offset)
    fleet = series.received_bytes[span] * 8.0
    coverage = series.coverage_ratio[span]
    # Index of the first second that can still change.
    late_s = max(0, known_s - first)
    fleet = np.where(coverage > 0, fleet, np.nan)
    p5, p50, p95 = _quantiles(series, rates, span)
    columns = {
        "fleet_bits_per_second": fleet,
        "coverage_ratio": coverage,
        "pair_p5_bits_per_second": p5,
        "pair_p50_bits_per_second": p50,
        "pair_p95_bits_per_second": p95,
        "retransmits_count": _known_sum([flow.retransmits_count[span] for flow in series.flows]),
        "rtt_mean_s": _known_mean([flow.rtt_mean_s[span] for flow in series.flows]),
        "client_cpu_ratio": series.client_cpu_ratio[span],
        "server_cpu_ratio": series.server_cpu_ratio[span],
    }
    table = np.array([columns[name] for name in COLUMNS], np.float64)
    # A sum or mean of a part of a second would look like a sudden change.
    table[[name != "coverage_ratio" for name in COLUMNS], late_s:] = np.nan
    unmeasured_pairs = tuple(
        UnmeasuredPair(pair_index=p.pair_index, pair=p.pair, state=p.state, reason=p.reason)
        for p in summary.pairs
        if p.state is not SecondState.MEASURED
    )
    explained = explain_verdict(summary) if final else None
    return LiveSnapshot(
        burst_index=summary.index,
        start_at=instant(math.floor(series.planned_start_s)),
        first_second=first,
        known_s=known_s,
        layer="payload",
        columns=table,
        cells=_cells(rates[:, span]),
        figures=LiveMetrics(
            burst_index=summary.index,
            final=final,
            states=dict.fromkeys(FIGURE_NAMES, FigureState(state="known")) if final else {},
            reason=explained and explained.reason,
            next_step=explained and explained.next_step,
            summary=_without_lists(summary),
            known_s=known_s,
            unmeasured_pairs=unmeasured_pairs,
        ),
        # We cannot use partial data to get findings for a verdict. You can see the metrics on the
        # page.
        findings=tuple(f for f in summary.findings if final or _is_live(f)),
    )


def _without_lists(summary: BurstSummary) -> BurstSummary:
    """Return a summary and its parts without pairs and findings."""
    parts = tuple(
        part.model_copy(update={"summary": _without_lists(part.summary)}) for part in summary.parts
    )
    return summary.model_copy(update={"pairs": (), "findings": (), "parts": parts})


def _is_live(finding: Finding) -> bool:
    """Return True if a finding does not depend on seconds that are still to come."""
    if finding.id == "short-sustain" or finding.id.startswith("bottleneck-"):
        return False
    return finding.kind != "verdict"


def empty_snapshot(plan: Plan, burst: Burst) -> LiveSnapshot:
    """Return a snapshot for a burst that has no data yet.

    Args:
        plan: The plan.
        burst: The burst.
    """
    return LiveSnapshot(
        burst_index=burst.index,
        start_at=instant(math.floor(burst.planned_start_at.timestamp())),
        first_second=0,
        known_s=0,
        layer="payload",
        columns=np.empty((len(COLUMNS), 0)),
        cells=np.empty((0, len(plan.parts[0].pairs)), np.uint32),
        figures=None,
    )


def final_snapshot(summary: RunSummary, burst_index: int, series: BurstSeries) -> LiveSnapshot:
    """Return a snapshot for a burst with a verdict.

    There are no cells if the series has no data by pair, for example for an import of mean values.

    Args:
        summary: Run summary.
        burst_index: Burst index.
        series: Data for each second in the burst.
    """
    burst = summary.bursts[burst_index]
    planned_s = series.duration_s + series.omit_s
    has_pairs = any(len(flow.pairs_bits_per_second) for flow in series.flows)
    return make_snapshot(
        burst,
        series,
        PlannedCells(pairs_count=len(burst.pairs) if has_pairs else 0, seconds=planned_s),
        known_s=planned_s,
        final=True,
    )


def changed_seconds(before: LiveSnapshot | None, now: LiveSnapshot) -> tuple[int, ...]:
    """Return the numbers of the seconds that are new or have changed.

    Args:
        before: The last snapshot, or None for the first call.
        now: The new snapshot.

    Returns:
        Seconds from the planned start, ascending. All of them for the first call or another burst.
    """
    numbers = np.arange(now.first_second, now.first_second + len(now))
    if before is None or (before.burst_index, before.layer) != (now.burst_index, now.layer):
        return tuple(numbers.tolist())
    first = max(now.first_second, before.first_second)
    stop = min(now.first_second + len(now), before.first_second + len(before))
    if stop <= first or before.cells.shape[1] != now.cells.shape[1]:
        return tuple(numbers.tolist())
    new, old = (slice(first - p.first_second, stop - p.first_second) for p in (now, before))
    same = (now.cells[new] == before.cells[old]).all(axis=1)
    one, other = now.columns[:, new], before.columns[:, old]
    same &= np.isclose(one, other, rtol=1e-6, atol=0.0, equal_nan=True).all(axis=0)
    selection = np.ones(len(now), np.bool_)
    selection[new] = ~same
    return tuple(numbers[selection].tolist())


def seconds_message(shown: LiveSnapshot, seconds: Sequence[int]) -> LiveSeconds:
    """Create the event for some seconds of a snapshot.

    Args:
        shown: The snapshot.
        seconds: Numbers of the seconds to send.

    Returns:
        The event. Rates of the fleet are in bit/s, and cells of the pairs in kbit/s.
    """
    rows = np.asarray(seconds, np.intp) - shown.first_second
    return LiveSeconds(
        burst_index=shown.burst_index,
        start_at=shown.start_at,
        pairs_count=shown.cells.shape[1],
        known_s=shown.known_s,
        layer=shown.layer,
        second=tuple(seconds),
        pairs=base64.b64encode(shown.cells[rows].astype("<u4").tobytes()).decode(),
        **dict(zip(COLUMNS, map(_plain, shown.columns[:, rows]), strict=True)),
    )


def counter_message(
    device_counter: CounterRecord | None, burst: Burst, problem: str | None = None
) -> LiveCounter:
    """Create the event with the device counter bins from shortly before to shortly after a burst.

    Args:
        device_counter: Data from the device counter, or None.
        burst: The burst.
        problem: Reason why the counter cannot be read, or None.

    Returns:
        The event. Without a counter it has no bins and the layer ``unknown``.
    """
    if device_counter is None:
        return LiveCounter(
            burst_index=burst.index, source="none", layer="unknown", grain_s=0.0, problem=problem
        )
    zero_s = math.floor(burst.planned_start_at.timestamp())
    margin_s = max(5.0, 2 * device_counter.grain_s)
    end_s = burst.planned_end_at.timestamp() + margin_s
    near = (device_counter.end_s > zero_s - margin_s) & (device_counter.start_s < end_s)
    spans = zip(
        device_counter.start_s[near],
        device_counter.end_s[near],
        device_counter.bytes[near],
        strict=True,
    )
    return LiveCounter(
        burst_index=burst.index,
        source=device_counter.source,
        layer=device_counter.layer,
        grain_s=device_counter.grain_s,
        problem=problem,
        bins=tuple(
            LiveCounterBin(
                from_s=round(float(start_s) - zero_s, 3),
                before_s=round(float(end_s) - zero_s, 3),
                bits_per_second=None
                if math.isnan(counted_bytes)
                else float(counted_bytes) * 8 / max(1e-9, float(end_s - start_s)),
            )
            for start_s, end_s, counted_bytes in spans
        ),
    )


def _without_parts(shown: LiveSnapshot, spans: _Spans, first_index: int) -> LiveSnapshot:
    """Remove the cells of seconds that a pair has reported only in part.

    Such a cell has few bytes, and would look like a sudden fall. The first column of the cells is
    the pair with ``first_index``.
    """
    cells = shown.cells.copy()
    for pair_index, (_, end_s) in spans.items():
        complete_s = max(shown.known_s, math.floor(end_s + EDGE_S))
        cells[max(0, complete_s - shown.first_second) :, pair_index - first_index] = UNKNOWN_CELL
    return replace(shown, cells=cells)


def _reach(spans: _Spans, pairs_count: int) -> Floats:
    """Return the end of the reported time by pair, in seconds from the planned start, sorted.

    It is 0 for a pair without data.
    """
    ends_s = [end_s for _, end_s in spans.values()]
    return np.sort(np.asarray([*ends_s, *[0.0] * (pairs_count - len(ends_s))], np.float64))


def reported_until_s(evidence: BurstEvidence) -> Floats:
    """Return the end of the reported time by pair, in seconds from the planned start, sorted.

    Pairs that have reported nothing are not included.
    """
    spans = _spans(evidence)
    return _reach(spans, len(spans))


def _spans(evidence: BurstEvidence) -> _Spans:
    """Return start and end of the reported time by pair, in seconds from the planned start."""
    zero_s = evidence.burst.planned_start_at.timestamp()
    spans = {}
    for pair in chain.from_iterable(evidence.blocks(instants_only=True)):
        sides = [
            [(track.first_data_at_s, float(track.end_s[-1])) for track in tracks if len(track)]
            for tracks in (pair.client_tracks, pair.server_tracks)
        ]
        reached = [max(begin_s + end_s for begin_s, end_s in side) for side in sides if side]
        # If both ends have reported, use the time that is covered by both.
        if reached:
            begin_s, end_s = min(begin_s for side in sides for begin_s, _ in side), min(reached)
            # At first, the record of the other end can follow, and replaces this one.
            if len(reached) < len(sides) and end_s - begin_s < REPORT_LAG_S:
                end_s = begin_s
            spans[pair.pair_index] = (begin_s - zero_s, end_s - zero_s)
    return spans


def _have_reported(burst: Burst, spans: _Spans, reach: Floats, elapsed_s: float) -> bool:
    """Return True if every pair is complete, or has been silent for too long."""
    complete_s = burst.duration_s + burst.omit_s - EDGE_S
    silent_s = elapsed_s - 2 * REPORT_LAG_S
    if len(spans) < len(reach) and silent_s <= 0:
        return False
    return all(
        end_s - begin_s >= complete_s or end_s < silent_s for begin_s, end_s in spans.values()
    )


def _known(burst: Burst, reach: Floats, elapsed_s: float) -> int:
    """Return the number of seconds that are final.

    A second is final if all active pairs have reported it, or if it is overdue. A pair that has
    been silent for too long is no longer waited for, and is counted as missing.
    """
    slowest_s = float(reach[reach >= reach[-1] - REPORT_LAG_S][0])
    reported_s = math.floor(slowest_s + EDGE_S)
    overdue_s = math.floor(elapsed_s - REPORT_LAG_S)
    return max(0, min(burst.duration_s + burst.omit_s, max(reported_s, overdue_s)))


def _from_hosts(plan: Plan, evidence: BurstEvidence) -> LiveSnapshot:
    """Return a snapshot from the NIC counters of the senders.

    It is used for iperf3 before 3.17, which does not report until the end of a test.
    """
    burst = evidence.burst
    nothing = empty_snapshot(plan, burst)
    hosts = {
        pair.pair_index: pair.client_host
        for pair in chain.from_iterable(evidence.blocks())
        if len(pair.client_host)
    }
    shown = progress(plan.run_id, burst, (((), host) for host in hosts.values()))
    reported = shown.complete_seconds
    if not reported:
        return nothing
    count = reported[-1].second + 1
    columns = np.full((len(COLUMNS), count), np.nan)
    fleet, coverage = (
        columns[COLUMNS.index(name)] for name in ("fleet_bits_per_second", "coverage_ratio")
    )
    cells = np.full((count, len(plan.pairs)), UNKNOWN_CELL, np.uint32)
    for second in reported:
        fleet[second.second] = second.fleet_bits_per_second
        coverage[second.second] = second.pairs_count / len(plan.pairs)
    for pair_index, host in hosts.items():
        for second in progress(plan.run_id, burst, [((), host)]).seconds:
            if second.second < count and second.pairs_count:
                rate = second.fleet_bits_per_second / CELL_BITS_PER_SECOND
                cells[second.second, pair_index - plan.pairs[0].index] = round(rate)
    return replace(nothing, layer="link", known_s=count, columns=columns, cells=cells)


def _recorded(series: BurstSeries) -> NDArray[np.bool_]:
    """Return a mask of the seconds with data from any pair."""
    return np.asarray(series.coverage_ratio > 0)


def _pair_rates(series: BurstSeries, pairs_count: int) -> NDArray[np.float32]:
    """Return bit/s by pair for all flows together, with NaN if no flow is known."""
    return np.asarray(_known_sum(series.pair_rates(pairs_count)), np.float32)


def _quantiles(
    series: BurstSeries, rates: NDArray[np.float32], span: slice
) -> tuple[Floats, Floats, Floats]:
    """Return the 5th, 50th and 95th percentile over pairs for each second, by nearest rank."""
    if len(series.flows) == 1:
        flow = series.flows[0]
        return (
            flow.pair_p5_bits_per_second[span].astype(np.float64),
            flow.pair_p50_bits_per_second[span].astype(np.float64),
            flow.pair_p95_bits_per_second[span].astype(np.float64),
        )
    low, middle, high = column_quantiles(rates[:, span], (0.05, 0.5, 0.95))
    return low, middle, high


def _cells(rates: NDArray[np.float32]) -> Cells:
    """Convert rates (pairs, seconds) to cells (seconds, pairs)."""
    known = ~np.isnan(rates)
    steps = np.rint(np.where(known, rates, 0.0) / CELL_BITS_PER_SECOND)
    cells = np.clip(steps, 0, UNKNOWN_CELL - 1).astype(np.uint32)
    cells[~known] = UNKNOWN_CELL
    return np.ascontiguousarray(cells.T)


def _known_sum(parts: Sequence[NDArray[np.floating]]) -> Floats:
    """Return the elementwise sum of the known values, or NaN if none is known."""
    stacked = np.stack([np.asarray(part, np.float64) for part in parts])
    unknown = np.isnan(stacked)
    total = np.where(unknown, 0.0, stacked).sum(axis=0)
    total[unknown.all(axis=0)] = np.nan
    return np.asarray(total)


def _known_mean(parts: Sequence[Floats]) -> Floats:
    stacked = np.stack(parts)
    counts = (~np.isnan(stacked)).sum(axis=0)
    return np.where(counts > 0, _known_sum(parts) / np.maximum(counts, 1), np.nan)


def _plain(values: Floats) -> tuple[float | None, ...]:
    """Convert NaN to None for JSON, and round to six digits, more than any reading has."""
    return tuple(None if math.isnan(value) else float(f"{value:.6g}") for value in values.tolist())
