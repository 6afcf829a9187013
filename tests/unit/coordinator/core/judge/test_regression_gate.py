"""A pipeline's gate: a planted regression is caught, and nothing is not."""

import pytest

from coordinator.core.judge.comparison import Group, compare, observe
from coordinator.core.judge.regression_gate import hold, parse_gate
from coordinator.core.judge.summarise import summarise_run
from coordinator.core.measure.measure_burst import measure_burst
from coordinator.core.summary import Verdict
from tests.synthetic import Plant, fleet
from tests.unit.coordinator.core.judge.test_comparison import group

GATE = parse_gate("received < -3%")
SEEDS = range(20)


def run(name: str, seed: int, firewall_ratio: float = 1.0) -> Group:
    """A run of five bursts as users get it, through a firewall of that share of the usual rate."""
    made = fleet(
        Plant(
            seed=seed,
            pairs=4,
            bursts=5,
            burst_s=12,
            period_s=30,
            firewall_bits_per_second=20e9 * firewall_ratio,
            ledger=False,
        )
    )
    measured = [measure_burst(made.plan.spec, burst, made.now) for burst in made.evidence]
    summary = summarise_run(made.plan, measured, None, made.now)
    return Group(name=name, observations=tuple(map(observe, summary.bursts)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_planted_five_per_cent_is_caught_and_the_same_again_is_not(seed: int) -> None:
    before = run("before", seed)
    again, slower = run("again", 1000 + seed), run("slower", 2000 + seed, 0.95)
    assert hold(GATE, compare(before, again)).verdict is Verdict.PASS
    caught = hold(GATE, compare(before, slower))
    assert caught.verdict is Verdict.FAIL
    assert "received_bits_per_second" in caught.sentence


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1e9, 1.2e9, 0.8e9], [0.95e9, 1.15e9, 0.75e9]),  # wider than what is asked
        ([1e9, 1e9], [0.5e9, 0.5e9]),  # two bursts
    ],
)
def test_what_cannot_be_told_is_inconclusive(a: list[float], b: list[float]) -> None:
    found = hold(GATE, compare(group("a", a), group("b", b)))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "cannot be told" in found.sentence


@pytest.mark.parametrize("text", ["received", "received < 3", "< -3%", "received <= -3%", ""])
def test_a_gate_that_cannot_be_read_shows_one_that_can(text: str) -> None:
    with pytest.raises(ValueError, match="received < -3%"):
        parse_gate(text)


def test_an_unknown_figure_is_answered_with_those_that_there_are() -> None:
    same = group("a", [1e9, 1e9, 1e9])
    with pytest.raises(ValueError, match="received_bits_per_second"):
        hold(parse_gate("jitter > 3%"), compare(same, same))
