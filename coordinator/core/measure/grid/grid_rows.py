"""Matrices for a burst on a grid that can grow, with a row per pair.

A row only depends on its pair's readings. If no reading reaches a cell, the cell will not be
changed. So you can add pairs in blocks of any size. Readings are resampled in portions that fit
into a CPU cache. These portions are always the same, so that sums are identical to the last bit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats, Singles
from broadside.coordinator.core.measure.grid.resample import OverlapResampler
from broadside.coordinator.core.measure.records.columns import HostColumns, IntervalColumns
from broadside.coordinator.core.summary import ByteSource
from broadside.exchange.messages import Flow, Side

# To fill in sender's seconds, the sender needs to have recorded this many seconds more than the
# receiver.
FILL_LEAST_S: Final = 0.5
# Share of a cell. The first and last cells can normally differ by this much between both ends.
OWN_EDGE_RATIO: Final = 0.1
# Share of a second that needs to be covered for it to be counted as recorded.
SECOND_SEEN_RATIO: Final = 0.5
# How many intervals to resample at once.
_PORTION_COUNT: Final = 50_000
# Columns to average in a cell. Other columns are counts to be divided between cells.
_LEVELS: Final = ("rtt_s", "cwnd_bytes")
# The same for host columns.
_BUSY: Final = ("cpu_busy_ratio", "cpu_busiest_core_ratio")

_Columns = TypeVar("_Columns", IntervalColumns, HostColumns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Whole UTC seconds, where cell ``i`` is ``[start_s + i, start_s + i + 1)``.

    Attributes:
        start_s: Start in epoch seconds.
        count: How many cells there are.
    """

    start_s: int
    count: int

    @property
    def edges(self) -> Floats:
        """Cell bounds in epoch seconds, with shape (count + 1,)."""
        return self.start_s + np.arange(self.count + 1, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSeconds:
    """A flow for all pairs on the grid, as (pairs, cells) matrices where NaN is unknown.

    Attributes:
        flow: The flow.
        received_bytes: Received bytes. They are 0 when the coverage is 0.
        sent_bytes: Sent bytes. NaN if there are no seconds from the sender.
        coverage: Ratio, from 0 to 1, to which a cell is covered by ``received_bytes``.
        proven_bytes: The part of the sum that receivers themselves recorded, with shape (cells,).
        retransmits_count: Retransmitted segments.
        rtt_s: Round-trip time in seconds.
        cwnd_bytes: Congestion window.
        lost_count: Lost UDP datagrams.
        packets_count: UDP datagrams.
        basis: Source to which the values for a pair belong.
        engine_seen: Recorded seconds in the pair's engine time, with shape (pairs, planned
            seconds).
        engine_bytes: Received bytes for the same seconds. If a second is partly covered, only this
            part is included.
        engine_coverage: Ratio, from 0 to 1, to which a second is covered by ``engine_bytes``.
        proven_s: Planned seconds per pair that the receiver itself recorded.
        received_reading_s: Reading length per pair that is used for ``received_bytes``.
        sent_reading_s: Reading length per pair that is used for ``sent_bytes``. NaN if there are no
            readings.
        means_only: True if there are no seconds, so that every pair just has a mean that is spread
            evenly.
    """

    flow: Flow
    received_bytes: Floats
    sent_bytes: NDArray[np.floating]
    coverage: Singles
    proven_bytes: Floats
    retransmits_count: Singles
    rtt_s: Singles
    cwnd_bytes: Singles
    lost_count: Singles
    packets_count: Singles
    basis: tuple[ByteSource, ...]
    engine_seen: NDArray[np.bool_]
    engine_bytes: Singles
    engine_coverage: Singles
    proven_s: Floats
    received_reading_s: Floats
    sent_reading_s: Floats
    means_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSeconds:
    """Client or server hosts on the grid, as (pairs, cells) matrices where NaN is unknown.

    Attributes:
        cpu_busy_ratio: CPU use for all cores.
        cpu_busiest_core_ratio: CPU use for the busiest core.
        nic_tx_bytes: Bytes that the interface sent.
        drops_count: Dropped packets per pair during the burst.
        reading_s: Longest reading per pair in seconds. NaN without readings.
    """

    cpu_busy_ratio: Singles
    cpu_busiest_core_ratio: Singles
    nic_tx_bytes: Singles
    drops_count: Floats
    reading_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Information about a pair to use together with its readings.

    Attributes:
        correction_s: Clock correction per end in seconds.
        ratio: Received bytes divided by sent bytes, from the engine's totals.
        totals_only: Flows that only have totals.
    """

    correction_s: dict[Side, float]
    ratio: dict[Flow, float | None]
    totals_only: frozenset[Flow]


class PairMatrix:
    """Cells for all pairs, filled with ``unknown`` until a value is set.

    To save memory, ``array`` will not be created until the first value needs to be set.
    """

    def __init__(
        self, shape: tuple[int, int], unknown: float = np.nan, kind: type[Any] = np.float32
    ) -> None:
        self._shape = shape
        self._unknown = kind(unknown)
        self.array: NDArray[Any] | None = None

    def made(self) -> NDArray[Any]:
        """Return the array to be written to. It will be created if needed."""
        if self.array is None:
            self.array = np.full(self._shape, self._unknown)
        return self.array

    def done(self) -> NDArray[Any]:
        """Return the array, or a read-only view if no value has been set."""
        return np.broadcast_to(self._unknown, self._shape) if self.array is None else self.array

    def narrow(self) -> None:
        """Convert the array to single precision."""
        self._unknown = np.float32(self._unknown)
        if self.array is not None:
            self.array = self.array.astype(np.float32, copy=False)

    def grow(self, before: int, after: int) -> None:
        """Add cells that no pair has reached yet.

        Args:
            before: How many cells to add before the first cell.
            after: How many cells to add after the last cell.
        """
        previous, count = self.array, self._shape[1]
        self._shape = (self._shape[0], before + count + after)
        if previous is not None:
            self.array = None
            self.made()[:, before : before + count] = previous


@dataclass(slots=True)
class _Portion(Generic[_Columns]):
    """Readings to collect until there are enough to process.

    Attributes:
        rows: Row per entry.
        columns: Readings per entry.
        counts: Number of readings per entry.
        count: Total number of readings.
    """

    rows: list[int] = field(default_factory=list)
    columns: list[_Columns] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    count: int = 0

    def add(self, row: int, columns: _Columns) -> bool:
        """Add an entry, and return true if the portion is now full."""
        self.rows.append(row)
        self.columns.append(columns)
        self.counts.append(len(columns))
        self.count += self.counts[-1]
        return self.count > _PORTION_COUNT

    def column(self, name: str) -> NDArray[Any]:
        return np.concatenate([getattr(item, name) for item in self.columns])


class FlowRows:
    """Builder for a flow's matrices."""

    def __init__(
        self,
        flow: Flow,
        pairs: Sequence[Placed],
        shape: tuple[int, int],
        lengths_s: tuple[int, int],
    ) -> None:
        """Create empty matrices.

        Args:
            flow: The flow.
            pairs: Sequence that will grow when pairs are added.
            shape: Number of pairs and cells.
            lengths_s: The burst's warm-up and length in seconds.
        """
        self.flow = flow
        self._pairs = pairs
        omit_s, duration_s = lengths_s
        self._received = PairMatrix(shape, 0.0, np.float64)
        self._coverage = PairMatrix(shape, 0.0)
        # Double precision is only needed for means. It will be changed to single precision for
        # anything else.
        self._sent = PairMatrix(shape, kind=np.float64)
        self._of_sender = {name: PairMatrix(shape) for name in ("retransmits_count", *_LEVELS)}
        self._of_receiver = {name: PairMatrix(shape) for name in ("lost_count", "packets_count")}
        self._own_edges = omit_s + np.arange(duration_s + 1, dtype=np.float64)
        self._own_bytes = np.zeros((shape[0], duration_s), np.float32)
        self._own_coverage = np.zeros(self._own_bytes.shape, np.float32)
        self._proven = np.zeros(shape[1])
        self._proven_s = np.zeros(shape[0])
        self._basis = [ByteSource.NONE] * shape[0]
        self._receiving = _Portion[IntervalColumns]()
        self._sending = _Portion[IntervalColumns]()
        # Portions from senders that have to wait until their receivers are processed.
        self._full: list[_Portion[IntervalColumns]] = []
        self._receivers_only: list[int] = []
        self._has_receivers = False
        # This stays true until a pair with seconds is added.
        self._means_only = True
        self._received_reading_s = np.full(shape[0], np.nan)
        self._sent_reading_s = np.full(shape[0], np.nan)

    def add(
        self,
        row: int,
        received: IntervalColumns | None,
        sent: IntervalColumns | None,
        edges: Floats,
    ) -> None:
        """Add a pair. Pairs should be added in row order.

        Args:
            row: Row to set.
            received: Receiver's track. None if it did not report.
            sent: Sender's track. None if it did not report.
            edges: The grid's current cell bounds.
        """
        self._means_only &= all(len(item) == 1 for item in (received, sent) if item is not None)
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
        """Return the matrices. Call this when all pairs have been added."""
        if self._receiving.rows:
            self._put_received(edges)
        for portion in (*self._full, self._sending):
            if portion.rows:
                self._put_sent(portion, edges)
        self._means_only &= self._has_receivers
        received, coverage, sent = self._received.made(), self._coverage.made(), self._sent_so_far()
        for row in self._receivers_only:
            if reported := self._pairs[row].ratio[self.flow]:
                sent[row] = np.where(coverage[row] > 0, received[row] / reported, np.nan)
        if self._means_only:
            self._basis = [
                ByteSource.TOTALS if item is ByteSource.RECEIVER else item for item in self._basis
            ]
        return FlowSeconds(
            flow=self.flow,
            received_bytes=received,
            sent_bytes=sent,
            coverage=coverage,
            proven_bytes=self._proven,
            **{name: matrix.done() for name, matrix in self._of_sender.items()},
            **{name: matrix.done() for name, matrix in self._of_receiver.items()},
            basis=tuple(self._basis),
            engine_seen=self._own_coverage >= SECOND_SEEN_RATIO,
            engine_bytes=self._own_bytes,
            engine_coverage=self._own_coverage,
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
        engine_cells = self._engine_resampler(portion)
        self._own_bytes[rows] = engine_cells.over(amount)
        self._own_coverage[rows] = engine_cells.coverage
        recorded = np.array([self.flow not in self._pairs[row].totals_only for row in rows])
        self._proven += received[rows][recorded].sum(axis=0)
        self._proven_s[rows] = np.where(
            recorded, (engine_cells.coverage >= SECOND_SEEN_RATIO).sum(axis=1), 0.0
        )
        for row, is_local in zip(rows, recorded, strict=True):
            self._basis[row] = ByteSource.RECEIVER if is_local else ByteSource.TOTALS
        for name, matrix in self._of_receiver.items():
            _put_known(matrix, rows, portion.column(name), cells.share)

    def _put_sent(self, portion: _Portion[IntervalColumns], edges: Floats) -> None:
        rows = portion.rows
        cells = self._on_grid(portion, edges)
        amount = portion.column("transferred_bytes")
        cover, seconds = cells.coverage, cells.over(amount)
        self._sent_so_far()[rows] = np.where(cover > 0, seconds, np.nan)
        for name, matrix in self._of_sender.items():
            how = cells.mean if name in _LEVELS else cells.share
            _put_known(matrix, rows, portion.column(name), how)
        recorded_s = self._own_coverage[rows].sum(axis=1, dtype=np.float64)
        if not (self._engine_reach_s(portion) - recorded_s > FILL_LEAST_S).any():
            return
        engine_cells = self._engine_resampler(portion)
        beyond_s = engine_cells.coverage.sum(axis=1) - recorded_s
        engine_seconds = engine_cells.over(amount)
        for place in np.flatnonzero(beyond_s > FILL_LEAST_S):
            self._fill(
                rows[place],
                cover[place],
                seconds[place],
                engine_cells.coverage[place],
                engine_seconds[place],
            )

    def _fill(
        self, row: int, cover: Floats, seconds: Floats, engine_cover: Floats, engine_seconds: Floats
    ) -> None:
        """Fill cells that only the sender recorded, using the ratio of the totals."""
        received, coverage = self._received.made()[row], self._coverage.made()[row]
        engine_bytes, engine_coverage = self._own_bytes[row], self._own_coverage[row]
        ratio = self._pairs[row].ratio[self.flow]
        recorded = self._basis[row] is not ByteSource.NONE
        scale = 1.0 if ratio is None else ratio
        fill = cover > coverage + (OWN_EDGE_RATIO if recorded else 0.0)
        received[fill] = seconds[fill] * scale
        coverage[fill] = cover[fill]
        fill = engine_cover > engine_coverage + OWN_EDGE_RATIO
        engine_bytes[fill] = engine_seconds[fill] * scale
        engine_coverage[:] = np.maximum(engine_coverage, engine_cover)
        if recorded:
            self._basis[row] = ByteSource.MIXED
        else:
            self._basis[row] = ByteSource.SENDER if ratio is None else ByteSource.SENDER_SCALED

    def _sent_so_far(self) -> NDArray[np.floating]:
        """Return the matrix for sent bytes, in single precision if there are seconds.

        Seconds are noisy, so single precision is enough. A mean should be stored with all its
        digits.
        """
        if not self._means_only:
            self._sent.narrow()
        return self._sent.made()

    def _engine_resampler(self, portion: _Portion[IntervalColumns]) -> OverlapResampler:
        """Resample a portion to seconds in the engine's own time."""
        return OverlapResampler(
            portion.column("start_s"), portion.column("end_s"), self._own_edges, portion.counts
        )

    def _engine_reach_s(self, portion: _Portion[IntervalColumns]) -> Floats:
        """Return the maximum number of seconds per track that ``_engine_resampler`` can cover.

        This is the time from the first to the last reading, plus any time where readings overlap.
        """
        counts = np.array(portion.counts, np.intp)
        firsts = np.cumsum(counts) - counts
        start_s, end_s = portion.column("start_s"), portion.column("end_s")
        begins_s, ends_s = start_s[firsts], end_s[firsts + counts - 1]
        twice_s = np.add.reduceat(end_s - start_s, firsts) - (ends_s - begins_s)
        edges = self._own_edges
        reach_s = np.minimum(ends_s, edges[-1]) - np.maximum(begins_s, edges[0])
        return np.asarray(reach_s + np.maximum(twice_s, 0.0))

    def _on_grid(self, portion: _Portion[IntervalColumns], edges: Floats) -> OverlapResampler:
        """Resample a portion to UTC seconds, using corrected clocks."""
        zeros = [
            track.first_data_at_s - self._pairs[row].correction_s[track.side]
            for row, track in zip(portion.rows, portion.columns, strict=True)
        ]
        zero_s = np.repeat(zeros, portion.counts)
        return OverlapResampler(
            zero_s + portion.column("start_s"),
            zero_s + portion.column("end_s"),
            edges,
            portion.counts,
        )


class HostRows:
    """Builder for host matrices on the client or server side."""

    def __init__(self, side: Side, pairs: Sequence[Placed], shape: tuple[int, int]) -> None:
        self._side = side
        self._pairs = pairs
        self._told = {name: PairMatrix(shape) for name in (*_BUSY, "nic_tx_bytes")}
        self._drops = np.full(shape[0], np.nan)
        self._reading_s = np.full(shape[0], np.nan)
        self._waiting = _Portion[HostColumns]()

    def add(self, row: int, host: HostColumns, edges: Floats) -> None:
        """Add a pair's host. Pairs should be added in row order.

        Args:
            row: Row to set.
            host: Counters for the host.
            edges: The grid's current cell bounds.
        """
        if len(host) and self._waiting.add(row, host):
            self._put(edges)

    def grow(self, before: int, after: int) -> None:
        for matrix in self._told.values():
            matrix.grow(before, after)

    def done(self, edges: Floats) -> HostSeconds:
        """Return the matrices. Call this when all pairs have been added."""
        if self._waiting.rows:
            self._put(edges)
        reported = {name: matrix.done() for name, matrix in self._told.items()}
        return HostSeconds(drops_count=self._drops, reading_s=self._reading_s, **reported)

    def _put(self, edges: Floats) -> None:
        portion, self._waiting = self._waiting, _Portion()
        rows = portion.rows
        fixes_s = [self._pairs[row].correction_s[self._side] for row in rows]
        fix_s = np.repeat(fixes_s, portion.counts)
        cells = OverlapResampler(
            portion.column("start_at_s") - fix_s,
            portion.column("end_at_s") - fix_s,
            edges,
            portion.counts,
        )
        for name, matrix in self._told.items():
            how = cells.mean if name in _BUSY else cells.covered_values
            _put_known(matrix, rows, portion.column(name), how)
        self._drops[rows] = [host.drops_count.sum() for host in portion.columns]
        lengths_s = portion.column("end_at_s") - portion.column("start_at_s")
        counts = np.array(portion.counts, np.intp)
        firsts = np.cumsum(counts) - counts
        self._reading_s[rows] = np.maximum.reduceat(lengths_s, firsts)


def _put_known(
    matrix: PairMatrix,
    rows: Sequence[int],
    values: NDArray[np.floating],
    how: Callable[[NDArray[np.floating]], Floats],
) -> None:
    if matrix.array is not None or not np.isnan(values).all():
        matrix.made()[rows] = how(values)


def reading_of(track: IntervalColumns) -> float:
    """Return a track's mean reading length in seconds, weighted by bytes.

    The result is NaN if there are no rows.
    """
    length_s = track.end_s - track.start_s
    total = float(track.transferred_bytes.sum())
    if total > 0:
        return float(length_s @ track.transferred_bytes) / total
    return float(length_s.max(initial=0.0)) or math.nan
