"""Tests for the tables of a study."""

from broadside.coordinator.views.report.study_report import build_study, study_html
from tests.unit.coordinator.studies.samples import (
    OVER_TWO_DEVICES,
)
from tests.unit.coordinator.views.report.test_study_report import NOW


def test_device_table_has_share_and_cpu_per_device() -> None:
    [devices] = [
        table
        for section in build_study(OVER_TWO_DEVICES, NOW).sections
        for table in section.tables
        if table.title == "Devices"
    ]
    assert devices.rows[6:] == (
        ("4", "mode log", "fw-a", "29.4 Mbit/s", "70.0 %", "99.0 %"),
        ("4", "mode log", "fw-b", "12.6 Mbit/s", "30.0 %", "64.0 %"),
    )
    assert "fw-b, CPU" in study_html(build_study(OVER_TWO_DEVICES, NOW))
