"""Tests for the engine for connections: command lines, parsing and histograms."""

import json
import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from broadside.coordinator.core.measure.engine_metrics import QUANTILES, quantiles_of
from broadside.exchange.chunks import check_intervals, pack_intervals, unpack_intervals
from broadside.exchange.engines import (
    engines,
    offered_bits_per_second,
    problems,
    ramps_s,
    scaled,
    traffic_of,
)
from broadside.exchange.engines.buckets import folded
from broadside.exchange.engines.connections import (
    CLIENT_COUNTS,
    LATER_COUNTS,
    OUTCOMES,
    AcceptReader,
    AttemptReader,
    parse_histogram,
)
from broadside.exchange.engines.downloads import parse_options
from broadside.exchange.engines.merge import merge
from broadside.exchange.engines.peer_seconds import read_steps
from broadside.exchange.engines.port import Certificate, EngineResult, StartBasis, Unsupported
from broadside.exchange.engines.served_log import TESTS_MAX_COUNT
from broadside.exchange.messages import Flow, Interval, Message, Side
from tests.unit.exchange.engines.asks import T0, client_ask, job, server_ask

CONNECTIONS = engines()["connections"]
ZERO_S = T0.timestamp()
TOKEN = "r1.00000.00000.13"  # noqa: S105 - an id, not a password


def traffic(**options: Any) -> Any:
    return traffic_of(engine="connections", options=options)


def second(number: int, **counts: Any) -> bytes:
    row = dict.fromkeys((*CLIENT_COUNTS, "sent_bytes", "received_bytes"), 0)
    return json.dumps({**row, "second": number, **counts}).encode()


def histogram(*values_s: float, resolution: int = 48) -> dict[str, Any]:
    """Return the histogram that the program prints for these values."""
    counts = Counter(math.floor(math.log2(value_s) * resolution) for value_s in values_s)
    made: dict[str, Any] = {"counts": {str(bucket): count for bucket, count in counts.items()}}
    return made | {"max_s": max(values_s), "resolution": resolution}


def client(
    *lines: bytes, exit_code: int | None = 0, stderr: str = "", **options: Any
) -> EngineResult:
    reader = CONNECTIONS.client_reader(job(traffic(**options)))
    for line in lines:
        reader.feed(line, ZERO_S + 1)
    return reader.finish(exit_code, stderr=stderr)


def ended(after_s: float = 10.0, scheduled: int = 20, **fields: Any) -> bytes:
    return json.dumps(
        {"ended": after_s, "scheduled": scheduled, "unfinished": 0, **fields}
    ).encode()


def measures(reading: EngineResult) -> dict[str, float]:
    return {measure.name: measure.value for measure in reading.report.measures}


def words(launch: Any) -> dict[str, str]:
    (process,) = launch.processes
    options = process.argv[2:]
    return dict(zip(options[::2], options[1::2], strict=True))


def test_client_gets_the_instant_and_the_token() -> None:
    requested = client_ask(job(traffic(attempts_per_second=400)))
    line = words(CONNECTIONS.client(requested))
    assert line["--at"] == f"{ZERO_S:.6f}"
    assert (line["--token"], line["--rate"], line["--duration"]) == (TOKEN, "400.000000", "10")
    assert (line["--mode"], line["--close"], line["--sources"]) == ("connect", "rst", "one")
    assert "--bytes" not in line
    assert "--bind" not in words(CONNECTIONS.client(client_ask(requested.job, bind=None)))


