"""Tests for the iperf3 reader, using recorded and invalid output."""

import json
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadside.exchange.engines.iperf3_text import StreamReader, parse_complete, read_all, read_any
from broadside.exchange.engines.port import (
    Ended,
    EngineResult,
    Failed,
    Intervals,
    StartBasis,
    Started,
)
from broadside.exchange.messages import Direction, Flow, Interval, Protocol, Side

RECORDINGS = Path(__file__).parents[3] / "data" / "iperf3"
UP, DOWN = Flow.UP, Flow.DOWN

# Expected readings by recording. A line has the end of the test unless it was measured, and the
# parameters as this end reported them. For every flow it has the number of intervals and the bytes
# sent and received in the totals of this end ("-" is unknown). "cut" is a test without error and
# without end.
SEEN = {
    "3.9/err-refused-J.json": "failed",
    "3.9/server-tcp-bidir.json": "server tcp bidirectional 2, up 3 -/10223616, down 3 10223616/-",
    "3.9/server-udp.json": "server udp forward 2, up 3 -/2555904",
    "3.9/tcp-R-omit1.json": "client tcp reverse 1, down 3 5111808",
    "3.9/tcp-bidir.json": "client tcp bidirectional 2, up 2 10223616, down 2 10223616",
    "3.9/udp-R.json": "client udp reverse 1, down 2 1277952",
    "3.9/udp.json": "client udp forward 2, up 2 2555904",
    "3.10.1/server-udp-bidir.json": "server udp bidirectional 2, up 2 -/2555904, down 2 2555904/-",
    "3.10.1/udp-bidir.json": "client udp bidirectional 2, up 2 2555904, down 2 2555904",
    "3.11/server-err-client-SIGTERM.json": "failed server tcp forward 1, up 1 -/4063232",
    "3.12/err-badparam-J.json": "failed",
    "3.12/err-busy-J.json": "failed",
    "3.12/err-client-SIGINT-at-2.5s-J.json": "failed client tcp forward 2, up 3 14236516352/-",
    "3.12/err-client-SIGTERM-at-2.5s-J.json": "failed client tcp forward 2, up 3 13951959040/-",
    "3.12/err-refused-J.json": "failed",
    "3.12/err-server-SIGKILL-at-2.5s-J.json": "failed client tcp forward 2, up 2",
    "3.12/err-server-SIGTERM-at-2.5s-J.json": "failed client tcp forward 2, up 2 11414405120/-",
    "3.12/err-unroutable-J.json": "failed",
    "3.12/server-persistent.json#0": "server tcp forward 2, up 4 -/14018412544",
    "3.12/server-persistent.json#1": "server tcp forward 1, up 5 -/13415219200",
    "3.12/server-persistent.json#2": "server tcp reverse 2, down 3 13355712512/-",
    "3.12/server-persistent.json#3": (
        "server tcp bidirectional 2, up 4 -/7372275712, down 4 6230638592/-"
    ),
    "3.12/server-persistent.json#4": "server tcp forward 1, up 3 -/10141696000",
    "3.12/server-persistent.json#5": "server udp forward 2, up 3 -/3750320",
    "3.12/server-persistent.json#6": "server udp reverse 1, down 3 1875160/-",
    "3.12/server-persistent.json#7": "server udp bidirectional 1, up 3 -/1875160, down 3 1875160/-",
    "3.12/server-persistent.json#8": "server tcp forward 2, up 3 -/15204352",
    "3.12/server-persistent.json#9": "failed",
    "3.12/tcp-P1-omit1.json": "client tcp forward 1, up 4 13412597760/13415219200",
    "3.12/tcp-P2.json": "client tcp forward 2, up 3 14018412544",
    "3.12/tcp-R.json": "client tcp reverse 2, down 3 13355712512/13349421056",
    "3.12/tcp-b.json": "client tcp forward 2, up 3 15204352",
    "3.12/tcp-bidir.json": (
        "client tcp bidirectional 2, up 3 7372275712, down 3 6230638592/6221725696"
    ),
    "3.12/tcp-gso.json": "client tcp forward 1, up 2 10141696000",
    "3.12/tcp-opts.json": "failed",
    "3.12/udp-R.json": "client udp reverse 1, down 3 1875160",
    "3.12/udp-bidir.json": "client udp bidirectional 1, up 3 1875160, down 3 1875160",
    "3.12/udp.json": "client udp forward 2, up 3 3750320",
    "3.16/tcp-bidir-omit1.json": "client tcp bidirectional 1, up 3 4980736, down 3 4980736",
    "3.18/err-client-SIGTERM-stream.json": "failed client tcp forward 1, up 2 4063232/-",
    "3.18/server-err-client-SIGTERM-stream.json": "failed server tcp forward 1, up 1 -/4063232",
    "3.18/server-tcp-bidir-stream.json": (
        "server tcp bidirectional 2, up 2 -/10223616, down 2 10223616/-"
    ),
    "3.18/server-tcp-omit1-stream.json": "server tcp forward 1, up 3 -/4980736",
    "3.18/server-tcp-omit2-dropped.json": "server tcp forward 4, up 4 -/7340032",
    "3.18/server-udp-stream.json": "server udp forward 2, up 2 -/2555904",
    "3.18/tcp-bidir-stream.json": "client tcp bidirectional 2, up 2 10223616, down 2 10223616",
    "3.18/tcp-omit1-stream.json": "client tcp forward 1, up 3 4980736",
    "3.18/tcp-omit2-beyond.json": "client tcp forward 4, up 4 7340032",
    "3.18/tcp-omit2-dropped.json": "client tcp forward 4, up 4 7340032",
    "3.18/udp-stream.json": "client udp forward 2, up 2 2555904",
    "3.22/err-blackhole-at-2s-of-4s-json-stream.json": "cut client tcp forward 2, up 3",
    "3.22/err-busy-J.json": "failed",
    "3.22/err-busy-json-stream.json": "failed",
    "3.22/err-client-SIGINT-at-2.5s-J.json": "failed client tcp forward 2, up 3 28414967808/-",
    "3.22/err-client-SIGINT-at-2.5s-json-stream.json": (
        "failed client tcp forward 2, up 3 29237313536/-"
    ),
    "3.22/err-client-SIGKILL-at-2.5s-json-stream.json": "cut client tcp forward 2, up 2",
    "3.22/err-client-SIGTERM-at-2.5s-J.json": "failed client tcp forward 2, up 3 29513482240/-",
    "3.22/err-client-SIGTERM-at-2.5s-json-stream.json": (
        "failed client tcp forward 2, up 3 27979808768/-"
    ),
    "3.22/err-refused-J.json": "failed",
    "3.22/err-refused-json-stream.json": "failed",
    "3.22/err-server-SIGKILL-at-2.5s-J.json": "failed client tcp forward 2, up 2",
    "3.22/err-server-SIGKILL-at-2.5s-json-stream.json": "failed client tcp forward 2, up 2",
    "3.22/err-server-SIGTERM-at-2.5s-J.json": "failed client tcp forward 2, up 2 25768624128/-",
    "3.22/err-server-SIGTERM-at-2.5s-json-stream.json": (
        "failed client tcp forward 2, up 2 26316242944/-"
    ),
    "3.22/err-unroutable-J.json": "failed",
    "3.22/err-unroutable-json-stream.json": "failed",
    "3.22/server-persistent.json#0": "server tcp forward 2, up 4 -/33853276160",
    "3.22/server-persistent.json#1": "server tcp forward 1, up 4 -/16436297728",
    "3.22/server-persistent.json#2": "server tcp reverse 2, down 3 34563817472/-",
    "3.22/server-persistent.json#3": (
        "server tcp bidirectional 2, up 4 -/13287030784, down 4 19750322176/-"
    ),
    "3.22/server-persistent.json#4": "server tcp forward 1, up 2 -/11623071744",
    "3.22/server-persistent.json#5": "server udp forward 2, up 4 -/3751768",
    "3.22/server-persistent.json#6": "server udp reverse 1, down 3 1876608/-",
    "3.22/server-persistent.json#7": "server udp bidirectional 1, up 4 -/1876608, down 4 1876608/-",
    "3.22/server-persistent.json#8": "server tcp forward 2, up 3 -/15204352",
    "3.22/server-persistent.json#9": "server tcp forward 2, up 4 -/32684507136",
    "3.22/server-persistent.json#10": "server tcp forward 2, up 3 -/27194032128",
    "3.22/server-persistent.json#11": "server tcp forward 2, up 4 -/33025032192",
    "3.22/server-persistent.json#12": "failed",
    "3.22/tcp-P1-omit1.json": "client tcp forward 1, up 4 16436428800/16436297728",
    "3.22/tcp-P2.json": "client tcp forward 2, up 3 33853276160",
    "3.22/tcp-R.json": "client tcp reverse 2, down 3 34563817472/34557919232",
    "3.22/tcp-b.json": "client tcp forward 2, up 3 15204352",
    "3.22/tcp-bidir.json": (
        "client tcp bidirectional 2, up 3 13287030784, down 3 19750322176/19737870336"
    ),
    "3.22/tcp-gso.json": "client tcp forward 1, up 2 11623071744",
    "3.22/tcp-opts.json": "client tcp forward 2, up 2 17044078592",
    "3.22/tcp-stream-full.json": "client tcp forward 2, up 3 33025032192",
    "3.22/tcp-stream-gso.json": "client tcp forward 2, up 3 27194032128",
    "3.22/tcp-stream.json": "client tcp forward 2, up 3 32684507136",
    "3.22/udp-R.json": "client udp reverse 1, down 3 1876608",
    "3.22/udp-bidir.json": "client udp bidirectional 1, up 3 1876608, down 3 1876608",
    "3.22/udp.json": "client udp forward 2, up 3 3751768",
}

