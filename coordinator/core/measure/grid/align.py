"""Alignment of irregular intervals from all ends to a UTC grid of whole seconds.

An engine's intervals depend on the agent's start and clock, and they are not exactly a second long.
So cumulative bytes are interpolated linearly between the interval bounds. To get the cells for the
grid, these values are subtracted at whole UTC seconds. So a track's cells and intervals have the
same sum. If no interval covers a cell, its coverage is 0 and its bytes should not be used.

Receiver seconds will always be used if there are any. If only the sender recorded a cell, the
sender's bytes are used, multiplied by the pair's ratio of received to sent totals. You can see this
in the pair's :class:`Basis`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.grid.event_rows import EventRows
from broadside.coordinator.core.measure.grid.grid_rows import (
    FlowRows,
    FlowSeconds,
    Grid,
    HostRows,
    HostSeconds,
    Placed,
)
from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.coordinator.core.measure.records.evidence import (
    BurstEvidence,
    PairEvidence,
    receiving_side,
)
from broadside.exchange.messages import Direction, Flow, FlowTotals, Outcome, Side

# Seconds. The grid can extend this far beyond the planned end plus another duration.
TAIL_MAX_S: Final = 60.0
# Share of a second. A cell with this coverage is full, as clocks are not more precise than this.
CELL_FULL_RATIO: Final = 0.99
# Seconds from the planned start. If a track starts further away, its clock is wrong, and it will be
# rejected.
MISPLACED_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """Burst on the grid.

    Pairs are sorted by pair index for any order in the evidence. If their seconds are packed, the
    pairs do not contain them.

    Attributes:
        grid: The grid to which the burst is aligned.
        pairs: Evidence per pair.
        flows: Cells per flow.
        client: Host counters for clients.
        server: Host counters for servers.
        first_data_at_s: First data per pair, in epoch seconds by the corrected clock. NaN if there
            is no data.
        clock_bound_s: Clock error bound per pair in seconds, using the larger value from both ends.
            NaN when it is not known.
        server_only: Rows for pairs where only the server recorded seconds.
        events: Counts and times of the fleet's engines by name, with shape (cells,).
    """

    grid: Grid
    pairs: tuple[PairEvidence, ...]
    flows: tuple[FlowSeconds, ...]
    client: HostSeconds
    server: HostSeconds
    first_data_at_s: Floats
    clock_bound_s: Floats
    server_only: frozenset[int]
    events: Mapping[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A pair's tracks, selected and corrected for the grid.

    Attributes:
        evidence: The pair's evidence.
        received: Receiver's track per flow.
        sent: Sender's track per flow.
        placed: Clock corrections, and ratios of received to sent bytes.
        start_s: First data, in corrected epoch seconds. NaN if there is no data.
        bound_s: Clock error bound in seconds. NaN if unknown.
    """

    evidence: PairEvidence
    received: dict[Flow, IntervalColumns]
    sent: dict[Flow, IntervalColumns]
    placed: Placed
    start_s: float
    bound_s: float


def align(
    evidence: BurstEvidence,
    direction: Direction,
    grid: Grid | None = None,
    known: dict[int, Chosen] | None = None,
) -> Aligned:
    """Align a burst to a UTC grid of whole seconds.

    Args:
        evidence: Evidence of the burst.
        direction: Traffic direction.
        grid: Grid to use, to align only a part. By default, the grid will cover the whole burst.
        known: Cache for selected pairs by pair index, to use when the same burst is aligned again.
            If a pair has the same evidence object, it will not be selected again. New pairs will be
            added. None selects all pairs.

    Returns:
        The aligned burst.
    """
    alignment = Alignment(evidence, direction, grid, known)
    for block in evidence.blocks():
        alignment.add(block)
    return alignment.done()


