"""Packed chunks straight into columns: no row value is ever made of a fleet's seconds.

A row value costs about ten times what a column's cell does, in memory and in time (measured: 6 ms
against 0.6 ms for 480 host seconds), and a burst of a thousand pairs has seven million of them.
The columns are equal, to the bit, to those made from row values.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.core.measure.evidence import (
    Floats,
    HostColumns,
    Singles,
    TrackColumns,
    disjoint_host,
    disjoint_track,
)
from coordinator.core.plan.spec import Burst
from exchange.chunks import CPU_RATIO_UNITS, MICROSECONDS, PackedColumn, unpack_columns
from exchange.ports import RecordUnreadable
from exchange.rows import leave_out
from exchange.second_rows import PackedChunk, PackedEnd, PackedTrack

_REACH_MAX_S: Final = 1e6  # s of engine time, twelve days: no test is that long
_INSTANT_MAX_S: Final = 1e10  # epoch s, in 2286
_BESIDE_MAX_S: Final = 900.0  # s before and after a burst within which an end may read counters
_ALL: Final = 1_000_000
UNKNOWN: Final = math.nan  # one object: a set of levels holds it once

# What is read of each kind of chunk; the rest stays deflated.
_TRACK: Final = frozenset(
    ("gap_us", "span_us", "bytes", "omitted", "retransmits", "rtt_us", "cwnd", "packets", "lost")
)
_HOST: Final = frozenset(
    (
        *("gap_us", "span_us", "nic_rx_bytes", "nic_tx_bytes", "nic_drops_count"),
        *("cpu_busy_ratio", "cpu_busiest_core_ratio"),
    )
)
_ALL_COLUMNS: Final = _TRACK | _HOST
# Of a tail: what the page shows of a second.
_LIVE: Final = frozenset(
    ("gap_us", "span_us", "bytes", "omitted", "retransmits", "rtt_us", "cpu_busy_ratio")
)


def try_columns(
    end: PackedEnd, readings_max_count: int, *, live: bool = False
) -> tuple[tuple[TrackColumns, ...], HostColumns] | None:
    """Both kinds of seconds of one end; None where they cannot be read, which is logged once.

    An agent may write what it likes: what it spoils is its own pair's seconds. How many readings
    such a test can have says :func:`readings_max_count`. With ``live`` only what the live page
    shows is read, and the rest is unknown.
    """
    wanted = _LIVE if live else _ALL_COLUMNS
    try:
        return end_columns(end, readings_max_count, wanted)
    except RecordUnreadable as error:
        leave_out(error)
    except Exception as error:  # whatever they are made of, it is these rows' end
        rows = [chunk.row for track in end.tracks for chunk in track.chunks]
        rows += [chunk.row for chunk in end.host]
        leave_out(RecordUnreadable(f"row {rows[0]}: {error!r}"))
    return None


def readings_max_count(burst: Burst, interval_s: float) -> int:
    """How many readings one end of a test in a burst can have; twice that, for luck."""
    longest_s = burst.duration_s + burst.omit_s + _BESIDE_MAX_S
    return round(2 * longest_s / min(interval_s, 1.0))


def end_columns(
    end: PackedEnd, readings_max_count: int = _ALL, wanted: frozenset[str] = _ALL_COLUMNS
) -> tuple[tuple[TrackColumns, ...], HostColumns]:
    """Both kinds of seconds of one end. Raises ``RecordUnreadable``, which names the row."""
    tracks = tuple(read_track(track, readings_max_count, wanted) for track in end.tracks)
    return tracks, _host(end.host, readings_max_count, wanted)


def read_track(
    track: PackedTrack, readings_max_count: int = _ALL, wanted: frozenset[str] = _ALL_COLUMNS
) -> TrackColumns:
    """One flow of one end. Raises ``RecordUnreadable``, which names the row."""
    end = _End(track.chunks, readings_max_count, _TRACK & wanted, _REACH_MAX_S)
    return disjoint_track(
        TrackColumns(
            side=track.side,
            flow=track.flow,
            first_data_at_s=track.first_data_at_s,
            start_s=end.start_s,
            end_s=end.end_s,
            transferred_bytes=end.floats("bytes"),
            omitted=end.floats("omitted") == 1,
            retransmits_count=end.singles("retransmits"),
            rtt_s=end.singles("rtt_us", MICROSECONDS),
            cwnd_bytes=end.singles("cwnd"),
            packets_count=end.singles("packets"),
            lost_count=end.singles("lost"),
        )
    )


def _host(
    packed: Sequence[PackedChunk], readings_max_count: int, wanted: frozenset[str]
) -> HostColumns:
    end = _End(packed, readings_max_count, _HOST & wanted, _INSTANT_MAX_S)
    return disjoint_host(
        HostColumns(
            start_at_s=end.start_s,
            end_at_s=end.end_s,
            nic_rx_bytes=end.floats("nic_rx_bytes"),
            nic_tx_bytes=end.floats("nic_tx_bytes"),
            drops_count=end.singles("nic_drops_count"),
            cpu_busy_ratio=end.singles("cpu_busy_ratio", CPU_RATIO_UNITS),
            cpu_busiest_core_ratio=end.singles("cpu_busiest_core_ratio", CPU_RATIO_UNITS),
        )
    )


class _End:
    """One end's chunks as columns; from a tail's first reading on, the tail's."""

    def __init__(
        self,
        packed: Sequence[PackedChunk],
        readings_max_count: int,
        wanted: frozenset[str],
        max_s: float,
    ) -> None:
        self._wanted = wanted
        self._chunks = _chunks(packed, readings_max_count, wanted)
        bounds = [chunk.bounds_us(max_s) for chunk in self._chunks]
        if len(bounds) > 1 and packed[-1].is_tail and len(bounds[-1][0]):
            begin_us = bounds[-1][0][0]
            for place, (starts, ends) in enumerate(bounds[:-1]):
                keep = starts < begin_us
                if not keep.all():
                    self._chunks[place].keep = keep
                    bounds[place] = (starts[keep], ends[keep])
        self.start_s, self.end_s = (
            _joined([pair[side] for pair in bounds]) / MICROSECONDS for side in (0, 1)
        )
        if len(self.start_s) > 1 and np.array_equal(self.start_s[1:], self.end_s[:-1]):
            edges = np.append(self.start_s[:1], self.end_s)  # half the memory: each bound once
            self.start_s, self.end_s = edges[:-1], edges[1:]

    def floats(self, name: str) -> Floats:
        if name not in self._wanted:
            return np.broadcast_to(np.float64(np.nan), len(self.start_s))
        return _joined([chunk.floats(name) for chunk in self._chunks])

    def singles(self, name: str, unit: float = 1.0) -> Singles:
        if name not in self._wanted:
            return np.broadcast_to(np.float32(np.nan), len(self.start_s))
        levels = {chunk.level(name) for chunk in self._chunks}
        level = levels.pop() if len(levels) == 1 else None
        if level is not None:  # without memory of its own
            return np.broadcast_to(np.float32(level / unit), len(self.start_s))
        return (self.floats(name) / unit).astype(np.float32)


