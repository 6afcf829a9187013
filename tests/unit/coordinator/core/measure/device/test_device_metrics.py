"""Tests for the metrics that you get from device telemetry on a burst's window."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.device.device_metrics import (
    IDLE_S,
    device_figures,
    telemetry_findings,
)
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    IssueKind,
    Quantity,
    TelemetryIssue,
    TelemetrySeries,
)
from broadside.coordinator.core.summary import BurstSummary, Verdict
from broadside.exchange.outage_log import utc_now
from tests.planted import ids, measure, summarise
from tests.synthetic import Plant, fleet

BURST: BurstSummary = measure(fleet(Plant(pairs=2, burst_s=60)))[0].summary
assert BURST.window is not None
START_S = BURST.window.start_at.timestamp()
LONG_S = BURST.window.window_s
PAYLOAD_BYTES = (BURST.fleet_received_bits_per_second or 0) / 8 * LONG_S


def series(
    device: str,
    values: object,
    *,
    quantity: Quantity = Quantity.CPU,
    every_s: float = 5.0,
    over_s: float = 0.0,
    instance: str = "",
    from_s: float = -IDLE_S - 10,
) -> TelemetrySeries:
    """Return a reading for each ``every_s``, from before the burst until after it."""
    count = int((LONG_S - from_s + 20) / every_s)
    at_s: Floats = START_S + from_s + every_s * np.arange(count, dtype=float)
    return TelemetrySeries(
        device=device,
        source="planted",
        quantity=quantity,
        instance=instance,
        at_s=at_s,
        over_s=np.full(count, over_s),
        bound_s=np.full(count, 0.01),
        values=np.broadcast_to(np.asarray(values, dtype=float), (count,)).copy(),
    )


def telemetry_of(
    *all_series: TelemetrySeries, cores: dict[str, int] | None = None
) -> DeviceTelemetry:
    devices = tuple(dict.fromkeys(item.device for item in all_series))
    return DeviceTelemetry(devices=devices, series=all_series, read_at=utc_now(), cores_count=cores)


def test_aggregates_two_devices_by_quantity() -> None:
    complete, (first, second) = device_figures(
        telemetry_of(
            series("a", 0.6),
            series("b", 0.2),
            series("a", 7e6, quantity=Quantity.RECEIVED, every_s=1, over_s=1),
            series("b", 3e6, quantity=Quantity.RECEIVED, every_s=1, over_s=1),
            series("a", 0.9, quantity=Quantity.HEALTH),
            series("b", 1.0, quantity=Quantity.HEALTH),
            cores={"a": 4, "b": 8},
        ),
        BURST,
    )
    assert complete.cpu_ratio is not None
    assert complete.in_bits_per_second is not None
    assert complete.health_ratio is not None
    assert complete.cpu_ratio.mean == pytest.approx(0.4)
    assert complete.in_bits_per_second.mean == pytest.approx(10e6)
    assert complete.health_ratio.min == pytest.approx(0.9)
    assert [first.share_ratio, second.share_ratio] == pytest.approx([0.7, 0.3])
    assert first.cpu_s_per_gigabyte == pytest.approx(
        0.6 * 4 * LONG_S / (0.7 * PAYLOAD_BYTES / 1e9), rel=1e-6
    )
    assert complete.cpu_s_per_gigabyte == pytest.approx(
        (0.6 * 4 + 0.2 * 8) * LONG_S / (PAYLOAD_BYTES / 1e9), rel=1e-6
    )


def test_averages_cores_and_reports_the_busiest() -> None:
    _, (device,) = device_figures(
        telemetry_of(series("a", 1.0, instance="1"), series("a", 0.2, instance="2")), BURST
    )
    assert device.cpu_ratio is not None
    assert device.cpu_ratio.mean == pytest.approx(0.6)
    assert (device.cpu_ratio.busiest, device.cores_count) == (1.0, 2)


def test_ignores_mean_that_begins_before_the_window() -> None:
    _, (device,) = device_figures(
        telemetry_of(series("a", 0.5, every_s=5, over_s=LONG_S + 30, from_s=-LONG_S)), BURST
    )
    assert device.cpu_ratio is None


def test_ignores_readings_outside_the_burst() -> None:
    """The burst is shorter than the time between readings, so no reading should count."""
    rare = series("a", 0.05, every_s=LONG_S + 20, from_s=-10)
    complete, (device,) = device_figures(telemetry_of(rare), BURST)
    assert complete.cpu_ratio is None
    assert device.cpu_ratio is None
    once = series("a", [0.05, 0.8], every_s=LONG_S - 5, from_s=-LONG_S / 2)
    _, (device,) = device_figures(telemetry_of(once), BURST)
    assert device.cpu_ratio is not None
    assert (device.cpu_ratio.mean, device.cpu_ratio.idle) == (0.8, 0.05)


def test_missing_readings_are_unknown_and_not_zero() -> None:
    reported = series("a", 0.8)
    inside = (reported.at_s > START_S + 5) & (reported.at_s < START_S + LONG_S - 5)
    reported.values[inside] = np.nan
    _, (device,) = device_figures(telemetry_of(reported), BURST)
    assert device.cpu_ratio is not None
    assert device.cpu_ratio.min == device.cpu_ratio.mean == 0.8
    assert device.cpu_ratio.covered_ratio < 0.5


def test_reports_telemetry_issues_only_during_bursts() -> None:
    def at(second: float, kind: IssueKind) -> TelemetryIssue:
        return TelemetryIssue(
            kind=kind,
            device="a",
            source="planted",
            from_s=START_S + second,
            to_s=START_S + second + 2,
            text="why",
        )

    reported = DeviceTelemetry(
        devices=("a",),
        issues=(
            at(5, IssueKind.RESTARTED),
            at(7, IssueKind.WRAPPED),
            at(900, IssueKind.SILENT),
        ),
        read_at=utc_now(),
    )
    begun_at = datetime.fromtimestamp(START_S, UTC)
    result = telemetry_findings(reported, begun_at, begun_at + timedelta(seconds=LONG_S))
    assert {(item.id, item.severity) for item in result} == {
        ("telemetry-restarted", "warning"),
        ("telemetry-wrapped", "note"),
    }


def test_every_quantity_has_a_field() -> None:
    _, (device,) = device_figures(
        telemetry_of(*(series("a", 0.5, quantity=item) for item in Quantity)), BURST
    )
    for quantity in Quantity:
        assert getattr(device, quantity).mean == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("values", "verdict", "finding"),
    [
        (0.7, Verdict.PASS, None),
        (0.9, Verdict.FAIL, "device-cpu-limit"),
        (np.nan, Verdict.INCONCLUSIVE, "device-cpu-unproven"),
        (None, Verdict.INCONCLUSIVE, "device-cpu-unproven"),
    ],
)
def test_threshold_covers_all_devices_and_missing_data_is_inconclusive(
    values: float | None, verdict: Verdict, finding: str | None
) -> None:
    made = fleet(Plant(pairs=2, bursts=1, burst_s=60)).aiming(device_cpu_p95_max_ratio=0.8)
    reported = None if values is None else telemetry_of(series("a", 0.5), series("b", values))
    result = summarise(made, telemetry=reported)
    assert result.verdict is verdict
    assert finding is None or finding in ids(result)


def test_without_a_window_uses_the_planned_burst() -> None:
    """If the pairs have no time in common to make a window, use the planned time."""
    bare = BURST.model_copy(update={"window": None})
    reported = series("a", 0.1)
    planned_s = BURST.planned_start_at.timestamp()
    reported.values[
        (reported.at_s >= planned_s) & (reported.at_s <= planned_s + BURST.duration_s)
    ] = 0.7
    _, (device,) = device_figures(telemetry_of(reported), bare)
    assert device.cpu_ratio is not None
    assert device.cpu_ratio.max == 0.7
    assert device.cpu_ratio.mean == pytest.approx(0.7, abs=0.05)
    assert device.cpu_ratio.idle == pytest.approx(0.1)
