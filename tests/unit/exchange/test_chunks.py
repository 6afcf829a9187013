"""Tests for packed seconds. They should be small, and damage should be detected."""

import json
import random
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broadside.exchange.chunks import pack, pack_host, pack_intervals, unpack, unpack_intervals
from broadside.exchange.messages import HostSecond, Interval
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.second_rows import CHUNK_S
from tests.one_table import unpack_host
from tests.unit.exchange.flows import MSS_BYTES, ten_gigabit_flow

INT64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-5, 5)
COLUMN_VALUES = st.one_of(INT64, SMALL, st.none())


@st.composite
def columns(draw: st.DrawFn) -> Mapping[str, Sequence[int | None]]:
    rows_count = draw(st.integers(0, 60))
    names = draw(st.lists(st.text(max_size=8), unique=True, max_size=5))
    column = st.sampled_from([COLUMN_VALUES, INT64, SMALL]).flatmap(
        lambda values: st.lists(values, min_size=rows_count, max_size=rows_count)
    )
    return {name: draw(column) for name in names}


@given(columns())
def test_columns_are_restored_unchanged(
    given_columns: Mapping[str, Sequence[int | None]],
) -> None:
    assert unpack(pack(given_columns)) == given_columns


# Up to months in engine time.
MICROSECONDS = st.integers(-(10**10), 10**13)