def test_options_of_a_mode_are_on_the_command_line() -> None:
    occupied = traffic(mode="hold", exchange_bytes=100, held_count=7, heartbeat_s=0.5)
    line = words(CONNECTIONS.client(client_ask(job(occupied))))
    assert (line["--bytes"], line["--count"], line["--heartbeat"]) == ("100", "7", "0.5")
    assert words(CONNECTIONS.server(server_ask(address=None)))["--address"] == "::"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exchange_bytes": 9}, "traffic.options.exchange_bytes: mode connect has none; drop it"),
        (
            {"mode": "exchange", "held_count": 9},
            "traffic.options.held_count: mode exchange has none; drop it",
        ),
        (
            {"mode": "exchange", "exchange_bytes": 7},
            "traffic.options.exchange_bytes: Input should be greater than or equal to 8 (got 7)",
        ),
        (
            {"attempts_per_second": 0},
            "traffic.options.attempts_per_second: Input should be greater",
        ),
        ({"timeout_s": 9}, "traffic.options.timeout_s: Input should be less than or equal to 8"),
        (
            {"rate": 9},
            "traffic.options.rate: connections does not have this option; use one of mode,",
        ),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], message: str) -> None:
    (problem,) = problems(traffic(**options))
    assert problem.startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tls_resume": True},
            "traffic.options.tls_resume: only TLS uses it; remove it, or set tls=any",
        ),
        (
            {"tls": "any", "body_bytes": 5},
            "traffic.options.body_bytes: mode connect has none; drop it",
        ),
        ({"server_name": "a.test"}, "traffic.options.server_name: only TLS and HTTP use it; set"),
        (
            {"mode": "http", "server_name": "a b"},
            "traffic.options.server_name: String should match",
        ),
        ({"mode": "http", "body_mix": "1,x"}, "traffic.options.body_mix: String should match"),
        (
            {"mode": "http", "body_bytes": 1, "body_mix": "1,2"},
            "traffic.options.body_bytes: body_mix replaces it; remove one",
        ),
        ({"tls": "1.1"}, "traffic.options.tls: Input should be 'off', 'any', '1.2' or '1.3'"),
    ],
)
def test_invalid_options_of_tls_and_http_are_rejected(
    options: dict[str, Any], message: str
) -> None:
    (problem,) = problems(traffic(**options))
    assert problem.startswith(message)


def test_tls_and_http_are_on_the_command_lines() -> None:
    chosen = traffic(
        mode="http",
        tls=1.3,
        tls_cipher="TLS_AES_128_GCM_SHA256",
        tls_resume=True,
        server_name="shop.lab.test",
        body_mix="1000,64000",
        upload_bytes=500,
        compressible_percent=30,
    )
    line = words(CONNECTIONS.client(client_ask(job(chosen))))
    assert (line["--mode"], line["--tls"], line["--resume"]) == ("http", "1.3", "1")
    assert (line["--cipher"], line["--name"]) == ("TLS_AES_128_GCM_SHA256", "shop.lab.test")
    assert (line["--bodies"], line["--upload"], line["--compressible"]) == (
        "1000,64000",
        "500",
        "30",
    )
    assert "--bytes" not in line
    shown = Certificate(certificate="/work/x/c.pem", key="/work/x/k.pem")
    served_line = words(CONNECTIONS.server(server_ask(certificate=shown)))
    assert (served_line["--certificate"], served_line["--key"]) == (
        "/work/x/c.pem",
        "/work/x/k.pem",
    )
    text = CONNECTIONS.statement(chosen)
    assert "an upload of 500 bytes and an HTTP/1.1 answer of 1000 or 64000 bytes" in text
    assert "with resumed handshakes of TLS 1.3 (TLS_AES_128_GCM_SHA256)" in text
    assert offered_bits_per_second(chosen) == 1000 * (32_500 + 500 + 400) * 8


def test_negotiated_tls_is_counted() -> None:
    reading = client(
        second(0, attempted=9, established=9, secured=7, closed=7, reset=2, tls_failed=2),
        ended(
            resumed=3,
            replaced=1,
            negotiated={"TLSv1.3 TLS_AES_256_GCM_SHA384": 6, "TLSv1.2 X": 1, "": 1, "a": "x"},
            tls_handshake=histogram(0.1),
        ),
        tls="any",
    )
    matches = measures(reading)
    assert matches["tlsv1_3_tls_aes_256_gcm_sha384_count"] == 6
    assert matches["tlsv1_2_x_count"] == 1
    assert (matches["tls_resumed_count"], matches["tls_failed_count"]) == (3, 2)
    assert matches["tls_replaced_count"] == 1
    assert matches["secured_count"] == 7
    assert [one.name for one in reading.report.distributions] == ["tls_handshake"]
    assert "tls_resumed_count" not in measures(client(second(0, attempted=1), ended()))


def test_lines_of_the_previous_version_are_read() -> None:
    row = json.loads(second(0, attempted=2, established=2, closed=2))
    for name in LATER_COUNTS & row.keys():
        del row[name]
    assert measures(client(json.dumps(row).encode(), ended()))["closed_count"] == 2


