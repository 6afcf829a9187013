"""A stream that carries nothing while the test's others do is told, by its port at the client."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broadside.exchange.engines.iperf3_text import read_any
from broadside.exchange.engines.merge import merge
from broadside.exchange.engines.port import Reading
from broadside.exchange.engines.stream_silences import StreamSilences
from broadside.exchange.messages import Flow

RECORDINGS = Path(__file__).parents[3] / "data" / "iperf3"
LENGTH_S = 12
SECOND = {"3.12": 44104, "3.22": 43914}  # the port of the recording's second stream


def recorded(
    version: str, carries: Callable[[int, int], float], change: Callable[[Any], None] | None = None
) -> Reading:
    """A recording of two streams, its middle second told over and over; ``carries`` says how much
    of its bytes a stream has in a second."""
    document = json.loads((RECORDINGS / version / "tcp-P2.json").read_text())
    middle = json.dumps(document["intervals"][1])
    intervals = []
    for second in range(LENGTH_S):
        interval = json.loads(middle)
        for place, stream in enumerate(interval["streams"]):
            stream["bytes"] = int(stream["bytes"] * carries(place, second))
        interval["sum"]["bytes"] = sum(stream["bytes"] for stream in interval["streams"])
        for one in (*interval["streams"], interval["sum"]):
            one["start"], one["end"] = float(second), second + 1.0
        intervals.append(interval)
    document["intervals"] = intervals
    if change is not None:
        change(document)
    return read_any(json.dumps(document).encode())


def silent(*streams: int, begin: int, end: int) -> Callable[[int, int], float]:
    return lambda place, second: float(not (place in streams and begin <= second < end))


@pytest.mark.parametrize("version", ["3.12", "3.22"])
def test_one_silent_stream_of_two_is_told_from_when_to_when(version: str) -> None:
    [silences_by_port] = recorded(version, silent(1, begin=3, end=9)).report.silent_streams
    assert (silences_by_port.flow, silences_by_port.client_port) == (Flow.UP, SECOND[version])
    assert (silences_by_port.from_s, silences_by_port.to_s) == (3, 9)
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
        lambda place, second: 1e-8 * (second % 4 == 0),
        lambda place, second: 1e-5 * (place == 0),
    ],
    ids=["none", "two seconds", "all of them", "seldom a block", "a slow pace"],
)
def test_what_is_no_dead_stream_is_told_as_none(carries: Callable[[int, int], float]) -> None:
    assert recorded("3.22", carries).report.silent_streams == ()


def test_a_stream_that_ceases_before_the_whole_test_does_is_silent_all_along() -> None:
    def carries(place: int, second: int) -> float:
        return float(second < 3 or (place == 0 and second < 7))

    [silences_by_port] = recorded("3.22", carries).report.silent_streams
    assert (silences_by_port.from_s, silences_by_port.to_s) == (3, LENGTH_S)


def test_a_servers_record_names_the_clients_port_too() -> None:
    def served(document: Any) -> None:
        start = document["start"]
        start["accepted_connection"] = start.pop("connecting_to")
        for one in start["connected"]:
            one["local_port"], one["remote_port"] = one["remote_port"], one["local_port"]
        for interval in document["intervals"]:
            for stream in interval["streams"]:
                stream["sender"] = False

    [silences_by_port] = recorded("3.22", silent(1, begin=3, end=9), served).report.silent_streams
    assert silences_by_port.client_port == SECOND["3.22"]


def test_several_processes_tell_of_all_their_streams() -> None:
    one = recorded("3.22", silent(1, begin=3, end=9))
    two = recorded("3.22", silent(0, begin=2, end=9))
    both = merge([replace(item, first_data_at_s=1000.0) for item in (one, two)])
    assert [item.from_s for item in both.report.silent_streams] == [2, 3]


def test_a_slow_pace_costs_no_memory_and_hides_no_silence() -> None:
    """Streams that are silent in most seconds for a day, one of them for a minute."""
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
    silences_by_port = silences.silences_by_port({}, block_bytes=1)
    assert max(item.to_s - item.from_s for item in silences_by_port) >= long_s[1] - long_s[0]
