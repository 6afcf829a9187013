"""Fills a burst's matrices, a row a pair, some pairs at a time, on a grid that grows.

A pair's row rests on its own readings alone, and cells that none of them reaches hold what they
held before: so pairs may come in any portions. What comes is spread so much at a time as fits a
cache, and always in the same portions, so that sums are the same to the last bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.measure.columns import Floats, HostColumns, Singles, TrackColumns
from broadside.coordinator.core.measure.readings import reading_of
from broadside.coordinator.core.measure.spread import Spread
from broadside.coordinator.core.summary import Basis
from broadside.exchange.messages import Flow, Side

FILL_LEAST_S: Final = 0.5  # s that the sender must have seen beyond the receiver to fill in
OWN_EDGE_RATIO: Final = 0.1  # of a cell: how far two ends' first and last cells differ anyway
SECOND_SEEN_RATIO: Final = 0.5  # of a second: covered at least so far, the second counts as seen
_PORTION_COUNT: Final = 50_000  # intervals that are spread at once
_LEVELS: Final = ("rtt_s", "cwnd_bytes")  # a mean over a cell; counts are shared out
_BUSY: Final = ("cpu_busy_ratio", "cpu_busiest_core_ratio")  # the same, of hosts

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
    received_reading_s: Floats  # per pair: length of the readings that received_bytes rests on
    sent_reading_s: Floats  # per pair, of sent_bytes; NaN: none
    means_only: bool = False  # nobody kept seconds: of each pair one mean, spread evenly


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSeconds:
    """One side's hosts on the grid; matrices are (pairs, cells), NaN is unknown."""

    cpu_busy_ratio: Singles
    cpu_busiest_core_ratio: Singles
    nic_tx_bytes: Singles
    drops_count: Floats  # per pair, over the burst
    reading_s: Floats  # per pair: length of the longest reading; NaN: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What a pair's rows need to know of it beside its readings."""

    correction_s: dict[Side, float]
    ratio: dict[Flow, float | None]  # received/sent by the engine's totals
    totals_only: frozenset[Flow]


class Matrix:
    """Cells of all pairs, ``unknown`` where nothing was put.

    ``array`` is made with the first known value: what nobody tells takes no memory.
    """

    def __init__(
        self, shape: tuple[int, int], unknown: float = np.nan, kind: type[Any] = np.float32
    ) -> None:
        self._shape = shape
        self._unknown = kind(unknown)
        self.array: NDArray[Any] | None = None

    def made(self) -> NDArray[Any]:
        """The array itself, to be written to."""
        if self.array is None:
            self.array = np.full(self._shape, self._unknown)
        return self.array

    def done(self) -> NDArray[Any]:
        """The array, or one value for all its cells."""
        return np.broadcast_to(self._unknown, self._shape) if self.array is None else self.array

    def narrow(self) -> None:
        """Go on in single precision."""
        self._unknown = np.float32(self._unknown)
        if self.array is not None:
            self.array = self.array.astype(np.float32, copy=False)

    def grow(self, before: int, after: int) -> None:
        """Add cells that no pair reached so far."""
        held, count = self.array, self._shape[1]
        self._shape = (self._shape[0], before + count + after)
        if held is not None:
            self.array = None
            self.made()[:, before : before + count] = held


@dataclass(slots=True)
class _Portion(Generic[_Columns]):
    """Readings that wait until there are enough of them."""

    rows: list[int] = field(default_factory=list)
    columns: list[_Columns] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # of each one's readings
    count: int = 0

    def add(self, row: int, columns: _Columns) -> bool:
        """Whether it is full now."""
        self.rows.append(row)
        self.columns.append(columns)
        self.counts.append(len(columns))
        self.count += self.counts[-1]
        return self.count > _PORTION_COUNT

    def column(self, name: str) -> NDArray[Any]:
        return np.concatenate([getattr(each, name) for each in self.columns])


