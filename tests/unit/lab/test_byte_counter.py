"""Tests for the counter file of the lab firewall and for the kernel dump."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.lab.byte_counter import (
    COLUMNS,
    ByteCounterReading,
    QueueCount,
    format_reading,
    parse_counter,
    parse_qdiscs,
)

COUNTS = st.integers(0, 2**63)
READINGS = st.builds(
    ByteCounterReading,
    at_s=st.integers(0, 2**41).map(lambda ticks: ticks / 1000),
    **dict.fromkeys(COLUMNS[1:7], COUNTS),
    **dict.fromkeys(COLUMNS[7:], st.none() | COUNTS),
)
HEADER = ",".join(COLUMNS) + "\n"

# This was recorded on Linux 6.18 and has two qdiscs after 3 MiB of payload. For s0,
# `tc -s qdisc` printed "Sent 3290829 bytes 2191 pkt (dropped 0".
RECORDED = bytes.fromhex(
    "94000000240002000100000067100000000000000100000000000000ffffffff020000000c0001006e6f7175657565"
    "0005000c0000000000300007001400010000000000000000000000000000000000180003000000000000000000000000"
    "0000000000000000002c0003000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000"
    "bc000000240002000100000067100000000000000300000000000100ffffffff030000000800010074626600"
    "2c0002002800010000010000000000006045890d000000000000000000000000d03f760147e801000000000005000c00"
    "0000000030000700"
    "14000100cd363200000000008f0800000000000018000300000000000000000000000000000000000000000"
    "02c000300cd363200000000008f0800000000000000000000000000000000000000000000000000000000000"
    "0"
)
END_OF_DUMP = bytes.fromhex("1400000003000200010000006710000000000000")
# This is the interface index in the recording.
S0 = 3


def test_parses_recorded_dump() -> None:
    counts, done = parse_qdiscs(RECORDED)
    assert counts[S0] == QueueCount(frame_bytes=3_290_829, packets_count=2191, drops_count=0)
    assert not done
    # This is 3 MiB of payload, 52 bytes for most headers and the iperf3 control data.
    assert counts[S0].ip_bytes == 3_290_829 - 14 * 2191
    assert 1.0359 < counts[S0].ip_bytes / (3 * 2**20) < 1.0375


def test_detects_end_of_dump() -> None:
    assert parse_qdiscs(END_OF_DUMP) == ({}, True)
    assert parse_qdiscs(RECORDED + END_OF_DUMP)[1]


def attribute(kind: int, data: bytes) -> bytes:
    padding = b"\0" * (-len(data) % 4)
    return struct.pack("=HH", 4 + len(data), kind) + data + padding


def qdisc(index: int, parent: int, stats: bytes) -> bytes:
    body = struct.pack("=BxxxiIII", 0, index, 0x10000, parent, 2)
    body += attribute(1, b"tbf\0") + attribute(7, stats)
    return struct.pack("=IHHII", 16 + len(body), 36, 2, 1, 0) + body


def test_uses_root_qdiscs_and_64_bit_counts() -> None:
    basic = attribute(1, struct.pack("=QI4x", 10**13, 7))
    queue = attribute(3, struct.pack("=5I", 0, 0, 42, 0, 0))
    long_count = attribute(8, struct.pack("=Q", 2**32 + 7))
    counts, _ = parse_qdiscs(
        qdisc(2, 0xFFFF_FFFF, basic + long_count + queue)
        # This qdisc belongs to a class.
        + qdisc(3, 0x10001, basic + queue)
        # The number of bytes is not known.
        + qdisc(4, 0xFFFF_FFFF, queue)
    )
    assert counts == {2: QueueCount(frame_bytes=10**13, packets_count=2**32 + 7, drops_count=42)}


def test_raises_kernel_error() -> None:
    refusal = struct.pack("=IHHII", 36, 2, 0, 1, 0) + struct.pack("=i", -1) + b"\0" * 16
    with pytest.raises(PermissionError):
        parse_qdiscs(refusal)


@given(st.lists(READINGS))
def test_readings_round_trip_through_the_file(readings: list[ByteCounterReading]) -> None:
    text = HEADER + "".join(map(format_reading, readings))
    assert parse_counter(text) == tuple(readings)


@given(readings=st.lists(READINGS, min_size=1, max_size=4), data=st.data())
def test_truncated_file_yields_complete_lines(
    readings: list[ByteCounterReading], data: st.DataObject
) -> None:
    text = HEADER + "".join(map(format_reading, readings))
    cut = text[: data.draw(st.integers(0, len(text)))]
    parsed = parse_counter(cut)
    assert parsed == tuple(readings)[: max(cut.count("\n") - 1, 0)]


def test_incomplete_line_is_skipped() -> None:
    line = "1.000000,1,2,3,4,5,6,,8\n"
    (reading,) = parse_counter(line)
    assert (reading.at_s, reading.up_bytes, reading.offered_down_bytes) == (1.0, 1, 8)
    assert parse_counter(f"{HEADER}{line[:12]}\n{line}") == (reading,)
    assert parse_counter("") == ()


def test_unknown_count_is_not_zero() -> None:
    line = "1.0,1,2,3,4,5,6,,\n"
    (reading,) = parse_counter(line)
    assert reading.offered_up_bytes is None
    assert parse_counter("1.0,,2,3,4,5,6,7,8\n") == ()
