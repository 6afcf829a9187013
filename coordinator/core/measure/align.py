"""Puts every end's irregular intervals on one UTC grid of whole seconds, losing no byte.

The engine's intervals are offset by each agent's start and clock, and are not exactly one second
long. Each track's cumulative bytes are interpolated linearly between its own interval bounds and
differenced at the whole UTC seconds, so a track's cells sum to its intervals. Where no interval
covers a cell, the cell's coverage is 0 and its bytes say nothing.

Receiver seconds stand wherever they are. A cell that only the sender saw is filled with the
sender's bytes times the pair's received/sent totals, and the pair's :class:`Basis` says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.columns import Floats, TrackColumns
from broadside.coordinator.core.measure.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.measure.grid_rows import (
    FlowRows,
    FlowSeconds,
    Grid,
    HostRows,
    HostSeconds,
    Placed,
)
from broadside.exchange.messages import Direction, Flow, FlowTotals, Outcome, Side

TAIL_MAX_S: Final = 60.0  # s beyond one more duration after the planned end that the grid reaches
CELL_FULL_RATIO: Final = 0.99  # of a second: covered as far as clocks can tell
MISPLACED_S: Final = 3600.0  # s from the instant beyond which a track's own clock is not believed


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """A burst on the grid. Pairs are in pair-index order whatever the order of the evidence, and
    where its seconds are packed, without them."""

    grid: Grid
    pairs: tuple[PairEvidence, ...]
    flows: tuple[FlowSeconds, ...]
    client: HostSeconds
    server: HostSeconds
    first_data_at_s: Floats  # per pair, epoch s by corrected clock; NaN: no data
    clock_bound_s: Floats  # per pair, the larger of its ends' bounds; NaN: unknown
    server_only: frozenset[int]  # rows of pairs of which the server alone recorded seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """One pair's tracks, chosen and corrected, on the way to the grid."""

    evidence: PairEvidence
    received: dict[Flow, TrackColumns]
    sent: dict[Flow, TrackColumns]
    placed: Placed
    start_s: float  # epoch s, corrected, NaN: no data
    bound_s: float


def align(
    evidence: BurstEvidence,
    direction: Direction,
    grid: Grid | None = None,
    known: dict[int, Chosen] | None = None,
) -> Aligned:
    """Align a burst, or with ``grid`` what of it lies there.

    ``known`` has, by their numbers, pairs as they were chosen before, for who aligns a burst again
    and again: a pair whose evidence is the same object is not chosen anew.
    """
    alignment = Alignment(evidence, direction, grid, known)
    for block in evidence.blocks():
        alignment.add(block)
    return alignment.done()


class Alignment:
    """A burst that is aligned some pairs at a time, in the order of their numbers.

    Bytes are conserved from interval to grid for everything that lies within the grid, which
    reaches from one second before the instant (earlier where data is earlier) to the last data,
    at most one duration and :data:`TAIL_MAX_S` after the planned end. The order of
    ``evidence.pairs`` and of rows in a track does not matter.
    """

    def __init__(
        self,
        evidence: BurstEvidence,
        direction: Direction,
        grid: Grid | None = None,
        known: dict[int, Chosen] | None = None,
    ) -> None:
        burst = evidence.burst
        self._pairs = evidence.in_order
        self._direction = direction
        self._known = known
        self._planned_s = burst.planned_start_at.timestamp()
        self._length_s = burst.duration_s + burst.omit_s
        self._first_s, self._last_s = self._planned_s - 1, self._planned_s + self._length_s + 1
        self._is_fixed = grid is not None
        self._grid = grid or self._reaching()
        self._placed: list[Placed] = []
        self._starts_s: list[float] = []
        self._bounds_s: list[float] = []
        self._server_only: set[int] = set()
        shape, own = (len(self._pairs), self._grid.count), (burst.omit_s, burst.duration_s)
        self._flows = {flow: FlowRows(flow, self._placed, shape, own) for flow in direction.flows}
        self._hosts = {side: HostRows(side, self._placed, shape) for side in Side}

    def add(self, block: Sequence[PairEvidence]) -> None:
        """The next pairs, with their seconds."""
        chosen = [self._choose(pair) for pair in block]
        self._grow(chosen)
        edges = self._grid.edges
        for pair in chosen:
            row, evidence = len(self._placed), pair.evidence
            self._placed.append(pair.placed)
            self._starts_s.append(pair.start_s)
            self._bounds_s.append(pair.bound_s)
            if evidence.server_tracks and not evidence.client_tracks:
                self._server_only.add(row)
            for flow, flow_rows in self._flows.items():
                flow_rows.add(row, pair.received.get(flow), pair.sent.get(flow), edges)
            self._hosts[Side.CLIENT].add(row, evidence.client_host, edges)
            self._hosts[Side.SERVER].add(row, evidence.server_host, edges)

    def done(self) -> Aligned:
        """The burst, once every pair has come."""
        edges = self._grid.edges
        return Aligned(
            grid=self._grid,
            pairs=self._pairs,
            flows=tuple(rows.done(edges) for rows in self._flows.values()),
            client=self._hosts[Side.CLIENT].done(edges),
            server=self._hosts[Side.SERVER].done(edges),
            first_data_at_s=np.array(self._starts_s),
            clock_bound_s=np.array(self._bounds_s),
            server_only=frozenset(self._server_only),
        )

    def _choose(self, evidence: PairEvidence) -> Chosen:
        if self._known is None:
            return _choose(evidence, self._direction, self._planned_s)
        chosen = self._known.get(evidence.pair_index)
        if chosen is None or chosen.evidence is not evidence:
            chosen = _choose(evidence, self._direction, self._planned_s)
            self._known[evidence.pair_index] = chosen
        return chosen

    def _grow(self, chosen: Sequence[Chosen]) -> None:
        """Have the grid reach as far as these pairs' data."""
        if self._is_fixed:
            return
        for pair in chosen:
            for columns in (*pair.received.values(), *pair.sent.values()):
                zero = columns.first_data_at_s - pair.placed.correction_s[columns.side]
                self._first_s = min(self._first_s, zero + columns.start_s[0])
                self._last_s = max(self._last_s, zero + columns.end_s[-1])
        held, self._grid = self._grid, self._reaching()
        before = held.start_s - self._grid.start_s
        after = self._grid.count - held.count - before
        if before or after:
            for flow_rows in self._flows.values():
                flow_rows.grow(before, after)
            for host_rows in self._hosts.values():
                host_rows.grow(before, after)

    def _reaching(self) -> Grid:
        start = math.floor(max(self._first_s, self._planned_s - TAIL_MAX_S))
        most = self._planned_s + 2 * self._length_s + TAIL_MAX_S
        return Grid(start_s=start, count=math.ceil(min(self._last_s, most)) - start)


