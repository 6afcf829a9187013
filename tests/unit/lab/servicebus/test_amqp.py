"""Tests for the AMQP codec."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.lab.servicebus import amqp

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 2**8 - 1).map(amqp.UByte),
    st.integers(0, 2**16 - 1).map(amqp.UShort),
    st.integers(0, 2**32 - 1).map(amqp.UInt),
    st.integers(0, 2**64 - 1).map(amqp.ULong),
    st.integers(-(2**31), 2**31 - 1).map(amqp.Int),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1).map(amqp.Timestamp),
    st.floats(allow_nan=False),
    st.uuids(),
    st.binary(max_size=300),
    st.text(max_size=300),
    st.text(st.characters(max_codepoint=127), max_size=20).map(amqp.AmqpSymbol),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=300),
        st.dictionaries(st.text(max_size=10), inner, max_size=8),
        st.builds(amqp.Described, st.integers(0, 255).map(amqp.ULong), inner),
    ),
    max_leaves=20,
)


def _typed(value: amqp.AmqpValue) -> object:
    """Return a value with types, because numbers can be equal if the types are not."""
    match value:
        case list():
            return [_typed(item) for item in value]
        case dict():
            return {key: _typed(item) for key, item in value.items()}
        case amqp.Described():
            return (_typed(value.code), _typed(value.value))
    return (type(value), value)


@given(_VALUES)
def test_values_round_trip_with_types(value: amqp.AmqpValue) -> None:
    raw = amqp.encode(value)
    decoded, end = amqp.decode(raw)
    assert end == len(raw)
    assert _typed(decoded) == _typed(value)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=300))
def test_arrays_decode_to_lists(items: list[int]) -> None:
    assert amqp.decode(amqp.encode(amqp.Array(items)))[0] == items
    stamps = [amqp.Timestamp(item) for item in items]
    assert amqp.decode(amqp.encode(amqp.Array(stamps)))[0] == stamps


def test_symbol_array_decodes_to_symbols() -> None:
    decoded, _ = amqp.decode(amqp.encode(amqp.Array([amqp.AmqpSymbol("a"), amqp.AmqpSymbol("bc")])))
    assert _typed(decoded) == _typed([amqp.AmqpSymbol("a"), amqp.AmqpSymbol("bc")])


@given(st.binary(max_size=64))
def test_arbitrary_bytes_decode_or_are_rejected(raw: bytes) -> None:
    try:
        _, end = amqp.decode(raw)
    except amqp.WireError:
        return
    assert 0 < end <= len(raw)


@given(_VALUES, st.data())
def test_rejects_truncated_value(value: amqp.AmqpValue, data: st.DataObject) -> None:
    raw = amqp.encode(value)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(amqp.WireError):
        amqp.decode(raw[:cut])


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"\xf0\x00\x00\x00\x06\xff\xff\xff\xff\x40\x40", id="array of 4 G nulls"),
        pytest.param(b"\xd0\x00\x00\x00\x05\xff\xff\xff\xff\x40", id="list of 4 G items"),
        pytest.param(b"\xc1\x02\x01\x40", id="map with a key and no value"),
        pytest.param(b"\x00" * 50_000 + b"\x40", id="described without end"),
        pytest.param(b"\xa1\x02\xff\xff", id="not UTF-8"),
        pytest.param(b"\x3f", id="unknown constructor"),
    ],
)
def test_rejects_malicious_bytes(raw: bytes) -> None:
    with pytest.raises(amqp.WireError):
        amqp.decode(raw)


def test_message_splits_into_sections() -> None:
    raw = amqp.performative(amqp.Code.HEADER, [True]) + amqp.encode(
        amqp.Described(amqp.ULong(amqp.Code.DATA), b"x" * 300)
    )
    parts = list(amqp.sections(raw))
    assert [part.code for part in parts] == [amqp.Code.HEADER, amqp.Code.DATA]
    assert parts[1].value == b"x" * 300
    assert b"".join(part.raw for part in parts) == raw


def test_rejects_message_without_sections() -> None:
    with pytest.raises(amqp.WireError):
        list(amqp.sections(amqp.encode("not a section")))


def test_unsupported_python_type_raises_type_error() -> None:
    with pytest.raises(TypeError, match="complex"):
        amqp.encode(1j)
