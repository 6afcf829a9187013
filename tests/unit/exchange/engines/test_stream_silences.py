"""Tests to detect silent streams, using the client port."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broadside.exchange.engines.iperf3_text import read_any
from broadside.exchange.engines.merge import merge
from broadside.exchange.engines.port import EngineResult
from broadside.exchange.engines.stream_silences import StreamSilences
from broadside.exchange.messages import Flow

RECORDINGS = Path(__file__).parents[3] / "data" / "iperf3"
LENGTH_S = 12
# Port of the second stream in the recording.
SECOND = {"3.12": 44104, "3.22": 43914}


def recorded(
    version: str, carries: Callable[[int, int], float], change: Callable[[Any], None] | None = None
) -> EngineResult:
    """Return a recording of two streams with its middle second repeated.

    ``carries`` returns the share of its bytes that a stream has in a second.
    """
    document = json.loads((RECORDINGS / version / "tcp-P2.json").read_text())
    middle = json.dumps(document["intervals"][1])
    intervals = []
    for second in range(LENGTH_S):
        interval = json.loads(middle)
        for stream_index, stream in enumerate(interval["streams"]):
            stream["bytes"] = int(stream["bytes"] * carries(stream_index, second))
        interval["sum"]["bytes"] = sum(stream["bytes"] for stream in interval["streams"])
        for item in (*interval["streams"], interval["sum"]):
            item["start"], item["end"] = float(second), second + 1.0
        intervals.append(interval)
    document["intervals"] = intervals
    if change is not None:
        change(document)
    return read_any(json.dumps(document).encode())


def silent(*streams: int, begin: int, end: int) -> Callable[[int, int], float]:
    return lambda stream_index, second: float(
        not (stream_index in streams and begin <= second < end)
    )


@pytest.mark.parametrize("version", ["3.12", "3.22"])
def test_silent_stream_is_reported_with_start_and_end(version: str) -> None:
    [silence] = recorded(version, silent(1, begin=3, end=9)).report.silent_streams
    assert (silence.flow, silence.client_port) == (Flow.UP, SECOND[version])
    assert (silence.from_s, silence.to_s) == (3, 9)
    [dead] = recorded(version, silent(1, begin=5, end=99)).report.silent_streams
    assert (dead.from_s, dead.to_s) == (5, LENGTH_S)
    [never] = recorded(version, silent(1, begin=0, end=99)).report.silent_streams
    assert (never.from_s, never.to_s) == (0, LENGTH_S)


@pytest.mark.parametrize(
    "carries",
    [
        silent(begin=0, end=0),
        silent(1, begin=4, end=6),
        silent(0, 1, begin=4, end=9),
        lambda stream_index, second: 1e-8 * (second % 4 == 0),
        lambda stream_index, second: 1e-5 * (stream_index == 0),
    ],
    ids=["none", "two seconds", "all of them", "seldom a block", "a slow pace"],
)
def test_other_patterns_are_not_reported(carries: Callable[[int, int], float]) -> None:
    assert recorded("3.22", carries).report.silent_streams == ()


def test_stream_that_stops_early_is_silent_to_the_end() -> None:
    def carries(stream_index: int, second: int) -> float:
        return float(second < 3 or (stream_index == 0 and second < 7))

    [silence] = recorded("3.22", carries).report.silent_streams
    assert (silence.from_s, silence.to_s) == (3, LENGTH_S)


def test_server_recording_has_the_client_port() -> None:
    def served(document: Any) -> None:
        start = document["start"]
        start["accepted_connection"] = start.pop("connecting_to")
        for item in start["connected"]:
            item["local_port"], item["remote_port"] = item["remote_port"], item["local_port"]
        for interval in document["intervals"]:
            for stream in interval["streams"]:
                stream["sender"] = False

    [silence] = recorded("3.22", silent(1, begin=3, end=9), served).report.silent_streams
    assert silence.client_port == SECOND["3.22"]


def test_silent_streams_of_several_processes_are_merged() -> None:
    item = recorded("3.22", silent(1, begin=3, end=9))
    two = recorded("3.22", silent(0, begin=2, end=9))
    both = merge([replace(item, first_data_at_s=1000.0) for item in (item, two)])
    assert [item.from_s for item in both.report.silent_streams] == [2, 3]


def test_slow_traffic_uses_little_memory_and_hides_no_silence() -> None:
    """Test streams that are silent for most seconds in a day, and one for a minute."""
    silences = StreamSilences()
    streams_count, long_s = 8, (40_000, 40_060)
    for second in range(86_400):
        moved = {
            socket: 1000
            * ((second + socket) % 5 == 0)
            * (socket != 1 or second not in range(*long_s))
            for socket in range(streams_count)
        }
        silences.take(Flow.UP, second, second + 1.0, moved)
    assert len(silences._over) <= 2_000
    all_silences = silences.silences_by_port({}, block_bytes=1)
    assert max(item.to_s - item.from_s for item in all_silences) >= long_s[1] - long_s[0]
