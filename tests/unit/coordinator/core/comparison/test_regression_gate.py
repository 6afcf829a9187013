from collections.abc import Iterable

import numpy as np
import pytest

from broadside.coordinator.core.comparison.group_comparison import STARTED, Group, compare, observe
from broadside.coordinator.core.comparison.regression_gate import evaluate_gate, parse_gate
from broadside.coordinator.core.metrics import RTT
from broadside.coordinator.core.summary import Verdict
from tests.planted import summarise
from tests.synthetic import Plant, fleet
from tests.unit.coordinator.core.comparison.test_group_comparison import group

GATE = parse_gate("received < -3%")
SEEDS = range(20)


def run(name: str, seed: int, firewall_ratio: float = 1.0) -> Group:
    """Simulate five bursts through a firewall with this share of the usual rate."""
    made = fleet(
        Plant(
            seed=seed,
            pairs=4,
            bursts=5,
            burst_s=12,
            period_s=30,
            firewall_bits_per_second=20e9 * firewall_ratio,
            device_counter=False,
        )
    )
    return Group(name=name, observations=tuple(map(observe, summarise(made).bursts)))


@pytest.mark.parametrize("seed", SEEDS)
def test_detects_five_percent_regression_but_not_a_repeat(seed: int) -> None:
    before = run("before", seed)
    again, slower = run("again", 1000 + seed), run("slower", 2000 + seed, 0.95)
    assert evaluate_gate(GATE, compare(before, again)).verdict is Verdict.PASS
    caught = evaluate_gate(GATE, compare(before, slower))
    assert caught.verdict is Verdict.FAIL
    assert "received_bits_per_second" in caught.sentence


@pytest.mark.parametrize(
    ("a", "b"),
    [
        # The interval is too wide.
        ([1e9, 1.2e9, 0.8e9], [0.95e9, 1.15e9, 0.75e9]),
        # There are only two bursts.
        ([1e9, 1e9], [0.5e9, 0.5e9]),
    ],
)
def test_gate_is_inconclusive_for_wide_or_small_samples(a: list[float], b: list[float]) -> None:
    result = evaluate_gate(GATE, compare(group("a", a), group("b", b)))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "inconclusive" in result.sentence or "inside the interval" in result.sentence


@pytest.mark.parametrize("text", ["received", "received < 3", "< -3%", "received <= -3%", ""])
def test_invalid_gate_shows_valid_example(text: str) -> None:
    with pytest.raises(ValueError, match="received < -3%"):
        parse_gate(text)


def test_unknown_metric_lists_available_metrics() -> None:
    same = group("a", [1e9, 1e9, 1e9])
    with pytest.raises(ValueError, match="received_bits_per_second"):
        evaluate_gate(parse_gate("jitter > 3%"), compare(same, same))


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize(("times", "gate"), [(1.0, "> 0%"), (2.0, "> 100%"), (0.5, "< -50%")])
def test_gate_at_true_change_rarely_decides(times: float, gate: str, turns: bool) -> None:
    """The gate should decide in about 2.5 % of cases on either side.

    Alternating bursts share a common level that varies more than the groups differ. If bursts do
    not alternate, they may be correlated, and then the gate decides less often.
    """
    rng = np.random.default_rng(7)
    decided = covered = 0
    draws, count = 600, 5
    for _ in range(draws):
        level = 100 + (10 * rng.standard_normal(count) if turns else np.zeros(count))
        one, two = (
            level * factor * (1 + 0.02 * rng.standard_normal(count)) for factor in (1.0, times)
        )
        result = compare(_at("a", one, 0 if turns else None), _at("b", two, 1 if turns else None))
        (metric,) = result.metrics
        assert metric.paired == turns
        assert metric.ratio_low is not None
        assert metric.ratio_high is not None
        covered += metric.ratio_low <= times <= metric.ratio_high
        decided += (
            evaluate_gate(parse_gate(f"rtt {gate}"), result).verdict is not Verdict.INCONCLUSIVE
        )
    assert decided <= 0.08 * draws
    assert 0.92 * draws <= covered
    assert covered <= 0.98 * draws or not turns


def _at(name: str, values: Iterable[float], place: int | None) -> Group:
    return Group(
        name=name,
        observations=tuple(
            {RTT.name: value} | ({} if place is None else {STARTED: 2.0 * turn + place})
            for turn, value in enumerate(values)
        ),
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        # The mean is around zero.
        ([0.01, -0.01, 1e-6], [0.01, -0.01, 1e-6]),
        ([1.0, 1.05, 0.95], [0.0, 1e-9, 2e-9]),
    ],
)
def test_no_ratio_if_mean_may_be_zero(a: list[float], b: list[float]) -> None:
    (metric,) = compare(_at("a", a, None), _at("b", b, None)).metrics
    assert metric.ratio_low is None
    result = evaluate_gate(parse_gate("rtt < -50%"), compare(_at("a", a, None), _at("b", b, None)))
    assert result.verdict is (Verdict.INCONCLUSIVE if a[1] < 0 else Verdict.FAIL)


@pytest.mark.parametrize("field", ["difference_half_width", "a_half_width"])
def test_change_without_interval_is_inconclusive(field: str) -> None:
    compared = compare(group("a", [1e9, 1e9, 1.1e9]), group("b", [0.5e9, 0.5e9, 0.51e9]))
    assert evaluate_gate(GATE, compared).verdict is Verdict.FAIL
    bare = tuple(metric.model_copy(update={field: None}) for metric in compared.metrics)
    result = evaluate_gate(GATE, compared.model_copy(update={"metrics": bare}))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "inconclusive" in result.sentence
