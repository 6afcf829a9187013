"""Tests for HTTP downloads with vegeta's arguments and results and nginx's log."""

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
from broadside.exchange.engines.port import DaemonReader, EngineResult
from broadside.exchange.engines.served_log import TESTS_MAX_COUNT
from broadside.exchange.messages import Flow, Traffic
from tests.unit.exchange.engines.asks import T0, client_ask, job, server_ask

HTTP = engines()["http"]
AT_S = T0.timestamp()


def line(start_s: float, latency_s: float, code: int = 200, error: str = "") -> bytes:
    """Return one result line as vegeta 12 writes it."""
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


def test_rate_is_open_loop_and_no_rate_is_closed_loop() -> None:
    paced = HTTP.client(client_ask(job(options(requests_per_second=2.5)))).processes[0]
    assert "-rate=2500/1000s" in paced.argv
    assert "-max-workers=10000" in paced.argv
    assert paced.pipe_to == ("/bin/vegeta", "encode", "-to=json")
    free = HTTP.client(client_ask(job(traffic_of(engine="http", streams_count=7)))).processes[0]
    assert {"-rate=0", "-max-workers=7", "-max-connections=7", "-laddr=10.1.0.4"} <= set(free.argv)
    closing = HTTP.client(client_ask(job(options(keepalive=False)), bind=None)).processes[0]
    assert "-keepalive=false" in closing.argv


def test_uploads_send_files_that_the_agent_creates() -> None:
    traffic = traffic_of(
        engine="http",
        direction="forward",
        options={"body_mix": "1000,50000", "compressible_percent": 25},
    )
    launch = HTTP.client(client_ask(job(traffic)))
    url = "POST http://10.2.0.4:8080/upload?job=r1.00000.00000.15"
    assert launch.files[0].text == f"{url}\n@/work/x/1000\n\n{url}\n@/work/x/50000\n"
    bodies = [(file.name, file.size_bytes, file.zeros_percent) for file in launch.files[1:]]
    assert bodies == [("1000", 1000, 25), ("50000", 50_000, 25)]
    assert "vegeta uploads bodies to nginx" in HTTP.statement(traffic)


def test_uploads_count_at_both_ends_when_they_are_complete() -> None:
    upload = traffic_of(engine="http", direction="forward")
    reader = HTTP.client_reader(job(upload, duration_s=3))
    sent = json.loads(line(0.25, 1.0)) | {"bytes_out": 2000}
    reader.feed(json.dumps(sent).encode(), AT_S)
    reader.feed(json.dumps(sent | {"code": 503, "error": "503 Busy"}).encode(), AT_S)
    reading = reader.finish(0)
    assert reading.usable
    (totals,) = reading.report.totals
    assert (totals.flow, totals.sent_bytes, totals.received_bytes) == (Flow.UP, 2000, None)
    assert sum(row.transferred_bytes for row in reading.intervals[Flow.UP]) == 2000
    head = logged(1.5, 1.0, sent=0)
    # The second request was interrupted.
    (served,) = served_by(head + b" POST 2000 2200", head + b" POST 2000 700", logged(1.6, 1.0))
    assert served.usable
    (totals,) = served.report.totals
    assert (totals.flow, totals.received_bytes, totals.sent_bytes) == (Flow.UP, 2700, None)
    measures = {measure.name: measure.value for measure in served.report.measures}
    # A download of the same test.
    assert measures["server_unplaced_count"] == 1


def test_ipv6_target_has_brackets() -> None:
    launch = HTTP.client(client_ask(job(options(), address="fd00::2"), bind=None))
    assert launch.files[0].text == "GET http://[fd00::2]:8080/1000000?job=r1.00000.00000.15\n"
    assert "listen [fd00::2]:8080" in HTTP.server(server_ask(address="fd00::2")).files[0].text


def test_offered_rate_is_scaled() -> None:
    traffic = options(requests_per_second=100, body_bytes=1_000_000)
    assert offered_bits_per_second(traffic) == 800_000_000
    assert offered_bits_per_second(scaled(traffic, 100)) == 8_000_000
    assert offered_bits_per_second(options()) is None
    assert scaled(options(), 100) == options()