def test_offered_rate_is_payload_of_both_directions() -> None:
    assert offered_bits_per_second(traffic()) == 0
    exchange = traffic(mode="exchange", attempts_per_second=100, exchange_bytes=1000)
    assert offered_bits_per_second(exchange) == 100 * 1000 * 16
    occupied = traffic(mode="hold", attempts_per_second=100, held_count=50, heartbeat_s=0.5)
    assert offered_bits_per_second(occupied) == (100 + 100) * 64 * 16


def test_lab_scale_divides_rate_and_held_connections() -> None:
    occupied = scaled(traffic(mode="hold", attempts_per_second=500, held_count=1000), 100)
    assert (occupied.options["attempts_per_second"], occupied.options["held_count"]) == (5, 10)
    assert scaled(traffic(), 100).options == {"attempts_per_second": 10}
    assert scaled(traffic(), 1) == traffic()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("connect", {"success", "connections", "handshake"}),
        ("exchange", {"success", "connections", "handshake", "first_byte"}),
        ("http", {"success", "connections", "handshake", "first_byte"}),
        ("hold", {"success", "connections", "handshake", "first_byte", "held"}),
    ],
)
def test_metrics_depend_on_the_mode(mode: str, expected: set[str]) -> None:
    assert CONNECTIONS.measures(traffic(mode=mode)) == expected
    assert CONNECTIONS.shutdown_grace_s(traffic(mode=mode, timeout_s=2)) == 2
    assert mode == "hold" or "closes each one" in CONNECTIONS.statement(traffic(mode=mode))


def test_only_a_steady_exchange_has_payload_in_every_second() -> None:
    paused = {
        mode: CONNECTIONS.pauses(traffic(mode=mode)) for mode in ("connect", "exchange", "hold")
    }
    assert paused == {"connect": True, "exchange": False, "hold": True}


@pytest.mark.parametrize(
    ("options", "busy_s", "expected"),
    [
        # Attempts wait for 3 s if the path drops all of them, and conntrack keeps them for 10 s.
        ({}, 600, (3000, 3000, 3000, 10_000)),
        # A short run cannot have more than it makes.
        ({}, 2, (2000, 2000, 2000, 2000)),
        # Ports are in TIME_WAIT for 60 s, and conntrack keeps the connections for 120 s.
        ({"close": "fin"}, 600, (3000, 60_000, 63_000, 120_000)),
        ({"close": "fin"}, 20, (3000, 20_000, 23_000, 20_000)),
        ({"mode": "hold", "held_count": 700}, 600, (700, 700, 700, 700)),
    ],
)
def test_needs_follow_from_rate_time_limit_and_close(
    options: dict[str, Any], busy_s: float, expected: tuple[float, float, float, float]
) -> None:
    needs = CONNECTIONS.needs(traffic(**options), busy_s)
    assert needs is not None
    counts = (needs.open_count, needs.ports_count, needs.flows_count, needs.tracked_count)
    assert counts == expected
    assert needs.field == ("held_count" if "mode" in options else "attempts_per_second")
    assert ("close=rst" in needs.fix) is ("close" in options)


def test_tls_needs_more_of_a_core() -> None:
    chosen: tuple[dict[str, Any], ...] = ({}, {"tls": "any", "tls_resume": True}, {"tls": "any"})
    needs = [CONNECTIONS.needs(traffic(**options), 10) for options in chosen]
    rates = [one.core_per_second for one in needs if one is not None]
    assert len(rates) == 3 and rates == sorted(rates, reverse=True)


def test_seconds_of_a_client_become_intervals_with_counts() -> None:
    counts = {"attempted": 10, "established": 9, "closed": 8, "refused": 1, "open": 1}
    reading = client(
        b'{"started": 1.0, "version": "1.0"}',
        second(0, **counts, sent_bytes=90, received_bytes=80, first_s=0.25, behind_s=0.5),
        second(1, attempted=10, established=10, closed=9, reset=1, timed_out=1, behind_s=0.1),
        ended(2.0, handshake=histogram(0.1, 0.2), first_byte=histogram(0.3)),
        mode="exchange",
    )
    assert reading.usable
    assert (reading.report.version, reading.report.cookie) == ("1.0", "r1.00000.00000")
    assert reading.first_data_at_s == ZERO_S + 0.25
    assert reading.start_basis is StartBasis.STAMPS
    up, down = reading.intervals[Flow.UP], reading.intervals[Flow.DOWN]
    assert [(row.start_s, row.end_s) for row in up] == [(0.0, 0.75), (0.75, 1.75)]
    assert [row.transferred_bytes for row in up] == [90, 0]
    assert [row.transferred_bytes for row in down] == [80, 0]
    assert up[0].counts is not None
    assert {name: count for name, count in up[0].counts.items() if count} == counts
    assert down[0].counts is None
    matches = measures(reading)
    assert matches["attempted_count"] == 20
    assert sum(matches[f"{name}_count"] for name in OUTCOMES) == 20
    assert (matches["established_per_second"], matches["attempted_per_second"]) == (9.5, 10)
    assert (matches["success_ratio"], matches["attempted_ratio"]) == (17 / 20, 1)
    assert matches["attempt_delay_max"] == 0.5
    assert "held_count" not in matches
    assert [one.name for one in reading.report.distributions] == ["handshake", "first_byte"]


