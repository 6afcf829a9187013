"""Tests for values of a firewall metric in JSON."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.metric_json import (
    MetricValues,
    parse_log_rows,
    parse_metric_json,
)

START_S = 1_764_072_000
TIMES = [f"2025-11-25T12:0{minute}:00Z" for minute in range(6)]


def azure(name: str, unit: str, *series: list[Any], aggregation: str = "average") -> dict[str, Any]:
    """Return a metric as the metrics REST API does. A value of None has no member."""
    timeseries = []
    for values in series:
        data = [
            {"timeStamp": at} if value is None else {"timeStamp": at, aggregation: value}
            for at, value in zip(TIMES, values, strict=False)
        ]
        timeseries.append({"metadatavalues": [], "data": data})
    title = {"value": name, "localizedValue": name}
    return {"name": title, "unit": unit, "timeseries": timeseries, "errorCode": "Success"}


def prometheus(*series: list[Any], label: str | None = None, **fields: Any) -> dict[str, Any]:
    result = [
        {
            "metric": {"instance": str(index)} | ({"__name__": label} if label else {}),
            "values": [[START_S + 60 * n, value] for n, value in enumerate(values)],
        }
        for index, values in enumerate(series)
    ]
    data = {"resultType": "matrix", "result": result}
    return {"status": "success", "data": data, **fields}


def parse(document: object) -> MetricValues:
    return parse_metric_json(json.dumps(document), "metric.json")


def numbers(metric: MetricValues) -> list[float | None]:
    return [value for _, value in metric.values]


@pytest.mark.parametrize(
    ("unit", "aggregation", "declared"),
    [
        ("BitsPerSecond", "average", {}),
        ("BitsPerSecond", "maximum", {"aggregation": "max"}),
        ("BytesPerSecond", "average", {"unit": "bytes"}),
        ("Bytes", "total", {"unit": "bytes", "aggregation": "sum"}),
    ],
)
def test_azure_unit_and_aggregation_declare_the_value(
    unit: str, aggregation: str, declared: dict[str, str]
) -> None:
    metric = parse({"value": [azure("Metric", unit, [0, None, 2.5], aggregation=aggregation)]})
    assert numbers(metric) == [0, None, 2.5]
    assert metric.declared == {"mtu_bytes": 1500, **declared}
    assert metric.values[0][0] == datetime(2025, 11, 25, 12, tzinfo=UTC)


def test_azure_dimensions_are_added() -> None:
    split = azure("DataProcessed", "Bytes", [1, 2, None], [10, None, None], aggregation="total")
    assert numbers(parse({"value": [split]})) == [11, 2, None]


def test_azure_throughput_is_preferred_and_the_others_are_named() -> None:
    metrics = [
        azure("DataProcessed", "Bytes", [5, 5], aggregation="total"),
        azure("Throughput", "BitsPerSecond", [1, 2]),
        azure("FirewallHealth", "Percent", [100, 100]),
    ]
    metric = parse({"value": metrics})
    assert numbers(metric) == [1, 2]
    assert [note.id for note in metric.notes] == ["metrics-ignored"]
    assert "not read: DataProcessed, FirewallHealth" in metric.notes[0].sentence


def test_log_rows_take_the_unit_from_the_metric_name() -> None:
    row = {"metricname": "Throughput", "timegenerated [utc]": TIMES[0], "average": "1,000.5"}
    metric = parse_log_rows(
        [(7, row), (8, {**row, "timegenerated [utc]": TIMES[1], "average": ""})], "metric.csv"
    )
    assert numbers(metric) == [1000.5, None] and metric.declared == {"mtu_bytes": 1500}


@pytest.mark.parametrize(
    ("label", "values", "expected"),
    [
        # Increases of a counter, which restarts once.
        ("if_bytes_total", ["5", "9", "2", "3"], [4, None, 1]),
        ("ifHCInOctets", ["5", "NaN", "9", "9"], [None, None, 0]),
        (None, ["1", "2", "2", "3", "4"], [1, 0, 1, 1]),
        # Rates have no name.
        (None, ["1", "2", "1", "3", "4"], [1, 2, 1, 3, 4]),
        (None, ["1", "+Inf", "NaN", "0"], [1, None, None, 0]),
        ("if_rate", ["1", "2", "3", "4", "5"], [1, 2, 3, 4, 5]),
    ],
)
def test_prometheus_running_totals_become_increases(
    label: str | None, values: list[str], expected: list[float | None]
) -> None:
    metric = parse(prometheus(values, label=label))
    assert numbers(metric) == expected
    is_total = len(expected) < len(values)
    assert metric.declared == ({"unit": "bytes", "aggregation": "sum"} if is_total else {})
    assert [note.id for note in metric.notes] == ["metric-running-total"] * is_total


def test_prometheus_series_are_added_and_an_unknown_part_makes_the_sum_unknown() -> None:
    metric = parse(prometheus(["5", "1", "4"], ["5", "8", "9"], label="if_bytes_total"))
    assert numbers(metric) == [None, 4]
    assert [note.id for note in metric.notes] == ["metric-series-added", "metric-running-total"]


def test_prometheus_warnings_make_the_answer_partial() -> None:
    assert "store is down" in (parse(prometheus(["1"], warnings=["store is down"])).partial or "")
    assert parse(prometheus(["1"], warnings=[])).partial is None


def test_errors_of_azure_make_the_answer_partial() -> None:
    throughput = azure("Throughput", "BitsPerSecond", [1, 2])
    failed = {"errorCode": "Timeout", "errorMessage": "the shard did not answer"}
    assert parse({"value": [throughput]}).partial is None
    metric = parse({"value": [throughput | failed]})
    assert metric.partial == "Timeout: the shard did not answer"
    assert numbers(metric) == [1, 2]
    # The error of a metric that is not read has no effect.
    other = azure("FirewallHealth", "Percent", [1]) | failed
    assert parse({"value": [throughput, other]}).partial is None
    columns = [{"name": name} for name in ("TimeGenerated", "MetricName", "Average")]
    table = {"columns": columns, "rows": [[TIMES[0], "Throughput", 1]]}
    error = {"code": "PartialError", "message": "There were some errors."}
    assert parse({"tables": [table]}).partial is None
    metric = parse({"tables": [table], "error": error})
    assert metric.partial == "PartialError: There were some errors."


@pytest.mark.parametrize(
    ("document", "parts"),
    [
        (
            {"value": [azure("Throughput", "BitsPerSecond") | {"errorCode": "Throttled"}]},
            ["Azure reported Throttled", "export the metric again"],
        ),
        (
            {"value": [azure("Throughput", "BitsPerSecond", [1, 10**400])]},
            ["Throughput data[1], average", "'1000", "correct"],
        ),
        (
            {"value": [azure("Throughput", "BitsPerSecond", [1], [2], aggregation="maximum")]},
            ["Throughput data[0]", TIMES[0], "maximum", "without splitting"],
        ),
        (
            {"value": [azure("A", "Bytes", [1], aggregation="total") | {"name": n} for n in "AB"]},
            ["(A, B)", "export only one"],
        ),
        (
            [{"TimeGenerated": TIMES[0], "MetricName": "Throughput", "Average": "fast"}],
            ["row 1, average", "'fast'", "correct"],
        ),
        ({"tables": [1]}, ["no values of a metric", "found: tables", "Log Analytics"]),
        ({"tables": []}, ["no values of a metric"]),
        (prometheus(["1"], ["-2"]), ["result[1].values[0]", "-2", "rate"]),
        (prometheus([10**400]), ["result[0].values[0]", "1000", "export"]),
        (
            {
                "status": "success",
                "data": {"resultType": "matrix", "result": [{"value": [1, "2"]}]},
            },
            ["result[0]", "`values`", "query_range"],
        ),
        ({"status": "success", "data": None}, ["resultType", "query_range"]),
    ],
)
def test_error_names_place_value_and_fix(document: object, parts: list[str]) -> None:
    with pytest.raises(BadFile) as caught:
        parse(document)
    text = str(caught.value)
    assert text.startswith("metric.json: ") and "\n" not in text
    for part in parts:
        assert part in text, text


@pytest.mark.parametrize("text", ["[" * 100_000, '{"value": [', "", "null"])
def test_text_that_is_no_metric_is_an_error_of_the_file(text: str) -> None:
    with pytest.raises(BadFile, match=r"^metric\.json: .*(export|give)"):
        parse_metric_json(text, "metric.json")
