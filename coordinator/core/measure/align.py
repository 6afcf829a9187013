"""Puts every end's irregular intervals on one UTC grid of whole seconds, losing no byte.

The engine's intervals are offset by each agent's start and clock, and are not exactly one second
long. Each track's cumulative bytes are interpolated linearly between its own interval bounds and
differenced at the whole UTC seconds, so a track's cells sum to its intervals. Where no interval
covers a cell, the cell's coverage is 0 and its bytes say nothing.

Receiver seconds stand wherever they are. A cell that only the sender saw is filled with the
sender's bytes times the pair's received/sent totals, and the pair's :class:`Basis` says so.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from coordinator.core.measure.evidence import (
    BurstEvidence,
    Floats,
    HostColumns,
    PairEvidence,
    Singles,
    TrackColumns,
    clock_correction,
)
from coordinator.core.summary import Basis
from exchange.messages import Direction, Flow, FlowTotals, Outcome, Side

TAIL_MAX_S: Final = 60.0  # s beyond one more duration after the planned end that the grid reaches
FILL_LEAST_S: Final = 0.5  # s that the sender must have seen beyond the receiver to fill in
OWN_EDGE_RATIO: Final = 0.1  # of a cell: how far two ends' first and last cells differ anyway
CELL_FULL_RATIO: Final = 0.99  # of a second: covered as far as clocks can tell
SECOND_SEEN_RATIO: Final = 0.5  # of a second: covered at least so far, the second counts as seen
_TOUCH_S: Final = 1e-6  # s of a cell below which an interval does not reach it
_BLOCK_COUNT: Final = 50_000  # intervals that are spread at once
MISPLACED_S: Final = 3600.0  # s from the instant beyond which a track's own clock is not believed


_Columns = TypeVar("_Columns", TrackColumns, HostColumns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Whole UTC seconds: cell ``i`` is ``[start_s + i, start_s + i + 1)``."""

    start_s: int  # epoch s
    count: int

    @property
    def edges(self) -> Floats:
        """Cell bounds, epoch s; shape (count + 1,)."""
        return self.start_s + np.arange(self.count + 1, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSeconds:
    """One flow of every pair on the grid; matrices are (pairs, cells), NaN is unknown."""

    flow: Flow
    received_bytes: Floats  # 0 where coverage is 0
    sent_bytes: NDArray[np.floating]  # NaN where the sender's seconds are unknown
    coverage: Singles  # 0..1, the share of the cell for which received_bytes speaks
    proven_bytes: Floats  # shape (cells,): the part of the sum that receivers' own seconds say
    retransmits_count: Singles
    rtt_s: Singles
    cwnd_bytes: Singles
    lost_count: Singles  # UDP datagrams
    packets_count: Singles
    basis: tuple[Basis, ...]
    own_seen: NDArray[np.bool_]  # (pairs, planned seconds), in each pair's own engine time
    own_bytes: Singles  # the same cells' received bytes; of the covered part where covered in part
    own_coverage: Singles  # 0..1, the share of the cell for which own_bytes speaks
    proven_s: Floats  # per pair: planned seconds that the receiver's own seconds cover
    means_only: bool = False  # nobody kept seconds: of each pair one mean, spread evenly


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSeconds:
    """One side's hosts on the grid; matrices are (pairs, cells), NaN is unknown."""

    cpu_busy_ratio: Singles
    cpu_busiest_core_ratio: Singles
    nic_tx_bytes: Singles
    drops_count: Floats  # per pair, over the burst


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """A burst on the grid. Pairs are in pair-index order whatever the order of the evidence."""

    grid: Grid
    pairs: tuple[PairEvidence, ...]
    flows: tuple[FlowSeconds, ...]
    client: HostSeconds
    server: HostSeconds
    first_data_at_s: Floats  # per pair, epoch s by corrected clock; NaN: no data
    clock_bound_s: Floats  # per pair, the larger of its ends' bounds; NaN: unknown


class Spread:
    """Shares intervals' amounts out over cells by the time that they overlap.

    Intervals are sorted and disjoint; ``edges`` has one more element than there are cells.
    Cumulative amounts are interpolated linearly at the edges and differenced, so amounts that lie
    within ``edges`` are conserved. Tracks that lie end to end, each with its count of intervals in
    ``counts``, are done at once: cells then have the shape (tracks, cells).
    """

    def __init__(
        self, start_s: Floats, end_s: Floats, edges: Floats, counts: Sequence[int] | None = None
    ) -> None:
        self._length_s = end_s - start_s
        self._flat = counts is None
        self._place, begins_s = _places(start_s, edges, counts or [len(start_s)])
        inside = edges - begins_s
        inside /= self._length_s.take(self._place)
        np.minimum(inside, 1.0, out=inside)
        self._inside = np.maximum(inside, 0.0, out=inside)
        self.coverage = self.over(self._length_s)  # seconds of each cell that intervals cover

    def over(self, amount: NDArray[np.floating]) -> Floats:
        """The cells' parts of ``amount``, one value an interval."""
        total = np.cumsum(amount, dtype=np.float64) - amount
        at_edges: Floats = total.take(self._place)
        at_edges += amount.take(self._place) * self._inside
        cells = at_edges[:, 1:] - at_edges[:, :-1]
        return cells[0] if self._flat else cells

    def mean(self, values: NDArray[np.floating]) -> Floats:
        """Mean of the values over each cell, weighted by overlap; NaN where none is known."""
        weighted, known = self._known(values, values * self._length_s)
        cells = np.full(known.shape, np.nan)
        np.divide(weighted, known, out=cells, where=known > _TOUCH_S)
        return cells

    def share(self, counts: NDArray[np.floating]) -> Floats:
        """Counts shared out; NaN where no interval with a known count reaches."""
        cells, known = self._known(counts, counts)
        cells[known <= _TOUCH_S] = np.nan
        return cells

    def _known(
        self, values: NDArray[np.floating], amount: NDArray[np.floating]
    ) -> tuple[Floats, Floats]:
        """Amounts of the intervals whose value is known, and the seconds that those cover."""
        unknown = np.isnan(values)
        if not unknown.any():
            return self.over(amount), self.coverage
        return (
            self.over(np.where(unknown, 0.0, amount)),
            self.over(np.where(unknown, 0.0, self._length_s)),
        )


def _places(
    start_s: Floats, edges: Floats, counts: Sequence[int]
) -> tuple[NDArray[np.intp], Floats]:
    """Of each track and edge the last interval that begins by then, or where none does the track's
    first one; and when that begins. Shape (tracks, edges)."""
    counted = np.asarray(counts, np.intp)[:, None]
    last = np.cumsum(counted)[:, None] - 1
    first = last - counted + 1
    following_s = np.append(start_s[1:], np.inf)
    following_s[last] = np.inf
    # Most intervals are of one length: what is not beside where that puts it is searched for.
    begun_s = start_s[first]
    each_s = np.maximum((start_s[last] - begun_s) / np.maximum(counted - 1, 1), 1e-9)
    guess = edges - begun_s
    guess /= each_s
    np.maximum(guess, 0, out=guess)
    np.minimum(guess, counted - 1, out=guess)
    place = guess.astype(np.intp)
    place += first
    begins_s = start_s.take(place)
    later = begins_s > edges
    later &= place > first
    earlier = following_s.take(place) <= edges
    beside = np.flatnonzero(later | earlier)
    if not len(beside):
        return place, begins_s
    tracks, columns = np.divmod(beside, len(edges))
    moved = place.take(beside) + earlier.take(beside) - later.take(beside)
    found_s, edges_s = start_s.take(moved), edges.take(columns)
    place[tracks, columns], begins_s[tracks, columns] = moved, found_s
    wrong = (found_s > edges_s) & (moved > first[tracks, 0])
    wrong |= following_s.take(moved) <= edges_s
    for track in np.unique(tracks[wrong]):
        mine = slice(int(first[track, 0]), int(last[track, 0]) + 1)
        found = np.searchsorted(start_s[mine], edges, side="right") - 1
        place[track] = mine.start + np.maximum(found, 0)
        begins_s[track] = start_s[place[track]]
    return place, begins_s


def _matrix(shape: tuple[int, int], columns: Iterable[Singles]) -> Singles:
    """Cells to fill, all unknown; without memory of its own where no column knows anything."""
    if any(not np.isnan(column).all() for column in columns):
        return np.full(shape, np.nan, np.float32)
    return np.broadcast_to(np.float32(np.nan), shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """One pair's tracks, chosen and corrected, on the way to the grid."""

    evidence: PairEvidence
    received: dict[Flow, TrackColumns]
    sent: dict[Flow, TrackColumns]
    ratio: dict[Flow, float | None]  # received/sent by the engine's totals
    totals_only: frozenset[Flow]
    start_s: float  # epoch s, corrected, NaN: no data
    correction_s: dict[Side, float]
    bound_s: float


def align(evidence: BurstEvidence, direction: Direction, grid: Grid | None = None) -> Aligned:
    """Align a burst, or with ``grid`` what of it lies there.

    Bytes are conserved from interval to grid for everything that lies within the grid, which
    reaches from one second before the instant (earlier where data is earlier) to the last data,
    at most one duration and :data:`TAIL_MAX_S` after the planned end. The order of
    ``evidence.pairs`` and of rows in a track does not matter.
    """
    burst = evidence.burst
    planned_s = burst.planned_start_at.timestamp()
    pairs = [
        _choose(pair, direction, planned_s)
        for pair in sorted(evidence.pairs, key=lambda pair: pair.pair_index)
    ]
    grid = grid or _grid(pairs, planned_s, burst.duration_s + burst.omit_s)
    flows = tuple(
        _flow_seconds(flow, pairs, grid, burst.omit_s, burst.duration_s) for flow in direction.flows
    )
    return Aligned(
        grid=grid,
        pairs=tuple(pair.evidence for pair in pairs),
        flows=flows,
        client=_host_seconds(pairs, Side.CLIENT, grid),
        server=_host_seconds(pairs, Side.SERVER, grid),
        first_data_at_s=np.array([pair.start_s for pair in pairs]),
        clock_bound_s=np.array([pair.bound_s for pair in pairs]),
    )


def receiving_side(flow: Flow) -> Side:
    """The end at which a flow's payload arrives."""
    return Side.SERVER if flow is Flow.UP else Side.CLIENT


def _choose(evidence: PairEvidence, direction: Direction, planned_s: float) -> _Pair:
    report, test, claim = evidence.report, evidence.server_test, evidence.claim
    client_fix, client_bound = clock_correction(
        *((report.clock_before, report.clock_after) if report else ()),
        claim.clock if claim else None,
    )
    server_fix, server_bound = clock_correction(
        *((test.clock_before, test.clock_after) if test else ())
    )
    whole = report is not None and report.outcome in (Outcome.MEASURED, Outcome.LATE)
    received: dict[Flow, TrackColumns] = {}
    sent: dict[Flow, TrackColumns] = {}
    ratio: dict[Flow, float | None] = {}
    totals_only = set()
    correction = {Side.CLIENT: client_fix, Side.SERVER: server_fix}
    for flow in direction.flows:
        receiver = receiving_side(flow)
        for tracks in (evidence.client_tracks, evidence.server_tracks):
            for track in tracks:
                if track.flow is not flow:
                    continue
                columns = track if whole else _without_silence(track)
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
    tracks_all = [*received.values(), *sent.values()]
    starts = {
        side: min(
            (
                columns.first_data_at_s + columns.start_s[0] - correction[side]
                for columns in tracks_all
                if columns.side is side
            ),
            default=math.nan,
        )
        for side in Side
    }
    start_s = starts[Side.CLIENT] if not math.isnan(starts[Side.CLIENT]) else starts[Side.SERVER]
    bounds = [bound for bound in (client_bound, server_bound) if bound is not None]
    return _Pair(
        evidence=evidence,
        received=received,
        sent=sent,
        ratio=ratio,
        totals_only=frozenset(totals_only),
        start_s=start_s,
        correction_s=correction,
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
        totals
        for engine in (
            evidence.report.engine if evidence.report else None,
            evidence.server_test.engine if evidence.server_test else None,
        )
        if engine is not None
        for totals in engine.totals
        if totals.flow is flow
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


def _grid(pairs: Sequence[_Pair], planned_s: float, planned_length_s: float) -> Grid:
    first = [planned_s - 1]
    last = [planned_s + planned_length_s + 1]
    for pair in pairs:
        for columns in (*pair.received.values(), *pair.sent.values()):
            zero = columns.first_data_at_s - pair.correction_s[columns.side]
            first.append(zero + columns.start_s[0])
            last.append(zero + columns.end_s[-1])
    start = math.floor(max(min(first), planned_s - TAIL_MAX_S))
    end = math.ceil(min(max(last), planned_s + 2 * planned_length_s + TAIL_MAX_S))
    return Grid(start_s=start, count=end - start)


def _flow_seconds(
    flow: Flow, pairs: Sequence[_Pair], grid: Grid, omit_s: int, duration_s: int
) -> FlowSeconds:
    shape = (len(pairs), grid.count)
    received = np.zeros(shape)
    coverage = np.zeros(shape, np.float32)
    proven = np.zeros(grid.count)
    senders = [pair.sent[flow] for pair in pairs if flow in pair.sent]
    receivers = [pair.received[flow] for pair in pairs if flow in pair.received]
    # Of many noisy seconds single precision is plenty; a mean is kept to the digit.
    means_only = bool(receivers) and all(len(track) == 1 for track in (*receivers, *senders))
    sent = np.full(shape, np.nan, np.float64 if means_only else np.float32)
    retransmits = _matrix(shape, (track.retransmits_count for track in senders))
    rtt = _matrix(shape, (track.rtt_s for track in senders))
    cwnd = _matrix(shape, (track.cwnd_bytes for track in senders))
    lost = _matrix(shape, (track.lost_count for track in receivers))
    packets = _matrix(shape, (track.packets_count for track in receivers))
    own_bytes = np.zeros((len(pairs), duration_s), np.float32)
    own_coverage = np.zeros(own_bytes.shape, np.float32)
    proven_s = np.zeros(len(pairs))
    basis = [Basis.NONE] * len(pairs)
    edges = grid.edges
    own_edges = omit_s + np.arange(duration_s + 1, dtype=np.float64)
    for rows, tracks in _blocks([pair.received.get(flow) for pair in pairs]):
        cells = _on_grid(tracks, rows, pairs, edges)
        amount = _column(tracks, "transferred_bytes")
        received[rows], coverage[rows] = cells.over(amount), cells.coverage
        own_cells = _own(tracks, own_edges)
        own_bytes[rows], own_coverage[rows] = own_cells.over(amount), own_cells.coverage
        recorded = np.array([flow not in pairs[row].totals_only for row in rows])
        proven += received[rows][recorded].sum(axis=0)
        proven_s[rows] = np.where(
            recorded, (own_cells.coverage >= SECOND_SEEN_RATIO).sum(axis=1), 0.0
        )
        for row, is_own in zip(rows, recorded, strict=True):
            basis[row] = Basis.RECEIVER if is_own and not means_only else Basis.TOTALS
        for matrix, name in ((lost, "lost_count"), (packets, "packets_count")):
            if matrix.flags.writeable:
                matrix[rows] = cells.share(_column(tracks, name))
    for rows, tracks in _blocks([pair.sent.get(flow) for pair in pairs]):
        cells = _on_grid(tracks, rows, pairs, edges)
        amount = _column(tracks, "transferred_bytes")
        cover, seconds = cells.coverage, cells.over(amount)
        sent[rows] = np.where(cover > 0, seconds, np.nan)
        if retransmits.flags.writeable:
            retransmits[rows] = cells.share(_column(tracks, "retransmits_count"))
        for matrix, name in ((rtt, "rtt_s"), (cwnd, "cwnd_bytes")):
            if matrix.flags.writeable:
                matrix[rows] = cells.mean(_column(tracks, name))
        own_cells = _own(tracks, own_edges)
        beyond_s = own_cells.coverage.sum(axis=1) - own_coverage[rows].sum(axis=1, dtype=np.float64)
        if not (beyond_s > FILL_LEAST_S).any():
            continue
        own_seconds = own_cells.over(amount)
        for place in np.flatnonzero(beyond_s > FILL_LEAST_S):
            row, ratio = rows[place], pairs[rows[place]].ratio[flow]
            heard = flow in pairs[row].received
            scale = 1.0 if ratio is None else ratio
            fill = cover[place] > coverage[row] + (OWN_EDGE_RATIO if heard else 0.0)
            received[row, fill] = seconds[place, fill] * scale
            coverage[row, fill] = cover[place, fill]
            own_s = own_cells.coverage[place]
            fill = own_s > own_coverage[row] + OWN_EDGE_RATIO
            own_bytes[row, fill] = own_seconds[place, fill] * scale
            own_coverage[row] = np.maximum(own_coverage[row], own_s)
            if heard:
                basis[row] = Basis.MIXED
            else:
                basis[row] = Basis.SENDER if ratio is None else Basis.SENDER_SCALED
    for row, pair in enumerate(pairs):
        told = pair.ratio[flow]
        if told and flow in pair.received and flow not in pair.sent:
            sent[row] = np.where(coverage[row] > 0, received[row] / told, np.nan)
    return FlowSeconds(
        flow=flow,
        received_bytes=received,
        sent_bytes=sent,
        coverage=coverage,
        proven_bytes=proven,
        retransmits_count=retransmits,
        rtt_s=rtt,
        cwnd_bytes=cwnd,
        lost_count=lost,
        packets_count=packets,
        basis=tuple(basis),
        own_seen=own_coverage >= SECOND_SEEN_RATIO,
        own_bytes=own_bytes,
        own_coverage=own_coverage,
        proven_s=proven_s,
        means_only=means_only,
    )


def _blocks(
    tracks: Sequence[_Columns | None],
) -> Iterator[tuple[list[int], list[_Columns]]]:
    """Pairs' numbers and what there is of them, so much at a time that all fits a cache."""
    rows: list[int] = []
    known: list[_Columns] = []
    count = 0
    for row, track in enumerate(tracks):
        if track is None:
            continue
        rows.append(row)
        known.append(track)
        count += len(track)
        if count > _BLOCK_COUNT:
            yield rows, known
            rows, known, count = [], [], 0
    if rows:
        yield rows, known


def _column(tracks: Sequence[TrackColumns] | Sequence[HostColumns], name: str) -> Floats:
    return np.concatenate([getattr(track, name) for track in tracks])


def _own(tracks: Sequence[TrackColumns], edges: Floats) -> Spread:
    """Over seconds of each track's own engine time."""
    counts = [len(track) for track in tracks]
    return Spread(_column(tracks, "start_s"), _column(tracks, "end_s"), edges, counts)


def _on_grid(
    tracks: Sequence[TrackColumns], rows: Sequence[int], pairs: Sequence[_Pair], edges: Floats
) -> Spread:
    """Over UTC seconds, by each end's corrected clock."""
    counts = [len(track) for track in tracks]
    zeros = [
        track.first_data_at_s - pairs[row].correction_s[track.side]
        for row, track in zip(rows, tracks, strict=True)
    ]
    zero_s = np.repeat(zeros, counts)
    return Spread(
        zero_s + _column(tracks, "start_s"), zero_s + _column(tracks, "end_s"), edges, counts
    )


def _host_seconds(pairs: Sequence[_Pair], side: Side, grid: Grid) -> HostSeconds:
    shape = (len(pairs), grid.count)
    busy, core, tx = (np.full(shape, np.nan, np.float32) for _ in range(3))
    drops = np.full(len(pairs), np.nan)
    told = [
        pair.evidence.client_host if side is Side.CLIENT else pair.evidence.server_host
        for pair in pairs
    ]
    for rows, hosts in _blocks([host if len(host) else None for host in told]):
        counts = [len(host) for host in hosts]
        fix_s = np.repeat([pairs[row].correction_s[side] for row in rows], counts)
        cells = Spread(
            _column(hosts, "start_at_s") - fix_s,
            _column(hosts, "end_at_s") - fix_s,
            grid.edges,
            counts,
        )
        busy[rows] = cells.mean(_column(hosts, "cpu_busy_ratio"))
        core[rows] = cells.mean(_column(hosts, "cpu_busiest_core_ratio"))
        sent_bytes = cells.over(_column(hosts, "nic_tx_bytes"))
        tx[rows] = np.where(cells.coverage > _TOUCH_S, sent_bytes, np.nan)
        drops[rows] = [host.drops_count.sum() for host in hosts]
    return HostSeconds(
        cpu_busy_ratio=busy,
        cpu_busiest_core_ratio=core,
        nic_tx_bytes=tx,
        drops_count=drops,
    )