def test_attempts_that_were_not_made_are_missing_from_the_ratio() -> None:
    reading = client(second(0, attempted=10, established=10, closed=10), ended(10.0, scheduled=40))
    assert measures(reading)["attempted_ratio"] == 0.25
    assert measures(reading)["success_ratio"] == 1


def test_held_connections_count_as_the_most_open_ones() -> None:
    reading = client(
        second(0, attempted=9, established=9, open=9),
        second(1, reset=2, dropped=2, open=7),
        second(2, closed=7),
        ended(3.0, scheduled=9),
        mode="hold",
    )
    matches = measures(reading)
    assert (matches["held_count"], matches["dropped_count"]) == (9, 2)
    # From the start of the burst to the second in which the first one was dropped.
    assert matches["dropped_first"] == 1
    assert matches["success_ratio"] == 7 / 9


def test_held_connections_that_end_before_they_are_held_are_not_complete() -> None:
    rows = [second(0, attempted=9, established=9, reset=4, open=5), second(1, closed=5)]
    assert measures(client(*rows, ended(2.0, scheduled=9), mode="hold"))["success_ratio"] == 5 / 9
    stopped = [rows[0], second(1, closed=3, open=2), ended(2.0, unfinished=2)]
    assert measures(client(*stopped, mode="hold"))["success_ratio"] == 5 / 9


def test_client_names_the_limits_that_it_reached() -> None:
    lacked = {"failed_ports": 3, "failed_files": 2, "conntrack_dropped": 5, "core_ratio": 0.5}
    rows = [
        b'{"started": 1.0, "ports": 500, "addresses": 2, "files": 256}',
        second(0, attempted=9, established=4, closed=4, failed=5),
    ]
    matches = measures(client(*rows, ended(1.0, scheduled=9, **lacked)))
    assert (matches["failed_ports_count"], matches["ports_limit_count"]) == (3, 1000)
    assert (matches["failed_files_count"], matches["files_limit_count"]) == (2, 256)
    assert (matches["conntrack_dropped_count"], matches["client_program_core_ratio"]) == (5, 0.5)
    enough = measures(client(*rows, ended(1.0, scheduled=9)))
    assert not [name for name in enough if "limit" in name or "core" in name or "conn" in name]


def test_no_established_connection_is_an_error_with_outcomes() -> None:
    reading = client(second(0, attempted=5, refused=3, timed_out=2), ended())
    assert reading.report.error == ("0 of 5 connections were established: 3 refused, 2 timed out")
    assert not reading.usable


def test_exit_code_gives_the_last_line_of_the_program() -> None:
    stderr = "connections: no control connection: Connection refused\n"
    reading = client(exit_code=1, stderr=stderr)
    assert reading.report.error == stderr.strip()
    assert client(exit_code=1).report.error == "connections ended with exit code 1"


@pytest.mark.parametrize(
    "line",
    [
        second(0, attempted=-1),
        second(0, attempted=True),
        second(0, attempted=1.5),
        second(0, attempted="1"),
        b'{"second": 0}',
        b'{"second": null, "ended": "x"}',
        b"[" * 5000,
        b"\xff",
    ],
)
def test_invalid_lines_are_skipped(line: bytes) -> None:
    for reader in (AttemptReader("connections", job(traffic())), AcceptReader("connections")):
        assert reader.feed(line, 1.0) == ()
        assert reader.finish().intervals == {}


