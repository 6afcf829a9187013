"""Seconds of both ends as rows: how a track's intervals and a host's counters lie in chunk rows.

A chunk row holds up to :data:`CHUNK_S` seconds of one end: for each flow the packed intervals and
the instant of their zero, and the packed host counters. While a burst goes on, its chunk is
written once in :data:`TAIL_S`, and the newest seconds in a row behind it, the *tail*: an upload
costs what is new. What a tail repeats counts once. Rows are read in two ways: as row values
(:class:`TestSeconds`), or still packed (:class:`PackedEnd`) for who turns them into columns and
never wants a thousand pairs' row values at once.
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

# s of engine time in one chunk: a 1740 s burst with a minute of engine warm-up and the host's
# seconds before and after.
CHUNK_S: Final = 1920
CHUNK_ROWS_MAX_COUNT: Final = 100_000  # of one flow in one row: five times its tenths of seconds

TAIL_S: Final = 60  # s of engine time between two writes of an open chunk
TAIL_OVERLAP_S: Final = (
    15.0  # s by which a tail reaches back behind that: who follows needs it alone
)
TAIL: Final = "tail"  # in the place of a chunk's number

_LATECOMERS_S: Final = 5.0  # s: host readings may reach an agent this long after the engine's

_BEFORE_S: Final = 1e10  # epoch s, in 2286: what is later, or no number, was never measured

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSeconds:
    """One server-side test with its seconds."""

    __test__ = False  # pytest: not a test class

    test: ServerTest
    tracks: tuple[Track, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedChunk:
    """A chunk as :mod:`broadside.exchange.chunks` packed it, and the row that it lies in."""

    row: str
    data: bytes
    is_tail: bool = False  # it may begin before what precedes it ends

    def read(self, reader: Callable[[bytes], _T]) -> _T:
        """What ``reader`` makes of it. Raises ``RecordUnreadable``, which names the row."""
        try:
            return reader(self.data)
        except Exception as error:  # whatever it is made of, it is this row's end
            raise RecordUnreadable(f"row {self.row}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTrack:
    """One flow as one end stored it, chunk after chunk."""

    side: Side
    flow: Flow
    first_data_at_s: float  # epoch s of engine time zero: the newest estimate
    chunks: tuple[PackedChunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedEnd:
    """Everything one end stored of one test, still packed."""

    tracks: tuple[PackedTrack, ...]
    host: tuple[PackedChunk, ...]


_TRACKS: Final = tuple(
    (side, flow, f"{side}_{flow}", f"{side}_{flow}_0") for side, flow in product(Side, Flow)
)


def packed_end(rows: Sequence[Entity]) -> PackedEnd:
    """One end's chunk rows, in key order, taken apart and not unpacked."""
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
    """The tracks as row values."""
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
    """All chunks' readings; from a tail's first one on, the tail's."""
    readings: list[_T] = []
    for chunk in chunks:
        new = chunk.read(unpack_readings)
        if chunk.is_tail and new:
            begin_s = start_s(new[0])
            readings = [reading for reading in readings if start_s(reading) < begin_s]
        readings += new
    return tuple(readings)


def chunk_rows(
    partition: str,
    prefix: str,
    tracks: Sequence[Track],
    host: Sequence[HostSecond],
    *,
    host_zero_s: float,
    from_s: float,
) -> list[Entity]:
    """One row for each chunk that is still open after ``from_s``, or the tail alone.

    A reading belongs to the chunk that its middle falls in, which a little jitter at an edge does
    not change. Host seconds count from a fixed instant, not from the first data, whose estimate
    moves while the test runs.
    """
    known_s = min((t.intervals[-1].end_s for t in tracks if t.intervals), default=0.0)
    is_whole = from_s <= 0
    has_chunks = is_whole or known_s // TAIL_S > from_s // TAIL_S
    tail_from_s = from_s // TAIL_S * TAIL_S - TAIL_OVERLAP_S
    first_n = max(0, math.floor((from_s - _LATECOMERS_S) / CHUNK_S))
    chunks: defaultdict[str, dict[str, Value]] = defaultdict(dict)
    chunks[TAIL] = {}  # of what is whole there is none

    def by_chunk(
        readings: Sequence[_T], middles_s: Sequence[float]
    ) -> Iterator[tuple[str, list[_T]]]:
        parts: defaultdict[str, list[_T]] = defaultdict(list)
        for reading, middle_s in zip(readings, middles_s, strict=True):
            n = max(0, math.floor(middle_s / CHUNK_S))
            if has_chunks and n >= first_n:
                parts[f"{n:03d}"].append(reading)
            if not is_whole and middle_s >= tail_from_s:
                parts[TAIL].append(reading)
        yield from parts.items()

    for track in tracks:
        name = f"{track.side}_{track.flow}"
        middles_s = [(interval.start_s + interval.end_s) / 2 for interval in track.intervals]
        for n, intervals in by_chunk(track.intervals, middles_s):
            chunks[n] |= cut_properties(name, pack_intervals(intervals, _level(n)))
            chunks[n][f"{name}_first_data_at_s"] = float(track.first_data_at_s)
    middles_s = [(second.start_at_s + second.end_at_s) / 2 - host_zero_s for second in host]
    for n, seconds in by_chunk(host, middles_s):
        chunks[n] |= cut_properties("host", pack_host(seconds, _level(n)))
    return [make_row(partition, f"{prefix}.{n}", chunks[n]) for n in sorted(chunks)]


def _level(n: str) -> int:
    """A tail is soon read, and soon written anew: deflating it would cost both ends more."""
    return AS_IT_IS if n == TAIL else SMALLEST


def _chunk(row: Entity, name: str) -> PackedChunk:
    return PackedChunk(
        row=f"{row_name(row)}: {name}",
        data=joined_properties(row, name),
        is_tail=row.row_key.endswith(TAIL),
    )


UNSENT: Final = -1.0
ROW_COUNT: Final = 6000  # probes a row: ten minutes at ten a second, some 15 kB


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """One pair's probes: the i-th was due at ``first_at_s + i * every_s``."""

    first_at_s: float  # epoch s, by the client's clock
    every_s: float
    rtt_s: "array[float]"  # float32; NaN: lost; negative: not sent


def probe_rows(partition: str, prefix: str, probes: Probes) -> list[Entity]:
    """The rows of one pair; written whole, once."""
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
    """What :func:`probe_rows` made of one pair, in key order. Raises ``RecordUnreadable``."""
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