class Alignment:
    """Alignment of a burst in blocks, with pairs sorted by pair index.

    To use it, call :meth:`add` for each block and then :meth:`done` to get the result. For
    intervals within the grid, all bytes are conserved. The grid starts a second before the planned
    start, or up to :data:`TAIL_MAX_S` before it if there is data. It ends a second after the
    planned end, or with later data, but no later than another duration and :data:`TAIL_MAX_S` after
    the planned end. Pairs in ``evidence.pairs`` and rows in a track can be in any order.
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
        shape, current = (len(self._pairs), self._grid.count), (burst.omit_s, burst.duration_s)
        self._flows = {
            flow: FlowRows(flow, self._placed, shape, current) for flow in direction.flows
        }
        self._events = EventRows()
        self._hosts = {side: HostRows(side, self._placed, shape) for side in Side}

    def add(self, block: Sequence[PairEvidence]) -> None:
        """Add the next pairs with their seconds."""
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
            for track in (*evidence.client_tracks, *evidence.server_tracks):
                self._events.add(track, pair.placed.correction_s[track.side])
            for flow, flow_rows in self._flows.items():
                flow_rows.add(row, pair.received.get(flow), pair.sent.get(flow), edges)
            self._hosts[Side.CLIENT].add(row, evidence.client_host, edges)
            self._hosts[Side.SERVER].add(row, evidence.server_host, edges)

    def done(self) -> Aligned:
        """Return the aligned burst. Call this when all pairs have been added."""
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
            events=self._events.done(self._grid),
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
        """Extend the grid so that it contains all data from these pairs."""
        if self._is_fixed:
            return
        for pair in chosen:
            for columns in (*pair.received.values(), *pair.sent.values()):
                zero = columns.first_data_at_s - pair.placed.correction_s[columns.side]
                self._first_s = min(self._first_s, zero + columns.start_s[0])
                self._last_s = max(self._last_s, zero + columns.end_s[-1])
        previous, self._grid = self._grid, self._reaching()
        before = previous.start_s - self._grid.start_s
        after = self._grid.count - previous.count - before
        if before or after:
            for flow_rows in self._flows.values():
                flow_rows.grow(before, after)
            for host_rows in self._hosts.values():
                host_rows.grow(before, after)

    def _reaching(self) -> Grid:
        start = math.floor(max(self._first_s, self._planned_s - TAIL_MAX_S))
        most = self._planned_s + 2 * self._length_s + TAIL_MAX_S
        return Grid(start_s=start, count=math.ceil(min(self._last_s, most)) - start)


def _choose(evidence: PairEvidence, direction: Direction, planned_s: float) -> Chosen:
    received, sent = _longest_tracks(evidence, direction, planned_s)
    ratio: dict[Flow, float | None] = {}
    totals_only = set()
    for flow in direction.flows:
        totals = _totals(evidence, flow)
        ratio[flow] = _ratio(totals)
        if flow not in received and flow not in sent:
            track = _from_totals(evidence, flow, totals, planned_s)
            if track is not None:
                received[flow] = track
                totals_only.add(flow)
    fixes = evidence.clock_fixes
    correction = {side: fix_s for side, (fix_s, _) in fixes.items()}
    starts: dict[Side, float] = {}
    for track in (*received.values(), *sent.values()):
        start_s = track.first_data_at_s + track.start_s[0] - correction[track.side]
        starts[track.side] = min(starts.get(track.side, start_s), start_s)
    return Chosen(
        evidence=evidence,
        received=received,
        sent=sent,
        placed=Placed(correction_s=correction, ratio=ratio, totals_only=frozenset(totals_only)),
        start_s=starts.get(Side.CLIENT, starts.get(Side.SERVER, math.nan)),
        bound_s=max((bound for _, bound in fixes.values() if bound is not None), default=math.nan),
    )


def _longest_tracks(
    evidence: PairEvidence, direction: Direction, planned_s: float
) -> tuple[dict[Flow, IntervalColumns], dict[Flow, IntervalColumns]]:
    """Return the receiver's and the sender's track with the most bytes, by flow."""
    report = evidence.report
    complete = report is not None and report.outcome in (Outcome.MEASURED, Outcome.LATE)
    received: dict[Flow, IntervalColumns] = {}
    sent: dict[Flow, IntervalColumns] = {}
    tracks = (*evidence.client_tracks, *evidence.server_tracks)
    for track in tracks:
        if track.flow not in direction.flows:
            continue
        columns = track if complete else _without_silence(track, _events_end_s(tracks, track.side))
        columns = columns.without_lead(evidence.server_lead_s)
        if abs(columns.first_data_at_s - planned_s) > MISPLACED_S or not len(columns):
            continue
        chosen = received if columns.side is receiving_side(track.flow) else sent
        known = chosen.get(track.flow)
        if known is None or columns.transferred_bytes.sum() > known.transferred_bytes.sum():
            chosen[track.flow] = columns
    return received, sent


def _events_end_s(tracks: Iterable[IntervalColumns], side: Side) -> float:
    """Return the engine time of the last second with events of one end, or 0 without events.

    An engine that counts events may have seconds without bytes.
    """
    return max(
        (
            float(track.end_s[values > 0].max(initial=0.0))
            for track in tracks
            if track.side is side
            for values in track.events.values()
        ),
        default=0.0,
    )


def _without_silence(columns: IntervalColumns, until_s: float = 0.0) -> IntervalColumns:
    """Drop zero rows at the end, because a server just waits if its client is dead.

    Rows before ``until_s`` are kept.
    """
    if len(columns) and columns.transferred_bytes[-1] > 0:
        return columns
    loud = np.flatnonzero((columns.transferred_bytes > 0) | (columns.end_s <= until_s))
    stop = int(loud[-1]) + 1 if len(loud) else 0
    return columns if stop == len(columns) else columns.rows(slice(stop))


def _totals(evidence: PairEvidence, flow: Flow) -> FlowTotals | None:
    """Return the engine's totals for a flow, using the client's first, then the server's."""
    reported = [
        totals for engine in evidence.engines for totals in engine.totals if totals.flow is flow
    ]
    if not reported:
        return None
    merged, *others = reported
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
) -> IntervalColumns | None:
    """Return a single long interval from the engine's received total.

    This is used when no seconds are stored.
    """
    if totals is None or not totals.received_bytes or not totals.received_s:
        return None
    report = evidence.report
    first = report.first_data_at.timestamp() if report and report.first_data_at else planned_s
    unknown = np.full(1, np.nan, np.float32)
    return IntervalColumns(
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
