"""How busy a machine was, out of what its cores counted."""

from broadside.agent.counters import CoreTicks
from tests.scenarios.scenario_range import busiest


def spent(*seconds: tuple[float, float]) -> list[list[CoreTicks]]:
    """Readings a second of two cores, by their busy shares."""
    sums = [0, 0]
    readings = []
    for at, shares in enumerate([(0.0, 0.0), *seconds]):
        sums = [item + round(100 * share) for item, share in zip(sums, shares, strict=True)]
        readings.append([CoreTicks(busy=item, total=100 * at) for item in sums])
    return readings


def test_a_full_core_of_two_is_full_and_the_machine_half_busy() -> None:
    readings = spent(*[(1.0, 0.05)] * 5)
    assert busiest(readings, 5).machine_ratio == 0.525
    assert busiest(readings, 5).core_ratio == 1.0


def test_a_core_is_full_that_is_so_over_the_whole_stretch() -> None:
    readings = spent(*[(1.0, 0.0), (0.0, 1.0)] * 4)
    assert busiest(readings, 1).core_ratio == 1.0
    assert busiest(readings, 4).core_ratio == 0.5
    assert busiest(readings, 4).machine_ratio == 0.5


def test_without_a_second_reading_nothing_is_known() -> None:
    assert busiest(spent(), 5).machine_ratio is None
    assert busiest(spent(), 5).core_ratio is None
