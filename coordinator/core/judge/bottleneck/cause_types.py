"""Types for the causes of a bottleneck, their input and their evidence.

Each cause has a pure function that returns its evidence. The evidence is complete, absent, or
unknown because a source is missing. Causes do not depend on each other. If several have complete
evidence, the first in the registry is used.
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
    """Input for the causes, for one burst.

    Attributes:
        traffic: Requested traffic.
        flows: Flows of the fleet. Pairs are compared in the first one.
        pairs: Pairs of the fleet. Causes receive only pairs with traffic.
        reconciliation: Comparison with the device counter. None if there is no counter.
        devices: Telemetry of each device in the window.
        drops_per_second: Packets/s that the device dropped, in the window and while no burst runs.
            None if the source does not count drops.
        window_s: Length of the window.
        crosses: True if the traffic must cross the device.
        sku: Name of the firewall in the documented limits.
        snat_utilization_ratio: Share of SNAT ports in use, 0 to 1.
        scale: Documented rates are divided by this factor before they are compared.
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
        """Rate of each stream in bit/s, or None if the pairs have different rates."""
        median, cov = self.lead.pair_median_bits_per_second, self.lead.pair_cov_ratio
        if median is None or cov is None or cov > EQUAL_COV_RATIO:
            return None
        return median / self.traffic.streams_count

    def sender_nics(self, pair: PairSummary) -> tuple[float | None, ...]:
        """Return the utilization of each NIC that sends payload of a pair, 0 to 1."""
        match self.traffic.direction:
            case Direction.FORWARD:
                return (pair.client_nic_ratio,)
            case Direction.REVERSE:
                return (pair.server_nic_ratio,)
            case Direction.BIDIRECTIONAL:
                return pair.client_nic_ratio, pair.server_nic_ratio

    @property
    def nic_ratio(self) -> float | None:
        """Highest utilization of a sender's NIC, 0 to 1, or None if one is unknown."""
        ratios = [ratio for pair in self.pairs for ratio in self.sender_nics(pair)]
        known = [ratio for ratio in ratios if ratio is not None]
        return max(known) if known and len(known) == len(ratios) else None

    @property
    def senders_have_room(self) -> bool:
        """True if no sender's NIC is known to be near its limit."""
        return all((r or 0.0) < ROOM_RATIO for pair in self.pairs for r in self.sender_nics(pair))

    def one_way(self, pair: PairSummary) -> float:
        """Return the rate of a pair in one direction, in bit/s."""
        return (pair.received_bits_per_second or 0.0) / len(self.traffic.direction.flows)

    def share(self, chosen: Sequence[PairSummary]) -> float:
        """Return the share of the fleet's traffic that the chosen pairs have, 0 to 1."""
        total = sum(pair.received_bits_per_second or 0.0 for pair in self.pairs)
        return sum(pair.received_bits_per_second or 0.0 for pair in chosen) / total

    def of_pairs(self, chosen: Sequence[PairSummary]) -> str:
        """Return a text with the number of chosen pairs."""
        return f"{len(chosen)} of {len(self.pairs)} pairs"


# Up to this CoV the rates of the pairs are treated as equal.
EQUAL_COV_RATIO: Final = 0.03
# A NIC with a lower utilization has room.
ROOM_RATIO: Final = 0.9
# A cause must explain at least this share of the traffic.
HALF: Final = 0.5


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence for a cause.

    Attributes:
        holds: True if the evidence is complete. False if the sources show something else. None if a
            source is missing.
        facts: Measured values with their limits.
        missing: Missing sources, and how to get them.
    """

    holds: bool | None
    facts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


ABSENT: Final = Evidence(holds=False)


def found(*facts: str) -> Evidence:
    """Return complete evidence with its measured values."""
    return Evidence(holds=True, facts=facts)


def unknown(*missing: str) -> Evidence:
    """Return evidence that is unknown because of missing sources."""
    return Evidence(holds=None, missing=missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Possible cause of a bottleneck.

    Attributes:
        id: Stable name of the cause.
        name: Name of the bottleneck in stored results.
        question: Question that the cause answers.
        evidence: Measurements that the cause requires.
        reads: Sources that are read.
        when_absent: Result if these sources are missing.
        refuted_by: Result that would show that this is not the cause.
        advice: What the user can do.
        evaluate: Function that computes the evidence. It is pure.
        advise: Function that computes advice from the measured values. None to use ``advice``.
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
