"""Tests for exported run tables."""

import csv
import io
import json
from dataclasses import replace
from datetime import timedelta

import numpy as np
import openpyxl
import pyarrow.parquet
import pytest

from broadside.coordinator.core.summary import Translation, Units, UnitSummary
from broadside.coordinator.views.metric_rows import metric_rows
from broadside.coordinator.views.tables import (
    TABLES,
    CannotWrite,
    Format,
    Tables,
    make_tables,
    write,
)
from tests.synthetic import Plant
from tests.unit.coordinator.views.charts.views import FAULTY, ended

HEAD = {"run_id": "synthetic", "verdict": "inconclusive"}


def tables(plant: Plant = FAULTY) -> Tables:
    _, measured, summary = ended(plant)
    return make_tables(summary, [part.series for part in measured])


def read_csv(name: str, run_tables: Tables) -> list[dict[str, str]]:
    text = write(Format.CSV, HEAD, run_tables, name).decode()
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_the_metrics_of_the_summary() -> None:
    _, _, summary = ended()
    run_tables = tables()
    bursts = read_csv("bursts", run_tables)
    assert [row["burst"] for row in bursts] == ["1", "2", "3", "4"]
    for row, burst in zip(bursts, summary.bursts, strict=True):
        rate = burst.fleet_received_bits_per_second
        assert rate is not None
        assert float(row["fleet_received_bits_per_second"]) == pytest.approx(rate, rel=1e-8)
        assert row["verdict"] == burst.verdict.value
        assert int(row["completeness_planned_s"]) == burst.completeness.planned_s
    [summary_row] = read_csv("summary", run_tables)
    assert summary_row["run_id"] == "synthetic"
    assert len(read_csv("pairs", run_tables)) == FAULTY.pairs * FAULTY.bursts


def test_probe_latency_is_exported_for_bursts_and_pairs() -> None:
    _, _, summary = ended()
    for row, burst in zip(read_csv("bursts", tables()), summary.bursts, strict=True):
        assert burst.latency is not None
        fleet = burst.latency.fleet
        for name, value in {
            "latency_before_p50_s": fleet.before.p50_s,
            "latency_during_p99_s": fleet.during.p99_s,
            "latency_after_loss_ratio": fleet.after.loss_ratio,
            "latency_buffer_delay_ratio": fleet.buffer_delay_ratio,
            "latency_spikes_count": burst.latency.spikes_count,
        }.items():
            assert value is not None
            assert float(row[name]) == pytest.approx(value)
    pairs = read_csv("pairs", tables())
    assert float(pairs[1]["latency_during_loss_ratio"]) > 0
    assert {row["latency_during_p50_s"] for row in pairs if row["state"] == "missed"} == {""}


def test_missed_pair_has_empty_cells() -> None:
    rows = [row for row in read_csv("pairs", tables()) if row["state"] == "missed"]
    assert rows
    for row in rows:
        assert row["received_bits_per_second"] in ("", None)
        assert row["rtt_mean_s"] == ""
        assert row["client_agent_id"] == ""


def test_unmeasured_second_is_empty_in_all_formats() -> None:
    _, measured, summary = ended(Plant(pairs=4, bursts=1))
    coverage = measured[0].series.coverage_ratio.copy()
    coverage[7] = 0.0
    run_tables = make_tables(summary, [replace(measured[0].series, coverage_ratio=coverage)])
    name = "received_payload_bits_per_second"
    assert read_csv("seconds", run_tables)[7][name] == ""
    assert float(read_csv("seconds", run_tables)[8][name]) > 0
    parquet = pyarrow.parquet.read_table(
        io.BytesIO(write(Format.PARQUET, HEAD, run_tables, "seconds"))
    )
    assert parquet.column(name)[7].as_py() is None
    assert parquet.schema.field(name).metadata[b"unit"] == b"bit/s"
    worksheet = openpyxl.load_workbook(io.BytesIO(write(Format.XLSX, HEAD, run_tables, "seconds")))[
        "seconds"
    ]
    column_index = next(cell.column for cell in worksheet[1] if str(cell.value).startswith(name))
    assert worksheet.cell(9, column_index).value is None
    assert worksheet.cell(10, column_index).value == pytest.approx(
        float(read_csv("seconds", run_tables)[8][name])
    )
    document = json.loads(write(Format.JSON, HEAD, run_tables, "seconds"))
    column = next(c for c in document["tables"]["seconds"] if c["name"] == name)
    assert column["values"][7] is None