def test_repeated_and_earlier_seconds_are_skipped() -> None:
    rows = [second(1, attempted=5, established=5), second(1, attempted=9), second(0, attempted=9)]
    assert measures(client(*rows, ended()))["attempted_count"] == 5


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        {"max_s": 1},
        {"max_s": 1, "counts": []},
        {"max_s": 1, "counts": {"a": 1}},
        {"max_s": "x", "counts": {"1": 1}},
        {"max_s": 1, "counts": {}},
        {"max_s": 1, "counts": {str(10**30): 1}},
    ],
)
def test_invalid_histograms_are_skipped(row: object) -> None:
    assert parse_histogram("handshake", row) == ()


def test_thirty_merged_histograms_equal_one_of_all_samples() -> None:
    source = random.Random(36)
    samples = [[source.lognormvariate(-6, 2) for _ in range(500)] for _ in range(30)]
    parts = [parse_histogram("handshake", histogram(*part))[0] for part in samples]
    (merged,) = folded(parts)
    values = sorted(value for part in samples for value in part)
    (complete,) = parse_histogram("handshake", histogram(*values))
    assert (merged.max, merged.resolution) == (complete.max, complete.resolution)
    assert merged.counts == complete.counts
    assert quantiles_of(parts) == quantiles_of([complete])
    for name, quantile in QUANTILES:
        exact = values[math.ceil(quantile * len(values)) - 1]
        assert dict(quantiles_of(parts))[name] == pytest.approx(exact, rel=0.008)


def test_histograms_of_both_resolutions_can_be_added() -> None:
    """Agents of the previous version have a third of the buckets."""
    source = random.Random(36)
    values = [[source.lognormvariate(-6, 2) for _ in range(500)] for _ in range(2)]
    fine = parse_histogram("handshake", histogram(*values[0]))
    coarse = histogram(*values[1], resolution=16)
    del coarse["resolution"]
    (merged,) = folded([*fine, *parse_histogram("handshake", coarse)])
    (complete,) = parse_histogram("handshake", histogram(*values[0], *values[1], resolution=16))
    assert (merged.counts, merged.resolution) == (complete.counts, 16)
    assert "resolution" not in merged.model_dump()
    assert fine[0].model_dump()["resolution"] == 48


def test_times_of_a_second_are_in_its_counts() -> None:
    reading = client(
        second(0, attempted=1, established=1, handshake_us=[10, 20, 30], first_byte_us=[1, 2]),
        second(1, attempted=1, handshake_us=[-1, 2.5, 3]),
        ended(),
    )
    first, following = (row.counts or {} for row in reading.intervals[Flow.UP])
    assert (first["handshake_p50_us"], first["handshake_p99_us"]) == (10, 20)
    assert first["handshake_max_us"] == 30
    assert "first_byte_p50_us" not in first
    assert "handshake_p50_us" not in following


def test_processes_of_a_pair_are_merged() -> None:
    parts = [
        client(second(0, attempted=2, established=2, closed=2), ended(handshake=histogram(value)))
        for value in (0.1, 0.4)
    ]
    (merged,) = merge(parts).report.distributions
    assert sum(merged.counts.values()) == 2
    assert merged.max == 0.4


def served(*rows: bytes, **shared: Any) -> Any:
    reader = AcceptReader("connections")
    for row in rows:
        fields = {"test": TOKEN, "client": "10.1.0.4", "first_at": ZERO_S + 0.5, **shared}
        reader.feed(json.dumps({**json.loads(row), **fields}).encode(), ZERO_S + 1)
    return reader


def accepted(number: int, **counts: Any) -> bytes:
    return second(number, **{"foreign": 0, **counts})


def test_server_counts_belong_to_the_test_of_the_token() -> None:
    zero = int(ZERO_S)
    reader = served(
        accepted(zero, established=9, reset=8, open=1, received_bytes=90, sent_bytes=80),
        accepted(zero + 1, established=3, reset=4, foreign=2),
        accepted(zero + 2),
        b'{"ended": %.1f}' % (ZERO_S + 2.3),
    )
    (test,) = reader.tests.values()
    assert (test.cookie, test.quiet_s, test.is_reported) == ("r1.00000.00000", 0.0, True)
    assert test.last_at_s == ZERO_S + 2
    reading = test.finish()
    assert (reading.side, reading.usable) == (Side.SERVER, True)
    assert reading.first_data_at_s == ZERO_S + 0.5
    up, down = reading.intervals[Flow.UP], reading.intervals[Flow.DOWN]
    assert [(row.start_s, row.end_s) for row in up] == [(0, 0.5), (0.5, 1.5)]
    assert ([row.transferred_bytes for row in up], down[0].transferred_bytes) == ([90, 0], 80)
    assert measures(reading)["server_established_count"] == 12
    assert measures(reading)["server_foreign_count"] == 2
    assert reading.client_address == "10.1.0.4"