# Recordings from a busy host. iperf3 was reset at the end of the warm-up before it could print the
# last second.
DROPPED = (
    "3.18/server-tcp-omit2-dropped.json",
    # Here the next start is after the end.
    "3.18/tcp-omit2-beyond.json",
    "3.18/tcp-omit2-dropped.json",
)


def recorded(name: str) -> bytes:
    return (RECORDINGS / name).read_bytes()


@cache
def readings(name: str) -> tuple[EngineResult, ...]:
    return tuple(read_all(recorded(name))) or (read_any(recorded(name)),)


def counted_bytes(intervals: tuple[Interval, ...]) -> int:
    return sum(i.transferred_bytes for i in intervals if not i.omitted)


def state(reading: EngineResult) -> str:
    if reading.usable:
        return "measured"
    return "failed" if reading.report.error else "cut"


def format_reading(reading: EngineResult) -> str:
    """Return a reading as it should be in the table."""
    report = reading.report
    lines = [reading.side, report.protocol, report.direction, report.streams_count]
    ended = state(reading)
    parts = [ended] * (ended != "measured") + [str(item) for item in lines if item is not None]
    totals = {total.flow: (total.sent_bytes, total.received_bytes) for total in report.totals}
    assert totals.keys() <= reading.intervals.keys()
    flows = [
        f"{flow} {len(intervals)} {_sums(totals.get(flow, ()))}".rstrip()
        for flow, intervals in reading.intervals.items()
    ]
    return ", ".join([" ".join(parts), *flows])


