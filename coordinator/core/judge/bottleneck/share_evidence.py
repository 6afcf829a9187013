"""Evidence from how the rates of pairs change relative to each other.

The movement ratio is the variance of the summed rate divided by the sum of the pairs' variances. It
is about 1 if the pairs are independent. If they share one limit, one pair gains what another loses,
and the ratio is near 0. If all pairs change together, it is up to the number of pairs.
"""

import math
from collections.abc import Sequence
from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.judge.bottleneck.cause_types import (
    EQUAL_COV_RATIO,
    ROOM_RATIO,
    BottleneckInput,
)

CPU_FULL_RATIO: Final = 0.95
# For independent pairs the ratio is distributed like chi-square divided by its degrees of freedom.
# The limit is the 1 % quantile (Wilson and Hilferty 1931). If neighbouring seconds have a
# correlation of 1/3, there are (1 - 1/9) / (1 + 1/9) degrees of freedom per second.
INDEPENDENT_RATIO: Final = 0.8
# Standard deviations for the 1 % quantile of a normal distribution.
RARE_SIGMAS: Final = 2.33
CANCEL_MAX_RATIO: Final = 0.5
# If the ratio is higher, most of the movement is common to all pairs.
TOGETHER_RATIO: Final = 2.5
# Window length to use if it is unknown.
WINDOW_ASSUMED_S: Final = 13
# A lower CoV of a pair can be caused by the resolution of its readings.
TRADE_COV_RATIO: Final = 0.005
# At least this number of pairs is required. With only two, one gains while the other loses in half
# of the cases by chance.
TRADERS_MIN: Final = 3


def cancel_ratio(window_s: int | None) -> float:
    """Return the movement ratio that independent pairs do not reach in 1 % of windows."""
    spread = 2 / 9 / (INDEPENDENT_RATIO * (window_s or WINDOW_ASSUMED_S))
    return min(CANCEL_MAX_RATIO, max(0.0, 1 - spread - RARE_SIGMAS * math.sqrt(spread)) ** 3)


def pair_cov_ratio(given: BottleneckInput) -> float | None:
    """Return the median CoV of a pair's seconds, or None if there are too few pairs."""
    covs = sorted(pair.cov_ratio for pair in given.pairs if pair.cov_ratio is not None)
    return covs[len(covs) // 2] if len(covs) >= TRADERS_MIN else None


def _movement(given: BottleneckInput) -> tuple[float, float] | None:
    """Return the ratio and the median CoV, or None if rates hardly change or are unknown."""
    moves, cov = given.lead.share_movement_ratio, pair_cov_ratio(given)
    return None if moves is None or cov is None or cov < TRADE_COV_RATIO else (moves, cov)


def traded(given: BottleneckInput) -> str | None:
    """Return a text if one pair gains what another loses, as with a shared limit, else None."""
    moved = _movement(given)
    if moved is None or moved[0] >= cancel_ratio(given.window_s):
        return None
    return (
        f"{len(given.pairs)} pairs trade shares of one limit: the sum's variance is "
        f"{words.ratio(moved[0], 0)} of the pairs' own, summed, while a pair's CoV is "
        f"{words.ratio(moved[1], 1)}"
    )


def movement_facts(given: BottleneckInput) -> list[str]:
    """Return texts about the rates of pairs and their movement.

    These facts do not show where a limit is.
    """
    facts = []
    if (each := given.each_stream) is not None and len(given.pairs) > 1:
        facts.append(
            f"{len(given.pairs)} pairs carry the same {words.rate(each)} a stream "
            f"(within {words.ratio(EQUAL_COV_RATIO, 0)}), as a limit on each pair makes it"
        )
    if (shared := traded(given)) is not None:
        facts.append(shared)
    elif (moved := _movement(given)) is not None:
        ratio = words.ratio(moved[0], 0)
        if moved[0] > TOGETHER_RATIO:
            facts.append(
                f"all pairs rise and fall together: the sum's variance is {ratio} of the pairs' "
                "own, summed"
            )
        elif moved[0] >= CANCEL_MAX_RATIO:
            facts.append(
                f"{len(given.pairs)} pairs rise and fall each by itself: the sum's variance is "
                f"{ratio} of the pairs' own, summed"
            )
    return facts


def crowded_hosts(given: BottleneckInput) -> Sequence[str]:
    """Return the hosts with several pairs that are full or not known to have room.

    Pairs on such a host may share a limit of the host and not one in the network.
    """
    seen: dict[str, list[bool]] = {}
    for pair in given.pairs:
        client = _has_room(pair.client_cpu_ratio, pair.client_core_ratio, pair.client_nic_ratio)
        server = _has_room(pair.server_cpu_ratio, pair.server_core_ratio, pair.server_nic_ratio)
        for agent, room in ((pair.client_agent_id, client), (pair.server_agent_id, server)):
            if agent is not None:
                seen.setdefault(agent, []).append(room)
    return [agent for agent, rooms in seen.items() if len(rooms) > 1 and not all(rooms)]


def _has_room(cpu: float | None, core: float | None, nic: float | None) -> bool:
    busiest = None if cpu is None or core is None else max(cpu, core)
    return busiest is not None and busiest < CPU_FULL_RATIO and nic is not None and nic < ROOM_RATIO
