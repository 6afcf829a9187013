"""What the live page is told: a burst so far, and what of it is new. Pure.

The figures so far are those of the verdict's own code, run over the part of the burst that has been
reported: a burst of 300 s that stands at second 40 is measured as if it had been planned for 40 s.
So nothing jumps when the burst is over, and completeness so far counts only seconds that could have
been seen.
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

from broadside.coordinator.core.figures import Layer
from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.live.progress import progress
from broadside.coordinator.core.live.status import BurstPhase, BurstStatus, RunState, RunStatus
from broadside.coordinator.core.measure.aggregate import series_of
from broadside.coordinator.core.measure.align import Chosen, align
from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.evidence import BurstEvidence, FirewallLedger
from broadside.coordinator.core.measure.grid_rows import Grid
from broadside.coordinator.core.measure.measure_burst import measure_burst
from broadside.coordinator.core.measure.quantiles import column_quantiles
from broadside.coordinator.core.measure.series import BurstSeries
from broadside.coordinator.core.plan.spec import Burst, Plan
from broadside.coordinator.core.summary import BurstSummary, Finding, RunSummary, State, instant
from broadside.exchange.messages import Message, RunId, UtcDatetime

REPORT_LAG_S: Final = 8.0  # s after which a second that nobody reported counts as not seen
EDGE_S: Final = 0.1  # s by which an interval may end short of its whole second
CELLS_MAX_COUNT: Final = 1_000_000  # pair-seconds kept for viewers; of longer bursts the newest
_OF_THE_RESIDUAL: Final = ("reconciled", "bypassed", "idle-unknown", "unseen-by-bytes")  # findings
UNKNOWN_CELL: Final = 0xFFFF_FFFF  # in `pairs`: nobody has said anything of this second
CELL_BITS_PER_SECOND: Final = 1_000.0  # one step of a cell

Cells = NDArray[np.uint32]


class LiveStatus(Message):
    """Event ``status``: where the run and the burst that is shown stand."""

    now: UtcDatetime  # the coordinator's clock: a page counts down by it, not by its own
    run_id: RunId
    scenario: str
    state: RunState
    created_at: UtcDatetime
    ends_at: UtcDatetime
    bursts_count: int
    bursts_over_count: int
    next_start_at: UtcDatetime | None = None  # of the first burst that has not begun
    burst: BurstStatus  # the one that is shown
    duration_s: int  # of its traffic, s
    omit_s: int = 0
    pairs_count: int
    scale: float  # real rates are this many times the measured
    target_bits_per_second: float | None  # as measured (at scale), at target_layer
    target_layer: Layer
    tolerance_ratio: float
    coverage_floor_ratio: float
    clock_bound_max_s: float
    late_after_s: float
    labels: Mapping[str, str] = {}
    cancelled_by: str | None = None
    cancel_reason: str | None = None
    warnings: tuple[str, ...] = ()
    imported: Literal["original", "iperf3"] | None = None  # what its figures were read from
    problem: str | None = None  # why nothing new can be read just now


class Trouble(Message):
    """A pair that is not (or not yet known to be) measured."""

    pair_index: int
    pair: str
    state: State
    reason: str | None = None


class LiveFigures(Message):
    """Event ``figures``: the headline of the burst so far. Rates are as measured (at scale)."""

    burst_index: int
    final: bool  # the burst is over and measured; else: so far
    summary: BurstSummary  # without its pairs and findings
    known_s: int  # seconds that the figures rest on
    trouble: tuple[Trouble, ...] = ()


class LedgerBin(Message):
    """The firewall's own figure over one of its bins, its lag not taken off."""

    from_s: float  # s since the burst's planned start
    before_s: float
    bits_per_second: float | None  # at the ledger's layer


class LiveSeconds(Message):
    """Event ``seconds``: the seconds that are new or have changed; the lists run in parallel.

    ``pairs`` holds ``len(second) * pairs_count`` cells, base64 of little-endian unsigned 32-bit
    kbit/s, second by second, pair 0 first; 4294967295 is unknown.
    """

    burst_index: int
    start_at: UtcDatetime  # of second 0
    pairs_count: int
    known_s: int  # seconds below this one stand; later ones are still coming in
    layer: Literal["payload", "link"] = "payload"  # link: senders' NICs, where engines are mute
    second: tuple[int, ...]
    coverage_ratio: tuple[float | None, ...]
    fleet_bits_per_second: tuple[float | None, ...]  # received payload
    pair_p5_bits_per_second: tuple[float | None, ...]
    pair_p50_bits_per_second: tuple[float | None, ...]
    pair_p95_bits_per_second: tuple[float | None, ...]
    retransmits_count: tuple[float | None, ...]
    rtt_mean_s: tuple[float | None, ...]
    client_cpu_ratio: tuple[float | None, ...]
    server_cpu_ratio: tuple[float | None, ...]
    pairs: str