def _sums(sent_and_received: tuple[int | None, ...]) -> str:
    """Join both values. Write the value once if they are equal."""
    return "/".join(dict.fromkeys("-" if sum is None else str(sum) for sum in sent_and_received))


# Recordings.


@pytest.mark.parametrize("name", SEEN)
def test_reads_a_recorded_report(name: str) -> None:
    file, _, index = name.partition("#")
    reading = readings(file)[int(index or 0)]
    assert format_reading(reading) == SEEN[name]
    assert reading.report.version in (file.split("/")[0], None)


def test_all_recordings_are_in_the_table() -> None:
    present = {f"{path.parent.name}/{path.name}" for path in RECORDINGS.glob("*/*.json")}
    assert present == {name.partition("#")[0] for name in SEEN}


@pytest.mark.parametrize(
    "name", [name for name, result in SEEN.items() if result.split(" ")[0] in ("client", "server")]
)
def test_intervals_add_up_to_the_totals(name: str) -> None:
    file, _, index = name.partition("#")
    reading = readings(file)[int(index or 0)]
    for total in reading.report.totals:
        sends = (total.flow is UP) == (reading.side is Side.CLIENT)
        local_bytes = total.sent_bytes if sends else total.received_bytes
        assert local_bytes is not None
        counted = counted_bytes(reading.intervals[total.flow])
        # iperf3 will read its totals shortly after its last interval.
        assert local_bytes * 0.999 <= counted <= local_bytes