class FlowRows:
    """One flow's matrices on the way."""

    def __init__(
        self, flow: Flow, pairs: Sequence[Placed], shape: tuple[int, int], own: tuple[int, int]
    ) -> None:
        """``pairs`` grows as pairs come; ``own`` is the warm-up and the length of the burst, s."""
        self.flow = flow
        self._pairs = pairs
        omit_s, duration_s = own
        self._received = Matrix(shape, 0.0, np.float64)
        self._coverage = Matrix(shape, 0.0)
        self._sent = Matrix(shape, kind=np.float64)  # of means alone; else single precision
        self._of_sender = {name: Matrix(shape) for name in ("retransmits_count", *_LEVELS)}
        self._of_receiver = {name: Matrix(shape) for name in ("lost_count", "packets_count")}
        self._own_edges = omit_s + np.arange(duration_s + 1, dtype=np.float64)
        self._own_bytes = np.zeros((shape[0], duration_s), np.float32)
        self._own_coverage = np.zeros(self._own_bytes.shape, np.float32)
        self._proven = np.zeros(shape[1])
        self._proven_s = np.zeros(shape[0])
        self._basis = [Basis.NONE] * shape[0]
        self._receiving = _Portion[TrackColumns]()
        self._sending = _Portion[TrackColumns]()
        self._full: list[_Portion[TrackColumns]] = []  # of senders whose receivers wait
        self._receivers_only: list[int] = []
        self._has_receivers = False
        self._means_only = True  # so far
        self._received_reading_s = np.full(shape[0], np.nan)
        self._sent_reading_s = np.full(shape[0], np.nan)

    def add(
        self, row: int, received: TrackColumns | None, sent: TrackColumns | None, edges: Floats
    ) -> None:
        """One more pair's, in the order of rows; ``edges`` are those of the grid by now."""
        self._means_only &= all(len(each) == 1 for each in (received, sent) if each is not None)
        if sent is not None:
            self._sent_reading_s[row] = self._received_reading_s[row] = reading_of(sent)
        if received is not None:
            self._received_reading_s[row] = reading_of(received)
            self._has_receivers = True
            if sent is None:
                self._receivers_only.append(row)
            if self._receiving.add(row, received):
                self._put_received(edges)
        if sent is not None and self._sending.add(row, sent):
            self._full.append(self._sending)
            self._sending = _Portion()
        while self._full and self._full[0].rows[-1] < min(self._receiving.rows, default=row + 1):
            self._put_sent(self._full.pop(0), edges)

    def grow(self, before: int, after: int) -> None:
        for matrix in (
            *(self._received, self._coverage, self._sent),
            *self._of_sender.values(),
            *self._of_receiver.values(),
        ):
            matrix.grow(before, after)
        self._proven = np.pad(self._proven, (before, after))

    def done(self, edges: Floats) -> FlowSeconds:
        """All of it, once every pair has come."""
        if self._receiving.rows:
            self._put_received(edges)
        for portion in (*self._full, self._sending):
            if portion.rows:
                self._put_sent(portion, edges)
        self._means_only &= self._has_receivers
        received, coverage, sent = self._received.made(), self._coverage.made(), self._sent_so_far()
        for row in self._receivers_only:
            if told := self._pairs[row].ratio[self.flow]:
                sent[row] = np.where(coverage[row] > 0, received[row] / told, np.nan)
        if self._means_only:
            self._basis = [Basis.TOTALS if each is Basis.RECEIVER else each for each in self._basis]
        return FlowSeconds(
            flow=self.flow,
            received_bytes=received,
            sent_bytes=sent,
            coverage=coverage,
            proven_bytes=self._proven,
            **{name: matrix.done() for name, matrix in self._of_sender.items()},
            **{name: matrix.done() for name, matrix in self._of_receiver.items()},
            basis=tuple(self._basis),
            own_seen=self._own_coverage >= SECOND_SEEN_RATIO,
            own_bytes=self._own_bytes,
            own_coverage=self._own_coverage,
            proven_s=self._proven_s,
            received_reading_s=self._received_reading_s,
            sent_reading_s=self._sent_reading_s,
            means_only=self._means_only,
        )

    def _put_received(self, edges: Floats) -> None:
        portion, self._receiving = self._receiving, _Portion()
        rows = portion.rows
        received, coverage = self._received.made(), self._coverage.made()
        cells = self._on_grid(portion, edges)
        amount = portion.column("transferred_bytes")
        received[rows], coverage[rows] = cells.over(amount), cells.coverage
        own_cells = self._own(portion)
        self._own_bytes[rows] = own_cells.over(amount)
        self._own_coverage[rows] = own_cells.coverage
        recorded = np.array([self.flow not in self._pairs[row].totals_only for row in rows])
        self._proven += received[rows][recorded].sum(axis=0)
        self._proven_s[rows] = np.where(
            recorded, (own_cells.coverage >= SECOND_SEEN_RATIO).sum(axis=1), 0.0
        )
        for row, is_own in zip(rows, recorded, strict=True):
            self._basis[row] = Basis.RECEIVER if is_own else Basis.TOTALS
        for name, matrix in self._of_receiver.items():
            _put_known(matrix, rows, portion.column(name), cells.share)

    def _put_sent(self, portion: _Portion[TrackColumns], edges: Floats) -> None:
        rows = portion.rows
        cells = self._on_grid(portion, edges)
        amount = portion.column("transferred_bytes")
        cover, seconds = cells.coverage, cells.over(amount)
        self._sent_so_far()[rows] = np.where(cover > 0, seconds, np.nan)
        for name, matrix in self._of_sender.items():
            how = cells.mean if name in _LEVELS else cells.share
            _put_known(matrix, rows, portion.column(name), how)
        heard_s = self._own_coverage[rows].sum(axis=1, dtype=np.float64)
        if not (self._own_reach_s(portion) - heard_s > FILL_LEAST_S).any():
            return
        own_cells = self._own(portion)
        beyond_s = own_cells.coverage.sum(axis=1) - heard_s
        own_seconds = own_cells.over(amount)
        for place in np.flatnonzero(beyond_s > FILL_LEAST_S):
            self._fill(
                rows[place],
                cover[place],
                seconds[place],
                own_cells.coverage[place],
                own_seconds[place],
            )

    def _fill(
        self, row: int, cover: Floats, seconds: Floats, own_cover: Floats, own_seconds: Floats
    ) -> None:
        """What the sender alone saw of a pair, times the pair's received/sent totals."""
        received, coverage = self._received.made()[row], self._coverage.made()[row]
        own_bytes, own_coverage = self._own_bytes[row], self._own_coverage[row]
        ratio = self._pairs[row].ratio[self.flow]
        heard = self._basis[row] is not Basis.NONE
        scale = 1.0 if ratio is None else ratio
        fill = cover > coverage + (OWN_EDGE_RATIO if heard else 0.0)
        received[fill] = seconds[fill] * scale
        coverage[fill] = cover[fill]
        fill = own_cover > own_coverage + OWN_EDGE_RATIO
        own_bytes[fill] = own_seconds[fill] * scale
        own_coverage[:] = np.maximum(own_coverage, own_cover)
        if heard:
            self._basis[row] = Basis.MIXED
        else:
            self._basis[row] = Basis.SENDER if ratio is None else Basis.SENDER_SCALED

    def _sent_so_far(self) -> NDArray[np.floating]:
        """Of many noisy seconds single precision is plenty; a mean is kept to the digit."""
        if not self._means_only:
            self._sent.narrow()
        return self._sent.made()

    def _own(self, portion: _Portion[TrackColumns]) -> Spread:
        """Over seconds of each track's own engine time."""
        return Spread(
            portion.column("start_s"), portion.column("end_s"), self._own_edges, portion.counts
        )

    def _own_reach_s(self, portion: _Portion[TrackColumns]) -> Floats:
        """Of each track the most seconds that :meth:`_own` can cover: from its first to its last,
        and what its readings lie over each other."""
        counts = np.array(portion.counts, np.intp)
        firsts = np.cumsum(counts) - counts
        start_s, end_s = portion.column("start_s"), portion.column("end_s")
        begins_s, ends_s = start_s[firsts], end_s[firsts + counts - 1]
        twice_s = np.add.reduceat(end_s - start_s, firsts) - (ends_s - begins_s)
        edges = self._own_edges
        reach_s = np.minimum(ends_s, edges[-1]) - np.maximum(begins_s, edges[0])
        return np.asarray(reach_s + np.maximum(twice_s, 0.0))

    def _on_grid(self, portion: _Portion[TrackColumns], edges: Floats) -> Spread:
        """Over UTC seconds, by each end's corrected clock."""
        zeros = [
            track.first_data_at_s - self._pairs[row].correction_s[track.side]
            for row, track in zip(portion.rows, portion.columns, strict=True)
        ]
        zero_s = np.repeat(zeros, portion.counts)
        return Spread(
            zero_s + portion.column("start_s"),
            zero_s + portion.column("end_s"),
            edges,
            portion.counts,
        )