class LiveLedger(Message):
    """Event ``ledger``: the firewall's bins that touch the burst."""

    burst_index: int
    source: str
    layer: str
    grain_s: float
    problem: str | None = None
    bins: tuple[LedgerBin, ...] = ()


class LiveFinding(Message):
    """Event ``finding``: one that is new or says something else now, or is withdrawn."""

    burst_index: int
    id: str
    finding: Finding | None = None  # None: withdrawn


COLUMNS: Final = tuple(
    name
    for name, field in LiveSeconds.model_fields.items()
    if field.annotation == tuple[float | None, ...]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One burst as it stands at one instant."""

    burst_index: int
    start_at: datetime  # of second 0
    first_second: int  # number of the first second kept
    known_s: int
    layer: Literal["payload", "link"]
    columns: Floats  # (COLUMNS, seconds), NaN is unknown
    cells: Cells  # (seconds, pairs), kbit/s
    figures: LiveFigures | None  # None: nothing was measured yet
    findings: tuple[Finding, ...] = ()

    def __len__(self) -> int:
        return len(self.cells)


def live_status(
    plan: Plan, status: RunStatus, burst_index: int, now: datetime, problem: str | None = None
) -> LiveStatus:
    """What a viewer of one burst needs to know of the whole run."""
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
        pairs_count=len(plan.pairs),
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


def shown_burst(plan: Plan, status: RunStatus) -> int:
    """The burst that a viewer wants to see: the one under way, else the next, else the last begun.

    A burst stays on the screen until the next one arms.
    """
    phases = [burst.phase for burst in status.bursts]
    for wanted in (BurstPhase.RUNNING, BurstPhase.ARMING, BurstPhase.COLLECTING):
        if wanted in phases:
            return phases.index(wanted)
    over = [index for index, phase in enumerate(phases) if phase is BurstPhase.OVER]
    return over[-1] if over else 0


def picture_so_far(
    plan: Plan, evidence: BurstEvidence, ledger: FirewallLedger | None, now: datetime
) -> Picture:
    """A burst that is going on, from whatever was reported until ``now``."""
    burst = evidence.burst
    spans = _spans(evidence)
    reach = _reach(spans)
    if not len(reach):
        return _from_hosts(plan, evidence)
    elapsed_s = (now - burst.planned_start_at).total_seconds()
    known_s = _known(burst, reach, elapsed_s)
    shorter = burst.model_copy(update={"duration_s": max(1, known_s - burst.omit_s)})
    measured = measure_burst(plan.spec, replace(evidence, burst=shorter), now)
    one = plan.model_copy(update={"bursts": (burst,), "clocks_promised": False})
    judged = summarise_run(one, [measured], ledger, now).bursts[0] if known_s else measured.summary
    planned_s = burst.duration_s + burst.omit_s
    told = known_s == planned_s and _have_told(burst, spans, elapsed_s)
    if not told or not _reaches_past(ledger, burst, judged):
        judged = _without_residual(judged)
    return picture(
        judged,
        measured.series,
        pairs_count=len(plan.pairs),
        planned_s=planned_s,
        known_s=known_s,
        final=False,
    )


def picture_onwards(
    plan: Plan,
    before: Picture,
    evidence: BurstEvidence,
    now: datetime,
    known: dict[int, Chosen] | None = None,
) -> Picture | None:
    """``before`` with the seconds that ends' newest rows tell, its figures as they stood.

    ``evidence`` holds the tails of tracks; ``known`` is of earlier looks, as :func:`align` keeps
    it. None where the tails do not reach back to what stood before: then all of the burst has to be
    read.
    """
    burst, reach = evidence.burst, _reach(_spans(evidence))
    if before.figures is None or not len(reach):
        return None
    zero_s = burst.planned_start_at.timestamp()
    known_s = _known(burst, reach, (now - burst.planned_start_at).total_seconds())
    first = math.ceil(_tails_begin_s(evidence, reach[-1] + zero_s) - zero_s)
    if first > before.known_s or first < before.first_second:
        return None
    count = max(1, math.ceil(reach[-1]) + 1 - first)
    part = burst.model_copy(update={"omit_s": first, "duration_s": count})
    grid = Grid(start_s=math.floor(zero_s) + first, count=count)
    aligned = align(replace(evidence, burst=part), plan.spec.traffic.direction, grid, known)
    new = picture(
        before.figures.summary,
        series_of(part, aligned),
        pairs_count=len(plan.pairs),
        planned_s=burst.duration_s + burst.omit_s,
        known_s=known_s,
        final=False,
    )
    return _followed(before, new, known_s)


def newest_of(whole: Picture, shown: Picture) -> Picture:
    """All of a burst as it was measured whole, and the seconds that were shown since."""
    if shown.known_s <= whole.known_s or shown.cells.shape[1] != whole.cells.shape[1]:
        return whole
    after = slice(max(0, whole.known_s - shown.first_second), None)
    later = replace(
        shown,
        first_second=shown.first_second + after.start,
        columns=shown.columns[:, after],
        cells=shown.cells[after],
    )
    return _followed(whole, later, shown.known_s) if len(later) else whole


def _followed(before: Picture, later: Picture, known_s: int) -> Picture:
    """A picture, from another's first second on the other; figures and findings stay."""
    kept = slice(0, max(0, later.first_second - before.first_second))
    cells = np.concatenate((before.cells[kept], later.cells))
    cut = max(0, len(cells) - CELLS_MAX_COUNT // max(1, cells.shape[1]))
    columns = np.concatenate((before.columns[:, kept], later.columns), axis=1)
    return replace(
        before,
        first_second=before.first_second + cut,
        known_s=known_s,
        columns=columns[:, cut:],
        cells=cells[cut:],
    )


def _tails_begin_s(evidence: BurstEvidence, newest_s: float) -> float:
    """From when on the tails of all ends that still speak tell everything, epoch s."""
    begins = [
        track.first_data_at_s + float(track.start_s[0])
        for pair in evidence.pairs
        for track in (*pair.client_tracks, *pair.server_tracks)
        if len(track)
        if track.first_data_at_s + track.end_s[-1] > newest_s - REPORT_LAG_S
    ]
    return max(begins, default=newest_s)


def _reaches_past(ledger: FirewallLedger | None, burst: Burst, judged: BurstSummary) -> bool:
    """Whether the ledger knows the whole burst, also what of it shows late."""
    held = judged.reconciliation
    if ledger is None or held is None or held.lag_s is None or not len(ledger):
        return False
    known = ledger.end_s[np.isfinite(ledger.bytes)]
    needed_s = burst.planned_end_at.timestamp() + held.lag_s + ledger.grain_s
    return bool(len(known) and known[-1] >= needed_s)


def _without_residual(summary: BurstSummary) -> BurstSummary:
    """A burst so far: until both ledgers hold all of it, what one has and the other not yet would
    look like traffic that passed the device by, or that nobody sent."""
    held = summary.reconciliation
    if held is None:
        return summary
    unknown = dict.fromkeys(("residual_ratio", "residual_uncertainty_ratio"))
    unknown |= dict.fromkeys(("residual_low_ratio", "residual_high_ratio"))
    dropped = {*_OF_THE_RESIDUAL, *(cause.id for cause in held.causes)}
    return summary.model_copy(
        update={
            "reconciliation": held.model_copy(update={**unknown, "causes": ()}),
            "findings": tuple(f for f in summary.findings if f.id not in dropped),
        }
    )


def picture(
    summary: BurstSummary,
    series: BurstSeries,
    *,
    pairs_count: int,
    planned_s: int,
    known_s: int,
    final: bool,
) -> Picture:
    """A burst of so many planned pairs from its summary and series; ``known_s`` seconds stand.

    Where no pair was late, nothing is shown beyond ``planned_s``: what spills over there is the
    rest of a second, which would look like a collapse.
    """
    offset = series.start_s - math.floor(series.planned_start_s)  # number of the first column
    heard = np.flatnonzero(_heard(series))
    stop = (int(heard[-1]) + 1 if len(heard) else 0) + offset
    if not summary.late_pairs:
        stop = min(stop, planned_s)
    rates = _pair_rates(series, pairs_count)
    first = max(0, offset, stop - CELLS_MAX_COUNT // max(1, len(rates)))
    span = slice(first - offset, max(first, stop) - offset)
    fleet = series.received_bytes[span] * 8.0
    coverage = series.coverage_ratio[span]
    late_s = max(0, known_s - first)  # seconds from here on are still coming in
    fleet = np.where(coverage > 0, fleet, np.nan)
    fleet[late_s:] = np.nan
    p5, p50, p95 = _quantiles(series, rates, span)
    for values in (p5, p50, p95):
        values[late_s:] = np.nan
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
    trouble = tuple(
        Trouble(pair_index=p.pair_index, pair=p.pair, state=p.state, reason=p.reason)
        for p in summary.pairs
        if p.state is not State.MEASURED
    )
    return Picture(
        burst_index=summary.index,
        start_at=instant(math.floor(series.planned_start_s)),
        first_second=first,
        known_s=known_s,
        layer="payload",
        columns=np.array([columns[name] for name in COLUMNS], np.float64),
        cells=_cells(rates[:, span]),
        figures=LiveFigures(
            burst_index=summary.index,
            final=final,
            summary=summary.model_copy(update={"pairs": (), "findings": ()}),
            known_s=known_s,
            trouble=trouble,
        ),
        # What a verdict rests on cannot be concluded of a part; the headline shows its figures.
        findings=tuple(f for f in summary.findings if final or f.kind != "verdict"),
    )


def empty_picture(plan: Plan, burst: Burst) -> Picture:
    """A burst of which nothing was reported yet."""
    return Picture(
        burst_index=burst.index,
        start_at=instant(math.floor(burst.planned_start_at.timestamp())),
        first_second=0,
        known_s=0,
        layer="payload",
        columns=np.empty((len(COLUMNS), 0)),
        cells=np.empty((0, len(plan.pairs)), np.uint32),
        figures=None,
    )


def final_picture(summary: RunSummary, burst_index: int, series: BurstSeries) -> Picture:
    """A burst of a run that is over, as the verdict saw it.

    It has no cells where no flow has the seconds of its pairs, as in an imported table of means.
    """
    burst = summary.bursts[burst_index]
    planned_s = series.duration_s + series.omit_s
    has_pairs = any(len(flow.pairs_bits_per_second) for flow in series.flows)
    return picture(
        burst,
        series,
        pairs_count=len(burst.pairs) if has_pairs else 0,
        planned_s=planned_s,
        known_s=planned_s,
        final=True,
    )


def changed_seconds(before: Picture | None, now: Picture) -> tuple[int, ...]:
    """Numbers of the seconds of ``now`` that ``before`` does not have, or has otherwise."""
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
    keep = np.ones(len(now), np.bool_)
    keep[new] = ~same
    return tuple(numbers[keep].tolist())


def seconds_message(shown: Picture, seconds: Sequence[int]) -> LiveSeconds:
    """Some of a picture's seconds, by number, as they go over the wire."""
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


def ledger_message(
    ledger: FirewallLedger | None, burst: Burst, problem: str | None = None
) -> LiveLedger:
    """The ledger's bins from a little before a burst to a little after it."""
    if ledger is None:
        return LiveLedger(
            burst_index=burst.index, source="none", layer="unknown", grain_s=0.0, problem=problem
        )
    zero_s = math.floor(burst.planned_start_at.timestamp())
    margin_s = max(5.0, 2 * ledger.grain_s)
    end_s = burst.planned_end_at.timestamp() + margin_s
    near = (ledger.end_s > zero_s - margin_s) & (ledger.start_s < end_s)
    spans = zip(ledger.start_s[near], ledger.end_s[near], ledger.bytes[near], strict=True)
    return LiveLedger(
        burst_index=burst.index,
        source=ledger.source,
        layer=ledger.layer,
        grain_s=ledger.grain_s,
        problem=problem,
        bins=tuple(
            LedgerBin(
                from_s=round(float(start_s) - zero_s, 3),
                before_s=round(float(end_s) - zero_s, 3),
                bits_per_second=None
                if math.isnan(counted_bytes)
                else float(counted_bytes) * 8 / max(1e-9, float(end_s - start_s)),
            )
            for start_s, end_s, counted_bytes in spans
        ),
    )


def _reach(spans: Sequence[tuple[float, float]]) -> Floats:
    """How far each pair that speaks has reported, s since the planned start, ascending."""
    return np.sort(np.asarray([end_s for _, end_s in spans], np.float64))


def _spans(evidence: BurstEvidence) -> list[tuple[float, float]]:
    """From when to when each pair that speaks has reported, s since the planned start."""
    zero_s = evidence.burst.planned_start_at.timestamp()
    spans = []
    for pair in chain.from_iterable(evidence.blocks(instants_only=True)):
        sides = [
            [(track.first_data_at_s, float(track.end_s[-1])) for track in tracks if len(track)]
            for tracks in (pair.client_tracks, pair.server_tracks)
        ]
        reached = [max(begin_s + end_s for begin_s, end_s in side) for side in sides if side]
        if reached:  # as far as both ends have, where both speak
            begin_s = min(begin_s for side in sides for begin_s, _ in side)
            spans.append((begin_s - zero_s, min(reached) - zero_s))
    return spans


def _have_told(burst: Burst, spans: Sequence[tuple[float, float]], elapsed_s: float) -> bool:
    """Whether nobody is to tell more: every pair has told its whole test, or fell silent."""
    whole_s = burst.duration_s + burst.omit_s - EDGE_S
    silent_s = elapsed_s - 2 * REPORT_LAG_S
    return all(end_s - begin_s >= whole_s or end_s < silent_s for begin_s, end_s in spans)


def _known(burst: Burst, reach: Floats, elapsed_s: float) -> int:
    """How many seconds stand: all pairs that speak have reported them, or they are overdue.

    A pair that fell silent does not hold the others up, and is missing from then on.
    """
    slowest_s = float(reach[reach >= reach[-1] - REPORT_LAG_S][0])
    reported_s = math.floor(slowest_s + EDGE_S)
    overdue_s = math.floor(elapsed_s - REPORT_LAG_S)
    return max(0, min(burst.duration_s + burst.omit_s, max(reported_s, overdue_s)))


def _from_hosts(plan: Plan, evidence: BurstEvidence) -> Picture:
    """iperf3 before 3.17 says nothing until it ends: what the senders' NICs counted so far."""
    burst = evidence.burst
    nothing = empty_picture(plan, burst)
    hosts = {
        pair.pair_index: pair.client_host
        for pair in chain.from_iterable(evidence.blocks())
        if len(pair.client_host)
    }
    said = progress(plan.run_id, burst, (((), host) for host in hosts.values())).whole
    if not said:
        return nothing
    count = said[-1].second + 1
    columns = np.full((len(COLUMNS), count), np.nan)
    fleet, coverage = (
        columns[COLUMNS.index(name)] for name in ("fleet_bits_per_second", "coverage_ratio")
    )
    cells = np.full((count, len(plan.pairs)), UNKNOWN_CELL, np.uint32)
    for second in said:
        fleet[second.second] = second.fleet_bits_per_second
        coverage[second.second] = second.pairs_count / len(plan.pairs)
    for pair_index, host in hosts.items():
        for second in progress(plan.run_id, burst, [((), host)]).seconds:
            if second.second < count and second.pairs_count:
                rate = second.fleet_bits_per_second / CELL_BITS_PER_SECOND
                cells[second.second, pair_index] = round(rate)
    return replace(nothing, layer="link", known_s=count, columns=columns, cells=cells)


def _heard(series: BurstSeries) -> NDArray[np.bool_]:
    """Seconds of which any pair has said anything."""
    return np.asarray(series.coverage_ratio > 0)


def _pair_rates(series: BurstSeries, pairs_count: int) -> NDArray[np.float32]:
    """Bits a second of each pair, all flows; NaN where no flow is known."""
    return np.asarray(_known_sum(series.pair_rates(pairs_count)), np.float32)


def _quantiles(
    series: BurstSeries, rates: NDArray[np.float32], span: slice
) -> tuple[Floats, Floats, Floats]:
    """5th, 50th and 95th percentile over the pairs seen in each second, by the nearest rank."""
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
    """Rates (pairs, seconds) as cells (seconds, pairs)."""
    known = ~np.isnan(rates)
    steps = np.rint(np.where(known, rates, 0.0) / CELL_BITS_PER_SECOND)
    cells = np.clip(steps, 0, UNKNOWN_CELL - 1).astype(np.uint32)
    cells[~known] = UNKNOWN_CELL
    return np.ascontiguousarray(cells.T)


def _known_sum(parts: Sequence[NDArray[np.floating]]) -> Floats:
    """Elementwise sum of what is known; NaN where nothing is."""
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
    """JSON has no NaN; unknown is null. Six digits are more than any reading has."""
    return tuple(None if math.isnan(value) else float(f"{value:.6g}") for value in values.tolist())