@pytest.mark.parametrize("name", sorted({name.partition("#")[0] for name in SEEN}))
def test_intervals_are_contiguous(name: str) -> None:
    for reading in readings(name):
        for intervals in reading.intervals.values():
            assert intervals[0].start_s == 0
            for before, after in pairwise(intervals):
                dropped = name in DROPPED and before.omitted and not after.omitted
                assert after.start_s == pytest.approx(
                    before.end_s + dropped, abs=0.01 * dropped + 1e-9
                )
                assert after.end_s > after.start_s


@pytest.mark.parametrize("name", DROPPED)
def test_dropped_last_second_of_warm_up_is_not_counted(name: str) -> None:
    """Check that the next interval is one second long and begins at its own start.

    The reset came before the second was printed.
    """
    (reading,) = readings(name)
    warm_up, first, *_ = reading.intervals[UP]

    assert warm_up.omitted and warm_up.end_s == pytest.approx(1, abs=0.01)
    assert not first.omitted and first.start_s == pytest.approx(2, abs=0.01)
    assert first.end_s - first.start_s == pytest.approx(1, abs=0.01)
    assert first.transferred_bytes == warm_up.transferred_bytes


@pytest.mark.parametrize("name", [n for n in sorted(SEEN) if "#" not in n])
def test_live_reader_agrees_with_the_file_reader(name: str) -> None:
    reader = StreamReader()
    for line in recorded(name).split(b"\n"):
        reader.feed(line, 1000.0)
    live = reader.finish()
    # The other test is the server's, with --get-server-output. A process reads only its own.
    filed = [reading for reading in readings(name) if reading.side is live.side][-1]
    assert live.report == filed.report
    assert live.intervals == filed.intervals


def test_sender_only_values() -> None:
    up, down = (readings("3.22/tcp-bidir.json")[0].intervals[flow][0] for flow in (UP, DOWN))
    assert (up.retransmits_count, up.cwnd_bytes) == (1, 9_962_240 + 9_354_080)
    assert up.rtt_s == pytest.approx((295e-6 + 282e-6) / 2)
    assert (down.retransmits_count, down.rtt_s, down.cwnd_bytes) == (None, None, None)
    totals = readings("3.22/tcp-bidir.json")[0].report.totals
    assert (totals[0].rtt_min_s, totals[0].rtt_max_s) == (243e-6, 477e-6)
    assert totals[0].rtt_mean_s == pytest.approx((390e-6 + 295e-6) / 2)
    assert totals[1].rtt_mean_s is None


def test_udp_receiver_only_values() -> None:
    up, down = (readings("3.22/udp-bidir.json")[0].intervals[flow][0] for flow in (UP, DOWN))
    assert (up.packets_count, up.lost_count, up.jitter_s) == (432, None, None)
    assert (down.packets_count, down.lost_count) == (432, 0)
    assert down.jitter_s == pytest.approx(17.4e-6, rel=0.01)
    server_down = readings("3.12/server-persistent.json")[6].report.totals[0]
    assert (server_down.packets_count, server_down.lost_count) == (1295, None)


def test_report_has_the_effective_parameters() -> None:
    report = readings("3.22/tcp-opts.json")[0].report
    assert (report.engine, report.version, report.protocol) == ("iperf3", "3.22", Protocol.TCP)
    assert (report.duration_s, report.omit_s) == (2, 0)
    # iperf3 only repeats the requested value of 1000.
    assert report.mss_bytes is None
    assert readings("3.22/tcp-P2.json")[0].report.mss_bytes == 1448
    assert (report.sender_congestion, report.receiver_congestion) == ("reno", "reno")
    assert report.block_bytes == 131_072
    assert report.cpu_local_percent is not None and report.cpu_local_percent > 0
    assert report.cpu_remote_percent is not None and report.cpu_remote_percent > 0
    server = readings("3.22/server-persistent.json")[0]
    assert server.report.cpu_remote_percent is None
    assert server.client_address == "10.1.1.1"


def test_client_and_server_have_the_same_cookie() -> None:
    client = readings("3.22/tcp-P2.json")[0].report.cookie
    assert client is not None
    assert client == readings("3.22/server-persistent.json")[0].report.cookie


