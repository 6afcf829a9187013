"""How pairs move against each other: shares of one limit, each alone, or all together.

The ratio is the variance of the sum over the sum of the pairs' variances. Independent pairs have
1. A limit that pairs share makes one pair's gain the other's loss: the ratio falls towards 0. What
moves all pairs together raises it towards their number.
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
# n seconds of independent pairs scatter as chi-square over its degrees of freedom. So little that
# gains and losses cancel is under its quantile of 1 % (Wilson and Hilferty 1931), with the degrees
# that n seconds have at a correlation of 1/3 from one to the next.
INDEPENDENT_RATIO: Final = 0.8  # (1 - 1/9) / (1 + 1/9): degrees of freedom a second
RARE_SIGMAS: Final = 2.33  # 1 % of a normal distribution lies below
CANCEL_MAX_RATIO: Final = 0.5
TOGETHER_RATIO: Final = 2.5  # most of what moves is common to all pairs
WINDOW_ASSUMED_S: Final = 13  # where the window's length is unknown
TRADE_COV_RATIO: Final = 0.005  # of a pair: less is how exactly a second is read
TRADERS_MIN: Final = 3  # pairs: of two, one's gain is the other's loss once in two by chance


def cancel_ratio(window_s: int | None) -> float:
    """Return the ratio below which independent pairs come by chance in 1 % of windows."""
    spread = 2 / 9 / (INDEPENDENT_RATIO * (window_s or WINDOW_ASSUMED_S))
    return min(CANCEL_MAX_RATIO, max(0.0, 1 - spread - RARE_SIGMAS * math.sqrt(spread)) ** 3)


def pair_cov_ratio(given: BottleneckInput) -> float | None:
    """Return the median pair's CoV over its seconds; None where too few pairs have seconds."""
    covs = sorted(pair.cov_ratio for pair in given.pairs if pair.cov_ratio is not None)
    return covs[len(covs) // 2] if len(covs) >= TRADERS_MIN else None


def _movement(given: BottleneckInput) -> tuple[float, float] | None:
    """Return the ratio and the median pair's CoV; None where pairs hardly move, or unknown."""
    moves, cov = given.lead.share_movement_ratio, pair_cov_ratio(given)
    return None if moves is None or cov is None or cov < TRADE_COV_RATIO else (moves, cov)


def traded(given: BottleneckInput) -> str | None:
    """Return that pairs trade shares of one limit, as a sentence; None where they do not."""
    moved = _movement(given)
    if moved is None or moved[0] >= cancel_ratio(given.window_s):
        return None
    return (
        f"{len(given.pairs)} pairs trade shares of one limit: the sum's variance is "
        f"{words.ratio(moved[0], 0)} of the pairs' own, summed, while a pair's CoV is "
        f"{words.ratio(moved[1], 1)}"
    )


def movement_facts(given: BottleneckInput) -> list[str]:
    """Return how pairs move and what they carry, as sentences that locate no cause."""
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
    """Return hosts of several pairs that are not known to have room: pairs trade there too."""
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
