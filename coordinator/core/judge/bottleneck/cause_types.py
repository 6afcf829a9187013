"""The form of a bottleneck's cause, what it reads, and what it returns.

A cause asks one question of a burst's figures. It returns evidence: complete, absent, or unknown
because a source is missing. Causes do not know each other; the registry's order decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broadside.coordinator.core.summary import (
    DeviceSummary,
    FlowSummary,
    LimiterName,
    PairSummary,
    Reconciliation,
)
from broadside.exchange.messages import Direction, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckInput:
    """One burst's figures, as the causes read them.

    Attributes:
        traffic: The traffic that was asked for.
        flows: The fleet's flows; the first one leads.
        pairs: The pairs; causes see only those that carried traffic.
        reconciliation: The comparison with the device counter; None where there is none.
        devices: Telemetry of each device over the window.
        drops_per_second: What the device counter's source counted as dropped: in the window, and
            while nobody sent; None where it does not count drops.
        window_s: Length of the window.
        crosses: The traffic is to cross the device.
        sku: The device's name among the documented limits.
        snat_utilization_ratio: SNAT ports in use.
        scale: Documented rates are divided by it before they are compared.
    """

    traffic: Traffic
    flows: Sequence[FlowSummary]
    pairs: Sequence[PairSummary]
    reconciliation: Reconciliation | None = None
    devices: Sequence[DeviceSummary] = ()
    drops_per_second: tuple[float, float | None] | None = None
    window_s: int | None = None
    crosses: bool = True
    sku: str | None = None
    snat_utilization_ratio: float | None = None
    scale: float = 1.0

    @property
    def lead(self) -> FlowSummary:
        return self.flows[0]

    @property
    def each_stream(self) -> float | None:
        """What each stream carries, bit/s; None where pairs carry unlike rates."""
        median, cov = self.lead.pair_median_bits_per_second, self.lead.pair_cov_ratio
        if median is None or cov is None or cov > EQUAL_COV_RATIO:
            return None
        return median / self.traffic.streams_count

    def sender_nics(self, pair: PairSummary) -> tuple[float | None, ...]:
        """Return the use of the NICs that send the pair's payload, 0..1."""
        match self.traffic.direction:
            case Direction.FORWARD:
                return (pair.client_nic_ratio,)
            case Direction.REVERSE:
                return (pair.server_nic_ratio,)
            case Direction.BIDIRECTIONAL:
                return pair.client_nic_ratio, pair.server_nic_ratio

    @property
    def nic_ratio(self) -> float | None:
        """The highest use of a sender's NIC; None where one is unknown."""
        ratios = [ratio for pair in self.pairs for ratio in self.sender_nics(pair)]
        known = [ratio for ratio in ratios if ratio is not None]
        return max(known) if known and len(known) == len(ratios) else None

    @property
    def senders_have_room(self) -> bool:
        """No sender's NIC whose use is known is near its cap."""
        return all((r or 0.0) < ROOM_RATIO for pair in self.pairs for r in self.sender_nics(pair))

    def one_way(self, pair: PairSummary) -> float:
        """Return a pair's rate in one direction, bit/s."""
        return (pair.received_bits_per_second or 0.0) / len(self.traffic.direction.flows)

    def share(self, chosen: Sequence[PairSummary]) -> float:
        """Return the chosen pairs' share of the fleet's traffic, 0..1."""
        total = sum(pair.received_bits_per_second or 0.0 for pair in self.pairs)
        return sum(pair.received_bits_per_second or 0.0 for pair in chosen) / total

    def of_pairs(self, chosen: Sequence[PairSummary]) -> str:
        """Return how many pairs were chosen, in words."""
        return f"{len(chosen)} of {len(self.pairs)} pairs"


EQUAL_COV_RATIO: Final = 0.03  # pairs' rates that differ less are equal
ROOM_RATIO: Final = 0.9  # use of a NIC below which it has room
HALF: Final = 0.5  # of the traffic: a cause that explains less explains something else


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a cause found.

    Attributes:
        holds: The evidence is complete. False: the sources are there and show something else.
            None: a source is missing.
        facts: The measured values, with their limits.
        missing: What is not known, and how to get it.
    """

    holds: bool | None
    facts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


ABSENT: Final = Evidence(holds=False)


def found(*facts: str) -> Evidence:
    """Return complete evidence."""
    return Evidence(holds=True, facts=facts)


def unknown(*missing: str) -> Evidence:
    """Return that the evidence cannot be assessed, and why."""
    return Evidence(holds=None, missing=missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One possible bottleneck.

    Attributes:
        id: A stable name of the cause.
        name: The bottleneck as it is stored.
        question: What it asks.
        evidence: What must be measured for it to be named.
        reads: The sources.
        when_absent: What it concludes where these sources are missing.
        refuted_by: What would show that it is another.
        advice: What to change.
        evaluate: The computation. It is pure.
        advise: Advice that depends on the figures; None where `advice` holds for all.
    """

    id: str
    name: LimiterName
    question: str
    evidence: str
    reads: str
    when_absent: str
    refuted_by: str
    advice: str
    evaluate: Callable[[BottleneckInput], Evidence]
    advise: Callable[[BottleneckInput], str] | None = None