class HostRows:
    """One side's hosts' matrices on the way."""

    def __init__(self, side: Side, pairs: Sequence[Placed], shape: tuple[int, int]) -> None:
        self._side = side
        self._pairs = pairs
        self._told = {name: Matrix(shape) for name in (*_BUSY, "nic_tx_bytes")}
        self._drops = np.full(shape[0], np.nan)
        self._reading_s = np.full(shape[0], np.nan)
        self._waiting = _Portion[HostColumns]()

    def add(self, row: int, host: HostColumns, edges: Floats) -> None:
        """One more pair's, in the order of rows."""
        if len(host) and self._waiting.add(row, host):
            self._put(edges)

    def grow(self, before: int, after: int) -> None:
        for matrix in self._told.values():
            matrix.grow(before, after)

    def done(self, edges: Floats) -> HostSeconds:
        """All of it, once every pair has come."""
        if self._waiting.rows:
            self._put(edges)
        told = {name: matrix.done() for name, matrix in self._told.items()}
        return HostSeconds(drops_count=self._drops, reading_s=self._reading_s, **told)

    def _put(self, edges: Floats) -> None:
        portion, self._waiting = self._waiting, _Portion()
        rows = portion.rows
        fixes_s = [self._pairs[row].correction_s[self._side] for row in rows]
        fix_s = np.repeat(fixes_s, portion.counts)
        cells = Spread(
            portion.column("start_at_s") - fix_s,
            portion.column("end_at_s") - fix_s,
            edges,
            portion.counts,
        )
        for name, matrix in self._told.items():
            how = cells.mean if name in _BUSY else cells.where_covered
            _put_known(matrix, rows, portion.column(name), how)
        self._drops[rows] = [host.drops_count.sum() for host in portion.columns]
        lengths_s = portion.column("end_at_s") - portion.column("start_at_s")
        counts = np.array(portion.counts, np.intp)
        firsts = np.cumsum(counts) - counts
        self._reading_s[rows] = np.maximum.reduceat(lengths_s, firsts)


def _put_known(
    matrix: Matrix,
    rows: Sequence[int],
    values: NDArray[np.floating],
    how: Callable[[NDArray[np.floating]], Floats],
) -> None:
    if matrix.array is not None or not np.isnan(values).all():
        matrix.made()[rows] = how(values)
