"""Tests for the number of units by translated addresses, as a quantity of the device."""

from datetime import timedelta

import pytest

from broadside.coordinator.core.measure.device.seen_units import with_seen_units
from broadside.coordinator.core.measure.units import UnitGrid, units_of
from broadside.coordinator.core.metrics import METRIC_BY_NAME
from broadside.coordinator.core.summary import ALL_DEVICES, BurstSummary, Units, instant
from tests.unit.coordinator.core.measure.test_units import LENGTH_S, START_S, simulated
from tests.unit.coordinator.views.charts.views import ended


def burst_of(units: Units | None) -> BurstSummary:
    _, _, summary = ended()
    start_at = instant(START_S)
    return summary.bursts[0].model_copy(
        update={
            "units": units,
            "device": None,
            "planned_start_at": start_at,
            "planned_end_at": start_at + timedelta(seconds=LENGTH_S),
            "window": None,
        }
    )


def seen(units_count: int, joins_s: int = 0) -> Units:
    tracks = simulated(
        1, units_count, carries=lambda unit, second: (unit > 0) | (second >= joins_s)
    )
    window = slice(0, LENGTH_S)
    return units_of(
        UnitGrid(start_s=START_S, tracks=tracks, window=window, stream_bits_per_second=None)
    )


def test_units_are_a_quantity_of_all_devices() -> None:
    burst = with_seen_units(burst_of(seen(4, joins_s=10)))
    assert burst.device is not None
    assert (burst.device.device, burst.devices) == (ALL_DEVICES, burst.devices)
    figure = burst.device.seen_units_count
    assert figure is not None
    assert (figure.min, figure.max, figure.mean) == (3, 4, 3.75)
    # Nothing is known before the burst.
    assert (figure.idle, figure.covered_ratio) == (None, 1.0)


def test_unknown_units_are_no_quantity() -> None:
    for units in (None, seen(4).model_copy(update={"units": ()})):
        assert with_seen_units(burst_of(units)).device is None


def test_metrics_have_the_units_of_a_burst() -> None:
    burst = burst_of(seen(4, joins_s=10))
    assert burst.units is not None
    rates = [unit.received_bits_per_second or 0.0 for unit in burst.units.units]
    expected = {
        "unit_bits_per_second": sum(rates) / 4,
        "unit_min_bits_per_second": min(rates),
        "unit_max_bits_per_second": max(rates),
        "unit_flows_count": 128,
        "unit_joined_count": 1,
        "unit_left_count": 0,
        "unit_flows_cut_count": 0,
    }
    for name, value in expected.items():
        assert METRIC_BY_NAME[name].of_burst(burst) == pytest.approx(value, rel=0.1), name
    assert METRIC_BY_NAME["unit_half_width_bits_per_second"].of_burst(burst)
    unknown = burst_of(None)
    assert {METRIC_BY_NAME[name].of_burst(unknown) for name in expected} == {None}
