"""Decoder to turn packed chunks into NumPy columns with no Python object for each row.

A row object costs about ten times the memory and time of a column cell. Measured: 6 ms against 0.6
ms for 480 host seconds. A burst of a thousand pairs has seven million rows. The chunks of many ends
are decoded together, because one NumPy call costs as much as some hundred cells. The columns equal,
to the bit, those that would be made from row objects.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats, Singles
from broadside.coordinator.core.measure.records.columns import (
    OVERLAP_S,
    HostColumns,
    IntervalColumns,
    disjoint_host,
    disjoint_track,
)
from broadside.exchange.chunks import (
    COUNT_PREFIX,
    CPU_RATIO_UNITS,
    MICROSECONDS,
    PackedColumn,
    count_rows,
    is_count,
    unpack_columns,
)
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.rows import leave_out
from broadside.exchange.second_rows import PackedChunk, PackedEnd, PackedTrack

# Longest engine time of a track, twelve days. No test is longer.
_REACH_MAX_S: Final = 1e6
# Latest epoch time, in the year 2286.
_INSTANT_MAX_S: Final = 1e10
_ALL: Final = 1_000_000
# Number of ends that are decoded together, about 60,000 cells per column.
ENDS_COUNT: Final = 32
# You should use this object for every NaN, so that a set of levels will only contain it once.
UNKNOWN: Final = math.nan

# Columns that are read from each kind of chunk. All other columns stay compressed.
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
# Columns that show the time span of a track.
REACH_COLUMNS: Final = frozenset((*_INSTANTS, "bytes", "omitted"))
# Columns of a tail that the web page shows for each second.
LIVE_COLUMNS: Final = frozenset(
    (*_INSTANTS, "bytes", "omitted", "retransmits", "rtt_us", "cpu_busy_ratio")
)

EndColumns = tuple[tuple[IntervalColumns, ...], HostColumns]
_Key = TypeVar("_Key")


async def stream_columns(
    ends: AsyncIterator[tuple[_Key, PackedEnd]], readings_max_count: int
) -> AsyncIterator[tuple[_Key, EndColumns | None]]:
    """Decode ends in groups, in a worker thread.

    Args:
        ends: Keys and packed ends.
        readings_max_count: Maximum number of readings of one end.

    Yields:
        Each key with its columns, or None if the end cannot be read.
    """
    keys: list[_Key] = []
    waiting: list[PackedEnd] = []

    async def read() -> list[tuple[_Key, EndColumns | None]]:
        decoded = await asyncio.to_thread(decode_ends, tuple(waiting), readings_max_count)
        done = list(zip(keys, decoded, strict=True))
        keys.clear()
        waiting.clear()
        return done

    async for key, end in ends:
        keys.append(key)
        waiting.append(end)
        if len(waiting) == ENDS_COUNT:
            for item in await read():
                yield item
    for item in await read():
        yield item


def decode_ends(
    ends: Sequence[PackedEnd], readings_max_count: int, wanted: frozenset[str] = ALL_COLUMNS
) -> list[EndColumns | None]:
    """Decode several ends, and log those that cannot be read.

    An agent can write anything to the rows that it is allowed to write. Invalid rows affect only
    the pair of that agent.

    Args:
        ends: The packed ends.
        readings_max_count: Maximum number of readings of one end, from :func:`readings_max_count`.
        wanted: Names of the columns to decode. All other columns are filled with NaN.

    Returns:
        Tracks and host columns of each end, or None for an end that cannot be read.
    """
    try:
        decoded = _read_ends(ends, readings_max_count, wanted)
    # Any error here comes from the rows of one end.
    except Exception as error:
        if len(ends) > 1:
            return [decode_end(end, readings_max_count, wanted) for end in ends]
        rows = [chunk.row for track in ends[0].tracks for chunk in track.chunks]
        rows += [chunk.row for chunk in ends[0].host]
        decoded = [RecordUnreadable(f"row {rows[0]}: {error!r}")]
    for item in decoded:
        if isinstance(item, RecordUnreadable):
            leave_out(item)
    return [None if isinstance(item, RecordUnreadable) else item for item in decoded]


def decode_end(
    end: PackedEnd, readings_max_count: int, wanted: frozenset[str] = ALL_COLUMNS
) -> EndColumns | None:
    """Decode one end as :func:`decode_ends` does.

    Args:
        end: The packed end.
        readings_max_count: Maximum number of readings, from :func:`readings_max_count`.
        wanted: Names of the columns to decode. All other columns are filled with NaN.

    Returns:
        Tracks and host columns, or None if the end cannot be read.
    """
    return decode_ends([end], readings_max_count, wanted)[0]


def end_columns(end: PackedEnd) -> EndColumns:
    """Decode one end.

    Raises:
        RecordUnreadable: A row is invalid. The message contains its key.
    """
    [decoded] = _read_ends([end], _ALL, ALL_COLUMNS)
    if isinstance(decoded, RecordUnreadable):
        raise decoded
    return decoded


def read_track(track: PackedTrack) -> IntervalColumns:
    """Decode one flow of one end.

    Raises:
        RecordUnreadable: A row is invalid. The message contains its key.
    """
    [decoded], _ = end_columns(PackedEnd(tracks=(track,), host=()))
    return decoded


def _read_ends(
    ends: Sequence[PackedEnd], readings_max_count: int, wanted: frozenset[str]
) -> list[EndColumns | RecordUnreadable]:
    names = tuple(name for name in _TRACK if name in wanted)
    tracks = [track.chunks for end in ends for track in end.tracks]
    read = iter(_read_parts(tracks, names, readings_max_count, _REACH_MAX_S))
    names = tuple(name for name in _HOST if name in wanted)
    hosts = _read_parts([end.host for end in ends], names, readings_max_count, _INSTANT_MAX_S)
    decoded: list[EndColumns | RecordUnreadable] = []
    for end, host in zip(ends, hosts, strict=True):
        parts = [next(read) for _ in end.tracks]
        spoilt = [item for item in (*parts, host) if isinstance(item, RecordUnreadable)]
        if spoilt or isinstance(host, RecordUnreadable):
            decoded.append(spoilt[0])
            continue
        columns = tuple(
            _track(track, part)
            for track, part in zip(end.tracks, parts, strict=True)
            if isinstance(part, _Part)
        )
        decoded.append((columns, _host(host)))
    return decoded


def _track(track: PackedTrack, part: "_Part") -> IntervalColumns:
    start_s, end_s = part.bounds_s()
    omitted = part.level("omitted")
    columns = IntervalColumns(
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
        events=part.events(),
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
    """One decompressed chunk."""

    row: str
    is_tail: bool
    rows_count: int
    columns: dict[str, PackedColumn]


@dataclass(frozen=True, slots=True)
class _Part:
    """Chunks from one end, inside a larger decoded group.

    Rows of the tail replace other rows from the first reading of the tail on.

    Attributes:
        flat: The decoded group.
        chunks: Numbers of the end's chunks in the group.
        cells: Cells of these chunks.
        mask: Mask of the cells to use, or None for all.
    """

    flat: "_Flat"
    chunks: range
    cells: slice
    mask: NDArray[np.bool_] | None

    @property
    def is_tidy(self) -> bool:
        """True if the readings are in order, do not overlap and have no negative bytes."""
        return len(self.chunks) == 1 and self.flat.is_tidy[self.chunks[0]]

    def bounds_s(self) -> tuple[Floats, Floats]:
        if len(self.chunks) == 1 and (edges := self.flat.bounds_s(self.chunks[0])) is not None:
            return edges[:-1], edges[1:]
        start_s, end_s = self._selected(self.flat.start_s), self._selected(self.flat.end_s)
        if len(start_s) > 1 and np.array_equal(start_s[1:], end_s[:-1]):
            # Storing each bound once halves the memory.
            edges = np.append(start_s[:1], end_s)
            return edges[:-1], edges[1:]
        return start_s, end_s

    def level(self, name: str) -> float | None:
        """Return the value that all readings share, also NaN, or None if they differ."""
        if len(self.chunks) == 1:
            return self.flat.level(self.chunks[0], name)
        levels = {self.flat.level(number, name) for number in self.chunks}
        return levels.pop() if len(levels) == 1 else None

    def floats(self, name: str) -> Floats:
        if name not in self.flat.names:
            return _constant(np.float64, UNKNOWN, self._count)
        return self._selected(self.flat.floats(name))

    def singles(self, name: str, unit: float = 1.0) -> Singles:
        if name not in self.flat.names:
            return _constant(np.float32, UNKNOWN, self._count)
        level = self.level(name)
        if level is not None:
            level = level if level is UNKNOWN else level / unit
            return _constant(np.float32, level, self._count)
        return self._selected(self.flat.singles(name, unit))

    def events(self) -> dict[str, Floats]:
        """Return the columns of events, which only some engines report."""
        chunks = [self.flat.chunks[number] for number in self.chunks]
        names = sorted({name for chunk in chunks for name in chunk.columns if is_count(name)})
        events = {}
        for name in names:
            values = np.concatenate([_cells(chunk, name) for chunk in chunks])
            events[name.removeprefix(COUNT_PREFIX)] = (
                values if self.mask is None else values[self.mask]
            )
        return events

    @property
    def _count(self) -> int:
        return self.cells.stop - self.cells.start if self.mask is None else int(self.mask.sum())

    def _selected(self, values: NDArray[Any]) -> NDArray[Any]:
        return values[self.cells] if self.mask is None else values[self.cells][self.mask]


class _Wanted:
    """Names of the required columns and of all events, if all columns are required."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._with_events = self._names.issuperset(_TRACK)

    def __contains__(self, name: object) -> bool:
        is_event = self._with_events and isinstance(name, str) and is_count(name)
        return name in self._names or is_event


