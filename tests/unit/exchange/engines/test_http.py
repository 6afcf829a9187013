"""HTTP downloads: what vegeta is asked, how its results and nginx's log read."""

import json
import re
import select
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.exchange.engines import engines, offered_bits_per_second, scaled, traffic_of
from broadside.exchange.engines.http import error_kind
from broadside.exchange.engines.port import DaemonReader, Reading
from broadside.exchange.engines.served_log import TESTS_MAX_COUNT
from broadside.exchange.messages import Flow, Traffic
from tests.unit.exchange.engines.asks import T0, client_ask, job, server_ask

HTTP = engines()["http"]
AT_S = T0.timestamp()


def line(start_s: float, latency_s: float, code: int = 200, error: str = "") -> bytes:
    """One result as vegeta 12 writes it."""
    nanoseconds = round((start_s % 1) * 1e9)
    fields = {
        "attack": "",
        "code": code,
        "timestamp": f"2026-11-20T12:00:{int(start_s):02d}.{nanoseconds:09d}Z",
        "latency": round(latency_s * 1e9),
        "bytes_in": 0,
        "error": error,
        "body": None,
        "headers": {"Content-Length": ["1000000"]} if code else None,
    }
    return json.dumps(fields).encode()


def options(**changes: object) -> Traffic:
    return traffic_of(engine="http", options=changes)


def test_a_rate_is_an_open_model_and_none_is_as_fast_as_connections_go() -> None:
    paced = HTTP.client(client_ask(job(options(requests_per_second=2.5)))).processes[0]
    assert "-rate=2500/1000s" in paced.argv
    assert "-max-workers=10000" in paced.argv
    assert paced.pipe_to == ("/bin/vegeta", "encode", "-to=json")
    free = HTTP.client(client_ask(job(traffic_of(engine="http", streams_count=7)))).processes[0]
    assert {"-rate=0", "-max-workers=7", "-max-connections=7", "-laddr=10.1.0.4"} <= set(free.argv)
    closing = HTTP.client(client_ask(job(options(keepalive=False)), bind=None)).processes[0]
    assert "-keepalive=false" in closing.argv


def test_an_ipv6_target_is_spelt_as_urls_do() -> None:
    launch = HTTP.client(client_ask(job(options(), address="fd00::2"), bind=None))
    assert launch.files[0].text == "GET http://[fd00::2]:8080/1000000?job=r1.00000.00000.15\n"
    assert "listen [fd00::2]:8080" in HTTP.server(server_ask(address="fd00::2")).files[0].text


def test_a_scaled_rate_is_what_is_offered() -> None:
    traffic = options(requests_per_second=100, body_bytes=1_000_000)
    assert offered_bits_per_second(traffic) == 800_000_000
    assert offered_bits_per_second(scaled(traffic, 100)) == 8_000_000
    assert offered_bits_per_second(options()) is None
    assert scaled(options(), 100) == options()


def test_results_become_seconds_success_and_latency() -> None:
    reader = HTTP.client_reader(job(options(), duration_s=3))
    reader.feed(line(0.25, 1.0), AT_S)  # half a second in each of two
    reader.feed(line(2.0, 0.1), AT_S)
    reader.feed(line(2.1, 0.002, 503, "503 Service Unavailable"), AT_S)
    reader.feed(line(2.2, 5.0, 0, "Get x: context deadline exceeded"), AT_S)
    reading = reader.finish(0)
    assert reading.usable
    assert reading.first_data_at_s == AT_S + 0.25
    rows = reading.intervals[Flow.DOWN]
    assert [row.transferred_bytes for row in rows[:3]] == [750_000, 250_000, 2_000_000]
    assert rows[0].end_s == 0.75  # the whole UTC second
    assert rows[-1].end_s == pytest.approx(7.2 - 0.25)
    measures = {measure.name: measure.value for measure in reading.report.measures}
    assert measures["requests_count"] == 4
    assert measures["success_ratio"] == 0.5
    assert (measures["errors_http_503_count"], measures["errors_timeout_count"]) == (1, 1)
    (latency,) = reading.report.distributions
    assert sum(latency.counts.values()) == 2
    assert latency.max == 1.0


