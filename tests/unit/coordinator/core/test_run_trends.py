import math
import random
from datetime import timedelta
from itertools import permutations

import pytest

from broadside.coordinator.core.run_trends import (
    bursts_of,
    compute_run_trends,
    describe,
    in_a_row,
    trend,
    trend_findings,
)
from broadside.coordinator.core.summary import (
    Availability,
    BurstTrendValues,
    Disruption,
    DisruptionKind,
    RunTrends,
    Trend,
)
from tests.unit.coordinator.core.records import disruption
from tests.unit.coordinator.presences import NOW

ABSENT = DisruptionKind.ABSENT


def broken(
    burst_index: int,
    kind: DisruptionKind = ABSENT,
    pair: str = "pair-008",
    cause: str = "no agent claimed the job",
    length_s: float = 5.0,
) -> Disruption:
    start_at = NOW + timedelta(seconds=10 * burst_index)
    return disruption(kind, start_at, length_s, pair, burst_index=burst_index, causes=(cause,))


def burst(index: int, *events: Disruption) -> BurstTrendValues:
    return BurstTrendValues(
        index=index,
        planned_start_at=NOW + timedelta(seconds=10 * index),
        disruptions=events,
        disruptions_count=len(events),
    )


def test_merges_absences_of_one_pair_in_consecutive_bursts() -> None:
    cut = broken(2, DisruptionKind.CUT, "pair-006", "c001 stopped reporting", 3.0)
    bursts = [
        burst(2, cut),
        *(burst(index, broken(index)) for index in range(3, 8)),
        burst(8),
        burst(9, broken(9), broken(9, cause="refused")),
    ]
    result = compute_run_trends(bursts)
    assert [(d.kind, bursts_of(d), d.duration_s) for d in result.disruptions] == [
        (DisruptionKind.CUT, "3", 3.0),
        (ABSENT, "4 to 8", 25.0),
        (ABSENT, "10", 5.0),
        (ABSENT, "10", 5.0),
    ]
    assert result.disruptions_count == 4
    assert result.disruptions[1].end_at == NOW + timedelta(seconds=75)
    assert "pair-008: never sent for 25.0 s in 5 bursts (no agent claimed the job)" in describe(
        result.disruptions[1]
    )


def test_trends_do_not_depend_on_burst_order() -> None:
    bursts = [burst(index, broken(index)) for index in (0, 1, 3)]
    lines = {compute_run_trends(order).model_dump_json() for order in permutations(bursts)}
    assert len(lines) == 1


# Ranks M1 and M2 + 1 for sorted slopes (Gilbert), starting at 1.
RANKS = {4: (1, 6), 6: (2, 14), 8: (6, 23), 12: (18, 49), 48: (453, 676)}


@pytest.mark.parametrize("count", RANKS)
def test_trend_interval_uses_ranks_of_gilbert(count: int) -> None:
    """The values are convex, so that all slopes differ."""
    at_s = [3600.0 * i for i in range(count)]
    values = [math.exp(i * 0.1 * math.sqrt(2)) for i in range(count)]
    result = trend("rate", at_s, values)
    assert result is not None
    slopes = sorted(
        (values[j] - values[i]) / (j - i) / result.median * 100
        for i in range(count)
        for j in range(i + 1, count)
    )
    low, high = RANKS[count]
    assert result.low_percent_per_hour == pytest.approx(slopes[low - 1])
    assert result.high_percent_per_hour == pytest.approx(slopes[high - 1])


@pytest.mark.parametrize("count", [4, 6, 7, 12, 48])
def test_mirrored_values_mirror_the_trend_interval(count: int) -> None:
    dice = random.Random(count)
    values = [dice.gauss(100, 5) for _ in range(count)]
    at_s = [60.0 * i for i in range(count)]
    result = trend("rate", at_s, values)
    assert result is not None
    mirrored = trend("rate", at_s, [2 * result.median - value for value in values])
    assert mirrored is not None
    assert mirrored.low_percent_per_hour == pytest.approx(-result.high_percent_per_hour)
    assert mirrored.high_percent_per_hour == pytest.approx(-result.low_percent_per_hour)


def _findings(silent: int = 0, **fields: object) -> list[tuple[str, float, str]]:
    result = RunTrends.model_validate(fields)
    return [
        (item.id, item.weight, item.sentence)
        for item in trend_findings(result, silent_controls_count=silent)
    ]


def test_run_without_disruptions_has_no_finding() -> None:
    assert _findings() == []
    assert _findings(availability=Availability.of(100, 100, 0, None)) == []


def test_lists_three_worst_disruptions_and_counts_the_others() -> None:
    many = [broken(index, DisruptionKind.STALL, length_s=1.0 + index) for index in range(5)]
    ((id, weight, sentence),) = _findings(disruptions=many, disruptions_count=9)
    assert (id, weight) == ("disruptions", 59)
    assert sentence.startswith("Disruptions: 20")
    assert sentence.count("pair-008: no traffic for") == 3
    assert sentence.endswith("; and 6 more.")
    ((_, _, three),) = _findings(disruptions=many[:3], disruptions_count=3)
    assert three.endswith("no traffic for 1.0 s (no agent claimed the job).")


