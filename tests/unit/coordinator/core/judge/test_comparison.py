"""Two groups of bursts: what differs, how sure, and when nothing can be said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.figures import RECEIVED, RECEIVED_HALF_WIDTH
from coordinator.core.judge.comparison import Group, compare, observe
from coordinator.core.judge.conditions import conditions_of
from coordinator.core.judge.summarise import summarise_run
from coordinator.core.measure.measure_burst import measure_burst
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
def test_a_group_against_itself_is_zero(values: list[float]) -> None:
    same = group("a", values)
    (metric,) = compare(same, same).metrics
    assert metric.difference == 0
    assert metric.ratio == 1
    assert not metric.apart


@given(rates, rates)
def test_swapping_the_groups_swaps_the_answer(one: list[float], two: list[float]) -> None:
    (there,) = compare(group("a", one), group("b", two)).metrics
    (back,) = compare(group("b", two), group("a", one)).metrics
    assert there.difference == -back.difference
    assert there.apart == back.apart


def test_what_is_clearly_apart_is_said_so() -> None:
    found = compare(
        group("off", [9.2e9, 9.21e9, 9.19e9, 9.2e9]), group("on", [5.1e9, 5.3e9, 5.2e9, 5.4e9])
    )
    (metric,) = found.metrics
    assert metric.apart
    assert metric.ratio == pytest.approx(0.57, abs=0.01)
    assert metric.ratio_low is not None
    assert metric.ratio_high is not None
    assert metric.ratio_low < 0.57 < metric.ratio_high
    assert not found.thin


def test_thin_data_and_other_conditions_are_named() -> None:
    found = compare(
        group("a", [1e9], streams="64", pairs="30"), group("b", [2e9], streams="8", pairs="30")
    )
    assert found.thin
    assert found.conditions_differ == ("streams: 64 against 8",)
    assert "thin" in found.sentence
    assert "streams" in found.sentence
    assert found.sentence.startswith("fleet received, payload: 1 Gbit/s in a, 2 Gbit/s in b")
    assert found.metrics[0].a_half_width == pytest.approx(1e7)


def test_rates_of_a_scaled_lab_are_said_to_be_as_measured() -> None:
    one, two, real = (
        Group(
            name=name,
            observations=({RECEIVED.name: 1e9},),
            conditions={"scale": scale},
        )
        for name, scale in (("a", "1:100"), ("b", "1:100"), ("c", "1:1"))
    )
    assert "rates are as measured, in a lab at 1:100" in compare(one, two).sentence
    assert "as measured" not in compare(real, real).sentence
    assert "conditions differ: scale: 1:100 against 1:1" in compare(one, real).sentence


def test_nothing_in_common_is_said() -> None:
    empty = Group(name="empty", observations=())
    assert "no figure in common" in compare(empty, group("a", [1.0])).sentence


def test_runs_compare_by_their_bursts() -> None:
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
        bursts = [measure_burst(built.plan.spec, e, built.now) for e in built.evidence]
        run = summarise_run(built.plan, bursts, built.ledger, built.now)
        groups.append(
            Group(
                name=f"x{slow}",
                observations=tuple(map(observe, run.bursts)),
                conditions=conditions_of(built.plan, ()),
            )
        )
    found = compare(*groups)
    assert found.conditions_differ == ()
    by_name = {metric.name: metric for metric in found.metrics}
    assert by_name["received_bits_per_second"].ratio == pytest.approx(0.5, rel=0.01)
    assert by_name["received_bits_per_second"].apart
    assert {"rtt_s", "cpu_per_gigabit", "retransmit_ratio"} <= by_name.keys()
    assert by_name["cpu_per_gigabit"].ratio == pytest.approx(2, rel=0.01)
