"""Seconds packed by column: a series of readings in few bytes, and back.

A reading a second from each end of each pair is thousands of small integers, most of them noise
round a slow level. :func:`pack` keeps each column's offsets from its smallest value (or from its
smallest step, where that is narrower), divided by what they all share, in as few whole bytes as
the widest needs; it stores those bytes plane by plane (all lowest bytes, then all next ones) and
deflates each plane that deflate can shrink. Planes of pure noise stay as they are. Measured: 9 to
11 bytes a second for a noisy 10 Gbit/s flow with end times, retransmits, RTT and window.

Layout, version 1::

    "BSC" version:u8 | crc32 of all that follows:u32 | header length:u16 | header | planes

The header is a deflated JSON array ``[rows, [column, ...]]`` where a column is ``[name]`` when
every value is unknown, else ``[name, mask, order, first, low, step, [plane length, ...]]``: a mask
length of 0 says that no value is unknown, else a plane of 0 and 1 comes first. A plane whose length
equals its number of values was not deflated. Integers in the prefix are little-endian.

What survives: instants and RTT to the microsecond, jitter to the nanosecond, CPU ratios to 1e-3,
counts and bytes exactly (any 64-bit integer).
"""

import math
import operator
import struct
import sys
import zlib
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, pairwise
from typing import Any, Final, TypeVar, cast

from pydantic_core import from_json, to_json

from broadside.exchange.messages import HostSecond, Interval
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.rows import bounded_json

_MAGIC: Final = b"BSC"
_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<3sBIH")
SMALLEST, AS_IT_IS = 9, 0  # levels of deflate: for what is kept, and for what is soon read again
_CHECKED_FROM: Final = 8  # the checksum covers what follows it
# Both bound what a hostile header can make us allocate.
_ROWS_MAX_COUNT: Final = 1_000_000
_COLUMNS_MAX_COUNT: Final = 32  # ours have at most ten
_HEADER_MAX_BYTES: Final = 16_384  # 512 a column: a name, five integers, eight lengths of planes
_LOW, _HIGH = -(2**64), 2**64  # beyond what a described value can be

MICROSECONDS: Final = 1e6  # a second
_NS: Final = 1e9
CPU_RATIO_UNITS: Final = 1e4
_HOST_COUNTS: Final = (
    "nic_rx_bytes",
    "nic_tx_bytes",
    "nic_rx_packets_count",
    "nic_tx_packets_count",
    "nic_drops_count",
    "tcp_retransmits_count",
)
_HOST_RATIOS: Final = ("cpu_busy_ratio", "cpu_busiest_core_ratio")

_WAYS: Final = ("rx", "tx")
_RATE_BITS: Final = 32  # of the fraction of packets a byte

Column = Sequence[int | None]
_C = TypeVar("_C")  # a column, packed or as a list

# Of an interval: each column's field, and its units in one of the field's.
_INTERVAL: Final[Mapping[str, tuple[str, float]]] = {
    "bytes": ("transferred_bytes", 1),
    "omitted": ("omitted", 1),
    "retransmits": ("retransmits_count", 1),
    "rtt_us": ("rtt_s", MICROSECONDS),
    "cwnd": ("cwnd_bytes", 1),
    "packets": ("packets_count", 1),
    "lost": ("lost_count", 1),
    "jitter_ns": ("jitter_s", _NS),
}
_NEVER_UNKNOWN: Final = ("bytes", "omitted")
_INSTANTS: Final = ("gap_us", "span_us")


def pack_intervals(intervals: Sequence[Interval], level: int = SMALLEST) -> bytes:
    """Pack one flow's intervals, in the order given, deflated at that level."""
    columns = _placed((interval.start_s, interval.end_s) for interval in intervals)
    for column, (field, units) in _INTERVAL.items():
        values = [getattr(interval, field) for interval in intervals]
        columns[column] = [None if value is None else round(value * units) for value in values]
    return pack(columns, level)


def unpack_intervals(packed: bytes) -> tuple[Interval, ...]:
    """The intervals that :func:`pack_intervals` was given. Raises ``RecordUnreadable``."""
    columns = unpack(packed)
    bounds_s = _bounds_s(columns)
    fields: dict[str, list[Any]] = {}
    for column, (field, units) in _INTERVAL.items():
        values = (_known if column in _NEVER_UNKNOWN else _column)(columns, column)
        fields[field] = [*values]
        if units != 1:
            fields[field] = [None if value is None else value / units for value in values]
    fields["omitted"] = [value == 1 for value in fields["omitted"]]
    return tuple(
        Interval(start_s=start_s, end_s=end_s, **dict(zip(fields, values, strict=True)))
        for (start_s, end_s), *values in zip(bounds_s, *fields.values(), strict=True)
    )