def test_workbook_has_worksheet_per_table_and_units_in_headers() -> None:
    _, _, summary = ended()
    file = write(Format.XLSX, HEAD, tables(), "seconds", summary)
    book = openpyxl.load_workbook(io.BytesIO(file))
    assert book.sheetnames == ["verdict", *reversed(TABLES)]
    assert book.active is book["verdict"]
    assert book["verdict"]["A1"].value == summary.verdict.value
    lines = [cell.value for row in book["verdict"].iter_rows() for cell in row if cell.value]
    assert all(any(finding.sentence in str(cell) for cell in lines) for finding in summary.findings)
    for name in TABLES:
        assert book[name].freeze_panes == "B2"
        assert book[name].auto_filter.ref
    headers = [str(cell.value) for cell in book["bursts"][1]]
    column_index = headers.index("completeness_ratio [ratio]") + 1
    assert book["bursts"].cell(2, column_index).number_format == "0.00%"
    assert "verdict" in headers
    assert "fleet_received_bits_per_second [bit/s, payload]" in headers
    assert "fleet_ip_bits_per_second [bit/s, ip]" in headers
    starts = [cell.value for cell in book["bursts"][2] if hasattr(cell.value, "year")]
    assert starts


def test_verdict_worksheet_has_metrics_as_text_and_number() -> None:
    _, _, summary = ended()
    head = {"run_id": "synthetic", "scale": 100.0, "computed_at": "2026-11-20T13:00:00+01:00"}
    file = write(Format.XLSX, head, tables(), "seconds", summary)
    worksheet = openpyxl.load_workbook(io.BytesIO(file))["verdict"]
    cells = {(row[0].value, row[1].value or ""): row for row in worksheet.iter_rows(max_col=5)}
    shown = metric_rows(summary)
    assert len(shown) > 10
    for row in shown:
        _, _, text, value, _ = cells[row.label, row.layer]
        assert text.value == row.measured
        assert value.value == (None if row.value is None else pytest.approx(row.value))
    values = {row[0].value: row[1].value for row in worksheet.iter_rows(max_col=2)}
    assert (values["scale"], str(values["computed_at"])) == (100, "2026-11-20 12:00:00")


def test_seconds_table_matches_the_series() -> None:
    _, measured, _ = ended()
    rows = read_csv("seconds", tables())
    assert len(rows) == sum(len(part.series.coverage_ratio) for part in measured)
    total = sum(
        float(row["received_payload_bits_per_second"] or 0) / 8
        for row in rows
        if row["burst"] == "1"
    )
    assert total == pytest.approx(float(measured[0].series.received_bytes.sum()), rel=1e-6)


def test_units_table_has_the_steps_of_every_unit() -> None:
    _, _, summary = ended()
    start_at = summary.bursts[0].planned_start_at
    unit = UnitSummary(
        address="10.9.0.1",
        clients_count=2,
        first_at=start_at,
        last_at=start_at + timedelta(seconds=4),
        bits_per_second=(8e6, 4e6),
        flows=(2, 1),
    )
    units = Units(
        translation=Translation.UNITS, pairs_count=2, start_at=start_at, every_s=2, units=(unit,)
    )
    bursts = (summary.bursts[0].model_copy(update={"units": units}), *summary.bursts[1:])
    rows = read_csv("units", make_tables(summary.model_copy(update={"bursts": bursts}), []))
    assert [(row["burst"], row["address"], row["length_s"]) for row in rows] == [
        ("1", "10.9.0.1", "2.0")
    ] * 2
    assert [float(row["bits_per_second"]) for row in rows] == [8e6, 4e6]
    assert rows[1]["start_at"].startswith(f"{start_at + timedelta(seconds=2):%Y-%m-%dT%H:%M:%S}")
    assert read_csv("units", tables()) == []


def test_rejects_table_with_too_many_rows_for_a_worksheet() -> None:
    run_tables = dict(tables(Plant(pairs=2, bursts=1)))
    long = run_tables["seconds"][0]
    run_tables["seconds"] = [replace(long, values=np.zeros(1_048_576))]
    with pytest.raises(CannotWrite, match="1048576 rows, the limit of a sheet is 1048575"):
        write(Format.XLSX, HEAD, run_tables, "seconds")


def test_run_without_seconds_is_exported() -> None:
    _, _, summary = ended()
    run_tables = make_tables(summary, [])
    for chosen in Format:
        assert write(chosen, HEAD, run_tables, "bursts")