def _cells(chunk: _Chunk, name: str) -> Floats:
    """Return the values of a column, with NaN for unknown values or if there is no such column."""
    values = np.full(chunk.rows_count, np.nan)
    column = chunk.columns.get(name)
    if column is None or column.planes is None:
        return values
    known = _integers([column]).astype(np.float64)
    values[np.frombuffer(column.mask, np.uint8) != 0 if column.mask else slice(None)] = known
    return values


@lru_cache(maxsize=64)
def _constant(kind: type[Any], value: float, count: int) -> NDArray[Any]:
    """Return an array to repeat one value, using no memory for each element."""
    return np.broadcast_to(kind(value), count)


def _read_parts(
    parts: Sequence[Sequence[PackedChunk]],
    names: tuple[str, ...],
    readings_max_count: int,
    max_s: float,
) -> list[_Part | RecordUnreadable]:
    """Decode the chunks of one kind for each end, or return the error of the end."""
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
        item if isinstance(item, RecordUnreadable) else _part(flat, item, beyond, max_s)
        for item in ranges
    ]


def _inflated(
    packed: Sequence[PackedChunk], names: tuple[str, ...], readings_max_count: int
) -> list[_Chunk]:
    """Decompress the chunks of one end, and reject more readings than it can have.

    Small compressed rows may expand to very many readings.
    """
    chunks: list[_Chunk] = []
    count = 0
    for item in packed:
        # Check the size before any column is built.
        rows_count = item.read(count_rows)
        count += rows_count
        if count > readings_max_count:
            why = f"{count} readings up to here; the limit is {readings_max_count}"
            raise RecordUnreadable(f"row {item.row}: {why}")
        columns = item.read(partial(unpack_columns, wanted=_Wanted(names)))
        for name in names:
            column = columns.get(name)
            if column is None:
                raise RecordUnreadable(f"row {item.row}: the chunk has no column {name}")
            unknown = column.mask or (column.planes is None and rows_count)
            if unknown and name in _INSTANTS:
                raise RecordUnreadable(f"row {item.row}: a time is unknown")
        chunks.append(_Chunk(item.row, item.is_tail, rows_count, columns))
    return chunks