def test_a_body_that_broke_off_counts_nothing() -> None:
    reader = HTTP.client_reader(job(options(), duration_s=3))
    reader.feed(line(0, 0.1, 0, "unexpected EOF"), AT_S)
    reading = reader.finish(0)
    assert not reading.usable
    assert "all 1 requests failed, 1 of them: unexpected EOF" in (reading.report.error or "")


def test_seconds_without_an_answer_are_seen_as_nothing_not_as_unseen() -> None:
    reader = HTTP.client_reader(job(options(), duration_s=10))
    reader.feed(line(0, 0.1), AT_S)
    assert len(reader.finish(None).intervals[Flow.DOWN]) == 1  # it may yet say more
    assert len(reader.finish(0).intervals[Flow.DOWN]) == 10


@given(
    st.lists(st.tuples(st.floats(0, 9), st.floats(0, 8), st.booleans()), min_size=1, max_size=60)
)
def test_bytes_are_conserved_in_any_order(results: list[tuple[float, float, bool]]) -> None:
    reader = HTTP.client_reader(job(options(), duration_s=10))
    for start_s, latency_s, good in results:
        reader.feed(line(start_s, latency_s, 200 if good else 0), AT_S)
    rows = reader.finish(0).intervals[Flow.DOWN]
    good_count = sum(good for *_, good in results)
    assert sum(row.transferred_bytes for row in rows) == 1_000_000 * good_count
    assert all(a.end_s == b.start_s for a, b in pairwise(rows))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ('Get "http://1": dial tcp 0:0->1:8: connect: connection refused', "connection_refused"),
        ("504 Gateway Timeout", "http_504"),
        ("net/http: request canceled (Client.Timeout exceeded)", "timeout"),
        ("tls: failed to verify certificate: x509: unknown authority", "tls"),
        ("", "unknown"),
    ],
)
def test_errors_have_kinds_without_addresses(error: str, kind: str) -> None:
    assert error_kind(error) == kind


def test_kinds_of_errors_are_bounded() -> None:
    reader = HTTP.client_reader(job(options()))
    for index in range(100):
        reader.feed(line(1, 0.1, 0, f"x: error number {index}"), AT_S)
    names = [measure.name for measure in reader.finish(0).report.measures]
    assert len(names) < 15
    assert "errors_other_count" in names


def test_long_requests_make_long_readings() -> None:
    """Of a request nothing is known but its own time: spread over seconds it is no second."""
    reader = HTTP.client_reader(job(options(), duration_s=12))
    for start_s in (0, 4, 8):
        reader.feed(line(start_s, 3.9), AT_S)
    rows = reader.finish(0).intervals[Flow.DOWN]
    assert [round(row.end_s - row.start_s, 1) for row in rows] == [4.0, 4.0, 4.0]
    assert [row.transferred_bytes for row in rows] == [1_000_000] * 3


def test_one_long_request_among_many_leaves_seconds() -> None:
    reader = HTTP.client_reader(job(options(), duration_s=4))
    reader.feed(line(0, 3.0), AT_S)
    for number in range(150):
        reader.feed(line(number / 50, 0.1), AT_S)
    rows = reader.finish(0).intervals[Flow.DOWN]
    assert [row.end_s for row in rows] == [1.0, 2.0, 3.0, 4.0]


def test_both_ends_of_a_job_carry_its_id() -> None:
    requested = job(options(), duration_s=3)
    client = HTTP.client_reader(requested)
    assert client.finish(0).report.cookie == requested.job_id == "r1.00000.00000"
    target = HTTP.client(client_ask(requested)).files[0].text
    (served,) = served_by(logged(1.5, 1.0, named=target.strip().partition("?job=")[2]))
    assert served.report.cookie == requested.job_id


def test_nginx_logs_only_requests_with_a_token_and_each_write_is_one_piece() -> None:
    text = HTTP.server(server_ask()).files[0].text
    assert "if=$token;" in text
    size = re.search(r"buffer=(\d+) ", text)
    assert size is not None and int(size[1]) <= select.PIPE_BUF


TESTED = "r1.00000.00000.15"