def test_results_become_seconds_success_and_latency() -> None:
    reader = HTTP.client_reader(job(options(), duration_s=3))
    # Half a second in each.
    reader.feed(line(0.25, 1.0), AT_S)
    reader.feed(line(2.0, 0.1), AT_S)
    reader.feed(line(2.1, 0.002, 503, "503 Service Unavailable"), AT_S)
    reader.feed(line(2.2, 5.0, 0, "Get x: context deadline exceeded"), AT_S)
    reading = reader.finish(0)
    assert reading.usable
    assert reading.first_data_at_s == AT_S + 0.25
    rows = reading.intervals[Flow.DOWN]
    assert [row.transferred_bytes for row in rows[:3]] == [750_000, 250_000, 2_000_000]
    # The end of the UTC second.
    assert rows[0].end_s == 0.75
    assert rows[-1].end_s == pytest.approx(7.2 - 0.25)
    measures = {measure.name: measure.value for measure in reading.report.measures}
    assert measures["requests_count"] == 4
    assert measures["success_ratio"] == 0.5
    assert (measures["errors_http_503_count"], measures["errors_timeout_count"]) == (1, 1)
    (latency,) = reading.report.distributions
    assert sum(latency.counts.values()) == 2
    assert latency.max == 1.0


def test_incomplete_body_is_not_counted() -> None:
    reader = HTTP.client_reader(job(options(), duration_s=3))
    reader.feed(line(0, 0.1, 0, "unexpected EOF"), AT_S)
    reading = reader.finish(0)
    assert not reading.usable
    assert "all 1 requests failed, 1 of them: unexpected EOF" in (reading.report.error or "")


def test_seconds_without_an_answer_are_zero_after_the_end() -> None:
    reader = HTTP.client_reader(job(options(), duration_s=10))
    reader.feed(line(0, 0.1), AT_S)
    # There may be more results to come.
    assert len(reader.finish(None).intervals[Flow.DOWN]) == 1
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
def test_error_kind_does_not_contain_addresses(error: str, kind: str) -> None:
    assert error_kind(error) == kind


def test_number_of_error_kinds_is_limited() -> None:
    reader = HTTP.client_reader(job(options()))
    for index in range(100):
        reader.feed(line(1, 0.1, 0, f"x: error number {index}"), AT_S)
    names = [measure.name for measure in reader.finish(0).report.measures]
    assert len(names) < 15
    assert "errors_other_count" in names


def test_long_requests_make_long_intervals() -> None:
    """Check this, because it cannot be known how a request was spread over its seconds."""
    reader = HTTP.client_reader(job(options(), duration_s=12))
    for start_s in (0, 4, 8):
        reader.feed(line(start_s, 3.9), AT_S)
    rows = reader.finish(0).intervals[Flow.DOWN]
    assert [round(row.end_s - row.start_s, 1) for row in rows] == [4.0, 4.0, 4.0]
    assert [row.transferred_bytes for row in rows] == [1_000_000] * 3


def test_one_long_request_does_not_widen_intervals() -> None:
    reader = HTTP.client_reader(job(options(), duration_s=4))
    reader.feed(line(0, 3.0), AT_S)
    for number in range(150):
        reader.feed(line(number / 50, 0.1), AT_S)
    rows = reader.finish(0).intervals[Flow.DOWN]
    assert [row.end_s for row in rows] == [1.0, 2.0, 3.0, 4.0]


def test_client_and_server_report_the_job_id() -> None:
    requested = job(options(), duration_s=3)
    client = HTTP.client_reader(requested)
    assert client.finish(0).report.cookie == requested.job_id == "r1.00000.00000"
    target = HTTP.client(client_ask(requested)).files[0].text
    (served,) = served_by(logged(1.5, 1.0, test_id=target.strip().partition("?job=")[2]))
    assert served.report.cookie == requested.job_id


def test_nginx_logs_tokens_only_and_in_atomic_writes() -> None:
    text = HTTP.server(server_ask()).files[0].text
    assert "if=$token;" in text
    size = re.search(r"buffer=(\d+) ", text)
    assert size is not None and int(size[1]) <= select.PIPE_BUF


TESTED = "r1.00000.00000.15"