def test_server_counts_connections_and_payload_of_every_address() -> None:
    zero = int(ZERO_S)
    reader = served(
        peers_line(zero, {"10.9.0.1": [3, 300], "::ffff:10.9.0.2": [1, 0], "nowhere": [1, 1]}),
        peers_line(zero + 1, {"10.9.0.2": [2, 50], "10.9.0.1": [-1, 0]}),
        peers_line(zero + 2, None),
    )
    (test,) = reader.tests.values()
    peers = test.finish().report.peers
    assert [(peer.address, peer.streams_count) for peer in peers] == [
        ("10.9.0.1", None),
        ("10.9.0.2", None),
    ]
    assert [read_steps(peer) for peer in peers] == [([300], [3]), ([0, 50], [1, 2])]
    # The cells are whole UTC seconds, and the zero is the first connection.
    assert [peer.from_s for peer in peers] == [-0.5, -0.5]


def peers_line(number: int, peers: object) -> bytes:
    return json.dumps(json.loads(accepted(number, established=1)) | {"peers": peers}).encode()


def test_server_names_the_limits_that_it_reached() -> None:
    lacked = {"backlog_dropped": 7, "backlog_overflowed": 6, "backlog": 8, "failed_files": 3}
    last = {**lacked, "files": 256, "conntrack_dropped": 2, "core_ratio": 0.9}
    rows = [
        accepted(int(ZERO_S), established=9),
        json.dumps({"ended": ZERO_S + 2, **last}).encode(),
    ]
    (test,) = served(*rows).tests.values()
    expected = {
        "backlog_dropped_count": 7,
        "backlog_overflowed_count": 6,
        "backlog_limit_count": 8,
        "failed_files_count": 3,
        "files_limit_count": 256,
        "conntrack_dropped_count": 2,
        "program_core_ratio": 0.9,
    }
    assert (
        measures(test.finish()).items() >= {f"server_{k}": v for k, v in expected.items()}.items()
    )
    invalid = json.dumps({"ended": ZERO_S + 2, "backlog_dropped": "x", "files": -1}).encode()
    (test,) = served(rows[0], invalid).tests.values()
    assert not [name for name in measures(test.finish()) if "backlog" in name or "files" in name]


def test_server_seconds_before_the_first_connection_are_no_test() -> None:
    reader = served(accepted(int(ZERO_S)), first_at=0.0)
    (test,) = reader.tests.values()
    assert not test.is_reported
    assert test.last_at_s is None
    assert test.finish().intervals == {}


def test_number_of_stored_tests_is_limited() -> None:
    reader = AcceptReader("connections")
    for number in range(TESTS_MAX_COUNT + 3):
        row = {"test": f"r1.00000.{number:05}.13"}
        reader.feed(json.dumps(row).encode(), float(number))
    assert len(reader.tests) == TESTS_MAX_COUNT
    assert "r1.00000.00000" not in reader.tests


def test_counts_are_stored_in_chunks_and_only_where_they_occur() -> None:
    plain = [Interval(start_s=0, end_s=1, transferred_bytes=5)]
    counted = [
        *plain,
        Interval(start_s=1, end_s=2, transferred_bytes=0, counts={"attempted": 7, "open": 0}),
    ]
    packed = pack_intervals(counted)
    check_intervals(packed)
    assert list(unpack_intervals(packed)) == counted
    assert unpack_intervals(pack_intervals(plain))[0].counts is None
    assert b'"n_' not in pack_intervals(plain, level=0)


# Ramps -------------------------------------------------------------------------------------------


RAMPS: dict[str, Any] = {"ramp_up_s": 3, "ramp_down_s": 2}