def check_intervals(packed: bytes) -> None:
    """Check that :func:`unpack_intervals` can read a chunk, without building an interval.

    Raises:
        RecordUnreadable: The chunk is not whole, or a column is missing or unknown.
    """
    columns = unpack_columns(packed, (*_INSTANTS, *_INTERVAL))
    for name in (*_INSTANTS, *_INTERVAL):
        column = _column(columns, name)
        has_unknown = column.rows_count and (column.planes is None or 0 in column.mask)
        if has_unknown and name in (*_INSTANTS, *_NEVER_UNKNOWN):
            raise _has_unknown(name)


def last_end_s(packed: bytes) -> float:
    """Return the largest end of a chunk's intervals (s); 0 without any.

    Raises ``RecordUnreadable``.
    """
    return max((end_s for _, end_s in _bounds_s(unpack(packed, _INSTANTS))), default=0.0)


def sum_intervals(packed: bytes) -> tuple[int, float]:
    """Return bytes and seconds of a chunk's intervals that are not omitted.

    Raises ``RecordUnreadable``.
    """
    columns = unpack(packed, (*_INSTANTS, *_NEVER_UNKNOWN))
    counts, omitted = (_known(columns, name) for name in _NEVER_UNKNOWN)
    spans_s = (end_s - start_s for start_s, end_s in _bounds_s(columns))
    kept = [flag != 1 for flag in omitted]
    return sum(compress(counts, kept)), sum(compress(spans_s, kept))


def _placed(bounds_s: Iterable[tuple[float, float]]) -> dict[str, Column]:
    """Readings' places in time. One nearly always starts where the one before it ended."""
    gaps_us, spans_us, last_us = [], [], 0
    for start_s, end_s in bounds_s:
        start_us, end_us = round(start_s * MICROSECONDS), round(end_s * MICROSECONDS)
        gaps_us.append(start_us - last_us)
        spans_us.append(end_us - start_us)
        last_us = end_us
    return {"gap_us": gaps_us, "span_us": spans_us}


def _bounds_s(columns: Mapping[str, list[int | None]]) -> Iterator[tuple[float, float]]:
    """The reverse of :func:`_placed`."""
    gaps_us, spans_us = _known(columns, "gap_us"), _known(columns, "span_us")
    ends_us = accumulate(map(operator.add, gaps_us, spans_us))
    return (
        ((end_us - span_us) / MICROSECONDS, end_us / MICROSECONDS)
        for end_us, span_us in zip(ends_us, spans_us, strict=True)
    )


def pack_host(seconds: Sequence[HostSecond], level: int = SMALLEST) -> bytes:
    """Pack one host's counters, in the order given, deflated at that level."""
    columns = _placed((second.start_at_s, second.end_at_s) for second in seconds)
    columns |= {name: [getattr(second, name) for second in seconds] for name in _HOST_COUNTS}
    for way in _WAYS:
        packets = columns.pop(f"nic_{way}_packets_count")
        columns |= _over_rate(way, columns[f"nic_{way}_bytes"], packets)
    columns |= {
        name: [10 * round(getattr(second, name) * (CPU_RATIO_UNITS / 10)) for second in seconds]
        for name in _HOST_RATIOS
    }
    return pack(columns, level)


def _over_rate(way: str, counted_bytes: Column, packets: Column) -> dict[str, Column]:
    """Packets as what they are over a fixed share of the bytes: noise has it that both move
    together, and what is left takes half as many planes."""
    sums = [sum(cast(Sequence[int], column)) for column in (packets, counted_bytes)]
    rate = (sums[0] << _RATE_BITS) // max(1, sums[1])
    rate = rate if rate <= 1 << _RATE_BITS else 0  # no packet is under a byte
    return {
        f"nic_{way}_packets_rate": [rate] * len(packets),
        f"nic_{way}_packets_over": [
            count - (cast(int, size) * rate >> _RATE_BITS)
            for size, count in zip(counted_bytes, cast(Sequence[int], packets), strict=True)
        ],
    }


