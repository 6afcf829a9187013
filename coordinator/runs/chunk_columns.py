"""Packed chunks straight into columns: no row value is ever made of a fleet's seconds.

A row value costs about ten times what a column's cell does, in memory and in time (measured: 6 ms
against 0.6 ms for 480 host seconds), and a burst of a thousand pairs has seven million of them.
Chunks of many ends are decoded as one: a call of numpy's costs as much as some hundred cells.
The columns are equal, to the bit, to those made from row values.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.measure.columns import (
    OVERLAP_S,
    Floats,
    HostColumns,
    Singles,
    TrackColumns,
    disjoint_host,
    disjoint_track,
)
from broadside.coordinator.core.plan.spec import Burst
from broadside.exchange.chunks import (
    CPU_RATIO_UNITS,
    MICROSECONDS,
    PackedColumn,
    count_rows,
    unpack_columns,
)
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.rows import leave_out
from broadside.exchange.second_rows import PackedChunk, PackedEnd, PackedTrack

_REACH_MAX_S: Final = 1e6  # s of engine time, twelve days: no test is that long
_INSTANT_MAX_S: Final = 1e10  # epoch s, in 2286
_BESIDE_MAX_S: Final = 900.0  # s before and after a burst within which an end may read counters
_ALL: Final = 1_000_000
ENDS_COUNT: Final = 32  # that are decoded at once: 60,000 cells a column
_READING_MAX_BYTES: Final = 128  # packed; of ours it has some 20
_ROW_MAX_BYTES: Final = 65_536  # beside: a header, of rows with few readings
UNKNOWN: Final = math.nan  # one object: a set of levels holds it once

# What is read of each kind of chunk; the rest stays deflated.
_INSTANTS: Final = ("gap_us", "span_us")
_TRACK: Final[tuple[str, ...]] = (
    *_INSTANTS,
    *("bytes", "omitted", "retransmits", "rtt_us", "cwnd", "packets", "lost"),
)
_HOST: Final[tuple[str, ...]] = (
    *_INSTANTS,
    *("nic_rx_bytes", "nic_tx_bytes", "nic_drops_count"),
    *("cpu_busy_ratio", "cpu_busiest_core_ratio"),
)
ALL_COLUMNS: Final = frozenset((*_TRACK, *_HOST))
REACH_COLUMNS: Final = frozenset((*_INSTANTS, "bytes", "omitted"))  # from when to when a track is
# Of a tail: what the page shows of a second.
LIVE_COLUMNS: Final = frozenset(
    (*_INSTANTS, "bytes", "omitted", "retransmits", "rtt_us", "cpu_busy_ratio")
)

EndColumns = tuple[tuple[TrackColumns, ...], HostColumns]
_Key = TypeVar("_Key")


async def stream_columns(
    ends: AsyncIterator[tuple[_Key, PackedEnd]], readings_max_count: int
) -> AsyncIterator[tuple[_Key, EndColumns | None]]:
    """The columns of each end with what it came with, read off the loop; None as below."""
    keys: list[_Key] = []
    waiting: list[PackedEnd] = []

    async def read() -> list[tuple[_Key, EndColumns | None]]:
        found = await asyncio.to_thread(try_all_columns, tuple(waiting), readings_max_count)
        done = list(zip(keys, found, strict=True))
        keys.clear()
        waiting.clear()
        return done

    async for key, end in ends:
        keys.append(key)
        waiting.append(end)
        if len(waiting) == ENDS_COUNT:
            for each in await read():
                yield each
    for each in await read():
        yield each


def try_all_columns(
    ends: Sequence[PackedEnd], readings_max_count: int, wanted: frozenset[str] = ALL_COLUMNS
) -> list[EndColumns | None]:
    """Both kinds of seconds of each end; None where they cannot be read, which is logged once.

    An agent may write what it likes: what it spoils is its own pair's seconds. How many readings
    such a test can have says :func:`readings_max_count`. Columns that are not ``wanted`` are
    unknown.
    """
    try:
        found = _read_ends(ends, readings_max_count, wanted)
    except Exception as error:  # whatever they are made of, it is one end's rows
        if len(ends) > 1:
            return [try_columns(end, readings_max_count, wanted) for end in ends]
        rows = [chunk.row for track in ends[0].tracks for chunk in track.chunks]
        rows += [chunk.row for chunk in ends[0].host]
        found = [RecordUnreadable(f"row {rows[0]}: {error!r}")]
    for each in found:
        if isinstance(each, RecordUnreadable):
            leave_out(each)
    return [None if isinstance(each, RecordUnreadable) else each for each in found]


def try_columns(
    end: PackedEnd, readings_max_count: int, wanted: frozenset[str] = ALL_COLUMNS
) -> EndColumns | None:
    """The same of one end."""
    return try_all_columns([end], readings_max_count, wanted)[0]


def unless_long(end: PackedEnd, readings_max_count: int) -> PackedEnd | None:
    """An end that may wait packed; None, which is logged once, for one of more bytes than all of
    its readings can have."""
    for chunks in (*(track.chunks for track in end.tracks), end.host):
        packed_bytes = sum(len(chunk.data) for chunk in chunks)
        if packed_bytes > readings_max_count * _READING_MAX_BYTES + len(chunks) * _ROW_MAX_BYTES:
            why = f"{packed_bytes} bytes of at most {readings_max_count} readings"
            leave_out(RecordUnreadable(f"row {chunks[0].row}: {why}"))
            return None
    return end


def readings_max_count(burst: Burst, interval_s: float) -> int:
    """How many readings one end of a test in a burst can have; twice that, for luck."""
    longest_s = burst.duration_s + burst.omit_s + _BESIDE_MAX_S
    return round(2 * longest_s / min(interval_s, 1.0))


def end_columns(end: PackedEnd) -> EndColumns:
    """Both kinds of seconds of one end. Raises ``RecordUnreadable``, which names the row."""
    [found] = _read_ends([end], _ALL, ALL_COLUMNS)
    if isinstance(found, RecordUnreadable):
        raise found
    return found


def read_track(track: PackedTrack) -> TrackColumns:
    """One flow of one end. Raises ``RecordUnreadable``, which names the row."""
    [found], _ = end_columns(PackedEnd(tracks=(track,), host=()))
    return found


def _read_ends(
    ends: Sequence[PackedEnd], readings_max_count: int, wanted: frozenset[str]
) -> list[EndColumns | RecordUnreadable]:
    names = tuple(name for name in _TRACK if name in wanted)
    tracks = [track.chunks for end in ends for track in end.tracks]
    read = iter(_read_parts(tracks, names, readings_max_count, _REACH_MAX_S))
    names = tuple(name for name in _HOST if name in wanted)
    hosts = _read_parts([end.host for end in ends], names, readings_max_count, _INSTANT_MAX_S)
    found: list[EndColumns | RecordUnreadable] = []
    for end, host in zip(ends, hosts, strict=True):
        parts = [next(read) for _ in end.tracks]
        spoilt = [each for each in (*parts, host) if isinstance(each, RecordUnreadable)]
        if spoilt or isinstance(host, RecordUnreadable):
            found.append(spoilt[0])
            continue
        columns = tuple(
            _track(track, part)
            for track, part in zip(end.tracks, parts, strict=True)
            if isinstance(part, _Part)
        )
        found.append((columns, _host(host)))
    return found


def _track(track: PackedTrack, part: "_Part") -> TrackColumns:
    start_s, end_s = part.bounds_s()
    omitted = part.level("omitted")
    columns = TrackColumns(
        side=track.side,
        flow=track.flow,
        first_data_at_s=track.first_data_at_s,
        start_s=start_s,
        end_s=end_s,
        transferred_bytes=part.floats("bytes"),
        omitted=_constant(np.bool_, False, len(start_s))
        if omitted == 0
        else part.floats("omitted") == 1,
        retransmits_count=part.singles("retransmits"),
        rtt_s=part.singles("rtt_us", MICROSECONDS),
        cwnd_bytes=part.singles("cwnd"),
        packets_count=part.singles("packets"),
        lost_count=part.singles("lost"),
    )
    return columns if part.is_tidy and omitted == 0 else disjoint_track(columns)


def _host(part: "_Part") -> HostColumns:
    start_s, end_s = part.bounds_s()
    columns = HostColumns(
        start_at_s=start_s,
        end_at_s=end_s,
        nic_rx_bytes=part.floats("nic_rx_bytes"),
        nic_tx_bytes=part.floats("nic_tx_bytes"),
        drops_count=part.singles("nic_drops_count"),
        cpu_busy_ratio=part.singles("cpu_busy_ratio", CPU_RATIO_UNITS),
        cpu_busiest_core_ratio=part.singles("cpu_busiest_core_ratio", CPU_RATIO_UNITS),
    )
    return columns if part.is_tidy else disjoint_host(columns)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One chunk, inflated."""

    row: str
    is_tail: bool
    rows_count: int
    columns: dict[str, PackedColumn]


