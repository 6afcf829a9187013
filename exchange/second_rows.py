"""Store measurements per second of both ends as chunk rows.

A chunk row contains up to :data:`CHUNK_S` seconds of one end. It has the packed intervals and the
start time of each flow, and the packed host counters. During a burst, the open chunk is written
once per :data:`TAIL_S`. Between these writes the newest seconds are written to another row, the
*tail*, so that an upload contains only new data. Seconds that are in both rows count once. Rows can
be read as objects (:class:`TestSeconds`). For a thousand pairs this would be too slow, so rows can
also be read packed (:class:`PackedEnd`) and converted to columns.
"""

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, TypeVar

from broadside.exchange.chunks import (
    AS_IT_IS,
    MICROSECONDS,
    SMALLEST,
    count_rows,
    pack,
    pack_host,
    pack_intervals,
    unpack,
    unpack_intervals,
)
from broadside.exchange.messages import Flow, HostSecond, ServerTest, Side, Track
from broadside.exchange.ports import Entity, RecordUnreadable, Value
from broadside.exchange.rows import cut_properties, joined_properties, make_row, row_name

# Engine time in one chunk. It is enough for a 1740 s burst, a minute of engine warm-up, and the
# host's seconds before and after.
CHUNK_S: Final = 1920
# Limit for one flow in one row. It is five times the number of tenths of a second in a chunk.
CHUNK_ROWS_MAX_COUNT: Final = 100_000

# Engine time between two writes of an open chunk.
TAIL_S: Final = 60
# How much of the chunk before it to repeat in a tail, so that a live view will only need to read
# the tail.
TAIL_OVERLAP_S: Final = 15.0
# Replaces the chunk number in the row key.
TAIL: Final = "tail"

# Host counters can reach an agent up to this time after the engine's readings.
_LATECOMERS_S: Final = 5.0

