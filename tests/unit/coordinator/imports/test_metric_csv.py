"""Tests to read the firewall metric from a CSV file."""

from datetime import UTC, datetime

import pytest

from broadside.coordinator.imports import BadFile, metric_csv
from broadside.coordinator.imports.import_requests import MetricPoint

HEADER = "timestamp,throughput_bits_per_second"


def parse_metric(text: str, name: str) -> tuple[MetricPoint, ...]:
    return metric_csv.parse_metric(text, name)[1]


def test_reads_points_in_several_formats() -> None:
    plain = parse_metric(
        f"{HEADER}\n2022-01-04T16:25:00Z,21600000000\n2022-01-04T16:26:00Z,\n", "m"
    )
    assert [(p.at.minute, p.bits_per_second) for p in plain] == [(25, 21.6e9), (26, None)]
    assert plain[0].at == datetime(2022, 1, 4, 16, 25, tzinfo=UTC)
    other = parse_metric(
        'Time (UTC);Throughput (Avg)\n2022-01-04 16:25:00;"21,600,000,000"\n\n'
        "2022-01-04 16:26:00;null\n",
        "m",
    )
    assert other == plain
    local = parse_metric(f"{HEADER}\n2022-01-04T11:25:00-05:00,1\n2022-01-04T11:26-05:00,2\n", "m")
    assert [p.at for p in local] == [p.at for p in plain]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["a,b", "1,2"], ["row 1", "timestamp", "found: a, b"]),
        ([HEADER], ["no row", "only a header"]),
        ([HEADER, "2022-01-04T16:25:00Z,1"], ["1 points", "bin length"]),
        ([HEADER, "yesterday,1"], ["row 2, timestamp", "'yesterday'"]),
        (
            [HEADER, "2022-01-04T16:25:00Z,1", "2022-01-04T16:25Z,2"],
            ["row 3", "row 2 has the same"],
        ),
        ([HEADER, "2022-01-04T16:25:00Z,1", "2022-01-04T16:26:00,2"], ["row 3", "no zone"]),
        (
            [HEADER, "2022-01-04T16:25:00Z,1", "2022-01-04T11:26:00-05:00,2"],
            ["row 3, timestamp", "-0500", "+0000"],
        ),
        ([HEADER, "2022-01-04T16:25:00Z,-1"], ["row 2, throughput_bits_per_second", "'-1'"]),
        ([HEADER, "2022-01-04T16:25:00Z,1e20"], ["row 2, throughput_bits_per_second", "'1e20'"]),
        ([HEADER, "2022-01-04T16:25:00Z,much"], ["row 2, throughput_bits_per_second", "'much'"]),
        ([HEADER, "2022-01-04T16:25:00Z"], ["row 2", "complete"]),
    ],
)
def test_invalid_input_is_a_one_line_error(rows: list[str], expected: list[str]) -> None:
    with pytest.raises(BadFile) as caught:
        parse_metric("\n".join(rows) + "\n", "metric.csv")
    text = str(caught.value)
    assert text.startswith("metric.csv: ")
    for part in expected:
        assert part in text
