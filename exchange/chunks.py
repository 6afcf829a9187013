"""Pack measurements per second into a compact, column-based format.

Each end of each pair reports one measurement per second. The values are small integers with noise
around a slowly changing level. :func:`pack` stores each column as offsets from its smallest value,
or as offsets between successive values if their range is smaller. Offsets are divided by their
common divisor and stored in the smallest number of whole bytes. The bytes are grouped into planes
(all lowest bytes first, then all next bytes). A plane is deflated if that makes it smaller. A noisy
10 Gbit/s flow with end times, retransmits, RTT and window takes 9 to 11 bytes per second.

Layout, version 1::

    "BSC" version:u8 | crc32 of all that follows:u32 | header length:u16 | header | planes

The header is a deflated JSON array ``[rows, [column, ...]]``. A column is ``[name]`` if all values
are unknown. Otherwise it is ``[name, mask length, order, first, low, step, [plane length, ...]]``.
A mask length of 0 means that all values are known. Otherwise the mask, one byte 0 or 1 for each
row, is stored before the planes. A plane is not deflated if its length equals the number of values.
Integers in the prefix are little-endian.

Times and RTT are stored to the microsecond, jitter to the nanosecond, CPU ratios to 1e-3. Counts
and bytes are exact for any 64-bit integer.
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

from pydantic_core import to_json

from broadside.exchange.messages import HostSecond, Interval
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.strict_json import parse_strict_json

_MAGIC: Final = b"BSC"
_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<3sBIH")
# Deflate levels for chunks that we store, and for chunks that will be replaced soon.
SMALLEST, AS_IT_IS = 9, 0
# Offset of the first byte that the checksum covers.
_CHECKED_FROM: Final = 8
# We reject a header above these limits, because it can be malicious. Our chunks have at most 31
# columns. A column needs at most 512 bytes of header: a name, five integers, eight plane lengths.
_ROWS_MAX_COUNT: Final = 1_000_000
_COLUMNS_MAX_COUNT: Final = 48
_HEADER_MAX_BYTES: Final = 16_384
# Exclusive range of ``first``, ``low`` and ``step``.
_LOW, _HIGH = -(2**64), 2**64

# Microseconds per second.
MICROSECONDS: Final = 1e6
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

_DIRECTIONS: Final = ("rx", "tx")
# Number of fraction bits in the fixed-point ratio of packets to bytes.
_RATE_BITS: Final = 32

ChunkColumn = Sequence[int | None]
# A column, either packed or as a list.
_C = TypeVar("_C")

# Field of ``Interval`` for each column, and how many column units make one field unit.
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
# Prefix of the columns for ``Interval.counts``. A chunk has only those that occur in it.
COUNT_PREFIX: Final = "n_"
_INSTANTS: Final = ("gap_us", "span_us")


def is_count(column: str) -> bool:
    """Return True if a column contains one of the counts in ``Interval.counts``."""
    return column.startswith(COUNT_PREFIX)


def pack_intervals(intervals: Sequence[Interval], level: int = SMALLEST) -> bytes:
    """Pack the intervals of one flow, in the given order.

    Args:
        intervals: Intervals of the flow.
        level: The deflate level.

    Returns:
        The chunk, with a checksum.
    """
    columns = _placed((interval.start_s, interval.end_s) for interval in intervals)
    for column, (field, units) in _INTERVAL.items():
        values = [getattr(interval, field) for interval in intervals]
        columns[column] = [None if value is None else round(value * units) for value in values]
    for name in sorted({name for interval in intervals for name in interval.counts or ()}):
        columns[COUNT_PREFIX + name] = [(row.counts or {}).get(name) for row in intervals]
    return pack(columns, level)


def unpack_intervals(packed: bytes) -> tuple[Interval, ...]:
    """Unpack intervals from :func:`pack_intervals`.

    Raises:
        RecordUnreadable: The chunk is not valid.
    """
    columns = unpack(packed)
    bounds_s = [*_bounds_s(columns)]
    fields: dict[str, list[Any]] = {}
    for column, (field, units) in _INTERVAL.items():
        values = (_known if column in _NEVER_UNKNOWN else _column)(columns, column)
        fields[field] = [*values]
        if units != 1:
            fields[field] = [None if value is None else value / units for value in values]
    fields["omitted"] = [value == 1 for value in fields["omitted"]]
    fields["counts"] = [*_counts(columns, len(bounds_s))]
    return tuple(
        Interval(start_s=start_s, end_s=end_s, **dict(zip(fields, values, strict=True)))
        for (start_s, end_s), *values in zip(bounds_s, *fields.values(), strict=True)
    )


def _counts(
    columns: Mapping[str, list[int | None]], rows_count: int
) -> Sequence[dict[str, int] | None]:
    """Return the counts of each row, the reverse of :func:`pack_intervals`."""
    names = [name for name in columns if is_count(name)]
    rows: list[dict[str, int]] = [{} for _ in range(rows_count)]
    for name in names:
        for row, value in zip(rows, columns[name], strict=True):
            if value is not None:
                row[name.removeprefix(COUNT_PREFIX)] = value
    return [row or None for row in rows]


def check_intervals(packed: bytes) -> None:
    """Check that :func:`unpack_intervals` can read a chunk, without creating intervals.

    Raises:
        RecordUnreadable: The chunk is incomplete, or a column is missing or has unknown values.
    """
    columns = unpack_columns(packed, (*_INSTANTS, *_INTERVAL))
    for name in (*_INSTANTS, *_INTERVAL):
        column = _column(columns, name)
        has_unknown = column.rows_count and (column.planes is None or 0 in column.mask)
        if has_unknown and name in (*_INSTANTS, *_NEVER_UNKNOWN):
            raise _has_unknown(name)


def last_end_s(packed: bytes) -> float:
    """Return the latest end time in a chunk's intervals in seconds, 0 if there are none.

    Raises:
        RecordUnreadable: The chunk is not valid.
    """
    return max((end_s for _, end_s in _bounds_s(unpack(packed, _INSTANTS))), default=0.0)


def sum_intervals(packed: bytes) -> tuple[int, float]:
    """Return the bytes and seconds of a chunk's intervals that are not omitted.

    Raises:
        RecordUnreadable: The chunk is not valid.
    """
    columns = unpack(packed, (*_INSTANTS, *_NEVER_UNKNOWN))
    counts, omitted = (_known(columns, name) for name in _NEVER_UNKNOWN)
    spans_s = (end_s - start_s for start_s, end_s in _bounds_s(columns))
    counted = [flag != 1 for flag in omitted]
    return sum(compress(counts, counted)), sum(compress(spans_s, counted))


def _placed(bounds_s: Iterable[tuple[float, float]]) -> dict[str, ChunkColumn]:
    """Return start gaps and durations in microseconds. Most gaps are zero."""
    gaps_us, spans_us, last_us = [], [], 0
    for start_s, end_s in bounds_s:
        start_us, end_us = round(start_s * MICROSECONDS), round(end_s * MICROSECONDS)
        gaps_us.append(start_us - last_us)
        spans_us.append(end_us - start_us)
        last_us = end_us
    return {"gap_us": gaps_us, "span_us": spans_us}


def _bounds_s(columns: Mapping[str, list[int | None]]) -> Iterator[tuple[float, float]]:
    """Return start and end times in seconds, the reverse of :func:`_placed`."""
    gaps_us, spans_us = _known(columns, "gap_us"), _known(columns, "span_us")
    ends_us = accumulate(map(operator.add, gaps_us, spans_us))
    return (
        ((end_us - span_us) / MICROSECONDS, end_us / MICROSECONDS)
        for end_us, span_us in zip(ends_us, spans_us, strict=True)
    )


def pack_host(seconds: Sequence[HostSecond], level: int = SMALLEST) -> bytes:
    """Pack the counters of one host, in the given order.

    Args:
        seconds: Counters of the host.
        level: The deflate level.

    Returns:
        The chunk, with a checksum.
    """
    columns = _placed((second.start_at_s, second.end_at_s) for second in seconds)
    columns |= {name: [getattr(second, name) for second in seconds] for name in _HOST_COUNTS}
    for direction in _DIRECTIONS:
        packets = columns.pop(f"nic_{direction}_packets_count")
        columns |= _over_rate(direction, columns[f"nic_{direction}_bytes"], packets)
    columns |= {
        name: [10 * round(getattr(second, name) * (CPU_RATIO_UNITS / 10)) for second in seconds]
        for name in _HOST_RATIOS
    }
    return pack(columns, level)


def _over_rate(
    direction: str, counted_bytes: ChunkColumn, packets: ChunkColumn
) -> dict[str, ChunkColumn]:
    """Store each packet count as its difference from a constant ratio of the bytes.

    Noise changes packets and bytes together, so the difference needs half as many planes.
    """
    sums = [sum(cast(Sequence[int], column)) for column in (packets, counted_bytes)]
    rate = (sums[0] << _RATE_BITS) // max(1, sums[1])
    # A packet has at least one byte, so the ratio should not be above 1.
    rate = rate if rate <= 1 << _RATE_BITS else 0
    return {
        f"nic_{direction}_packets_rate": [rate] * len(packets),
        f"nic_{direction}_packets_over": [
            count - (cast(int, size) * rate >> _RATE_BITS)
            for size, count in zip(counted_bytes, cast(Sequence[int], packets), strict=True)
        ],
    }


def pack(columns: Mapping[str, ChunkColumn], level: int = SMALLEST) -> bytes:
    """Pack named columns of equal length.

    Args:
        columns: Values by column name. ``None`` is an unknown value.
        level: The deflate level.

    Returns:
        The chunk, with a checksum.

    Raises:
        ValueError: Columns have different lengths, or a value exceeds 64 bits.
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