def test_repeated_last_interval_is_counted_once() -> None:
    raw = json.loads(recorded("3.22/err-server-SIGTERM-at-2.5s-J.json"))
    assert raw["intervals"][-1] == raw["intervals"][-2]
    reading = readings("3.22/err-server-SIGTERM-at-2.5s-J.json")[0]
    assert counted_bytes(reading.intervals[UP]) == sum(
        i["sum"]["bytes"] for i in raw["intervals"][:-1]
    )


def test_warm_up_and_test_use_one_clock() -> None:
    omitted, *others = readings("3.12/tcp-P1-omit1.json")[0].intervals[UP]
    assert omitted.omitted and not any(i.omitted for i in others)
    assert others[-1].end_s == pytest.approx(4, abs=0.01)


# Live output.


def test_events_are_returned_with_their_lines() -> None:
    reader = StreamReader()
    lines = recorded("3.22/tcp-stream.json").splitlines()
    events = [event for at, line in enumerate(lines) for event in reader.feed(line, 100.0 + at)]
    started, first, *_, ended = events
    assert started == Started(
        side=Side.CLIENT,
        cookie="5g27a7xu4eajcvi4v3ezieo5pvrguv2pwb3t",
        started_at_s=1795167316.155,
        client_address=None,
        expected_s=3.0,
    )
    assert isinstance(first, Intervals) and first.arrived_at_s == 101.0
    assert first.by_flow[UP].transferred_bytes == 10_184_687_616
    assert isinstance(ended, Ended)
    assert len(events) == 5


def test_server_reports_its_client_before_the_first_interval() -> None:
    line = recorded("3.18/server-tcp-bidir-stream.json").splitlines()[0]
    (started,) = StreamReader().feed(line, 0.0)
    assert isinstance(started, Started)
    assert (started.side, started.client_address) == (Side.SERVER, "127.0.0.1")


def test_an_error_is_an_event() -> None:
    line = recorded("3.22/err-busy-json-stream.json").splitlines()[0]
    (failed,) = StreamReader().feed(line, 0.0)
    assert failed == Failed(error="the server is busy running a test. try again later")


def test_first_data_time_is_the_earliest_possible() -> None:
    reader, began_at_s = StreamReader(), 2000.0
    delays_s = [0.040, 0.001, 0.300]
    for line in recorded("3.22/tcp-stream.json").splitlines():
        event = json.loads(line)
        late_s = delays_s.pop(0) if event["event"] == "interval" else 0.0
        end_s = event["data"].get("sum", {}).get("end", 0.0)
        reader.feed(line, began_at_s + end_s + late_s)
    reading = reader.finish()
    assert reading.first_data_at_s == pytest.approx(began_at_s + 0.001)
    assert reading.start_basis is StartBasis.ARRIVALS
    assert reading.tracks()[0].first_data_at_s == reading.first_data_at_s


def test_first_data_time_of_a_complete_document() -> None:
    text = recorded("3.12/tcp-P2.json")
    alone = read_any(text)
    assert (alone.first_data_at_s, alone.start_basis) == (1795167227.0, StartBasis.TIMESTAMP)
    timed = parse_complete(text.decode(), ended_at_s=1000.0)
    assert timed.first_data_at_s == pytest.approx(1000.0 - 3.000501)
    assert timed.start_basis is StartBasis.EXIT
    reader = StreamReader()
    for line in text.split(b"\n"):
        assert reader.feed(line, 1000.0) == ()
    gated = reader.finish(0, released_at_s=997.0)
    assert (gated.first_data_at_s, gated.start_basis) == (997.0, StartBasis.RELEASE)


def test_no_data_has_no_start_time() -> None:
    reading = read_any(recorded("3.12/err-refused-J.json"))
    assert (reading.first_data_at_s, reading.start_basis, reading.tracks()) == (None, None, ())


def test_gate_delay_is_not_receiving_time() -> None:
    reader = StreamReader()
    for line in recorded("3.22/tcp-stream.json").splitlines():
        reader.feed(line, 0.0)
    (total,) = reader.finish(0, server_ahead_s=0.25).report.totals
    assert total.received_s == pytest.approx(3.003056 - 0.25)
    assert total.sent_s == pytest.approx(3.00176)


