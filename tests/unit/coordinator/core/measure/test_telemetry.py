"""Telemetry of devices: impossible figures are unknown, and a reading counts once."""

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


def _remark(
    kind: IssueKind = IssueKind.SILENT, text: str = "timeout", **told: Any
) -> TelemetryIssue:
    values: dict[str, Any] = {"device": "fw", "source": "snmp", "from_s": 1.0, "to_s": 2.0} | told
    return TelemetryIssue(kind=kind, text=text, **values)


def _witnessed(*series: TelemetrySeries, **told: Any) -> DeviceTelemetry:
    known: dict[str, Any] = {"devices": ("fw",), "series": series, "read_at": AT}
    return DeviceTelemetry(**(known | told))


def test_a_ratio_above_one_is_unknown_and_told_with_its_fix() -> None:
    reported = _witnessed(_series([0.5, 55.0, 1.01, 60.0], instance="core 1"), issues=(_remark(),))
    result = drop_invalid(reported)
    (series,) = result.series
    assert series.values == pytest.approx([0.5, np.nan, 1.01, np.nan], nan_ok=True)
    first, second = result.issues
    assert first == _remark()
    assert (second.kind, second.device, second.source) == (IssueKind.MISSING, "fw", "snmp")
    assert (second.from_s, second.to_s, second.count) == (20.0, 40.0, 2)
    assert second.text == (
        "cpu_ratio core 1: 60, which none can be: a percentage needs scale = 0.01"
    )


def test_what_is_under_zero_is_unknown_whatever_its_unit() -> None:
    result = drop_invalid(_witnessed(_series([5e9, -1.0], quantity=Quantity.RECEIVED)))
    assert result.series[0].values == pytest.approx([5e9, np.nan], nan_ok=True)
    (issue,) = result.issues
    assert issue.text == "in_bits_per_second: -1, which none can be: it is under zero"


def test_figures_that_can_be_are_left_as_they_are() -> None:
    """A rate is no ratio, zero and an unknown value are none under zero."""
    reported = _witnessed(
        _series([0.0, np.nan, 1.0]), _series([0.0, 7e10], quantity=Quantity.RECEIVED)
    )
    result = drop_invalid(reported)
    assert result.series == reported.series
    assert result.issues == ()


def test_a_reading_is_within_a_span_that_it_stands_for_in_part() -> None:
    """Each stands for the 10 s before its instant: 10, 20, 30, 40."""
    series = _series([0.1, 0.2, 0.3, 0.4])
    assert list(series.within(20.0, 30.5).values) == [0.2, 0.3, 0.4]
    assert list(series.within(20.5, 30.0).values) == [0.3]


def test_witnesses_together_keep_every_word_in_order() -> None:
    one = _witnessed(
        _series([0.5]), issues=(_remark(from_s=5.0),), cores_count={"fw": 8}, devices=("fw",)
    )
    other = _witnessed(
        _series([0.6], device="fw-2"),
        devices=("fw-2", "fw"),
        issues=(_remark(device="fw-2", from_s=3.0), _remark(device="a", from_s=5.0)),
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


def test_readings_kept_before_a_restart_count_once() -> None:
    earlier = _witnessed(_series([0.1, 0.2], at_s=[10.0, 20.0]), cores_count={"fw": 8})
    later = _witnessed(
        _series([0.2, 0.3], at_s=[20.0004, 30.0]),
        _series([0.9], instance="core 1"),
        devices=("fw", "fw-2"),
        read_at=LATER,
    )
    result = merge_readings(earlier, later)
    assert [sery.instance for sery in result.series] == ["", "core 1"]
    assert list(result.series[0].values) == [0.1, 0.2, 0.3]
    assert list(result.series[0].at_s) == [10.0, 20.0, 30.0]
    assert (result.devices, result.read_at) == (("fw", "fw-2"), LATER)
    assert result.cores_count == {"fw": 8}
    assert merge_readings(later, later).cores_count is None


@pytest.mark.parametrize(
    ("off_s", "value", "count"),
    [
        pytest.param(0.9, 0.2, 2, id="within both bounds of 0.5 s: placed again"),
        pytest.param(-0.9, 0.2, 2, id="earlier"),
        pytest.param(1.1, 0.2, 3, id="beyond the bounds: another reading"),
        pytest.param(0.9, 0.25, 3, id="of another value: another reading"),
        pytest.param(0.9, np.nan, 3, id="unknown: another reading"),
    ],
)
def test_a_reading_that_was_placed_again_is_one(off_s: float, value: float, count: int) -> None:
    earlier = _witnessed(_series([0.1, 0.2], at_s=[10.0, 20.0]))
    later = _witnessed(_series([value], at_s=[20.0 + off_s]))
    (series,) = merge_readings(earlier, later).series
    assert len(series.at_s) == count
    assert list(series.at_s) == sorted(series.at_s)


def test_what_was_kept_empty_takes_all_that_comes() -> None:
    (series,) = merge_readings(_witnessed(_series([])), _witnessed(_series([0.1, 0.2]))).series
    assert list(series.values) == [0.1, 0.2]


def test_a_remark_that_goes_on_is_told_once_and_longer() -> None:
    earlier = _witnessed(issues=(_remark(to_s=2.0), _remark(IssueKind.CLOCK, "off by 3 s")))
    later = _witnessed(
        issues=(
            _remark(to_s=9.0, text="no route"),  # the same silence in other words
            _remark(IssueKind.STAMPS, "stamps go back", from_s=4.0),  # replaces the estimate
            _remark(IssueKind.WRAPPED, "in"),
            _remark(IssueKind.WRAPPED, "out"),
            _remark(IssueKind.SILENT, from_s=7.0),
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