# This is not frozen, because we need to create ten thousand of these for a live view. It would take
# three times as long to create a frozen dataclass.
@dataclass(slots=True)
class PackedColumn:
    """Column after inflating and before decoding.

    With ``order`` 0 the known values are ``low + step * value``. With ``order`` 1 the formula gives
    the difference from the previous value. The first value is then ``first``.

    Attributes:
        rows_count: The number of rows.
        mask: One byte per row, 0 if the value is unknown. Empty if all values are known.
        order: 0 for values, 1 for differences.
        first: First value, for order 1.
        low: Smallest value or difference.
        step: Common divisor.
        values_count: The number of stored values, one less than the known values if ``order`` is 1.
        planes: Bytes of the words, all lowest bytes first, then all next bytes. None if all values
            are unknown.
    """

    rows_count: int
    mask: bytes = b""
    order: int = 0
    first: int = 0
    low: int = 0
    step: int = 1
    values_count: int = 0
    planes: tuple[bytes, ...] | None = None


def unpack(packed: bytes, wanted: Container[str] | None = None) -> dict[str, list[int | None]]:
    """Unpack columns from :func:`pack` as lists.

    Args:
        packed: The chunk to read.
        wanted: Names of the columns to unpack. None unpacks all columns.

    Returns:
        Values by column name, None for unknown values.

    Raises:
        RecordUnreadable: The chunk is incomplete, corrupt or has an unknown version.
    """
    return {name: _listed(column) for name, column in unpack_columns(packed, wanted).items()}


