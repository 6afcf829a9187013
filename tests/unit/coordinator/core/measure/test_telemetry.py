"""Tests for device telemetry. Invalid values are not used."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    IssueKind,
    Quantity,
    TelemetryIssue,
    TelemetrySeries,
    drop_invalid,
    merge_readings,
    merge_sources,
)

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = datetime(2026, 3, 1, 13, tzinfo=UTC)


def _series(
    values: list[float],
    *,
    at_s: list[float] | None = None,
    quantity: Quantity = Quantity.CPU,
    device: str = "fw",
    instance: str = "",
    over_s: float = 10.0,
    bound_s: float = 0.5,
) -> TelemetrySeries:
    count = len(values)
    return TelemetrySeries(
        device=device,
        source="snmp",
        quantity=quantity,
        instance=instance,
        at_s=np.array(at_s or [10.0 * place for place in range(1, count + 1)], dtype=np.float64),
        over_s=np.full(count, over_s),
        bound_s=np.full(count, bound_s),
        values=np.array(values),
    )


def _issue(
    kind: IssueKind = IssueKind.SILENT, text: str = "timeout", **fields: Any
) -> TelemetryIssue:
    values: dict[str, Any] = {"device": "fw", "source": "snmp", "from_s": 1.0, "to_s": 2.0} | fields
    return TelemetryIssue(kind=kind, text=text, **values)


def _telemetry(*series: TelemetrySeries, **fields: Any) -> DeviceTelemetry:
    known: dict[str, Any] = {"devices": ("fw",), "series": series, "read_at": AT}
    return DeviceTelemetry(**(known | fields))


def test_ratio_above_one_is_unknown_and_reported_with_a_fix() -> None:
    reported = _telemetry(_series([0.5, 55.0, 1.01, 60.0], instance="core 1"), issues=(_issue(),))
    result = drop_invalid(reported)
    (series,) = result.series
    assert series.values == pytest.approx([0.5, np.nan, 1.01, np.nan], nan_ok=True)
    first, second = result.issues
    assert first == _issue()
    assert (second.kind, second.device, second.source) == (IssueKind.MISSING, "fw", "snmp")
    assert (second.from_s, second.to_s, second.count) == (20.0, 40.0, 2)
    assert second.text == ("cpu_ratio core 1: 60 is not possible: a percentage needs scale = 0.01")


def test_negative_value_is_unknown_for_all_units() -> None:
    result = drop_invalid(_telemetry(_series([5e9, -1.0], quantity=Quantity.RECEIVED)))
    assert result.series[0].values == pytest.approx([5e9, np.nan], nan_ok=True)
    (issue,) = result.issues
    assert issue.text == "in_bits_per_second: -1 is not possible: it is below zero"


def test_returns_valid_values_unchanged() -> None:
    """A rate can be above 1, and zero or an unknown value is not negative."""
    reported = _telemetry(
        _series([0.0, np.nan, 1.0]), _series([0.0, 7e10], quantity=Quantity.RECEIVED)
    )
    result = drop_invalid(reported)
    assert result.series == reported.series
    assert result.issues == ()


def test_selects_readings_that_overlap_a_span() -> None:
    """A reading is for the 10 seconds up to its time, so it is used if they overlap."""
    series = _series([0.1, 0.2, 0.3, 0.4])
    assert list(series.within(20.0, 30.5).values) == [0.2, 0.3, 0.4]
    assert list(series.within(20.5, 30.0).values) == [0.3]


def test_merges_sources_with_all_issues_in_order() -> None:
    one = _telemetry(
        _series([0.5]), issues=(_issue(from_s=5.0),), cores_count={"fw": 8}, devices=("fw",)
    )
    other = _telemetry(
        _series([0.6], device="fw-2"),
        devices=("fw-2", "fw"),
        issues=(_issue(device="fw-2", from_s=3.0), _issue(device="a", from_s=5.0)),
    )
    both = merge_sources([one, other], LATER)
    assert both.devices == ("fw", "fw-2")
    assert both.series == (*one.series, *other.series)
    assert [(issue.from_s, issue.device) for issue in both.issues] == [
        (3.0, "fw-2"),
        (5.0, "a"),
        (5.0, "fw"),
    ]
    assert (both.read_at, both.cores_count) == (LATER, {"fw": 8})
    assert merge_sources([other], LATER).cores_count is None
    assert both.of(Quantity.CPU) == list(both.series)
    assert both.of(Quantity.SENT) == []


def test_readings_stored_before_a_restart_count_once() -> None:
    earlier = _telemetry(_series([0.1, 0.2], at_s=[10.0, 20.0]), cores_count={"fw": 8})
    later = _telemetry(
        _series([0.2, 0.3], at_s=[20.0004, 30.0]),
        _series([0.9], instance="core 1"),
        devices=("fw", "fw-2"),
        read_at=LATER,
    )
    result = merge_readings(earlier, later)
    assert [item.instance for item in result.series] == ["", "core 1"]
    assert list(result.series[0].values) == [0.1, 0.2, 0.3]
    assert list(result.series[0].at_s) == [10.0, 20.0, 30.0]
    assert (result.devices, result.read_at) == (("fw", "fw-2"), LATER)
    assert result.cores_count == {"fw": 8}
    assert merge_readings(later, later).cores_count is None


@pytest.mark.parametrize(
    ("off_s", "value", "count"),
    [
        pytest.param(0.9, 0.2, 2, id="within both bounds"),
        pytest.param(-0.9, 0.2, 2, id="earlier"),
        pytest.param(1.1, 0.2, 3, id="beyond the bounds"),
        pytest.param(0.9, 0.25, 3, id="another value"),
        pytest.param(0.9, np.nan, 3, id="unknown value"),
    ],
)
def test_reading_with_a_changed_time_counts_once(off_s: float, value: float, count: int) -> None:
    earlier = _telemetry(_series([0.1, 0.2], at_s=[10.0, 20.0]))
    later = _telemetry(_series([value], at_s=[20.0 + off_s]))
    (series,) = merge_readings(earlier, later).series
    assert len(series.at_s) == count
    assert list(series.at_s) == sorted(series.at_s)


def test_empty_stored_series_takes_all_later_readings() -> None:
    (series,) = merge_readings(_telemetry(_series([])), _telemetry(_series([0.1, 0.2]))).series
    assert list(series.values) == [0.1, 0.2]


def test_continuing_issue_is_reported_once_with_its_latest_end() -> None:
    earlier = _telemetry(issues=(_issue(to_s=2.0), _issue(IssueKind.CLOCK, "off by 3 s")))
    later = _telemetry(
        issues=(
            # This is the same silence, but it has another text.
            _issue(to_s=9.0, text="no route"),
            # This should replace the estimate.
            _issue(IssueKind.STAMPS, "stamps go back", from_s=4.0),
            _issue(IssueKind.WRAPPED, "in"),
            _issue(IssueKind.WRAPPED, "out"),
            _issue(IssueKind.SILENT, from_s=7.0),
        )
    )
    issues = merge_readings(earlier, later).issues
    assert [(item.kind, item.text, item.to_s) for item in issues] == [
        (IssueKind.SILENT, "no route", 9.0),
        (IssueKind.STAMPS, "stamps go back", 2.0),
        (IssueKind.WRAPPED, "in", 2.0),
        (IssueKind.WRAPPED, "out", 2.0),
        (IssueKind.SILENT, "timeout", 2.0),
    ]
