"""What broke over a run's bursts, told once."""

import math
import random
from datetime import timedelta
from itertools import permutations

import pytest

from broadside.coordinator.core.judge.course import bursts_of, course, describe, trend
from broadside.coordinator.core.summary import BurstCourse, Disruption, DisruptionKind
from tests.unit.coordinator.core.records import disruption
from tests.unit.coordinator.presences import NOW

ABSENT = DisruptionKind.ABSENT


def broken(
    burst_index: int,
    kind: DisruptionKind = ABSENT,
    pair: str = "pair-008",
    cause: str = "no agent took the job",
    length_s: float = 5.0,
) -> Disruption:
    start_at = NOW + timedelta(seconds=10 * burst_index)
    return disruption(kind, start_at, length_s, pair, burst_index=burst_index, causes=(cause,))


def burst(index: int, *events: Disruption) -> BurstCourse:
    return BurstCourse(
        index=index,
        planned_start_at=NOW + timedelta(seconds=10 * index),
        disruptions=events,
        disruptions_count=len(events),
    )


def test_a_dead_client_is_one_thing_that_broke_however_many_bursts_it_missed() -> None:
    cut = broken(2, DisruptionKind.CUT, "pair-006", "c001 fell silent", 3.0)
    bursts = [
        burst(2, cut),
        *(burst(index, broken(index)) for index in range(3, 8)),
        burst(8),
        burst(9, broken(9), broken(9, cause="refused")),
    ]
    said = course(bursts)
    assert [(d.kind, bursts_of(d), d.duration_s) for d in said.disruptions] == [
        (DisruptionKind.CUT, "3", 3.0),
        (ABSENT, "4 to 8", 25.0),
        (ABSENT, "10", 5.0),
        (ABSENT, "10", 5.0),
    ]
    assert said.disruptions_count == 4
    assert said.disruptions[1].end_at == NOW + timedelta(seconds=75)
    assert "pair-008 never sent for 25.0 s in 5 bursts (no agent took the job)" in describe(
        said.disruptions[1]
    )


def test_the_order_of_bursts_does_not_matter() -> None:
    bursts = [burst(index, broken(index)) for index in (0, 1, 3)]
    said = {course(order).model_dump_json() for order in permutations(bursts)}
    assert len(said) == 1


# Gilbert's ranks M1 and M2 + 1 of the ordered slopes, counted from 1 and taken outwards.
RANKS = {4: (1, 6), 6: (2, 14), 8: (6, 23), 12: (18, 49), 48: (453, 676)}


@pytest.mark.parametrize("count", RANKS)
def test_the_interval_takes_the_slopes_at_gilberts_ranks(count: int) -> None:
    """Of a curve that bends upwards all along, so that no two slopes are equal."""
    at_s = [3600.0 * i for i in range(count)]
    values = [math.exp(i * 0.1 * math.sqrt(2)) for i in range(count)]
    said = trend("rate", at_s, values)
    assert said is not None
    slopes = sorted(
        (values[j] - values[i]) / (j - i) / said.median * 100
        for i in range(count)
        for j in range(i + 1, count)
    )
    low, high = RANKS[count]
    assert said.low_percent_per_hour == pytest.approx(slopes[low - 1])
    assert said.high_percent_per_hour == pytest.approx(slopes[high - 1])


@pytest.mark.parametrize("count", [4, 6, 7, 12, 48])
def test_values_mirrored_about_their_median_mirror_the_interval(count: int) -> None:
    dice = random.Random(count)
    values = [dice.gauss(100, 5) for _ in range(count)]
    at_s = [60.0 * i for i in range(count)]
    said = trend("rate", at_s, values)
    assert said is not None
    mirrored = trend("rate", at_s, [2 * said.median - value for value in values])
    assert mirrored is not None
    assert mirrored.low_percent_per_hour == pytest.approx(-said.high_percent_per_hour)
    assert mirrored.high_percent_per_hour == pytest.approx(-said.low_percent_per_hour)
