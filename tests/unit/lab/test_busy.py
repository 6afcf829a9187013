"""Tests for computing the CPU utilization from core counters."""

from broadside.agent.counters import CoreTicks
from tests.scenarios.scenario_range import busiest


def readings_of(*seconds: tuple[float, float]) -> list[list[CoreTicks]]:
    """Return the readings for two cores when these CPU ratios are used."""
    sums = [0, 0]
    readings = []
    for at, shares in enumerate([(0.0, 0.0), *seconds]):
        sums = [item + round(100 * share) for item, share in zip(sums, shares, strict=True)]
        readings.append([CoreTicks(busy=item, total=100 * at) for item in sums])
    return readings


def test_full_core_of_two_is_half_of_the_machine() -> None:
    readings = readings_of(*[(1.0, 0.05)] * 5)
    assert busiest(readings, 5).machine_ratio == 0.525
    assert busiest(readings, 5).core_ratio == 1.0


def test_core_ratio_is_averaged_over_the_window() -> None:
    readings = readings_of(*[(1.0, 0.0), (0.0, 1.0)] * 4)
    assert busiest(readings, 1).core_ratio == 1.0
    assert busiest(readings, 4).core_ratio == 0.5
    assert busiest(readings, 4).machine_ratio == 0.5


def test_ratios_are_unknown_with_one_reading() -> None:
    assert busiest(readings_of(), 5).machine_ratio is None
    assert busiest(readings_of(), 5).core_ratio is None
