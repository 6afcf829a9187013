"""Tests for how a metric is declared when a table is imported."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from broadside.coordinator.core.summary import BottleneckName, Finding, RunSummary, Verdict
from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.import_requests import MetricPoint, OriginalTable
from broadside.coordinator.imports.metric_csv import read_declared_metric, throughput_counter
from broadside.coordinator.imports.metric_declaration import MetricDeclaration
from broadside.coordinator.imports.stored_imports import open_import, summarise
from broadside.coordinator.imports.table_bursts import OriginalRow

BEGAN = datetime(2026, 1, 4, 16, 20, tzinfo=UTC)
NOW = datetime(2026, 11, 26, tzinfo=UTC)
PAIRS, BURSTS, PERIOD_S, LENGTH_S, BIN_S = 10, 6, 600, 280, 60
# Bit/s of one pair.
PAYLOAD = 5e9
LAYERS = {"payload": 1.0, "ip": 1500 / 1448, "wire": 1514 / 1448}
AZURE = {"mtu_bytes": 1500}


def rate(number: int, burst: int) -> float:
    """Return the mean of a pair, which should differ by some tenths of a percent."""
    return PAYLOAD * (1 + 0.002 * ((7 * number + 3 * burst) % 5 - 2))


def table(
    true: Mapping[str, object], declared: Mapping[str, object], *, lag_s: float = 0.0
) -> OriginalTable:
    """Return a table with an exact metric in the unit given by ``true``.

    Use ``declared`` to set what is declared for the import.
    """
    rows = [
        OriginalRow(
            row_number=2 + burst * PAIRS + number,
            client=f"10.2.0.{number}",
            started_at=BEGAN + timedelta(seconds=burst * PERIOD_S),
            duration_s=float(LENGTH_S),
            sent_bits_per_second=rate(number, burst),
            received_bits_per_second=rate(number, burst),
        )
        for burst in range(BURSTS)
        for number in range(PAIRS)
    ]
    meaning = MetricDeclaration.model_validate(true)
    # This is the number of bytes for a value of 1.
    unit = float(meaning.bytes_of(np.ones(1), BIN_S)[0])
    points = []
    for place in range(-10, BURSTS * PERIOD_S // BIN_S + 10):
        begin = place * BIN_S - lag_s
        carried = sum(
            max(0.0, min(begin + BIN_S, at + LENGTH_S) - max(begin, at)) * rate(number, burst) / 8
            for burst in range(BURSTS)
            for at in [burst * PERIOD_S]
            for number in range(PAIRS)
        )
        figure = carried * LAYERS[meaning.layer] / unit
        at = BEGAN + timedelta(seconds=place * BIN_S)
        points.append(MetricPoint(at=at, value=figure))
    return OriginalTable(
        source="stats.csv",
        rows=tuple(rows),
        metric_source="metric.csv",
        metric=tuple(points),
        metric_declaration=MetricDeclaration.model_validate(declared),
        overrides={"objective.target_bits_per_second": PAIRS * PAYLOAD / 1.38},
    )


def run_summary(imported: OriginalTable) -> RunSummary:
    plan = open_import(imported).plan("imported-1", NOW).sealed()
    return summarise(plan, open_import(imported).measure(plan), NOW)


def finding_by_id(summary: RunSummary, name: str) -> Finding | None:
    return next((finding for finding in summary.findings if finding.id == name), None)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("lag_s", [0.0, 75.0])
@pytest.mark.parametrize(
    "unit",
    [
        {},
        {"unit": "bytes"},
        {"unit": "bytes", "aggregation": "sum"},
        {"unit": "bytes", "prefix": "Ki", "aggregation": "sum"},
        {"prefix": "M"},
        {"per": "bin"},
    ],
)
def test_exact_data_passes_with_its_declaration(
    layer: str, lag_s: float, unit: dict[str, object]
) -> None:
    meaning = {"layer": layer, "mss_bytes": 1448, **unit}
    summary = run_summary(table(meaning, meaning, lag_s=lag_s))
    assert summary.verdict is Verdict.PASS
    assert summary.reconciliation is not None
    assert summary.reconciliation.lag_s == pytest.approx(lag_s, abs=2)


@pytest.mark.parametrize("lag_s", [0.0, 75.0])
def test_exact_data_passes_with_azure_defaults(lag_s: float) -> None:
    """The layer is not documented, but it is possible to use the MTU."""
    summary = run_summary(table({"layer": "ip", **AZURE}, AZURE, lag_s=lag_s))
    assert summary.verdict is Verdict.PASS


def test_unknown_layer_and_segment_size_request_a_declaration() -> None:
    """Finer bins are not suggested, because the headers are not known."""
    summary = run_summary(table({"layer": "ip"}, {}, lag_s=75.0))
    assert summary.verdict is Verdict.INCONCLUSIVE
    finding = finding_by_id(summary, "residual")
    assert finding is not None
    assert "--metric layer=ip" in (finding.next_step or "")


ERRORS = [
    ({}, {"unit": "bytes"}, "bits are read as bytes", "unit=bits"),
    ({"unit": "bytes"}, {}, "bytes are read as bits", "unit=bytes"),
    ({"aggregation": "sum"}, {}, "read as a rate", "aggregation=sum"),
    ({}, {"aggregation": "sum"}, "a rate is read as the total", "aggregation=mean"),
    ({"unit": "bytes", "aggregation": "sum"}, {}, "bytes are read as bits, and", "unit=bytes"),
    ({}, {"unit": "bytes", "aggregation": "sum"}, "bits are read as bytes, and", "unit=bits"),
    ({"prefix": "k"}, {}, "a thousand times too small", "prefix"),
    ({}, {"prefix": "k"}, "a thousand times too large", "prefix"),
    ({"prefix": "M"}, {}, "a million times too small", "prefix"),
    ({"prefix": "k", "unit": "bytes"}, {}, "bytes are read as bits, and", "prefix"),
]


@pytest.mark.parametrize("known", [{"layer": "ip", "mss_bytes": 1448}, AZURE])
@pytest.mark.parametrize(("true", "declared", "sentence", "fix"), ERRORS)
def test_wrong_declaration_is_reported_without_other_findings(
    known: dict[str, object],
    true: dict[str, object],
    declared: dict[str, object],
    sentence: str,
    fix: str,
) -> None:
    summary = run_summary(table({"layer": "ip", **true}, {**known, **declared}, lag_s=75.0))
    assert summary.verdict is Verdict.INCONCLUSIVE
    finding = finding_by_id(summary, "metric-declaration")
    assert finding is not None
    assert sentence in finding.sentence
    assert finding.next_step is not None
    assert fix in finding.next_step
    assert summary.firewall_bits_per_second is None
    assert summary.bottleneck is not BottleneckName.FIREWALL
    for name in ("bypass", "duplicate-counting", "slow-stretch-device", "device-unproven"):
        assert finding_by_id(summary, name) is None


def test_bypass_is_not_a_wrong_declaration() -> None:
    """If only a part of the traffic is counted, this is not explained by a unit."""
    for share in (0.9, 0.7, 0.3, 0.0):
        imported = table({"layer": "ip"}, {"layer": "ip", "mss_bytes": 1448})
        points = tuple(MetricPoint(at=p.at, value=(p.value or 0) * share) for p in imported.metric)
        summary = run_summary(imported.model_copy(update={"metric": points}))
        assert summary.verdict is Verdict.INCONCLUSIVE
        assert finding_by_id(summary, "metric-declaration") is None
        assert finding_by_id(summary, "bypass") is not None


@pytest.mark.parametrize("aggregation", ["max", "min", "maximum", "minimum"])
def test_maximum_or_minimum_of_a_bin_is_not_a_byte_count(aggregation: str) -> None:
    summary = run_summary(table({"layer": "ip"}, {"layer": "ip", "aggregation": aggregation}))
    assert summary.verdict is Verdict.INCONCLUSIVE
    assert finding_by_id(summary, "metric-aggregation") is not None
    assert finding_by_id(summary, "bypass") is None


@pytest.mark.parametrize(
    ("column", "declared", "expected"),
    [
        ("throughput_bits_per_second", {}, {"mtu_bytes": 1500}),
        ("Average", {"mss_bytes": 1448}, {"mss_bytes": 1448}),
        ("DataProcessed", {}, {"unit": "bytes", "aggregation": "sum", "mtu_bytes": 1500}),
        ("Total", {}, {"unit": "bytes", "aggregation": "sum", "mtu_bytes": 1500}),
        ("Maximum", {}, {"aggregation": "max"}),
        ("value", {"unit": "bytes", "lag_s": 75.0}, {"unit": "bytes", "lag_s": 75.0, **AZURE}),
    ],
)
def test_file_has_azure_defaults_and_declared_values(
    tmp_path: Path, column: str, declared: dict[str, object], expected: dict[str, object]
) -> None:
    path = tmp_path / "metric.csv"
    path.write_text(f"timestamp,{column}\n2026-01-04T16:20:00Z,8\n2026-01-04T16:21:00Z,null\n")
    points, declaration, _ = read_declared_metric(path, declared)
    assert declaration == MetricDeclaration.model_validate(expected)
    first = points[0]
    assert (first.value is None) == declaration.is_bit_rate
    assert 8 in (first.value, first.bits_per_second)
    assert points[1].value is points[1].bits_per_second is None


@pytest.mark.parametrize(
    "declared",
    [{"unit": "nibbles"}, {"layer": "transport"}, {"mss_bytes": 1448, "mtu_bytes": 1500}],
)
def test_rejects_invalid_declarations(tmp_path: Path, declared: dict[str, object]) -> None:
    path = tmp_path / "metric.csv"
    path.write_text("timestamp,average\n2026-01-04T16:20:00Z,8\n2026-01-04T16:21:00Z,9\n")
    with pytest.raises(BadFile, match="--metric"):
        read_declared_metric(path, declared)


@pytest.mark.parametrize("counts_lost", [None, True, False])
def test_counter_has_the_declared_counting_of_lost_bytes(counts_lost: bool | None) -> None:
    at = datetime(2026, 1, 4, 16, 20, tzinfo=UTC)
    points = [MetricPoint(at=at + timedelta(minutes=k), bits_per_second=8.0) for k in range(2)]
    device_counter = throughput_counter(
        "metric", points, MetricDeclaration(counts_lost=counts_lost)
    )
    assert device_counter.counts_lost is counts_lost
