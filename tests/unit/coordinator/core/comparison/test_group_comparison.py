import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.core.comparison.conditions import conditions_of
from broadside.coordinator.core.comparison.group_comparison import Group, compare, observe
from broadside.coordinator.core.metrics import RECEIVED, RECEIVED_HALF_WIDTH
from tests.planted import summarise
from tests.synthetic import Plant, fleet


def group(name: str, rates: list[float], **conditions: str) -> Group:
    return Group(
        name=name,
        observations=tuple(
            {RECEIVED.name: rate, RECEIVED_HALF_WIDTH.name: rate / 100} for rate in rates
        ),
        conditions=conditions,
    )


rates = st.lists(st.floats(1e6, 1e12), min_size=1, max_size=40)


@given(rates)
def test_group_does_not_differ_from_itself(values: list[float]) -> None:
    same = group("a", values)
    (metric,) = compare(same, same).metrics
    assert metric.difference == 0
    assert metric.ratio == 1
    assert not metric.significant


@given(rates, rates)
def test_swapping_groups_negates_the_difference(one: list[float], two: list[float]) -> None:
    (there,) = compare(group("a", one), group("b", two)).metrics
    (back,) = compare(group("b", two), group("a", one)).metrics
    assert there.difference == -back.difference
    assert there.significant == back.significant


def test_reports_clear_difference() -> None:
    result = compare(
        group("off", [9.2e9, 9.21e9, 9.19e9, 9.2e9]), group("on", [5.1e9, 5.3e9, 5.2e9, 5.4e9])
    )
    (metric,) = result.metrics
    assert metric.significant
    assert metric.ratio == pytest.approx(0.57, abs=0.01)
    assert metric.ratio_low is not None
    assert metric.ratio_high is not None
    assert metric.ratio_low < 0.57 < metric.ratio_high
    assert not result.few_bursts


def test_names_small_samples_and_different_conditions() -> None:
    result = compare(
        group("a", [1e9], streams="64", pairs="30"), group("b", [2e9], streams="8", pairs="30")
    )
    assert result.few_bursts
    assert result.conditions_differ == ("streams: 64 and 8",)
    assert "too few bursts: 1 and 1" in result.sentence
    assert "streams" in result.sentence
    assert result.sentence.startswith("fleet received, payload: 1 Gbit/s in a, 2 Gbit/s in b")
    assert result.metrics[0].a_half_width == pytest.approx(1e7)


def test_notes_that_lab_rates_are_as_measured() -> None:
    one, two, real = (
        Group(
            name=name,
            observations=({RECEIVED.name: 1e9},),
            conditions={"scale": scale},
        )
        for name, scale in (("a", "1:100"), ("b", "1:100"), ("c", "1:1"))
    )
    assert "rates are as measured in a lab at 1:100" in compare(one, two).sentence
    assert "as measured" not in compare(real, real).sentence
    assert "conditions differ: scale: 1:100 and 1:1" in compare(one, real).sentence


def test_reports_groups_without_common_metrics() -> None:
    empty = Group(name="empty", observations=())
    assert "no metric in common" in compare(empty, group("a", [1.0])).sentence


def test_compares_runs_by_burst() -> None:
    groups = []
    for slow in (1.0, 0.5):
        built = fleet(
            Plant(
                pairs=4,
                bursts=4,
                pair_bits_per_second=8e9,
                slow_firewall=slow,
                firewall_bits_per_second=24e9,
            )
        )
        run = summarise(built)
        groups.append(
            Group(
                name=f"x{slow}",
                observations=tuple(map(observe, run.bursts)),
                conditions=conditions_of(built.plan, ()),
            )
        )
    result = compare(*groups)
    assert result.conditions_differ == ()
    by_name = {metric.name: metric for metric in result.metrics}
    assert by_name["received_bits_per_second"].ratio == pytest.approx(0.5, rel=0.01)
    assert by_name["received_bits_per_second"].significant
    assert {"rtt_s", "cpu_per_gigabit", "retransmit_ratio"} <= by_name.keys()
    assert by_name["cpu_per_gigabit"].ratio == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_bursts_never_differ(count: int) -> None:
    (metric,) = compare(group("a", [1e9] * count), group("b", [9e9] * 30)).metrics
    assert not metric.significant
    assert metric.equivalent_within_ratio is None


@pytest.mark.parametrize("count", [3, 5, 12])
def test_false_positive_rate_for_equal_groups(count: int) -> None:
    rng = np.random.default_rng(count)
    false_positives = covered = 0
    for _ in range(400):
        a, b = (100 + rng.standard_normal((2, count))).tolist()
        (metric,) = compare(group("a", a), group("b", b)).metrics
        assert metric.difference_half_width is not None
        false_positives += metric.significant
        covered += abs(metric.difference) <= metric.difference_half_width
    assert false_positives <= 0.08 * 400
    assert covered >= 0.92 * 400


def test_detects_small_difference_with_overlapping_intervals() -> None:
    a = [100.0, 101, 99, 100.5, 99.5, 100]
    b = [value - 2.8 for value in a]
    (metric,) = compare(group("a", a), group("b", b)).metrics
    assert metric.a_half_width is not None
    assert metric.b_half_width is not None
    assert abs(metric.difference) < metric.a_half_width + metric.b_half_width
    assert metric.significant


def test_states_margin_of_equivalence() -> None:
    a = [100.0, 100.1, 99.9, 100.05]
    (metric,) = compare(group("a", a), group("b", a[::-1])).metrics
    assert not metric.significant
    assert metric.equivalent_within_ratio is not None
    assert 0 < metric.equivalent_within_ratio < 0.01
    assert "equivalent within" in metric.sentence


@pytest.mark.parametrize("turns", ["abab" * 3, "abba" * 3])
def test_alternating_bursts_cancel_common_drift(turns: str) -> None:
    """The rate decreases by about 10 % during the test, and group b is 1.5 % slower."""
    rng = np.random.default_rng(1)
    seen: dict[str, list[dict[str, float]]] = {"a": [], "b": []}
    for place, side in enumerate(turns):
        drift = 100 - place + 0.02 * rng.standard_normal()
        rate = drift * (0.985 if side == "b" else 1.0)
        seen[side].append({RECEIVED.name: rate, "planned_start_s": 300.0 * place})
    a, b = (Group(name=name, observations=tuple(seen[name])) for name in "ab")
    (metric,) = compare(a, b).metrics
    assert metric.paired
    gap_from_drift = metric.difference_half_width
    assert gap_from_drift is not None
    plain = [
        Group(
            name=g.name,
            observations=tuple({RECEIVED.name: o[RECEIVED.name]} for o in g.observations),
        )
        for g in (a, b)
    ]
    (welch,) = compare(*plain).metrics
    assert not welch.paired
    assert welch.difference_half_width is not None
    assert gap_from_drift < 0.5 * welch.difference_half_width
    (other,) = compare(b, a).metrics
    assert other.difference == -metric.difference
    assert other.paired