@dataclass(frozen=True, slots=True)
class _Part:
    """One end's chunks among many; from a tail's first reading on, the tail's."""

    flat: "_Flat"
    chunks: range  # their numbers there
    cells: slice
    keep: NDArray[np.bool_] | None  # of the cells; None: all

    @property
    def is_tidy(self) -> bool:
        """Its readings are in order, none lies over another, and none is of bytes below 0."""
        return len(self.chunks) == 1 and self.flat.is_tidy[self.chunks[0]]

    def bounds_s(self) -> tuple[Floats, Floats]:
        if len(self.chunks) == 1 and (edges := self.flat.bounds_s(self.chunks[0])) is not None:
            return edges[:-1], edges[1:]
        start_s, end_s = self._kept(self.flat.start_s), self._kept(self.flat.end_s)
        if len(start_s) > 1 and np.array_equal(start_s[1:], end_s[:-1]):
            edges = np.append(start_s[:1], end_s)  # half the memory: each bound once
            return edges[:-1], edges[1:]
        return start_s, end_s

    def level(self, name: str) -> float | None:
        """What every reading has, NaN too; None where they differ."""
        if len(self.chunks) == 1:
            return self.flat.level(self.chunks[0], name)
        levels = {self.flat.level(number, name) for number in self.chunks}
        return levels.pop() if len(levels) == 1 else None

    def floats(self, name: str) -> Floats:
        if name not in self.flat.names:
            return _constant(np.float64, UNKNOWN, self._count)
        return self._kept(self.flat.floats(name))

    def singles(self, name: str, unit: float = 1.0) -> Singles:
        if name not in self.flat.names:
            return _constant(np.float32, UNKNOWN, self._count)
        level = self.level(name)
        if level is not None:
            level = level if level is UNKNOWN else level / unit
            return _constant(np.float32, level, self._count)
        return self._kept(self.flat.singles(name, unit))

    @property
    def _count(self) -> int:
        return self.cells.stop - self.cells.start if self.keep is None else int(self.keep.sum())

    def _kept(self, values: NDArray[Any]) -> NDArray[Any]:
        return values[self.cells] if self.keep is None else values[self.cells][self.keep]


