"""Tests for the cost of runs whose bursts end early."""

import pytest

from broadside.coordinator import prices, scenarios
from broadside.coordinator.core.plan.cost_estimate import EarlyStopEstimate, estimate
from broadside.coordinator.core.plan.early_stop_estimate import DeviceHistory, with_early_stop
from broadside.coordinator.core.plan.expected_usage import expect_usage

TABLE = prices.load()


def early(history: DeviceHistory | None = None, **overrides: object) -> EarlyStopEstimate:
    spec = scenarios.load(
        "jumbo-1740s",
        {
            "device": {"sku": "premium"},
            "bursts_count": 1,
            "description": "one burst",
            "objective.stop": "when-certain",
            **overrides,
        },
    )
    usage = expect_usage(spec, ())
    price = with_early_stop(estimate(spec, usage, TABLE), spec, usage, TABLE, history)
    assert price.early_stop is not None
    assert price.early_stop.worst_usd == price.bill.total_usd
    return price.early_stop


def history(rate_ratio: float, scatter: float = 0.01, correlation: float = 0.5) -> DeviceHistory:
    """Return bursts with a rate relative to the limit of 171 Gbit/s at the IP layer."""
    return DeviceHistory(
        bursts_count=3,
        payload_bits_per_second=171e9 * rate_ratio * 1448 / 1500,
        scatter_ratio=scatter,
        correlation=correlation,
    )


def test_large_margins_cost_a_small_part() -> None:
    cost = early(history(1.05))
    assert cost.margin_ratio == pytest.approx(0.05, abs=1e-6)
    assert 60 < cost.expected_burst_s < 150
    assert cost.expected_usd is not None
    assert cost.worst_usd is not None
    assert cost.expected_usd < 0.15 * cost.worst_usd
    assert "3 earlier bursts" in cost.how


def test_without_margin_the_expected_cost_is_the_worst() -> None:
    cost = early(history(1.001))
    assert cost.expected_burst_s == 1740
    assert cost.expected_usd == pytest.approx(cost.worst_usd)


def test_scatter_and_correlation_of_the_device_delay_the_decision() -> None:
    quiet, noisy = early(history(1.02)), early(history(1.02, scatter=0.03, correlation=0.8))
    assert quiet.expected_burst_s < noisy.expected_burst_s


def test_without_history_the_scenario_gives_the_margin() -> None:
    cost = early()
    assert cost.history_bursts_count == 0
    assert cost.margin_ratio == pytest.approx(1 / 0.95 - 1)
    assert cost.how == "the target"


def test_fixed_durations_have_no_early_stop() -> None:
    spec = scenarios.load("jumbo-1740s")
    usage = expect_usage(spec, ())
    price = estimate(spec, usage, TABLE)
    assert with_early_stop(price, spec, usage, TABLE, None) is price
