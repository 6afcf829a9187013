"""Codec for AMQP 1.0 values, message sections and frames, with pure functions.

Only the part that Service Bus uses is implemented (OASIS AMQP 1.0, part 1 types, part 2.3 framing,
part 3.2 messages):

- A value is decoded to plain Python. ``int`` is a *long*, ``str`` a *string* and ``bytes`` a
  *binary*. A subclass will be used when the width is relevant to a peer.
- The decoder does not trust any length. It raises :class:`WireError` for malformed data.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

# Any value that a peer can send.
AmqpValue = Any

SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
# Message format in which every data section is a complete message.
BATCH_FORMAT: Final = 0x80013700
# An empty frame is a heartbeat.
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"


class WireError(ValueError):
    """Data that is not valid AMQP, or a part of AMQP that Service Bus does not use."""


class AmqpSymbol(str):
    """AMQP type ``symbol``."""

    __slots__ = ()


class UByte(int):
    """AMQP type ``ubyte``."""

    __slots__ = ()


class UShort(int):
    """AMQP type ``ushort``."""

    __slots__ = ()


class UInt(int):
    """AMQP type ``uint``."""

    __slots__ = ()


class ULong(int):
    """AMQP type ``ulong``."""

    __slots__ = ()


class Int(int):
    """AMQP type ``int``."""

    __slots__ = ()


class Timestamp(int):
    """Time in milliseconds since 1970."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    """Value with a descriptor, used for performatives, outcomes, errors and sections."""

    code: AmqpValue
    value: AmqpValue


@dataclass(frozen=True, slots=True)
class Array:
    """Values of the same type, decoded to a list.

    Only longs, timestamps and symbols can be encoded.
    """

    items: Sequence[AmqpValue]


class Code(IntEnum):
    """Descriptors, which are all small unsigned longs."""

    OPEN = 0x10
    BEGIN = 0x11
    ATTACH = 0x12
    FLOW = 0x13
    TRANSFER = 0x14
    DISPOSITION = 0x15
    DETACH = 0x16
    END = 0x17
    CLOSE = 0x18
    ERROR = 0x1D
    ACCEPTED = 0x24
    REJECTED = 0x25
    RELEASED = 0x26
    MODIFIED = 0x27
    SASL_MECHANISMS = 0x40
    SASL_INIT = 0x41
    SASL_OUTCOME = 0x44
    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION_PROPERTIES = 0x74
    DATA = 0x75
    VALUE = 0x77


# Decoding -----------------------------------------------------------------------------------

_CONSTANT: Final[dict[int, AmqpValue]] = {
    0x40: None,
    0x41: True,
    0x42: False,
    0x43: UInt(0),
    0x44: ULong(0),
}
_FIXED: Final[dict[int, tuple[struct.Struct, Callable[[Any], AmqpValue]]]] = {
    code: (struct.Struct(layout), build)
    for code, layout, build in (
        (0x50, ">B", UByte),
        (0x51, ">b", int),
        (0x52, ">B", UInt),
        (0x53, ">B", ULong),
        (0x54, ">b", Int),
        (0x55, ">b", int),
        (0x56, ">?", bool),
        (0x60, ">H", UShort),
        (0x61, ">h", Int),
        (0x70, ">I", UInt),
        (0x71, ">i", Int),
        (0x72, ">f", float),
        (0x80, ">Q", ULong),
        (0x81, ">q", int),
        (0x82, ">d", float),
        (0x83, ">q", Timestamp),
        (0x98, "16s", lambda raw: UUID(bytes=raw)),
    )
}
_TEXT: Final[dict[int, Callable[[bytes], AmqpValue]]] = {
    0x0: lambda raw: raw,
    0x1: lambda raw: raw.decode(),
    0x3: lambda raw: AmqpSymbol(raw.decode("ascii")),
}
_U32: Final = struct.Struct(">I")
_MALFORMED: Final = (struct.error, IndexError, KeyError, TypeError, UnicodeError, RecursionError)


def decode(raw: bytes, at: int = 0) -> tuple[AmqpValue, int]:
    """Decode the value at an offset.

    Args:
        raw: Data to decode.
        at: Offset in bytes.

    Returns:
        The value, and the offset of the next one.

    Raises:
        WireError: The data is malformed.
    """
    try:
        return _decode(raw, at)
    except _MALFORMED as error:
        raise WireError(f"malformed AMQP value at byte {at}: {error!r}") from error


def _decode(raw: bytes, at: int) -> tuple[AmqpValue, int]:
    if raw[at] == 0:
        code, at = _decode(raw, at + 1)
        value, at = _decode(raw, at)
        return Described(code, value), at
    return _decode_as(raw[at], raw, at + 1)


def _decode_as(constructor: int, raw: bytes, at: int) -> tuple[AmqpValue, int]:
    if constructor in _CONSTANT:
        return _CONSTANT[constructor], at
    if constructor in _FIXED:
        layout, build = _FIXED[constructor]
        return build(layout.unpack_from(raw, at)[0]), at + layout.size
    if constructor == 0x45:
        return [], at
    kind, subtype = constructor >> 4, constructor & 0xF
    if kind not in (0xA, 0xB, 0xC, 0xD, 0xE, 0xF):
        raise WireError(f"unknown AMQP constructor 0x{constructor:02x}")
    size, at = _length(raw, at, wide=bool(kind & 1))
    end = at + size
    if end > len(raw):
        raise WireError(f"AMQP value of {size} bytes runs past its frame")
    if kind in (0xA, 0xB):
        return _TEXT[subtype](bytes(raw[at:end])), end
    count, at = _length(raw, at, wide=bool(kind & 1))
    if count > size or (kind in (0xC, 0xD) and subtype and count % 2):
        raise WireError(f"{count} items do not fit in {size} bytes, or are not pairs")
    items = []
    if kind in (0xC, 0xD):
        for _ in range(count):
            item, at = _decode(raw, at)
            items.append(item)
        return (dict(zip(items[::2], items[1::2], strict=True)) if subtype else items), end
    element = raw[at]
    at += 1
    for _ in range(count):
        item, at = _decode_as(element, raw, at)
        items.append(item)
    return items, end


def _length(raw: bytes, at: int, *, wide: bool) -> tuple[int, int]:
    return (_U32.unpack_from(raw, at)[0], at + 4) if wide else (raw[at], at + 1)


class AmqpSection(NamedTuple):
    """Section of a message (part 3.2).

    Attributes:
        code: Descriptor.
        value: Decoded value.
        raw: Encoded bytes.
    """

    code: int
    value: AmqpValue
    raw: bytes


def sections(raw: bytes) -> Iterator[AmqpSection]:
    """Yield the sections of an encoded message in order.

    Raises:
        WireError: The bytes are not a section.
    """
    at = 0
    while at < len(raw):
        described, end = decode(raw, at)
        if not isinstance(described, Described):
            raise WireError(f"no message section at byte {at}")
        yield AmqpSection(int(described.code), described.value, raw[at:end])
        at = end


# Encoding -----------------------------------------------------------------------------------


def encode(value: AmqpValue) -> bytes:
    """Return a value with its constructor, in the shortest form for its type.

    Raises:
        TypeError: AMQP has no type for the value.
    """
    try:
        return _ENCODERS[type(value)](value)
    except KeyError:
        raise TypeError(f"no AMQP type for {type(value).__name__}") from None


def performative(code: int, fields: Sequence[AmqpValue]) -> bytes:
    """Return a described list, used for the body of a frame, an outcome or a message section.

    Args:
        code: Descriptor.
        fields: Values in the list.
    """
    return b"\x00\x53" + bytes((code,)) + encode(list(fields))


def frame(channel: int, body: bytes, payload: bytes = b"", *, sasl: bool = False) -> bytes:
    """Return an AMQP frame, or a SASL frame if ``sasl`` is True.

    Args:
        channel: Number of the channel.
        body: Encoded performative.
        payload: Bytes after the performative, such as a message section.
        sasl: True for a SASL frame.
    """
    return (
        struct.pack(">IBBH", 8 + len(body) + len(payload), 2, int(sasl), channel) + body + payload
    )


def _short_or_wide(short: int, wide: int, layout: str) -> Callable[[int], bytes]:
    def write(value: int) -> bytes:
        return bytes((short, value)) if value < 256 else struct.pack(layout, wide, value)

    return write


def _packed(layout: str, constructor: int) -> Callable[[Any], bytes]:
    pack = struct.Struct(layout).pack
    return lambda value: pack(constructor, value)


def _sized(constructor: int, raw: bytes) -> bytes:
    if len(raw) < 256:
        return bytes((constructor, len(raw))) + raw
    return bytes((constructor + 0x10,)) + _U32.pack(len(raw)) + raw


def _compound(constructor: int, count: int, body: bytes) -> bytes:
    if len(body) < 255 and count < 256:
        return bytes((constructor, len(body) + 1, count)) + body
    return bytes((constructor + 0x10,)) + struct.pack(">II", len(body) + 4, count) + body


def _encode_list(items: Sequence[AmqpValue]) -> bytes:
    return _compound(0xC0, len(items), b"".join(map(encode, items))) if items else b"\x45"


def _encode_map(pairs: dict[AmqpValue, AmqpValue]) -> bytes:
    body = b"".join(encode(part) for pair in pairs.items() for part in pair)
    return _compound(0xC1, 2 * len(pairs), body)


def _encode_array(array: Array) -> bytes:
    if isinstance(array.items[0], AmqpSymbol):
        body = b"\xa3" + b"".join(bytes((len(item),)) + item.encode() for item in array.items)
    else:
        constructor = 0x83 if isinstance(array.items[0], Timestamp) else 0x81
        body = struct.pack(f">B{len(array.items)}q", constructor, *array.items)
    return _compound(0xE0, len(array.items), body)


_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    UByte: _packed(">BB", 0x50),
    UShort: _packed(">BH", 0x60),
    UInt: _short_or_wide(0x52, 0x70, ">BI"),
    ULong: _short_or_wide(0x53, 0x80, ">BQ"),
    Int: _packed(">Bi", 0x71),
    int: _packed(">Bq", 0x81),
    Timestamp: _packed(">Bq", 0x83),
    float: _packed(">Bd", 0x82),
    UUID: lambda value: b"\x98" + value.bytes,
    bytes: lambda value: _sized(0xA0, value),
    str: lambda value: _sized(0xA1, value.encode()),
    AmqpSymbol: lambda value: _sized(0xA3, value.encode("ascii")),
    list: _encode_list,
    tuple: _encode_list,
    dict: _encode_map,
    Array: _encode_array,
    Described: lambda value: b"\x00" + encode(value.code) + encode(value.value),
}
