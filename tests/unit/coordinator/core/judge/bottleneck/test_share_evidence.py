import math
from typing import Any

import pytest

from broadside.coordinator.core.judge.bottleneck.bottleneck_evidence import (
    cancel_ratio,
    crowded_hosts,
    movement_facts,
    pair_cov_ratio,
    traded,
)
from tests.unit.coordinator.core.judge.bottleneck.bottleneck_input import given, pairs

FREE_CAPACITY = {"cpu_ratio": 0.5, "core_ratio": 0.9, "nic_ratio": 0.8}


def test_cancel_ratio_is_one_percent_quantile() -> None:
    """A 30 s window has 24 degrees of freedom.

    The approximation is (1 - 2/216 - 2.33 sqrt(2/216)) cubed = 0.451. This is a chi-square of
    10.8, for which published tables give 10.86.
    """
    spread = 2 / (9 * 24)
    assert cancel_ratio(30) == pytest.approx((1 - spread - 2.33 * math.sqrt(spread)) ** 3)
    assert cancel_ratio(30) == pytest.approx(10.86 / 24, rel=0.01)
    assert cancel_ratio(None) == cancel_ratio(13)
    assert cancel_ratio(3000) == 0.5
    assert cancel_ratio(1) == 0.0


@pytest.mark.parametrize(
    ("covs", "median"),
    [
        ((0.3, 0.1, 0.2), 0.2),
        ((0.3, 0.1, 0.2, None), 0.2),
        ((0.4, 0.3, 0.1, 0.2), 0.3),
        ((0.1, 0.2, None), None),
    ],
)
def test_median_movement_needs_three_pairs(
    covs: tuple[float | None, ...], median: float | None
) -> None:
    assert pair_cov_ratio(given(pairs(*({"cov_ratio": cov} for cov in covs)))) == median


def _moving(ratio: float | None, cov: float = 0.1, **fields: Any) -> Any:
    return given(
        pairs(*[{"cov_ratio": cov}] * 4), share_movement_ratio=ratio, window_s=30, **fields
    )


def test_pairs_trade_shares_below_the_quantile() -> None:
    limit = cancel_ratio(30)
    assert traded(_moving(limit - 0.001)) == (
        "4 pairs share one limit, one gains what another loses: the variance of the total rate is "
        "45 % of the summed variances of the pairs; the CoV of a pair is 10.0 %"
    )
    assert traded(_moving(limit)) is None
    assert traded(_moving(None)) is None
    # Smaller changes may be caused by rounding to seconds.
    assert traded(_moving(0.1, cov=0.0049)) is None
    assert traded(_moving(0.1, cov=0.005)) is not None


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (0.1, "4 pairs share one limit"),
        (0.49, None),
        (0.5, "the rates of the 4 pairs are independent: the variance of the total rate is 50 %"),
        (2.5, "the rates of the 4 pairs are independent: the variance of the total rate is 250 %"),
        (
            2.6,
            "the rates of all pairs rise and fall together: the variance of the total rate is 26",
        ),
        (None, None),
    ],
)
def test_describes_how_pairs_move_together(ratio: float | None, expected: str | None) -> None:
    facts = movement_facts(_moving(ratio))
    assert len(facts) == (expected is not None)
    assert expected is None or facts[0].startswith(expected)


@pytest.mark.parametrize(("cov", "equal"), [(0.03, True), (0.031, False)])
def test_equal_rates_are_a_fact_for_several_pairs(cov: float, equal: bool) -> None:
    fields: dict[str, Any] = {"pair_median_bits_per_second": 1e9, "pair_cov_ratio": cov}
    text = (
        "all 2 pairs have the same rate per stream, 1 Gbit/s (within 3 %), as if each pair has its "
        "own limit"
    )
    assert movement_facts(given(pairs({}, {}), **fields)) == [text] * equal
    assert movement_facts(given(pairs({}), **fields)) == []


def _ends(agent: str, **server: float | None) -> dict[str, Any]:
    """Build a pair that has its own client. The server can be shared with other pairs."""
    fields = {f"server_{name}": value for name, value in (FREE_CAPACITY | server).items()}
    return {"server_agent_id": agent} | fields


@pytest.mark.parametrize(
    ("server", "crowded"),
    [
        ({}, False),
        ({"cpu_ratio": 0.95}, True),
        ({"core_ratio": 0.95}, True),
        ({"core_ratio": 0.94}, False),
        ({"nic_ratio": 0.9}, True),
        ({"nic_ratio": None}, True),
        ({"cpu_ratio": None}, True),
        ({"core_ratio": None}, True),
    ],
)
def test_shared_host_needs_known_free_capacity(
    server: dict[str, float | None], crowded: bool
) -> None:
    shared = pairs(_ends("s"), _ends("s", **server), _ends("alone", nic_ratio=None))
    assert list(crowded_hosts(given(shared))) == ["s"] * crowded


def test_shared_client_needs_free_capacity() -> None:
    full = {"client_agent_id": "c", "client_cpu_ratio": 0.99, "client_core_ratio": 0.1}
    assert list(crowded_hosts(given(pairs(full, full)))) == ["c"]
    fields = {"client_agent_id": "c"} | {
        f"client_{name}": value for name, value in FREE_CAPACITY.items()
    }
    assert list(crowded_hosts(given(pairs(fields, fields)))) == []