def pack(columns: Mapping[str, Column], level: int = SMALLEST) -> bytes:
    """Pack named columns of equal length; ``None`` is an unknown value. ``level`` is deflate's.

    Raises ``ValueError`` for columns of unequal length or a value beyond 64 bits.
    """
    counts = {len(values) for values in columns.values()}
    if len(counts) > 1:
        raise ValueError(f"columns have {sorted(counts)} values; give all the same number")
    rows_count = counts.pop() if counts else 0
    described: list[list[object]] = []
    planes: list[bytes] = []
    for name, values in columns.items():
        known = [value for value in values if value is not None]
        if not known:
            described.append([name])
            continue
        mask = b""
        if len(known) < rows_count:
            mask = _deflated(bytes(value is not None for value in values), level)
        order, first, low, step, column_planes = _column_planes(name, known, level)
        lengths = [len(plane) for plane in column_planes]
        described.append([name, len(mask), order, first, low, step, lengths])
        planes += [mask, *column_planes]
    header = zlib.compress(to_json([rows_count, described]), level)
    body = b"".join([struct.pack("<H", len(header)), header, *planes])
    return _MAGIC + struct.pack("<BI", _VERSION, zlib.crc32(body)) + body


@dataclass(slots=True)  # frozen ones take thrice as long to make, and a look makes ten thousand
class PackedColumn:
    """One column, inflated and not yet summed up: what a decoder of either kind starts from.

    The known values are ``low + step * word``, or with ``order`` 1 the differences from one to the
    next, ``first`` being the first.
    """

    rows_count: int
    mask: bytes = b""  # a byte a row, 0 where the value is unknown; empty: all are known
    order: int = 0
    first: int = 0
    low: int = 0
    step: int = 1
    words_count: int = 0
    planes: tuple[bytes, ...] | None = None  # the words' bytes, all lowest ones first, then all
    # next ones; None: every value is unknown


def unpack(packed: bytes, wanted: Container[str] | None = None) -> dict[str, list[int | None]]:
    """The columns that :func:`pack` was given, as lists; with ``wanted`` only those.

    Raises :class:`~broadside.exchange.ports.RecordUnreadable` for anything that is not a whole
    chunk of a version known here.
    """
    return {name: _listed(column) for name, column in unpack_columns(packed, wanted).items()}


def unpack_columns(packed: bytes, wanted: Container[str] | None = None) -> dict[str, PackedColumn]:
    """The columns of a chunk for who decodes them without a Python integer a second.

    Columns that are not ``wanted`` are not inflated. Raises as :func:`unpack` does.
    """
    header_at, planes_at = _checked(packed)
    try:
        return _columns(packed, header_at, planes_at, wanted)
    except _MALFORMED as error:
        raise _malformed(packed, error) from error


_MALFORMED: Final = (ValueError, TypeError, IndexError, OverflowError, zlib.error)


def _malformed(packed: bytes, error: Exception) -> RecordUnreadable:
    return RecordUnreadable(f"chunk of {len(packed)} bytes: malformed ({str(error)[:200]})")


def _checked(packed: bytes) -> tuple[int, int]:
    """Where header and planes begin, of a chunk whose version and checksum are right."""
    if packed[:3] != _MAGIC or len(packed) < _PREFIX.size:
        raise RecordUnreadable(f"chunk of {len(packed)} bytes: not a Broadside chunk")
    _, version, crc, header_bytes = _PREFIX.unpack_from(packed)
    if version != _VERSION:
        raise RecordUnreadable(
            f"chunk version {version}: this Broadside reads version {_VERSION}; upgrade it"
        )
    if zlib.crc32(memoryview(packed)[_CHECKED_FROM:]) != crc:
        raise RecordUnreadable(f"chunk of {len(packed)} bytes: corrupt (checksum differs)")
    return _PREFIX.size, _PREFIX.size + header_bytes


def count_rows(packed: bytes) -> int:
    """Rows that a chunk claims to hold, read from its header: nothing is built of them.

    A row may take no byte at all (columns of one value), so a chunk's size bounds no count. Raises
    as :func:`unpack` does.
    """
    _, planes_at = _checked(packed)
    try:
        return _header(packed, _PREFIX.size, planes_at)[0]
    except _MALFORMED as error:
        raise _malformed(packed, error) from error


def _listed(column: PackedColumn) -> list[int | None]:
    if column.planes is None:
        return [None] * column.rows_count
    raw = bytearray(8 * column.words_count)
    for k, plane in enumerate(column.planes):
        raw[k::8] = plane
    words = array("Q", bytes(raw))
    if sys.byteorder == "big":
        words.byteswap()
    low, step = column.low, column.step
    series = words.tolist() if (low, step) == (0, 1) else [low + step * word for word in words]
    values = list(accumulate(series, initial=column.first)) if column.order else series
    if column.mask:
        known = iter(values)
        return [next(known) if present else None for present in column.mask]
    return cast(list[int | None], values)


