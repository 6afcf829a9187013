"""Tests to read CSV exports. If this is not possible, an error is shown in one line."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.device.telemetry.csv_export import CsvEntry, CsvSource
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.exchange.messages import Direction

ORIGINAL = Path(__file__).parents[4] / "data/original/seed-280s-firewall-throughput.csv"
LONG_AGO, FAR_AWAY = datetime(1969, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
# Epoch seconds.
T0, T1, T2 = 1764072000, 1764072060, 1764072120


def opened(path: Path, zone: str = "UTC", time_column: str = "time", **counter: str) -> CsvSource:
    fields = {"file": path, "zone": zone, "time_column": time_column, "byte_counter": counter}
    return CsvSource(CsvEntry.model_validate({"type": "csv", "device": "fw", **fields}))


async def read(tmp_path: Path, text: str, **fields: str) -> CounterRecord:
    path = tmp_path / "export.csv"
    path.write_text(text, encoding="utf-8")
    source = opened(path, **fields)
    return await DeviceCounter([source]).read(LONG_AGO, FAR_AWAY, Direction.FORWARD)


async def test_sorts_bins_by_time_and_empty_cells_are_unknown(tmp_path: Path) -> None:
    text = "time,bytes\n2026-11-20T12:01:00Z,\n2026-11-20T12:00:00Z,600\n1795176120,3\n"
    device_counter = await read(tmp_path, text)
    start = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
    assert device_counter.start_s.tolist() == [start, start + 60, start + 120]
    assert device_counter.end_s.tolist() == [start + 60, start + 120, start + 180]
    np.testing.assert_array_equal(device_counter.bytes, [600, np.nan, 3])
    assert (device_counter.grain_s, device_counter.layer, device_counter.source) == (
        60,
        "unknown",
        "csv export.csv",
    )


@pytest.mark.parametrize(
    ("unit", "figure"),
    [
        ("bits_per_second", "8e9"),
        ("megabits_per_second", "8000"),
        ("gigabits_per_second", "8"),
        ("bytes_per_second", "1e9"),
        ("bytes", "6e10"),
    ],
)
async def test_all_units_give_the_same_bytes(tmp_path: Path, unit: str, figure: str) -> None:
    device_counter = await read(tmp_path, f"time,bytes\n{T0},{figure}\n{T1},{figure}\n", unit=unit)
    assert device_counter.bytes.tolist() == [6e10, 6e10]


@pytest.mark.parametrize("finer", [1, 10**3, 10**6, 10**9])
async def test_detects_the_unit_of_epoch_times(tmp_path: Path, finer: int) -> None:
    """Grafana will export milliseconds, but InfluxDB will use nanoseconds."""
    rows = [f"{(1764072000 + 60 * n) * finer},{n}" for n in range(3)]
    device_counter = await read(tmp_path, "\n".join(["time,bytes", *rows, ""]))
    assert (device_counter.grain_s, device_counter.start_s.tolist()[0]) == (60, 1764072000)


@pytest.mark.parametrize("text", ["nan", "inf", "1e300", "-1"])
async def test_rejects_numbers_that_are_not_times(tmp_path: Path, text: str) -> None:
    with pytest.raises(TelemetryError, match=r"row 2, time: .*: not a time such as"):
        await read(tmp_path, f"time,bytes\n{text},1\n{T1},1\n")


async def test_times_can_be_bin_ends_in_a_time_zone(tmp_path: Path) -> None:
    text = "time,bytes\n2022-01-04 11:25,1\n2022-01-04 11:26,2\n"
    device_counter = await read(tmp_path, text, zone="America/New_York", label="end")
    assert device_counter.end_s[0] == datetime(2022, 1, 4, 16, 25, tzinfo=UTC).timestamp()


async def test_reads_the_metric_of_the_original_test() -> None:
    source = opened(
        ORIGINAL,
        time_column="timestamp",
        column="throughput_bits_per_second",
        unit="bits_per_second",
    )
    device_counter = await source.query_bytes(LONG_AGO, FAR_AWAY, Direction.FORWARD)
    assert device_counter.grain_s == 60
    assert 170e9 < np.nanmax(device_counter.bytes) * 8 / 60 < 200e9


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        (
            "at,bytes\n0,1\n",
            {},
            r"no column time, bytes \(found: at, bytes\).*set time_column and",
        ),
        ("", {}, r"the file is empty"),
        ("time,rate\n0,1\n", {}, r"no column bytes \(found: time, rate\).*set time_column and"),
        (f"time,bytes\n{T0},1\n{T1},x\n", {}, r"row 3, bytes: 'x': not a number"),
        (f"time,bytes\n{T0},-5\n{T1},1\n", {}, r"row 2, bytes: '-5': must be between 0 and"),
        (f"time,bytes\n{T0},inf\n{T1},1\n", {}, r"row 2, bytes: 'inf': not a number"),
        ("time,bytes\nnoon,1\n", {}, r"row 2, time: 'noon': not a time such as 2022-01-04T11"),
        (f"time,bytes\n{T0},1\n{T0},2\n", {}, r"row 3, time: '1764072000': row 2 has the same"),
        (f"time,bytes\n{T0},1\n{T1}", {}, r"row 3: 1 cells where the header has 2"),
        (f"time,bytes\n{T0},1\n", {}, r"1 rows; give two or more"),
        (f"time,bytes\n{T0},1\n{T1},1\n{T1 + 1},1\n{T2},2\n", {}, r"not a regular interval"),
        (
            "time,bytes\n2026-11-01 01:30,1\n",
            {"zone": "America/New_York"},
            r"row 2, time: '2026-11-01 01:30': America/New_York had this time twice",
        ),
    ],
)
async def test_unreadable_input_is_a_one_line_error(
    tmp_path: Path, text: str, form: dict[str, str], expected: str
) -> None:
    with pytest.raises(TelemetryError, match=expected) as caught:
        await read(tmp_path, text, **form)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "export.csv") in str(caught.value)


async def test_missing_file_and_unknown_zone_are_one_line_errors(tmp_path: Path) -> None:
    source = opened(tmp_path / "none.csv")
    with pytest.raises(TelemetryError, match=r"none\.csv: No such file"):
        await source.query_bytes(LONG_AGO, FAR_AWAY, Direction.FORWARD)
    with pytest.raises(TelemetryError, match="zone 'Berlin': no such time zone"):
        opened(tmp_path, zone="Berlin")