def _part(
    flat: "_Flat", chunks: range, beyond: frozenset[int], max_s: float
) -> _Part | RecordUnreadable:
    for number in chunks:
        if number in beyond:
            row = flat.chunks[number].row
            return RecordUnreadable(f"row {row}: a time is after {max_s:g} s")
    cells = slice(int(flat.edges[chunks.start]), int(flat.edges[chunks.stop]))
    mask = None
    if len(chunks) > 1 and flat.chunks[chunks[-1]].is_tail and flat.chunks[chunks[-1]].rows_count:
        tail = int(flat.edges[chunks[-1]])
        mask = flat.start_us[cells] < flat.start_us[tail]
        mask[tail - cells.start :] = True
    return _Part(flat, chunks, cells, mask)


class _Flat:
    """Columns of concatenated chunks, with NaN for unknown values.

    Attributes:
        chunks: The chunks in order.
        names: Names of the decoded columns.
        edges: Index of the first cell of each chunk, and the total number of cells.
        start_us: Start of each reading in microseconds.
        end_us: End of each reading in microseconds.
        start_s: Start of each reading in seconds.
        end_s: End of each reading in seconds.
        is_tidy: For each chunk, True if its readings are ordered and valid.
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
        """Return the numbers of the chunks with a time that no test can reach."""
        most_us = max_s * MICROSECONDS
        wrong = (self.start_us < -most_us) | (self.end_us > most_us)
        wrong |= (self.end_us < -most_us) | (self.start_us > most_us)
        places = np.flatnonzero(wrong)
        return frozenset((np.searchsorted(self.edges, places, side="right") - 1).tolist())

    def bounds_s(self, number: int) -> Floats | None:
        """Return the bounds of a chunk's readings in seconds, each stored once.

        The result is None if the readings are not adjacent.
        """
        count = self.chunks[number].rows_count
        at = self._bounds_at[number] - count - 1
        return self._bounds_s[at : at + count + 1] if count and self._is_joined[number] else None

    def level(self, number: int, name: str) -> float | None:
        """Return the value that all rows of a chunk share, also NaN, or None if they differ."""
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
        """Check the order of the readings in each chunk.

        Returns:
            Two lists with one value per chunk. The first is True if :func:`disjoint_track` would
            not change the readings. The second is True if each reading starts at the end of the one
            before.
        """
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
    """Return the known values. Sums run modulo 2^64, because only the packed values fit 64 bits."""
    counts = np.array([column.values_count + column.order for column in columns], np.intp)
    cells = np.zeros((int(counts.sum()), 8), np.uint8)
    for place in range(max((len(column.planes or ()) for column in columns), default=0)):
        planes = b"".join([_plane(column, place) for column in columns])
        cells[:, place] = np.frombuffer(planes, np.uint8)
    series = cells.view("<u8").ravel().astype(np.uint64, copy=False)
    if any(column.step != 1 for column in columns):
        series *= np.repeat(_to_uint64(column.step for column in columns), counts)
    if any(column.low for column in columns):
        series += np.repeat(_to_uint64(column.low for column in columns), counts)
    if any(column.order for column in columns):
        is_summed = np.array([column.order == 1 for column in columns])
        first = (np.cumsum(counts) - counts)[is_summed]
        series[first] = _to_uint64(column.first for column in columns if column.order)
        series = np.where(np.repeat(is_summed, counts), _sums(series, counts), series)
    return series.view(np.int64)


def _plane(column: PackedColumn, place: int) -> bytes:
    """Return one byte of each word, with 0 for the first value of a column of differences."""
    planes = column.planes or ()
    plane = planes[place] if place < len(planes) else bytes(column.values_count)
    return b"\0" * column.order + plane if column.order else plane


def _to_uint64(values: Iterable[int]) -> NDArray[np.uint64]:
    return np.array([value % 2**64 for value in values], np.uint64)


def _sums(values: NDArray[Any], counts: NDArray[np.intp]) -> NDArray[Any]:
    """Return running sums modulo 2^64, separate for each chunk."""
    total = np.cumsum(values)
    full = counts[counts > 0]
    first = np.cumsum(full) - full
    return np.asarray(total - np.repeat(total[first] - values[first], full))