@lru_cache(maxsize=64)
def _constant(kind: type[Any], value: float, count: int) -> NDArray[Any]:
    """One value for many readings, without memory of its own."""
    return np.broadcast_to(kind(value), count)


def _read_parts(
    parts: Sequence[Sequence[PackedChunk]],
    names: tuple[str, ...],
    readings_max_count: int,
    max_s: float,
) -> list[_Part | RecordUnreadable]:
    """Each end's chunks of one kind, or why they cannot be read."""
    chunks: list[_Chunk] = []
    ranges: list[range | RecordUnreadable] = []
    for packed in parts:
        try:
            new = _inflated(packed, names, readings_max_count)
        except RecordUnreadable as error:
            ranges.append(error)
            continue
        ranges.append(range(len(chunks), len(chunks) + len(new)))
        chunks += new
    flat = _Flat(chunks, names)
    beyond = flat.find_beyond(max_s)
    return [
        each if isinstance(each, RecordUnreadable) else _part(flat, each, beyond, max_s)
        for each in ranges
    ]


def _inflated(
    packed: Sequence[PackedChunk], names: tuple[str, ...], readings_max_count: int
) -> list[_Chunk]:
    """All of an end's, unless they are more than it can have: each row is small as it lies."""
    chunks: list[_Chunk] = []
    count = 0
    for each in packed:
        rows_count = each.read(count_rows)  # before any is built
        count += rows_count
        if count > readings_max_count:
            why = f"with those before it over {readings_max_count} readings"
            raise RecordUnreadable(f"row {each.row}: {why}")
        columns = each.read(partial(unpack_columns, wanted=names))
        for name in names:
            column = columns.get(name)
            if column is None:
                raise RecordUnreadable(f"row {each.row}: a chunk without a column {name}")
            unknown = column.mask or (column.planes is None and rows_count)
            if unknown and name in _INSTANTS:
                raise RecordUnreadable(f"row {each.row}: an instant is unknown")
        chunks.append(_Chunk(each.row, each.is_tail, rows_count, columns))
    return chunks