def logged(
    end_s: float, took_s: float, sent: int = 1000, client: str = "10.1.0.4", named: str = TESTED
) -> bytes:
    """One line of nginx's log."""
    return f"{AT_S + end_s:.3f} {took_s:.3f} 200 {sent} {client} {named}".encode()


def served_by(*lines: bytes, at_s: float = 2.0) -> list[Reading]:
    """What nginx's log, read at once, says of its tests."""
    reader = HTTP.server_reader()
    for one in lines:
        reader.feed(one, AT_S + at_s)
    return [test.finish() for test in cast(DaemonReader, reader).tests.values()]


def test_nginx_tells_what_it_sent_test_by_test() -> None:
    first, second = served_by(
        logged(1.5, 1.0), logged(1.9, 0.1, 70, named="r2.00000.00001.15"), logged(1.6, 0.2, 300)
    )
    assert [total.sent_bytes for total in first.report.totals] == [1300]
    assert first.first_data_at_s == pytest.approx(AT_S + 0.5)
    assert [row.transferred_bytes for row in first.intervals[Flow.DOWN]] == [500, 800]
    assert second.report.cookie == "r2.00000.00001"
    assert [total.sent_bytes for total in second.report.totals] == [70]


def test_the_addresses_of_a_test_do_not_matter() -> None:
    """A device that translates may give each connection another."""
    (reading,) = served_by(logged(1.5, 1.0, client="10.9.0.1"), logged(1.6, 1.0, client="::1"))
    assert [total.sent_bytes for total in reading.report.totals] == [2000]


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"GET / HTTP/1.1",
        logged(1.5, 1.0)[:-20],  # partly written
        logged(1.5, 1.0) + logged(1.6, 1.0),  # two in one
        logged(1.5, 1.0, named="-"),
        logged(1.5, 1.0, named="r1"),
        logged(1.5, 1.0, named="r1.00000.00000.x"),
        b"nan inf 200 1000 10.1.0.4 " + TESTED.encode(),
        b"1e400 1.000 200 1000 10.1.0.4 " + TESTED.encode(),
        b"\xff\x00" * 40_000,
    ],
)
def test_lines_of_others_and_broken_ones_change_nothing(junk: bytes) -> None:
    alone = served_by(logged(1.5, 1.0), logged(1.6, 0.2))
    assert served_by(junk, logged(1.5, 1.0), junk, logged(1.6, 0.2), junk) == alone
    assert served_by(junk) == []


@pytest.mark.parametrize(
    ("end_s", "took_s"),
    [
        (1.5, 3600.0),  # it took an hour
        (-3600.0, 0.1),  # it is an hour old
        (3600.0, 0.1),  # it is of the future
        (1.5, 1e9),
    ],
)
def test_a_time_that_cannot_be_of_the_test_is_counted_and_makes_no_seconds(
    end_s: float, took_s: float
) -> None:
    absurd = logged(end_s, took_s)
    for lines in ((absurd, logged(1.5, 1.0)), (logged(1.5, 1.0), absurd)):
        (reading,) = served_by(*lines)
        assert len(reading.intervals[Flow.DOWN]) == 2
        measures = {measure.name: measure.value for measure in reading.report.measures}
        assert measures == {"server_requests_count": 1, "server_unplaced_count": 1}
    (alone,) = served_by(absurd)
    assert alone.intervals == {}
    assert [measure.name for measure in alone.report.measures][1] == "server_unplaced_count"


def test_a_server_remembers_so_many_tests_and_no_more() -> None:
    lines = [logged(1.5, 1.0, named=f"r{number}.00000.00000.15") for number in range(1000)]
    readings = served_by(*lines)
    assert len(readings) == TESTS_MAX_COUNT
    assert readings[-1].report.cookie == "r999.00000.00000"


def test_a_test_is_over_when_nothing_came_for_as_long_as_its_longest_request() -> None:
    reader = HTTP.server_reader()
    reader.feed(logged(1.5, 0.1), AT_S + 2)
    (test,) = cast(DaemonReader, reader).tests.values()
    assert test.quiet_s == 2
    reader.feed(logged(6.5, 5.0), AT_S + 7)
    assert test.quiet_s == 5
    assert (test.last_data_s, test.last_at_s) == (AT_S + 7, AT_S + 6.5)