def test_ramps_are_on_the_command_line_and_in_the_text() -> None:
    line = words(CONNECTIONS.client(client_ask(job(traffic(**RAMPS)))))
    assert (line["--ramp-up"], line["--ramp-down"]) == ("3", "2")
    assert "--ramp-up" not in words(CONNECTIONS.client(client_ask(job(traffic()))))
    assert ramps_s(traffic(**RAMPS)) == (3, 2)
    assert ramps_s(traffic_of(engine="iperf3")) == (0, 0)
    text = CONNECTIONS.statement(traffic(**RAMPS))
    assert "In the first 3 s of a burst the rate rises from 0, and in the last 2 s it falls" in text
    held = traffic(mode="hold", held_count=600, **RAMPS)
    assert "opens 200 TCP connections a second" in CONNECTIONS.statement(held)
    assert "the number of connections rises from 0" in CONNECTIONS.statement(held)


def test_generator_without_ramps_rejects_the_job() -> None:
    requested = client_ask(job(traffic(**RAMPS)))
    tools = {name: replace(tool, version="1.1") for name, tool in requested.tools.items()}
    with pytest.raises(Unsupported, match=r"ramp_up_s.*generator 1\.1 of this agent has no ramps"):
        CONNECTIONS.client(replace(requested, tools=tools))
    assert CONNECTIONS.client(replace(client_ask(job(traffic())), tools=tools)).processes


def test_agent_without_the_option_names_it() -> None:
    class Older(Message):
        mode: str = "connect"

    with pytest.raises(Unsupported, match=r"traffic\.options\.ramp_up_s: connections does not"):
        parse_options(Older, traffic(ramp_up_s=3))


def test_measures_are_those_of_the_sustain_phase() -> None:
    """The burst has 10 s. The program counts the attempts that were due in the sustain phase."""
    lines = [
        second(at, attempted=10, established=9, closed=9, refused=1, open=at % 5, behind_s=9 - at)
        for at in range(10)
    ]
    sustain = {"scheduled": 52, "attempted": 51, "established": 47, "closed": 46, "refused": 4}
    matches = measures(client(*lines, ended(scheduled=100, sustain=sustain), **RAMPS))
    assert (matches["attempted_count"], matches["established_count"]) == (51, 47)
    assert matches["attempted_ratio"] == 51 / 52
    assert matches["success_ratio"] == 46 / 51
    # The phase has 5 s.
    assert matches["attempted_per_second"] == 51 / 5
    assert matches["ramp_established_count"] == 90 - 47
    assert matches["ramp_closed_count"] == 90 - 46
    assert matches["attempt_delay_max"] == 6
    # A program that was killed has no last line.
    matches = measures(client(*lines, **RAMPS))
    assert (matches["attempted_count"], matches["ramp_established_count"]) == (50, 45)
    assert "ramp_established_count" not in measures(client(*lines, ended()))


def test_held_connections_use_the_sustain_phase() -> None:
    lines = [
        second(0, attempted=9, established=9, open=9),
        second(2, open=8, reset=1, dropped=1),
        *(second(at, open=7) for at in range(3, 6)),
        second(6, open=6, reset=1, dropped=1),
        second(8, closed=6),
    ]
    sustain = {"scheduled": 9, "attempted": 9, "established": 9, "closed": 6, "dropped": 1}
    matches = measures(client(*lines, ended(sustain=sustain), mode="hold", **RAMPS))
    assert (matches["held_count"], matches["dropped_count"]) == (7, 1)
    assert matches["dropped_first"] == 6
    # They were opened before the phase, so the time counts from the start.
    assert matches["established_per_second"] == 9 / 8


def test_server_counts_the_seconds_of_the_sustain_phase() -> None:
    zero = int(ZERO_S)
    span = {"sustain": [ZERO_S + 1, ZERO_S + 3]}
    rows = [accepted(zero + at, established=5, reset=4, open=1, **span) for at in range(4)]
    (test,) = served(*rows, b'{"ended": %.1f}' % (ZERO_S + 4)).tests.values()
    matches = measures(test.finish())
    assert (matches["server_established_count"], matches["server_reset_count"]) == (10, 8)
    assert (matches["server_ramp_established_count"], matches["server_ramp_reset_count"]) == (10, 8)


@pytest.mark.parametrize("span", [None, [], [1], ["a", 2], [1, None], {}])
def test_invalid_sustain_phase_of_a_server_is_ignored(span: object) -> None:
    row = accepted(int(ZERO_S), established=5, sustain=span)
    (test,) = served(row, b'{"ended": %.1f}' % (ZERO_S + 4)).tests.values()
    assert measures(test.finish())["server_established_count"] == 5
