"""Tests to decode chunks into columns. The result is the same as for rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.chunk_decoder import end_columns
from broadside.coordinator.core.measure.records.columns import HostColumns, IntervalColumns
from broadside.exchange.chunks import pack, pack_host, pack_intervals, unpack_intervals
from broadside.exchange.messages import Flow, HostSecond, Interval, Side, Track
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.second_rows import PackedChunk, PackedEnd, PackedTrack
from tests.one_table import unpack_host
from tests.seconds_as_columns import host_columns, track_columns

optional_count = st.none() | st.integers(0, 10**6)
intervals = st.lists(
    st.builds(
        Interval,
        start_s=st.floats(0, 600),
        end_s=st.floats(0, 600),
        transferred_bytes=st.integers(0, 10**12),
        omitted=st.booleans(),
        retransmits_count=optional_count,
        rtt_s=st.none() | st.floats(0, 2),
        cwnd_bytes=optional_count,
        packets_count=optional_count,
        lost_count=optional_count,
    ),
    min_size=1,
    max_size=12,
)
hosts = st.lists(
    st.builds(
        HostSecond,
        start_at_s=st.floats(1.7e9, 1.8e9),
        end_at_s=st.floats(1.7e9, 1.8e9),
        nic_rx_bytes=st.integers(0, 10**12),
        nic_tx_bytes=st.integers(0, 10**12),
        nic_rx_packets_count=st.integers(0, 10**9),
        nic_tx_packets_count=st.integers(0, 10**9),
        nic_drops_count=st.integers(0, 10**6),
        tcp_retransmits_count=st.integers(0, 10**6),
        cpu_busy_ratio=st.floats(0, 1),
        cpu_busiest_core_ratio=st.floats(0, 1),
    ),
    max_size=12,
)


def chunk(data: bytes) -> PackedChunk:
    return PackedChunk(row="burst.x|chunk.client.00000.000: client_up", data=data)


def end_of(*track_chunks: bytes, host: bytes | None = None) -> PackedEnd:
    track = PackedTrack(
        side=Side.CLIENT,
        flow=Flow.UP,
        first_data_at_s=1.75e9,
        chunks=tuple(map(chunk, track_chunks)),
    )
    return PackedEnd(
        tracks=(track,) if track_chunks else (), host=() if host is None else (chunk(host),)
    )


@given(st.lists(intervals, min_size=1, max_size=3), hosts)
def test_decoded_columns_equal_those_from_rows(
    parts: list[list[Interval]], host: list[HostSecond]
) -> None:
    packed = [pack_intervals(part) for part in parts]
    packed_host = pack_host(host) if host else None
    tracks, seconds = end_columns(end_of(*packed, host=packed_host))
    rows = tuple(row for data in packed for row in unpack_intervals(data))
    expected = track_columns(
        Track(side=Side.CLIENT, flow=Flow.UP, first_data_at_s=1.75e9, intervals=rows)
    )
    assert same(tracks[0], expected)
    assert same(seconds, host_columns(unpack_host(packed_host) if packed_host else ()))


def same(one: IntervalColumns | HostColumns, other: IntervalColumns | HostColumns) -> bool:
    return all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f") and a.dtype == b.dtype
        if isinstance(a, np.ndarray)
        else a == b
        for a, b in (
            (getattr(one, name), getattr(other, name)) for name in type(one).__dataclass_fields__
        )
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"nonsense", "not a Broadside chunk"),
        (pack({"bytes": [1]}), "has no column gap_us"),
        (pack({"gap_us": [None], "span_us": [1]}), "a time is unknown"),
    ],
)
def test_unreadable_chunk_error_contains_its_row(data: bytes, expected: str) -> None:
    with pytest.raises(RecordUnreadable, match=rf"chunk\.client\.00000\.000.*{expected}"):
        end_columns(end_of(data))


def test_events_of_all_chunks_are_columns() -> None:
    counted = [
        [Interval(start_s=0, end_s=1, transferred_bytes=1, counts={"attempted": 5})],
        [Interval(start_s=1, end_s=2, transferred_bytes=1)],
        [
            Interval(start_s=2, end_s=3, transferred_bytes=1, counts={"attempted": 7}),
            Interval(start_s=3, end_s=4, transferred_bytes=1, counts={"attempted": 8, "open": 2}),
        ],
    ]
    (track,), _ = end_columns(end_of(*map(pack_intervals, counted)))
    expected = {"attempted": [5, np.nan, 7, 8], "open": [np.nan, np.nan, np.nan, 2]}
    assert track.events.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(track.events[name], values, equal_nan=True)
    (plain,), _ = end_columns(end_of(pack_intervals(counted[1])))
    assert plain.events == {}
