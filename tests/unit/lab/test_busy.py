"""How busy a machine was, out of its kernel's counters."""

from lab.scenarios.scenario_range import Spent, busiest, read_spent

STAT = """\
cpu  100 0 50 800 50 0 0 0 0 0
cpu0 90 0 40 100 10 0 0 0 0 0
cpu1 10 0 10 700 40 0 0 0 0 0
intr 1 2 3
"""


def spent(*seconds: tuple[float, float]) -> list[dict[str, Spent]]:
    """Readings a second of two cores, by their busy shares."""
    sums = [0, 0]
    readings = []
    for at, shares in enumerate([(0.0, 0.0), *seconds]):
        sums = [each + round(100 * share) for each, share in zip(sums, shares, strict=True)]
        cores = {f"cpu{i}": Spent(busy=each, total=100 * at) for i, each in enumerate(sums)}
        readings.append({"cpu": Spent(busy=sum(sums), total=200 * at), **cores})
    return readings


def test_the_kernels_counters_are_read_for_all_cores_and_for_each() -> None:
    assert read_spent(STAT) == {
        "cpu": Spent(busy=150, total=1000),
        "cpu0": Spent(busy=130, total=240),
        "cpu1": Spent(busy=20, total=760),
    }


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