def test_reader_can_finish_at_any_time() -> None:
    reader = StreamReader()
    assert reader.finish().report.truncated
    for line in recorded("3.22/tcp-stream.json").splitlines()[:3]:
        reader.feed(line, 50.0)
    half = reader.finish()
    assert half.report.truncated and half.report.error is None and not half.usable
    assert half.report.cookie is not None
    assert len(half.intervals[UP]) == 2


def test_next_test_of_a_persistent_server_replaces_the_last() -> None:
    reader = StreamReader()
    for name in ("3.18/server-udp-stream.json", "3.18/server-tcp-bidir-stream.json"):
        for line in recorded(name).splitlines():
            reader.feed(line, 0.0)
    assert reader.finish().report.direction is Direction.BIDIRECTIONAL


def test_error_reason_is_read_from_standard_error() -> None:
    reader = StreamReader()
    for line in recorded("3.12/tcp-opts.json").splitlines():
        # The usage text.
        reader.feed(line, 0.0)
    stderr = (RECORDINGS / "3.12/tcp-opts.err").read_text()
    reading = reader.finish(1, stderr=stderr)
    assert reading.report.error == "client receive timeout is valid only in receiving mode:"
    assert reading.report.exit_code == 1
    old = (RECORDINGS / "3.9/err-refused-J.err").read_text()
    reader = StreamReader()
    for line in recorded("3.9/err-refused-J.json").splitlines():
        reader.feed(line, 0.0)
    assert reader.finish(1, stderr=old).report.error == (
        "unable to send control message: Bad file descriptor"
    )


# Invalid output.


def stream_with(old: str, new: str) -> EngineResult:
    """Return the reading for the plain recording with a text replaced."""
    text = recorded("3.22/tcp-stream.json").decode()
    assert re.search(old, text)
    return read_any(re.sub(old, new, text).encode())


@pytest.mark.parametrize("value", ["-5", "NaN", "Infinity", "1e300", '"many"', "true"])
@pytest.mark.parametrize("section", ['"sum":{', '"sum_sent":{', '"sum_received":{'])
def test_impossible_byte_count_is_an_error(section: str, value: str) -> None:
    reading = stream_with(f'({section}[^}}]*"bytes":)\\d+', rf"\g<1>{value}")
    assert not reading.usable
    assert reading.report.error is not None
    assert reading.report.error.startswith("iperf3 reported impossible values: bytes = ")
    assert all(i.transferred_bytes > 0 for flow in reading.intervals.values() for i in flow)


def test_missing_bytes_are_unknown() -> None:
    reading = stream_with('("sum_received":{[^}]*),"bytes":\\d+', r"\g<1>")
    assert reading.report.totals[0].received_bytes is None
    assert not reading.usable


def test_zero_received_bytes_is_not_a_measurement() -> None:
    reading = stream_with('("sum_received":{[^}]*"bytes":)\\d+', r"\g<1>0")
    assert reading.report.totals[0].received_bytes == 0
    assert not reading.usable and reading.report.error is None


def test_missing_sums_are_computed_from_the_streams() -> None:
    bare = stream_with(',"sum(_sent|_received)?":{[^}]*}', "")
    complete = readings("3.22/tcp-stream.json")[0]
    assert bare.usable
    for one, other in zip(bare.intervals[UP], complete.intervals[UP], strict=True):
        assert one == other
    (bare_total,), (total,) = bare.report.totals, complete.report.totals
    assert bare_total.sent_bytes == total.sent_bytes
    assert bare_total.received_bytes == total.received_bytes
    assert bare_total.retransmits_count == total.retransmits_count


@pytest.mark.parametrize(
    "key", ["retransmits", "rtt", "snd_cwnd", "seconds", "omitted", "cookie", "version", "sender"]
)
@pytest.mark.parametrize("change", ["missing", "null", "wrong_type"])
def test_optional_key_may_be_missing_or_of_wrong_type(key: str, change: str) -> None:
    values = {"missing": "", "null": f'"{key}":null,', "wrong_type": f'"{key}":[{{}}],'}
    text = recorded("3.22/tcp-stream.json").decode()
    text = re.sub(rf'"{key}":("[^"]*"|[\w.]+)(,|(?=}}))', values[change], text)
    text = text.replace(",}", "}")
    reading = read_any(text.encode())
    assert reading.usable
    assert counted_bytes(reading.intervals[UP]) == 32_684_113_920


