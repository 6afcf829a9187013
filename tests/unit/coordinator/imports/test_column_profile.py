"""Tests for column profiles that are included, and for those that you can add."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from broadside.coordinator.core.summary import Verdict
from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.column_profile import load_profile
from broadside.exchange.messages import Flow
from tests.unit.coordinator.imports.small_tables import made, parse

VEGETA = [
    (
        "PartitionKey,RowKey,test_type,test_type@type,protocol,protocol@type,latency_total,"
        "latency_total@type,latency_mean,latency_mean@type,latency_max,latency_max@type,latency_min,"
        "latency_min@type,throughput,throughput@type,success,success@type,server,server@type"
    ),
    *(
        f"10.2.0.{client},01 27 2022 13 {minute} 00,vegeta,String,http,String,242247669.7,Double,"
        "20187.30581,Double,30024.99628,Double,63.037303,Double,28.84713379,String,0.638916667,"
        "String,10.1.0.89,String"
        for minute in (50, 55)
        for client in (4, 5, 6)
    ),
]
# To get this number: dd if=/dev/urandom bs=1024 count=1000 | base64 | gzip -1 | wc -c
REPLY_BYTES = 1_073_600


def test_original_vegeta_table_becomes_a_run() -> None:
    table = parse(VEGETA)
    assert table.engine == "http"
    first = table.rows[0]
    assert first.started_at == datetime(2022, 1, 27, 18, 50, tzinfo=UTC)
    assert first.requests_count == 12_000
    # 240 seconds to send 50 requests per second, plus the wait for the last reply.
    assert first.duration_s == pytest.approx(265.78, abs=0.01)
    assert first.received_bits_per_second == pytest.approx(28.84713379 * REPLY_BYTES * 8)
    assert {"reply-size-assumed", "pairs-assumed"} == {note.id for note in table.notes}
    plan, summary = made(table)
    assert plan.spec.traffic.engine == "http"
    assert [flow.flow for flow in summary.bursts[0].flows] == [Flow.DOWN]
    assert summary.fleet_received_bits_per_second == pytest.approx(
        3 * 28.84713379 * REPLY_BYTES * 8, rel=1e-3
    )
    measures = {measure.name: measure.value for measure in summary.bursts[0].measures}
    assert measures["requests_count"] == 36_000
    assert measures["success_ratio"] == pytest.approx(0.638916667)
    assert measures["latency_mean_s"] == pytest.approx(20.18730581)
    assert summary.verdict is Verdict.MEASURED


def test_vegeta_rows_without_a_result_are_null_and_not_zero() -> None:
    lines = [VEGETA[0], *VEGETA[1:3], VEGETA[3].replace("28.84713379", "null")]
    _, summary = made(parse(lines))
    assert summary.bursts[0].null_pairs == ("10.2.0.6",)


def test_table_of_both_tools_is_read_as_iperf3_without_a_profile() -> None:
    header = "PartitionKey,RowKey,test_type,sent_throughput,received_throughput,duration,"
    lines = [
        header + "latency_total,latency_mean,throughput,success",
        "10.2.0.1,01 27 2022 16 00 00,iperf3,2,1,5,,,,",
        "10.2.0.2,01 27 2022 16 00 00,vegeta,,,,24000,20,49.9,1",
    ]
    assert [row.client for row in parse(lines).rows] == ["10.2.0.1"]
    http = parse(lines, profile="original-http")
    assert [row.client for row in http.rows] == ["10.2.0.2"]
    assert http.skipped_rows == {"iperf3": 1}


def test_custom_profile_with_units_and_a_time_format(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        """
title = "results of our script"
timezone = "Europe/Berlin"
time_format = "%d.%m.%Y %H:%M:%S"
[columns]
client = { names = ["host"] }
started_at = { names = ["begin"] }
duration_s = { names = ["minutes"], unit = "min" }
sent_bits_per_second = { names = ["tx"], unit = "Mbit/s" }
received_bits_per_second = { names = ["rx"], unit = "byte/s" }
rtt_mean_s = { names = ["rtt"], unit = "ms", required = false }
"""
    )
    lines = ["begin,host,tx,rx,minutes,rtt", "04.01.2022 12:00:00,a,8,1000000,5,2.5"]
    (row,) = parse(lines, profile=str(path), zone=None).rows
    assert row.started_at == datetime(2022, 1, 4, 11, 0, tzinfo=UTC)
    assert (row.sent_bits_per_second, row.received_bits_per_second) == (8e6, 8e6)
    assert (row.duration_s, row.rtt_mean_s) == (300, 0.0025)
    lines[1] = lines[1].replace("2.5", "90000")
    with pytest.raises(BadFile, match="row 2, rtt: 90000: must be between 0 and 60 s"):
        parse(lines, profile=str(path), zone=None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("title = ", ["not valid TOML"]),
        ("title = 'x'", ["columns", "Field required"]),
        ("title='x'\n[columns]\nspeed={names=['a']}", ["columns.speed", "started_at"]),
        ("title='x'\n[columns]\nclient={names=['a'],unit='furlong'}", ["client.unit", "furlong"]),
        ("title='x'\ntimezone='Mars'\n[columns]\nclient={names=['a']}", ["timezone", "Mars"]),
    ],
)
def test_invalid_profile_is_a_one_line_error_with_the_field(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(BadFile) as caught:
        load_profile(str(path))
    for part in [str(path), *expected]:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_profile_error_lists_the_available_ones(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such profile; give one of firewall-metric, original"):
        load_profile("orignal")
    with pytest.raises(BadFile, match="No such file"):
        load_profile(str(tmp_path / "none.toml"))


def test_metric_can_have_title_rows(tmp_path: Path) -> None:
    from broadside.coordinator.imports.metric_csv import read_declared_metric

    path = tmp_path / "m.csv"
    path.write_text(
        "Throughput of fw-1\n\ntimestamp,average\n2022-01-04T16:25:00Z,1\n2022-01-04T16:26:00Z,2\n"
    )
    assert [point.bits_per_second for point in read_declared_metric(path)[0]] == [1, 2]