def _part(
    flat: "_Flat", chunks: range, beyond: frozenset[int], max_s: float
) -> _Part | RecordUnreadable:
    for number in chunks:
        if number in beyond:
            row = flat.chunks[number].row
            return RecordUnreadable(f"row {row}: an instant beyond {max_s:g} s")
    cells = slice(int(flat.edges[chunks.start]), int(flat.edges[chunks.stop]))
    keep = None
    if len(chunks) > 1 and flat.chunks[chunks[-1]].is_tail and flat.chunks[chunks[-1]].rows_count:
        tail = int(flat.edges[chunks[-1]])
        keep = flat.start_us[cells] < flat.start_us[tail]
        keep[tail - cells.start :] = True
    return _Part(flat, chunks, cells, keep)


class _Flat:
    """Chunks one behind the other as columns; unknown values are NaN.

    ``edges`` has where each chunk begins, and the end.
    """

    def __init__(self, chunks: Sequence[_Chunk], names: tuple[str, ...]) -> None:
        self.chunks = chunks
        self.names = names
        self._counts = np.array([chunk.rows_count for chunk in chunks], np.intp)
        self.edges = np.append(0, np.cumsum(self._counts))
        self._floats: dict[str, Floats] = {}
        self._singles: dict[str, Singles] = {}
        spans_us = _integers(self._columns("span_us"))
        self.end_us = _sums(_integers(self._columns("gap_us")) + spans_us, self._counts)
        self.start_us = self.end_us - spans_us
        self.start_s, self.end_s = self.start_us / MICROSECONDS, self.end_us / MICROSECONDS
        self.is_tidy, self._is_joined = self._find_order()
        places = self.edges[:-1][self._counts > 0]
        self._bounds_s = np.insert(self.end_s, places, self.start_s[places])
        self._bounds_at = np.cumsum(self._counts + (self._counts > 0)).tolist()

    def find_beyond(self, max_s: float) -> frozenset[int]:
        """Chunks with an instant that no test reaches."""
        most_us = max_s * MICROSECONDS
        wrong = (self.start_us < -most_us) | (self.end_us > most_us)
        wrong |= (self.end_us < -most_us) | (self.start_us > most_us)
        places = np.flatnonzero(wrong)
        return frozenset((np.searchsorted(self.edges, places, side="right") - 1).tolist())

    def bounds_s(self, number: int) -> Floats | None:
        """One chunk's bounds, half the memory: each once; None where its readings do not meet."""
        count = self.chunks[number].rows_count
        at = self._bounds_at[number] - count - 1
        return self._bounds_s[at : at + count + 1] if count and self._is_joined[number] else None

    def level(self, number: int, name: str) -> float | None:
        """What every row of a chunk has, NaN too; None where they differ."""
        column = self.chunks[number].columns[name]
        if column.planes is None:
            return UNKNOWN
        constant = not (column.planes or column.mask or column.order)
        return float(column.low) if constant else None

    def floats(self, name: str) -> Floats:
        if name not in self._floats:
            self._floats[name] = self._decoded(self._columns(name))
        return self._floats[name]

    def singles(self, name: str, unit: float) -> Singles:
        if name not in self._singles:
            self._singles[name] = (self._decoded(self._columns(name)) / unit).astype(np.float32)
        return self._singles[name]

    def _columns(self, name: str) -> list[PackedColumn]:
        return [chunk.columns[name] for chunk in self.chunks]

    def _decoded(self, columns: Sequence[PackedColumn]) -> Floats:
        known = _integers(columns).astype(np.float64)
        if len(known) == self.edges[-1]:
            return known
        masks = [
            column.mask or bytes([column.planes is not None]) * column.rows_count
            for column in columns
        ]
        values = np.full(int(self.edges[-1]), np.nan)
        values[np.frombuffer(b"".join(masks), np.uint8) != 0] = known
        return values

    def _find_order(self) -> tuple[list[bool], list[bool]]:
        """Of each chunk whether :func:`disjoint_track` would leave its readings as they are, and
        whether each begins where the one before it ends."""
        start_s, end_s = self.start_s, self.end_s
        follows, meets = np.ones(len(start_s), np.bool_), np.ones(len(start_s), np.bool_)
        follows[1:] = (start_s[1:] > start_s[:-1]) & (end_s[1:] >= end_s[:-1])
        follows[1:] &= start_s[1:] >= end_s[:-1] - OVERLAP_S
        meets[1:] = start_s[1:] == end_s[:-1]
        full = self._counts > 0
        first = self.edges[:-1][full]
        follows[first] = meets[first] = True
        follows &= end_s > start_s
        if "bytes" in self.names:
            follows &= self.floats("bytes") >= 0
        of_chunks = np.ones((2, len(self._counts)), np.bool_)
        if len(first):
            of_chunks[:, full] = np.logical_and.reduceat([follows, meets], first, axis=1)
        tidy, joined = of_chunks.tolist()
        return tidy, joined