def receiving_side(flow: Flow) -> Side:
    """The end at which a flow's payload arrives."""
    return Side.SERVER if flow is Flow.UP else Side.CLIENT


def _choose(evidence: PairEvidence, direction: Direction, planned_s: float) -> Chosen:
    report, fixes = evidence.report, evidence.clock_fixes
    whole = report is not None and report.outcome in (Outcome.MEASURED, Outcome.LATE)
    received: dict[Flow, TrackColumns] = {}
    sent: dict[Flow, TrackColumns] = {}
    ratio: dict[Flow, float | None] = {}
    totals_only = set()
    correction = {side: fix_s for side, (fix_s, _) in fixes.items()}
    for flow in direction.flows:
        receiver = receiving_side(flow)
        for tracks in (evidence.client_tracks, evidence.server_tracks):
            for track in tracks:
                if track.flow is not flow:
                    continue
                columns = track if whole else _without_silence(track)
                columns = columns.without_lead(evidence.server_lead_s)
                if abs(columns.first_data_at_s - planned_s) > MISPLACED_S or not len(columns):
                    continue
                chosen = received if columns.side is receiver else sent
                known = chosen.get(flow)
                if known is None or columns.transferred_bytes.sum() > (
                    known.transferred_bytes.sum()
                ):
                    chosen[flow] = columns
        totals = _totals(evidence, flow)
        ratio[flow] = _ratio(totals)
        if flow not in received and flow not in sent:
            made = _from_totals(evidence, flow, totals, planned_s)
            if made is not None:
                received[flow] = made
                totals_only.add(flow)
    starts: dict[Side, float] = {}
    for columns in (*received.values(), *sent.values()):
        begun_s = columns.first_data_at_s + columns.start_s[0] - correction[columns.side]
        starts[columns.side] = min(starts.get(columns.side, begun_s), begun_s)
    start_s = starts.get(Side.CLIENT, math.nan)
    if math.isnan(start_s):
        start_s = starts.get(Side.SERVER, math.nan)
    bounds = [bound for _, bound in fixes.values() if bound is not None]
    return Chosen(
        evidence=evidence,
        received=received,
        sent=sent,
        placed=Placed(correction_s=correction, ratio=ratio, totals_only=frozenset(totals_only)),
        start_s=start_s,
        bound_s=max(bounds, default=math.nan),
    )


def _without_silence(columns: TrackColumns) -> TrackColumns:
    """Drop the zero rows at the end: after a client's death its server only waits."""
    if len(columns) and columns.transferred_bytes[-1] > 0:
        return columns
    loud = np.flatnonzero(columns.transferred_bytes > 0)
    stop = int(loud[-1]) + 1 if len(loud) else 0
    return columns if stop == len(columns) else columns.rows(slice(stop))


def _totals(evidence: PairEvidence, flow: Flow) -> FlowTotals | None:
    """The engine's sums for one flow; the client's account first, the server's fills it in."""
    said = [
        totals for engine in evidence.engines for totals in engine.totals if totals.flow is flow
    ]
    if not said:
        return None
    merged, *others = said
    for other in others:
        unsaid = [name for name in FlowTotals.model_fields if getattr(merged, name) is None]
        merged = merged.model_copy(update={name: getattr(other, name) for name in unsaid})
    return merged


def _ratio(totals: FlowTotals | None) -> float | None:
    if totals is None or not totals.sent_bytes or totals.received_bytes is None:
        return None
    return totals.received_bytes / totals.sent_bytes


def _from_totals(
    evidence: PairEvidence, flow: Flow, totals: FlowTotals | None, planned_s: float
) -> TrackColumns | None:
    """One long interval from the engine's received total, where no second was stored."""
    if totals is None or not totals.received_bytes or not totals.received_s:
        return None
    report = evidence.report
    first = report.first_data_at.timestamp() if report and report.first_data_at else planned_s
    unknown = np.full(1, np.nan, np.float32)
    return TrackColumns(
        side=Side.CLIENT,
        flow=flow,
        first_data_at_s=first,
        start_s=np.zeros(1),
        end_s=np.array([totals.received_s]),
        transferred_bytes=np.array([float(totals.received_bytes)]),
        omitted=np.zeros(1, np.bool_),
        retransmits_count=unknown,
        rtt_s=unknown,
        cwnd_bytes=unknown,
        packets_count=unknown,
        lost_count=unknown,
    )