def maybe(values: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.none() | values


COUNTS = st.integers(0, 2**62)


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    rtt_us, jitter_ns = draw(maybe(st.integers(0, 10**9))), draw(maybe(st.integers(0, 10**12)))
    return Interval(
        start_s=draw(MICROSECONDS) / 1e6,
        end_s=draw(MICROSECONDS) / 1e6,
        transferred_bytes=draw(COUNTS),
        omitted=draw(st.booleans()),
        retransmits_count=draw(maybe(COUNTS)),
        rtt_s=None if rtt_us is None else rtt_us / 1e6,
        cwnd_bytes=draw(maybe(COUNTS)),
        packets_count=draw(maybe(COUNTS)),
        lost_count=draw(maybe(COUNTS)),
        jitter_s=None if jitter_ns is None else jitter_ns / 1e9,
    )


@given(st.lists(intervals(), max_size=40))
def test_intervals_in_microseconds_are_restored_exactly(given_intervals: list[Interval]) -> None:
    assert list(unpack_intervals(pack_intervals(given_intervals))) == given_intervals


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_times_are_restored_to_the_microsecond(times_s: list[float]) -> None:
    packed = pack_intervals(
        [
            Interval(start_s=at_s, end_s=at_s + 1, transferred_bytes=0, rtt_s=at_s)
            for at_s in times_s
        ]
    )
    once = unpack_intervals(packed)
    for at_s, interval in zip(times_s, once, strict=True):
        assert interval.start_s == pytest.approx(at_s, abs=0.51e-6)
        assert interval.end_s == pytest.approx(at_s + 1, abs=0.51e-6)
        assert interval.rtt_s == pytest.approx(at_s, abs=0.51e-6)
    assert unpack_intervals(pack_intervals(once)) == once, "a second packing must not change values"


@st.composite
def host_seconds(draw: st.DrawFn) -> HostSecond:
    start_us = draw(st.integers(1_700_000_000_000_000, 1_900_000_000_000_000))
    counts = [draw(COUNTS) for _ in range(6)]
    return HostSecond(
        start_at_s=start_us / 1e6,
        end_at_s=(start_us + draw(st.integers(0, 2_000_000))) / 1e6,
        nic_rx_bytes=counts[0],
        nic_tx_bytes=counts[1],
        nic_rx_packets_count=counts[2],
        nic_tx_packets_count=counts[3],
        nic_drops_count=counts[4],
        tcp_retransmits_count=counts[5],
        cpu_busy_ratio=draw(st.integers(0, 1_000)) / 1_000,
        cpu_busiest_core_ratio=draw(st.integers(0, 1_000)) / 1_000,
    )


@given(st.lists(host_seconds(), max_size=30))
def test_host_seconds_are_restored_unchanged(seconds: list[HostSecond]) -> None:
    assert list(unpack_host(pack_host(seconds))) == seconds


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ten_gigabit_flow_takes_at_most_12_bytes_per_second(seed: int) -> None:
    flow = ten_gigabit_flow(1740, seed)
    chunks = [flow[at : at + CHUNK_S] for at in range(0, len(flow), CHUNK_S)]
    packed = [pack_intervals(chunk) for chunk in chunks]
    assert sum(map(len, packed)) <= 12 * len(flow)
    assert tuple(i for chunk in packed for i in unpack_intervals(chunk)) == flow


def test_common_factors_and_constants_compress_well() -> None:
    flow = ten_gigabit_flow(CHUNK_S, 1)
    noise = random.Random(2)
    complete_segments = len(pack({"cwnd": [interval.cwnd_bytes for interval in flow]}))
    ragged = [(interval.cwnd_bytes or 0) + noise.randrange(MSS_BYTES) for interval in flow]
    assert len(pack({"cwnd": ragged})) - complete_segments > CHUNK_S, (
        "expected at least one byte per second"
    )
    queued = pack({"numbers": range(10**12, 10**12 + 1000)})
    assert len(queued) < 150


def test_columns_of_unequal_length_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        pack({"a": [1], "b": [1, 2]})


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_value_above_64_bits_is_rejected_with_its_column(value: int) -> None:
    with pytest.raises(ValueError, match="column bytes"):
        pack({"bytes": [0, value]})


PACKED = pack_intervals(ten_gigabit_flow(30, 5))


def test_any_changed_byte_is_detected() -> None:
    for at in range(len(PACKED)):
        changed = bytearray(PACKED)
        changed[at] ^= 0x10
        with pytest.raises(RecordUnreadable):
            unpack(bytes(changed))


def test_any_truncation_is_detected() -> None:
    for length in range(len(PACKED)):
        with pytest.raises(RecordUnreadable):
            unpack(PACKED[:length])
    with pytest.raises(RecordUnreadable):
        unpack(PACKED + b"\0")


@given(st.binary(max_size=300))
def test_foreign_bytes_are_rejected(foreign: bytes) -> None:
    with pytest.raises(RecordUnreadable, match="not a Broadside chunk"):
        unpack(foreign)


def signed(header: bytes, body: bytes) -> bytes:
    """Return a chunk with a correct checksum for any content."""
    deflated = zlib.compress(header)
    checked = len(deflated).to_bytes(2, "little") + deflated + body
    return b"BSC\x01" + zlib.crc32(checked).to_bytes(4, "little") + checked


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_malformed_chunk_with_correct_checksum_is_rejected(header: bytes, body: bytes) -> None:
    """A wrong writer should only cause a defined error."""
    with pytest.raises(RecordUnreadable, match="malformed"):
        unpack(signed(header, body))


def test_extra_bytes_are_rejected() -> None:
    assert unpack(signed(b"[0,[]]", b"")) == {}
    with pytest.raises(RecordUnreadable, match="1 bytes too many"):
        unpack(signed(b"[0,[]]", b"x"))


WRONG_VALUES = st.sampled_from([-1, 0, 1, 2, 3, 10**9, 10**30, None, "x"])


@given(st.tuples(*[WRONG_VALUES] * 7), st.binary(max_size=4))
# Order above 1, with a mask.
@example((3, 3, 3, 0, 0, 1, 0), b"\x01\x01\x01")
# Order above 1, without a mask.
@example((3, 0, 2, 0, 0, 1, 1), b"\x01")
# More rows than memory.
@example((10**9, 0, 0, 0, 0, 1, 0), b"")
def test_wrong_header_gives_complete_columns_or_an_error(
    fields: tuple[Any, ...], body: bytes
) -> None:
    rows, mask, order, first, low, step, length = fields
    header = json.dumps([rows, [["a", mask, order, first, low, step, [length]]]])
    with suppress(RecordUnreadable):
        columns = unpack(signed(header.encode(), body))
        assert [len(values) for values in columns.values()] == [rows]


def test_newer_version_needs_an_upgrade() -> None:
    with pytest.raises(RecordUnreadable, match=r"version 2.*upgrade"):
        unpack(PACKED[:3] + b"\x02" + PACKED[4:])


def test_other_chunk_reports_the_missing_column() -> None:
    with pytest.raises(RecordUnreadable, match="span_us"):
        unpack_intervals(pack({"gap_us": [1]}))
    with pytest.raises(RecordUnreadable, match=r"gap_us.*unknown"):
        unpack_intervals(pack({"gap_us": [None], "span_us": [1]}))