def logged(
    end_s: float, took_s: float, sent: int = 1000, client: str = "10.1.0.4", test_id: str = TESTED
) -> bytes:
    """Return one line of nginx's log."""
    return (
        f"{AT_S + end_s:.3f} {took_s:.3f} 200 {sent} {client} {test_id} HTTP/1.1 - - - -".encode()
    )


def served_by(*lines: bytes, at_s: float = 2.0) -> list[EngineResult]:
    """Return the readings for all tests in nginx's log."""
    reader = HTTP.server_reader()
    for item in lines:
        reader.feed(item, AT_S + at_s)
    return [test.finish() for test in cast(DaemonReader, reader).tests.values()]


def test_nginx_log_is_split_by_test() -> None:
    first, second = served_by(
        logged(1.5, 1.0), logged(1.9, 0.1, 70, test_id="r2.00000.00001.15"), logged(1.6, 0.2, 300)
    )
    assert [total.sent_bytes for total in first.report.totals] == [1300]
    assert first.first_data_at_s == pytest.approx(AT_S + 0.5)
    assert [row.transferred_bytes for row in first.intervals[Flow.DOWN]] == [500, 800]
    assert second.report.cookie == "r2.00000.00001"
    assert [total.sent_bytes for total in second.report.totals] == [70]


def test_client_addresses_are_ignored() -> None:
    """Check this, because a device can use a new address for each connection."""
    (reading,) = served_by(logged(1.5, 1.0, client="10.9.0.1"), logged(1.6, 1.0, client="::1"))
    assert [total.sent_bytes for total in reading.report.totals] == [2000]


@pytest.mark.parametrize(
    "other_line",
    [
        b"",
        b"GET / HTTP/1.1",
        # Incomplete line.
        logged(1.5, 1.0)[:-20],
        # Two lines in one.
        logged(1.5, 1.0) + logged(1.6, 1.0),
        logged(1.5, 1.0, test_id="-"),
        logged(1.5, 1.0, test_id="r1"),
        logged(1.5, 1.0, test_id="r1.00000.00000.x"),
        b"nan inf 200 1000 10.1.0.4 " + TESTED.encode(),
        b"1e400 1.000 200 1000 10.1.0.4 " + TESTED.encode(),
        b"\xff\x00" * 40_000,
    ],
)
def test_foreign_and_invalid_lines_are_ignored(other_line: bytes) -> None:
    expected = served_by(logged(1.5, 1.0), logged(1.6, 0.2))
    assert (
        served_by(other_line, logged(1.5, 1.0), other_line, logged(1.6, 0.2), other_line)
        == expected
    )
    assert served_by(other_line) == []


@pytest.mark.parametrize(
    ("end_s", "took_s"),
    [
        # The request took an hour.
        (1.5, 3600.0),
        # The line is an hour old.
        (-3600.0, 0.1),
        # The time is in the future.
        (3600.0, 0.1),
        (1.5, 1e9),
    ],
)
def test_request_outside_the_test_is_counted_but_not_placed(end_s: float, took_s: float) -> None:
    impossible = logged(end_s, took_s)
    for lines in ((impossible, logged(1.5, 1.0)), (logged(1.5, 1.0), impossible)):
        (reading,) = served_by(*lines)
        assert len(reading.intervals[Flow.DOWN]) == 2
        measures = {measure.name: measure.value for measure in reading.report.measures}
        assert measures == {"server_requests_count": 1, "server_unplaced_count": 1}
    (expected,) = served_by(impossible)
    assert expected.intervals == {}
    assert [measure.name for measure in expected.report.measures][1] == "server_unplaced_count"


def test_number_of_stored_tests_is_limited() -> None:
    lines = [logged(1.5, 1.0, test_id=f"r{number}.00000.00000.15") for number in range(1000)]
    readings = served_by(*lines)
    assert len(readings) == TESTS_MAX_COUNT
    assert readings[-1].report.cookie == "r999.00000.00000"


def test_quiet_time_is_at_least_the_longest_request() -> None:
    reader = HTTP.server_reader()
    reader.feed(logged(1.5, 0.1), AT_S + 2)
    (test,) = cast(DaemonReader, reader).tests.values()
    assert test.quiet_s == 2
    reader.feed(logged(6.5, 5.0), AT_S + 7)
    assert test.quiet_s == 5
    assert (test.last_data_s, test.last_at_s) == (AT_S + 7, AT_S + 6.5)