def _integers(columns: Sequence[PackedColumn]) -> NDArray[np.int64]:
    """The known values. Sums run modulo 2^64: what was packed fits 64 bits, steps may not."""
    counts = np.array([column.words_count + column.order for column in columns], np.intp)
    cells = np.zeros((int(counts.sum()), 8), np.uint8)
    for place in range(max((len(column.planes or ()) for column in columns), default=0)):
        planes = b"".join([_plane(column, place) for column in columns])
        cells[:, place] = np.frombuffer(planes, np.uint8)
    series = cells.view("<u8").ravel().astype(np.uint64, copy=False)
    if any(column.step != 1 for column in columns):
        series *= np.repeat(_words(column.step for column in columns), counts)
    if any(column.low for column in columns):
        series += np.repeat(_words(column.low for column in columns), counts)
    if any(column.order for column in columns):
        is_summed = np.array([column.order == 1 for column in columns])
        first = (np.cumsum(counts) - counts)[is_summed]
        series[first] = _words(column.first for column in columns if column.order)
        series = np.where(np.repeat(is_summed, counts), _sums(series, counts), series)
    return series.view(np.int64)


def _plane(column: PackedColumn, place: int) -> bytes:
    """One byte of each word; of a column of differences the first value has none."""
    planes = column.planes or ()
    plane = planes[place] if place < len(planes) else bytes(column.words_count)
    return b"\0" * column.order + plane if column.order else plane


def _words(values: Iterable[int]) -> NDArray[np.uint64]:
    return np.array([value % 2**64 for value in values], np.uint64)


def _sums(values: NDArray[Any], counts: NDArray[np.intp]) -> NDArray[Any]:
    """Running sums, each chunk's by itself; modulo 2^64."""
    total = np.cumsum(values)
    full = counts[counts > 0]
    first = np.cumsum(full) - full
    return np.asarray(total - np.repeat(total[first] - values[first], full))