def _chunks(
    packed: Sequence[PackedChunk], readings_max_count: int, wanted: frozenset[str]
) -> "list[_Chunk]":
    """All of an end's, unless they are more than it can have: each row is small as it lies."""
    chunks: list[_Chunk] = []
    count = 0
    for each in packed:
        chunk = _Chunk(each, wanted)
        count += chunk.rows_count
        if count > readings_max_count:
            why = f"with those before it over {readings_max_count} readings"
            raise RecordUnreadable(f"row {each.row}: {why}")
        chunks.append(chunk)
    return chunks


class _Chunk:
    """One chunk's columns as arrays; unknown values are NaN."""

    def __init__(self, chunk: PackedChunk, wanted: frozenset[str]) -> None:
        self._row = chunk.row
        self._columns = chunk.read(partial(unpack_columns, wanted=wanted))
        self.rows_count = max((each.rows_count for each in self._columns.values()), default=0)
        self.keep: NDArray[np.bool_] | None = None  # None: all rows

    def level(self, name: str) -> float | None:
        """What every row has, NaN too; None where they differ."""
        column = self._column(name)
        if column.planes is None:
            return UNKNOWN
        constant = not (column.planes or column.mask or column.order)
        return float(column.low) if constant else None

    def floats(self, name: str) -> Floats:
        column = self._column(name)
        if column.planes is None:
            values = np.full(column.rows_count, np.nan)
        else:
            values = _integers(column).astype(np.float64)
            if column.mask:
                known, values = values, np.full(column.rows_count, np.nan)
                values[np.frombuffer(column.mask, np.bool_)] = known
        return values if self.keep is None else values[self.keep]

    def bounds_us(self, max_s: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Start and end of each reading, in whole microseconds.

        Raises ``RecordUnreadable`` for one that no test reaches.
        """
        gaps, spans = self._instants("gap_us"), self._instants("span_us")
        ends = np.cumsum(gaps + spans)
        starts = ends - spans
        most = max_s * MICROSECONDS
        for instants in (starts, ends):
            if len(instants) and not -most <= instants.min() <= instants.max() <= most:
                raise RecordUnreadable(f"row {self._row}: an instant beyond {max_s:g} s")
        return starts, ends

    def _instants(self, name: str) -> NDArray[np.int64]:
        column = self._column(name)
        if column.mask or (column.planes is None and column.rows_count):
            raise RecordUnreadable(f"row {self._row}: an instant is unknown")
        return _integers(column)

    def _column(self, name: str) -> PackedColumn:
        if name not in self._columns:
            raise RecordUnreadable(f"row {self._row}: a chunk without a column {name}")
        return self._columns[name]


def _integers(column: PackedColumn) -> NDArray[np.int64]:
    """The known values. Sums run modulo 2^64: what was packed fits 64 bits, steps may not."""
    cells = np.zeros((column.words_count, 8), np.uint8)
    for place, plane in enumerate(column.planes or ()):
        cells[:, place] = np.frombuffer(plane, np.uint8)
    series = cells.view("<u8").ravel().astype(np.uint64, copy=False)
    if column.step != 1:
        series *= np.uint64(column.step % 2**64)
    if column.low:
        series += np.uint64(column.low % 2**64)
    if column.order:
        first = np.array([column.first % 2**64], np.uint64)
        series = np.cumsum(np.concatenate((first, series)))
    return series.view(np.int64)


def _joined(parts: Sequence[NDArray[Any]]) -> Floats:
    if len(parts) == 1:
        return parts[0].astype(np.float64, copy=False)
    return np.concatenate(parts).astype(np.float64, copy=False) if parts else np.zeros(0)