def test_reports_availability_and_time_resolution() -> None:
    down = Availability.of(1000, 900, 60, 5.0)
    resolution, availability = _findings(availability=down)
    assert resolution[:2] == ("disruptions-resolution", 43)
    assert "Readings cover up to 5 s" in resolution[2]
    assert availability[:2] == ("availability", 42)
    assert availability[2] == (
        f"Traffic was received in {down.up_ratio * 100:.2f} % of 1000 planned pair-seconds. In 60 "
        "pair-seconds the pair had no traffic, or its rate was below its median by "
        "`disruption_drop_ratio` or more. 40 pair-seconds are unknown."
    )
    assert _findings(availability=Availability.of(1000, 990, 0, None)) == []


def test_reports_trend_with_interval() -> None:
    moving = Trend(
        name="rtt", bursts_count=8, median=1.0, percent_per_hour=2.5, low_percent_per_hour=0.5,
        high_percent_per_hour=4.0,
    )  # fmt: skip
    still = moving.model_copy(update={"name": "received", "low_percent_per_hour": -0.5})
    assert _findings(trends=[moving, still]) == [
        (
            "drift-rtt",
            41,
            (
                "The mean round-trip time changed steadily over 8 bursts: +2.5 % of its median per "
                "hour (95 % interval +0.5 to +4)."
            ),
        )
    ]


def test_idle_control_connections_are_a_warning() -> None:
    ((id, weight, sentence),) = _findings(3)
    assert (id, weight) == ("silent-control", 46)
    assert sentence.startswith("3 tests left the control connection of iperf3 idle for more than ")


@pytest.mark.parametrize(
    ("kind", "verb"),
    [
        (DisruptionKind.STALL, "no traffic"),
        (DisruptionKind.DROP, "low rate"),
        (DisruptionKind.RESET, "connections failed"),
        (DisruptionKind.CUT, "stopped"),
        (DisruptionKind.RECONNECT, "reconnected"),
        (DisruptionKind.ABSENT, "never sent"),
        (DisruptionKind.GAP, "not recorded"),
    ],
)
def test_describes_disruption(kind: DisruptionKind, verb: str) -> None:
    one = broken(0, kind)
    when = f"{one.start_at:%Y-%m-%d %H:%M:%S} UTC"
    assert describe(one) == f"{when}, pair-008: {verb} for 5.0 s (no agent claimed the job)"
    some = one.model_copy(
        update={"scope": "some", "pairs_count": 4, "causes": (), "resolution_s": 10.0}
    )
    assert describe(some) == f"{when}, 4 pairs: {verb} for 5.0 s or less (readings of 10 s)"
    row = one.model_copy(update={"scope": "all", "pairs_count": 8, "bursts_count": 2})
    assert describe(row).startswith(f"{when}, all 8 pairs: {verb} for 5.0 s in 2 bursts (")


def test_does_not_merge_absences_of_other_pairs_or_with_gaps() -> None:
    result = in_a_row([broken(2), broken(0), broken(1), broken(4), broken(1, pair="pair-001")])
    assert [(item.pairs[0], item.burst_index, item.bursts_count) for item in result] == [
        ("pair-008", 0, 3),
        ("pair-001", 1, 1),
        ("pair-008", 4, 1),
    ]
    assert result[0].duration_s == 15.0
    stalls = in_a_row([broken(0, DisruptionKind.STALL), broken(1, DisruptionKind.STALL)])
    assert [item.bursts_count for item in stalls] == [1, 1]


def test_trend_needs_four_bursts_a_positive_median_and_a_time_span() -> None:
    at = [0.0, 3600.0, 7200.0, 10800.0]
    rising = trend("rtt", at, [100.0, 101.0, 102.0, 103.0])
    assert rising is not None
    assert (rising.bursts_count, rising.median) == (4, 101.5)
    assert rising.percent_per_hour == pytest.approx(100 / 101.5)
    assert trend("rtt", at, [100.0, None, 102.0, 103.0]) is None
    assert trend("rtt", at, [-1.0, 0.0, 0.0, 1.0]) is None
    assert trend("rtt", [5.0] * 4, [1.0, 2.0, 3.0, 4.0]) is None


def test_run_trends_contain_metrics_and_availability() -> None:
    parts = [
        BurstTrendValues(
            index=index,
            planned_start_at=NOW + timedelta(hours=index),
            received_bits_per_second=100.0 + index,
            rtt_mean_s=1.0,
            retransmit_ratio=0.5 - index / 10,
            availability=Availability.of(10, 9, 1, None),
            disruptions_count=2,
        )
        for index in range(4)
    ]
    result = compute_run_trends(reversed(parts))
    assert (result.bursts_count, result.disruptions_count) == (4, 8)
    assert [item.name for item in result.trends] == ["received", "rtt", "retransmits"]
    assert [item.percent_per_hour > 0 for item in result.trends] == [True, False, False]
    assert result.availability == Availability.of(40, 36, 4, None)
    assert compute_run_trends([]).availability is None