def unpack_columns(packed: bytes, wanted: Container[str] | None = None) -> dict[str, PackedColumn]:
    """Return the columns of a chunk before decoding, for decoders that use arrays.

    Args:
        packed: The chunk to read.
        wanted: Names of the columns to inflate. None inflates all columns.

    Returns:
        Columns by name. A column has inflated bytes and a mask of unknown values.

    Raises:
        RecordUnreadable: The chunk is incomplete, corrupt or has an unknown version.
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
    """Check version and checksum of a chunk, and return the offsets of header and planes."""
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
    """Return the number of rows in a chunk's header, without creating rows.

    A row will need no bytes if every column has the same value in all rows. The size of a chunk
    therefore does not limit the number of rows.

    Raises:
        RecordUnreadable: The chunk is incomplete, corrupt or has an unknown version.
    """
    _, planes_at = _checked(packed)
    try:
        return _header(packed, _PREFIX.size, planes_at)[0]
    except _MALFORMED as error:
        raise _malformed(packed, error) from error


def _listed(column: PackedColumn) -> list[int | None]:
    if column.planes is None:
        return [None] * column.rows_count
    raw = bytearray(8 * column.values_count)
    for k, plane in enumerate(column.planes):
        raw[k::8] = plane
    raw_values = array("Q", bytes(raw))
    if sys.byteorder == "big":
        raw_values.byteswap()
    low, step = column.low, column.step
    series = (
        raw_values.tolist()
        if (low, step) == (0, 1)
        else [low + step * value for value in raw_values]
    )
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
    """Return ``(order, first, low, step, planes)`` in the order that needs fewer bytes.

    With order 0, ``value = low + step * offset``. With order 1, the formula gives the *difference*
    from the previous value, and ``first`` is the first value.
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
    raw_values = array("Q", [offset // step for offset in offsets])
    if sys.byteorder == "big":
        raw_values.byteswap()
    raw = raw_values.tobytes()
    width_bytes = (max(raw_values).bit_length() + 7) // 8
    return order, first, low, step, [_deflated(raw[k::8], level) for k in range(width_bytes)]


def _deflated(plane: bytes, level: int) -> bytes:
    """Return the plane, deflated if that makes it shorter."""
    deflate = zlib.compressobj(level, zlib.DEFLATED, -15)
    shorter = deflate.compress(plane) + deflate.flush()
    return shorter if len(shorter) < len(plane) else plane


def _header(packed: bytes, header_at: int, planes_at: int) -> tuple[int, list[Any]]:
    """Return ``(rows, described columns)`` of a chunk, both within the limits."""
    stream = zlib.decompressobj()
    header = stream.decompress(packed[header_at:planes_at], _HEADER_MAX_BYTES)
    rows_count, described = parse_strict_json(header, _HEADER_MAX_BYTES)
    if not 0 <= operator.index(rows_count) <= _ROWS_MAX_COUNT:
        raise ValueError(f"{rows_count} rows")
    if len(described) > _COLUMNS_MAX_COUNT:
        raise ValueError(f"{len(described)} columns")
    return rows_count, described


def _packed_column(
    packed: bytes, at: int, rows_count: int, described: Sequence[Any]
) -> PackedColumn:
    index = operator.index
    mask_bytes, order, first, low, step, lengths = described
    if order not in (0, 1):
        raise ValueError(f"order {order}")
    if not _LOW < index(first) < _HIGH or not _LOW < index(low) < _HIGH > index(step) > _LOW:
        raise ValueError(f"{first}, {low}, {step} do not fit 64 bits")
    if len(lengths) > 8:
        raise ValueError(f"{len(lengths)} planes")
    mask, values_count = b"", rows_count - order
    if mask_bytes:
        mask = _inflated(packed[at : at + mask_bytes], rows_count)
        values_count -= mask.count(0)
        at += mask_bytes
    if values_count < 0:
        raise ValueError("a first value, and no row for it")
    planes = []
    for length in lengths:
        plane = packed[at : at + length]
        planes.append(plane if length == values_count else _inflated(plane, values_count))
        at += length
    return PackedColumn(rows_count, mask, order, first, low, step, values_count, tuple(planes))


def _columns(
    packed: bytes, header_at: int, planes_at: int, wanted: Container[str] | None
) -> dict[str, PackedColumn]:
    rows_count, described = _header(packed, header_at, planes_at)
    # We do not need to check the lengths here. If a length is wrong, the size of a plane will be
    # wrong, or there will be extra bytes at the end.
    at = planes_at
    columns: dict[str, PackedColumn] = {}
    for name, *described_column in described:
        is_wanted = wanted is None or name in wanted
        if not described_column:
            if is_wanted:
                columns[name] = PackedColumn(rows_count)
            continue
        mask_bytes, *_, lengths = described_column
        if is_wanted:
            try:
                columns[name] = _packed_column(packed, at, rows_count, described_column)
            except ValueError as error:
                raise ValueError(f"column {name}: {error}") from None
        at += mask_bytes + sum(lengths)
    if at != len(packed):
        raise ValueError(f"{len(packed) - at} bytes too many")
    return columns


def _inflated(plane: bytes, count: int) -> bytes:
    """Inflate a plane to ``count`` bytes. A plane of this length is returned unchanged."""
    if len(plane) != count:
        plane = zlib.decompressobj(-15).decompress(plane, count + 1)
        if len(plane) != count:
            raise ValueError(f"a plane of {len(plane)} values instead of {count}")
    return plane
