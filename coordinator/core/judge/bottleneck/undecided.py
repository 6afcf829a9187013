"""Result if the bottleneck is unknown, with known facts, missing sources and the next run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broadside.coordinator.core.judge.bottleneck.cause_types import BottleneckInput, Evidence
from broadside.coordinator.core.judge.bottleneck.path_evidence import (
    NO_BASELINE,
    has_drops,
    is_queued,
    path_facts,
)
from broadside.coordinator.core.judge.bottleneck.share_evidence import (
    CANCEL_MAX_RATIO,
    TOGETHER_RATIO,
    movement_facts,
    traded,
)
from broadside.coordinator.core.summary import Limiter, LimiterName
from broadside.exchange.messages import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """Proposal for a run to find the bottleneck.

    Attributes:
        situation: Description of the situation, for the reader.
        advice: The run to make, and how to interpret its results.
        applies: Function that returns True in this situation.
    """

    situation: str
    advice: str
    applies: Callable[[BottleneckInput], bool]


def _udp_lost(given: BottleneckInput) -> bool:
    return given.traffic.protocol is Protocol.UDP and bool(has_drops(given))


def _each_alone(given: BottleneckInput) -> bool:
    moves = given.lead.share_movement_ratio
    alone = moves is not None and CANCEL_MAX_RATIO <= moves <= TOGETHER_RATIO
    return len(given.pairs) > 1 and (given.each_stream is not None or alone)


# The first row that applies is used.
NEXT_RUNS: Final = (
    NextRun(
        situation="UDP datagrams were lost, and no source shows where.",
        advice="read the device's drop counter (docs/witnesses.md), and run the same without the "
        "firewall (device.path=bypass): loss that remains is not the firewall's",
        applies=_udp_lost,
    ),
    NextRun(
        situation="Pairs trade shares of one limit, and no source shows where it is.",
        advice="run the same pairs without the firewall (device.path=bypass). If the sum is "
        "higher, the firewall is the limit; if it is the same, a shared link or host is",
        applies=lambda given: given.crosses and traded(given) is not None,
    ),
    NextRun(
        situation="Each pair is limited by itself.",
        advice="run the same pairs with another VM size. If the rate changes, the hosts are the "
        "limit; if it is the same, the path limits each pair",
        applies=_each_alone,
    ),
    NextRun(
        situation="Anything else.",
        advice="run half of the pairs. If each pair has the same rate as before, each has its own "
        "limit; if the sum is the same as before, the pairs share one limit",
        applies=lambda given: True,
    ),
)


def undecided(given: BottleneckInput, results: Sequence[Evidence]) -> Limiter:
    """Return an unknown bottleneck.

    Args:
        given: Input for the causes.
        results: Evidence for all causes, none of it complete.
    """
    missing = [each for result in results for each in result.missing]
    if is_queued(given) is None:
        missing.append(NO_BASELINE)
    if has_drops(given) is None:
        missing.append("whether the path drops (use an engine that reports it: iperf3)")
    if _udp_lost(given):
        missing.append(
            "where datagrams were lost (the device's drop counter, or a run past the device)"
        )
    return Limiter(
        name=LimiterName.UNKNOWN,
        evidence=(*path_facts(given), *movement_facts(given)),
        not_known=tuple(dict.fromkeys(missing)),
        advice=next(row.advice for row in NEXT_RUNS if row.applies(given)),
    )
