"""Tests to spread pairs over time and over control row copies."""

import math
from collections import Counter

import pytest

from broadside.coordinator.core.live.status import VISIBLE_S
from broadside.coordinator.core.run_spec import COLLECT_S
from broadside.exchange.pacing import (
    CONTROL_PAIRS_COUNT,
    PAIRS_PER_S,
    SERVER_SHARES_COUNT,
    TURN_MAX_S,
    control_copies_count,
    control_copy,
    server_share,
    turn_s,
)


@pytest.mark.parametrize("pairs_count", [1, 30, 300, 1_000, 3_000])
def test_pairs_per_second_are_limited(pairs_count: int) -> None:
    offsets = Counter(int(turn_s(pair)) for pair in range(pairs_count))
    rounds = math.ceil(pairs_count / (PAIRS_PER_S * TURN_MAX_S))
    assert max(offsets.values()) <= rounds * PAIRS_PER_S
    copies = Counter(control_copy(pair) for pair in range(pairs_count))
    assert max(copies.values()) <= CONTROL_PAIRS_COUNT
    assert len(copies) == control_copies_count(pairs_count)


def test_offsets_leave_time_to_arm_and_collect() -> None:
    assert max(map(turn_s, range(10_000))) < TURN_MAX_S < min(VISIBLE_S / 2, COLLECT_S / 2)
    assert turn_s(29) < 0.15, "thirty pairs must not wait"


@pytest.mark.parametrize("name", ["server-{:04d}", "vm-{}", "10.1.0.{}", "vmss-range_{:x}"])
def test_servers_are_spread_evenly_for_any_naming_scheme(name: str) -> None:
    shares = Counter(server_share(name.format(number)) for number in range(1_000))
    assert len(shares) == SERVER_SHARES_COUNT
    assert max(shares.values()) <= 2 * 1_000 / SERVER_SHARES_COUNT