def test_unknown_events_are_ignored() -> None:
    text = recorded("3.22/tcp-stream.json")
    strange = b'{"event":"weather","data":[1]}\n{"event":null}\nwarning: oops {\n'
    lines = text.splitlines(keepends=True)
    reading = read_any(strange + lines[0] + strange + b"".join(lines[1:]) + strange)
    assert reading.report == readings("3.22/tcp-stream.json")[0].report


def test_text_around_a_document_is_ignored() -> None:
    text = recorded("3.12/tcp-P2.json")
    noisy = b"warning: UDP block size\n" + text + b"\niperf3: something {else}\n"
    assert read_any(noisy).report == read_any(text).report


def test_text_inside_a_document_truncates_it() -> None:
    text = recorded("3.12/tcp-P2.json").decode()
    at = text.rindex('"streams"', 0, text.index('"end":\t{\n'))
    reading = read_any((text[:at] + "iperf3: oops\n" + text[at:]).encode())
    assert reading.report.truncated and not reading.usable
    assert len(reading.intervals[UP]) == 2


def test_documents_need_no_separator() -> None:
    flat = [json.dumps(json.loads(recorded(f"3.12/{n}.json"))) for n in ("tcp-P2", "udp")]
    protocols = [reading.report.protocol for reading in read_all("".join(flat).encode())]
    assert protocols == [Protocol.TCP, Protocol.UDP]


@pytest.mark.parametrize("end", [b"{}", b"[]", b"null", b"7"])
def test_empty_end_is_not_a_measurement(end: bytes) -> None:
    lines = recorded("3.22/tcp-stream.json").splitlines()
    reading = read_any(b"\n".join([*lines[:-1], b'{"event":"end","data":' + end + b"}"]))
    assert not reading.usable
    assert reading.report.error == "iperf3 gave no result"
    assert len(reading.intervals[UP]) == 3


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe{", b"[" * 100_000, b'{"a":' * 100_000])
def test_missing_output_is_an_error(text: bytes) -> None:
    reading = read_any(text)
    assert not reading.usable and reading.report.truncated
    assert reading.report.error == "iperf3 gave no result"


ALL = sorted({name.partition("#")[0] for name in SEEN})


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(ALL), share=st.floats(0, 1))
def test_truncated_output_never_raises_or_adds_data(name: str, share: float) -> None:
    text = recorded(name)
    cut = text[: int(len(text) * share)]
    complete, parts = readings(name), read_all(cut)
    # --json-stream-full-output prints a test twice.
    assert len(parts) <= len(complete) + 1
    for full, part in zip(complete, parts, strict=False):
        assert state(full) == "measured" or not part.usable
        if part.usable:
            assert part.report == full.report
        for flow, intervals in part.intervals.items():
            assert intervals == full.intervals[flow][: len(intervals)]
    read_any(cut)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(ALL),
    at=st.floats(0, 1),
    noise=st.binary(max_size=40) | st.sampled_from([b'"', b"{", b"}", b"\n{", b"null", b"-"]),
    skip=st.integers(0, 60),
)
def test_damaged_output_never_raises(name: str, at: float, noise: bytes, skip: int) -> None:
    text = recorded(name)
    index = int(len(text) * at)
    damaged = text[:index] + noise + text[index + skip :]
    read_all(damaged)
    reader = StreamReader()
    for line in damaged.split(b"\n"):
        reader.feed(line, 1000.0)
    reader.finish()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "streams",
                    "sum",
                    "bytes",
                    "start",
                    "end",
                    "seconds",
                    "sender",
                    "udp",
                    "test_start",
                    "sum_sent",
                    "sum_received",
                    "sum_bidir_reverse",
                    "reverse",
                    "bidir",
                    "connecting_to",
                    "timestamp",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(start=json_values, interval=json_values, end=json_values, error=json_values)
def test_any_json_is_accepted(start: object, interval: object, end: object, error: object) -> None:
    document = {"start": start, "intervals": [interval], "end": end, "error": error}
    parse_complete(json.dumps(document)).tracks()
    reader = StreamReader()
    for event, data in zip(("start", "interval", "error", "end"), document.values(), strict=True):
        reader.feed(f'{{"event":"{event}","data":{json.dumps(data)}}}'.encode(), 0.0)
    reader.finish().tracks()