def _column(columns: Mapping[str, _C], name: str) -> _C:
    if name not in columns:
        raise RecordUnreadable(f"chunk without a column {name}: it holds {', '.join(columns)}")
    return columns[name]


def _known(columns: Mapping[str, list[int | None]], name: str) -> list[int]:
    values = _column(columns, name)
    if None in values:
        raise _has_unknown(name)
    return cast(list[int], values)


def _has_unknown(name: str) -> RecordUnreadable:
    return RecordUnreadable(f"chunk column {name}: unknown values where none may be")


def _column_planes(
    name: str, known: list[int], level: int
) -> tuple[int, int, int, int, list[bytes]]:
    """``(order, first, low, step, planes)`` of the narrower of two forms.

    Order 0: ``value = low + step * offset``; order 1: the same gives the *difference* to the value
    before, and ``first`` starts the sum.
    """
    if min(known) < -(2**63) or max(known) >= 2**63:
        raise ValueError(f"column {name}: values must fit 64 bits")
    first = known[0]
    order, series = 0, known
    differences = [after - before for before, after in pairwise(known)]
    if differences and max(differences) - min(differences) < max(known) - min(known):
        order, series = 1, differences
    low = min(series)
    offsets = [value - low for value in series]
    step = math.gcd(*offsets) or 1
    words = array("Q", [offset // step for offset in offsets])
    if sys.byteorder == "big":
        words.byteswap()
    raw = words.tobytes()
    width_bytes = (max(words).bit_length() + 7) // 8
    return order, first, low, step, [_deflated(raw[k::8], level) for k in range(width_bytes)]


def _deflated(plane: bytes, level: int) -> bytes:
    """The plane, deflated when that makes it shorter."""
    deflate = zlib.compressobj(level, zlib.DEFLATED, -15)
    shorter = deflate.compress(plane) + deflate.flush()
    return shorter if len(shorter) < len(plane) else plane


def _header(packed: bytes, header_at: int, planes_at: int) -> tuple[int, list[Any]]:
    """``(rows, described columns)`` of a chunk; both bounded."""
    stream = zlib.decompressobj()
    header = stream.decompress(packed[header_at:planes_at], _HEADER_MAX_BYTES)
    rows_count, described = from_json(bounded_json(header, _HEADER_MAX_BYTES))
    if not 0 <= operator.index(rows_count) <= _ROWS_MAX_COUNT:
        raise ValueError(f"{rows_count} rows")
    if len(described) > _COLUMNS_MAX_COUNT:
        raise ValueError(f"{len(described)} columns")
    return rows_count, described


def _columns(
    packed: bytes, header_at: int, planes_at: int, wanted: Container[str] | None
) -> dict[str, PackedColumn]:
    index = operator.index
    rows_count, described = _header(packed, header_at, planes_at)
    # A length that lies ends in a plane of the wrong size, or with bytes too many.
    at = planes_at
    columns: dict[str, PackedColumn] = {}
    for name, *described_column in described:
        is_wanted = wanted is None or name in wanted
        if not described_column:
            if is_wanted:
                columns[name] = PackedColumn(rows_count)
            continue
        mask_bytes, order, first, low, step, lengths = described_column
        if not is_wanted:
            at += mask_bytes + sum(lengths)
            continue
        if order not in (0, 1):
            raise ValueError(f"column {name}: order {order}")
        if not _LOW < index(first) < _HIGH or not _LOW < index(low) < _HIGH > index(step) > _LOW:
            raise ValueError(f"column {name}: {first}, {low}, {step} do not fit 64 bits")
        if len(lengths) > 8:
            raise ValueError(f"column {name}: {len(lengths)} planes")
        mask, words_count = b"", rows_count - order
        if mask_bytes:
            mask = _inflated(packed[at : at + mask_bytes], rows_count)
            words_count -= mask.count(0)
            at += mask_bytes
        if words_count < 0:
            raise ValueError(f"column {name}: a first value, and no row for it")
        planes = []
        for length in lengths:
            plane = packed[at : at + length]
            planes.append(plane if length == words_count else _inflated(plane, words_count))
            at += length
        columns[name] = PackedColumn(
            rows_count, mask, order, first, low, step, words_count, tuple(planes)
        )
    if at != len(packed):
        raise ValueError(f"{len(packed) - at} bytes too many")
    return columns


def _inflated(plane: bytes, count: int) -> bytes:
    """A plane of so many bytes, which lies there as it is where deflating made it no shorter."""
    if len(plane) != count:
        plane = zlib.decompressobj(-15).decompress(plane, count + 1)
        if len(plane) != count:
            raise ValueError(f"a plane of {len(plane)} values in place of {count}")
    return plane