# Epoch seconds in the year 2286. Later times are invalid.
_BEFORE_S: Final = 1e10

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSeconds:
    """One server-side test with its seconds."""

    # Not a test class for pytest.
    __test__ = False

    test: ServerTest
    tracks: tuple[Track, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedChunk:
    """Packed chunk with the row that contains it.

    Attributes:
        row: The name of the row and property, for error messages.
        data: The chunk from :mod:`broadside.exchange.chunks`.
        is_tail: True if the chunk can overlap the chunk before it.
    """

    row: str
    data: bytes
    is_tail: bool = False

    def read(self, reader: Callable[[bytes], _T]) -> _T:
        """Decode the content of the row.

        Returns:
            The result of ``reader``.

        Raises:
            RecordUnreadable: ``reader`` failed. The message names the row.
        """
        try:
            return reader(self.data)
        # An error should only affect this row.
        except Exception as error:
            raise RecordUnreadable(f"row {self.row}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTrack:
    """Chunks of one flow, as stored by one end.

    Attributes:
        side: The end of the pair.
        flow: The direction of the payload.
        first_data_at_s: Latest estimate of the start of engine time, in epoch seconds.
        chunks: The packed chunks in order.
    """

    side: Side
    flow: Flow
    first_data_at_s: float
    chunks: tuple[PackedChunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedEnd:
    """Packed data of one test from one end."""

    tracks: tuple[PackedTrack, ...]
    host: tuple[PackedChunk, ...]


_TRACKS: Final = tuple(
    (side, flow, f"{side}_{flow}", f"{side}_{flow}_0") for side, flow in product(Side, Flow)
)


def packed_end(rows: Sequence[Entity]) -> PackedEnd:
    """Return the packed tracks and host counters in one end's chunk rows.

    Args:
        rows: Chunk rows in key order.

    Raises:
        RecordUnreadable: A flow has no valid start time.
    """
    tracks: list[PackedTrack] = []
    for side, flow, name, first in _TRACKS:
        having = [row for row in rows if first in row.properties]
        if having:
            zero_s = having[-1].properties.get(f"{name}_first_data_at_s")
            if not isinstance(zero_s, float | int) or not 0 <= zero_s < _BEFORE_S:
                raise RecordUnreadable(
                    f"row {row_name(having[-1])}: {name} without its first_data_at"
                )
            tracks.append(
                PackedTrack(
                    side=side,
                    flow=flow,
                    first_data_at_s=zero_s,
                    chunks=tuple(_chunk(row, name) for row in having),
                )
            )
    host = tuple(_chunk(row, "host") for row in rows if "host_0" in row.properties)
    return PackedEnd(tracks=tuple(tracks), host=host)


def unpacked_tracks(end: PackedEnd) -> tuple[Track, ...]:
    """Unpack all tracks of one end."""
    return tuple(
        Track(
            side=track.side,
            flow=track.flow,
            first_data_at_s=track.first_data_at_s,
            intervals=joined(track.chunks, unpack_intervals, lambda interval: interval.start_s),
        )
        for track in end.tracks
    )


def joined(
    chunks: Sequence[PackedChunk],
    unpack_readings: Callable[[bytes], Sequence[_T]],
    start_s: Callable[[_T], float],
) -> tuple[_T, ...]:
    """Return the readings of all chunks. A tail replaces the readings that it overlaps.

    Args:
        chunks: The packed chunks in order.
        unpack_readings: A function that unpacks one chunk.
        start_s: A function that returns the start of a reading, in seconds.

    Returns:
        Readings in ascending order of their start.
    """
    readings: list[_T] = []
    for chunk in chunks:
        new = chunk.read(unpack_readings)
        if chunk.is_tail and new:
            begin_s = start_s(new[0])
            readings = [reading for reading in readings if start_s(reading) < begin_s]
        readings += new
    return tuple(readings)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCounters:
    """Counters of a host. The first chunk starts at ``zero_s`` (epoch seconds)."""

    seconds: Sequence[HostSecond]
    zero_s: float


def chunk_rows(
    partition: str,
    prefix: str,
    tracks: Sequence[Track],
    host: HostCounters,
    *,
    from_s: float,
) -> list[Entity]:
    """Return the rows that must be written, given that ``from_s`` seconds were written before.

    These are the tail and, once per :data:`TAIL_S`, the changed chunks. A reading belongs to the
    chunk that contains its middle, so small jitter at a boundary has no effect. Host seconds count
    from a fixed time, because the estimate of the first data can change during the test.

    Args:
        partition: The partition key for all rows.
        prefix: The text that each row key starts with.
        tracks: Flows of the end.
        host: Counters of the host.
        from_s: Engine time that was already written, in seconds. A value up to 0 writes all chunks
            and an empty tail.
    """
    known_s = min((t.intervals[-1].end_s for t in tracks if t.intervals), default=0.0)
    is_complete = from_s <= 0
    has_chunks = is_complete or known_s // TAIL_S > from_s // TAIL_S
    tail_from_s = from_s // TAIL_S * TAIL_S - TAIL_OVERLAP_S
    first_n = max(0, math.floor((from_s - _LATECOMERS_S) / CHUNK_S))
    chunks: defaultdict[str, dict[str, Value]] = defaultdict(dict)
    # An empty tail replaces an earlier one when all chunks are written.
    chunks[TAIL] = {}

    def by_chunk(
        readings: Sequence[_T], middles_s: Sequence[float]
    ) -> Iterator[tuple[str, list[_T]]]:
        parts: defaultdict[str, list[_T]] = defaultdict(list)
        for reading, middle_s in zip(readings, middles_s, strict=True):
            n = max(0, math.floor(middle_s / CHUNK_S))
            if has_chunks and n >= first_n:
                parts[f"{n:03d}"].append(reading)
            if not is_complete and middle_s >= tail_from_s:
                parts[TAIL].append(reading)
        yield from parts.items()

    for track in tracks:
        name = f"{track.side}_{track.flow}"
        middles_s = [(interval.start_s + interval.end_s) / 2 for interval in track.intervals]
        for n, intervals in by_chunk(track.intervals, middles_s):
            chunks[n] |= cut_properties(name, pack_intervals(intervals, _level(n)))
            chunks[n][f"{name}_first_data_at_s"] = float(track.first_data_at_s)
    middles_s = [(second.start_at_s + second.end_at_s) / 2 - host.zero_s for second in host.seconds]
    for n, seconds in by_chunk(host.seconds, middles_s):
        chunks[n] |= cut_properties("host", pack_host(seconds, _level(n)))
    return [make_row(partition, f"{prefix}.{n}", chunks[n]) for n in sorted(chunks)]


def _level(n: str) -> int:
    """Return the deflate level. A tail is not deflated, because it is soon replaced."""
    return AS_IT_IS if n == TAIL else SMALLEST


def _chunk(row: Entity, name: str) -> PackedChunk:
    return PackedChunk(
        row=f"{row_name(row)}: {name}",
        data=joined_properties(row, name),
        is_tail=row.row_key.endswith(TAIL),
    )


UNSENT: Final = -1.0
# Ten minutes at ten probes per second, about 15 kB per row.
ROW_COUNT: Final = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """Probes of one pair. Probe number i was due at ``first_at_s + i * every_s``.

    Attributes:
        first_at_s: Due time of the first probe by the client's clock, in epoch seconds.
        every_s: Time between probes, in seconds.
        rtt_s: Round-trip times in seconds, as float32. NaN means that the probe was lost, a
            negative value that it was not sent.
    """

    first_at_s: float
    every_s: float
    rtt_s: "array[float]"


def probe_rows(partition: str, prefix: str, probes: Probes) -> list[Entity]:
    """Return the rows with all probes of one pair.

    Args:
        partition: The partition key for all rows.
        prefix: The text that each row key starts with.
        probes: Probes of the pair.
    """
    rows = []
    for number, at in enumerate(range(0, len(probes.rtt_s), ROW_COUNT)):
        part = probes.rtt_s[at : at + ROW_COUNT]
        column = [None if math.isnan(rtt_s) else _microseconds(rtt_s) for rtt_s in part]
        rows.append(
            make_row(
                partition,
                f"{prefix}.{number:03d}",
                {
                    "first_at_s": float(probes.first_at_s),
                    "every_s": float(probes.every_s),
                    **cut_properties("probes", pack({"rtt_us": column})),
                },
            )
        )
    return rows


def parse_probes(rows: Sequence[Entity]) -> Probes:
    """Read probes from the rows of :func:`probe_rows`, in key order.

    Raises:
        RecordUnreadable: A row is not valid.
    """
    rtt_s = array("f")
    for row in rows:
        try:
            packed = joined_properties(row, "probes")
            if (count := count_rows(packed)) > ROW_COUNT:
                raise RecordUnreadable(f"{count} in one row")
            column = unpack(packed, ("rtt_us",))["rtt_us"]
        except (RecordUnreadable, KeyError) as error:
            raise RecordUnreadable(f"row {row_name(row)}: probes: {error}") from error
        rtt_s.extend(
            math.nan if rtt_us is None else UNSENT if rtt_us < 0 else rtt_us / MICROSECONDS
            for rtt_us in column
        )
    first_at_s, every_s = (rows[0].properties.get(name) for name in ("first_at_s", "every_s"))
    if not isinstance(first_at_s, float) or not isinstance(every_s, float) or every_s <= 0:
        raise RecordUnreadable(f"row {row_name(rows[0])}: probes without first_at_s and every_s")
    return Probes(first_at_s=first_at_s, every_s=every_s, rtt_s=rtt_s)


def _microseconds(rtt_s: float) -> int:
    return -1 if rtt_s < 0 else round(rtt_s * MICROSECONDS)
