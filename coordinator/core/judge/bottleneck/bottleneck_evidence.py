"""Evidence for a bottleneck: input, queues and loss in the path, and how rates of pairs change."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broadside.coordinator.core import formatting
from broadside.coordinator.core.measure.formulas.headers import MSS_ASSUMED_BYTES
from broadside.coordinator.core.summary import (
    BottleneckName,
    DeviceSummary,
    FlowSummary,
    PairSummary,
    Reconciliation,
    SessionCount,
    Units,
)
from broadside.exchange.messages import Direction, Protocol, Side, Traffic


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
        crosses: True if the traffic needs to cross the device.
        sku: Name of the firewall in the documented limits.
        snat_utilization_ratio: Share of SNAT ports in use, 0 to 1.
        scale: Documented rates are divided by this factor before they are compared.
        units: Units of the device by translated addresses. None if unknown.
        measures: Additional metrics of the engine by name.
        sessions: Sessions of each device that counts new ones.
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
    units: Units | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    sessions: Sequence[SessionCount] = ()

    @property
    def lead(self) -> FlowSummary:
        return self.flows[0]

    @property
    def stream_rate(self) -> float | None:
        """Rate of each stream in bit/s, or None if the pairs have different rates."""
        median, cov = self.lead.pair_median_bits_per_second, self.lead.pair_cov_ratio
        if median is None or cov is None or cov > EQUAL_COV_RATIO:
            return None
        return median / self.traffic.streams_count

    def sender_nics(self, pair: PairSummary) -> tuple[float | None, ...]:
        """Return the utilization of each NIC that sends payload of a pair, 0 to 1.

        Returns:
            One value per sending host: the client, the server, or both. None if a NIC's limit or
            rate is unknown.
        """
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
    def senders_have_capacity(self) -> bool:
        """True if no sender's NIC is known to be near its limit."""
        return all((r or 0.0) < ROOM_RATIO for pair in self.pairs for r in self.sender_nics(pair))

    def one_direction(self, pair: PairSummary) -> float:
        """Return the rate of a pair in one direction, in bit/s."""
        return (pair.received_bits_per_second or 0.0) / len(self.traffic.direction.flows)

    def share(self, chosen: Sequence[PairSummary]) -> float:
        """Return the share of the fleet's traffic that the chosen pairs have, 0 to 1."""
        total = sum(pair.received_bits_per_second or 0.0 for pair in self.pairs)
        return sum(pair.received_bits_per_second or 0.0 for pair in chosen) / total

    def of_pairs(self, chosen: Sequence[PairSummary]) -> str:
        """Return a text with the number of chosen pairs."""
        return f"{len(chosen)} of {len(self.pairs)} pairs"


def cpu_use(pair: PairSummary, side: Side) -> float | None:
    """Return how busy the CPU of a host is.

    It is the load on all cores together or on the busiest core, whichever is higher.

    Args:
        pair: Pair with the CPU load of both hosts.
        side: Host to look at, client or server.

    Returns:
        The load, from 0 to 1. None if neither load was measured.
    """
    reported = (getattr(pair, f"{side}_cpu_ratio"), getattr(pair, f"{side}_core_ratio"))
    return max((ratio for ratio in reported if ratio is not None), default=None)


# Up to this CoV the rates of the pairs are treated as equal.
EQUAL_COV_RATIO: Final = 0.03
# A NIC with a lower utilization has room.
ROOM_RATIO: Final = 0.9
# A cause needs to explain at least this share of the traffic.
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
class BottleneckCause:
    """Possible cause of a bottleneck.

    Attributes:
        id: Stable name of the cause.
        name: Name of the bottleneck in stored results.
        refuted_by: Result that would show that this is not the cause.
        advice: What you can do.
        evaluate: Pure function that computes the evidence. Its docstring has the required
            measurements, the sources, and the result if they are missing.
        advise: Function that computes advice from the measured values. None to use ``advice``.
    """

    id: str
    name: BottleneckName
    refuted_by: str
    advice: str
    evaluate: Callable[[BottleneckInput], Evidence]
    advise: Callable[[BottleneckInput], str] | None = None


# A lower share of lost segments or datagrams is not evidence that the path drops packets.
CLEAN_RATIO: Final = 1e-5
# Fewer retransmitted segments are not evidence that the path drops packets.
DROPS_MIN_COUNT: Final = 5
# Constant C in rate = C x MSS / (RTT x sqrt(drop ratio)): Mathis, Semke, Mahdavi, Ott, The
# macroscopic behavior of the TCP congestion avoidance algorithm, CCR 27(3), 1997. CUBIC is never
# slower.
MATHIS: Final = 1.22
# If the RTT increases by more than this share, the path has a queue.
QUEUED_RATIO: Final = 0.5

NO_BASELINE: Final = (
    "the RTT without load (agents measure it before each burst; for an import launch a run with "
    "traffic.probe=udp)"
)


def idle_rtt_s(pair: PairSummary) -> float | None:
    """Return the RTT of a pair before the burst in s, or None if it was not measured."""
    if pair.rtt_idle_s is not None:
        return pair.rtt_idle_s
    return None if pair.latency is None else pair.latency.before.p50_s


def loaded_rtt_s(pair: PairSummary) -> float | None:
    """Return the mean RTT of a pair under load in s, or None if it was not measured.

    It is measured by the pair's TCP streams, or else by probes.
    """
    if pair.rtt_mean_s is not None:
        return pair.rtt_mean_s
    return None if pair.latency is None else pair.latency.during.mean_s


def _delays(given: BottleneckInput) -> Sequence[tuple[PairSummary, float, float]]:
    """Return the pairs that have both an idle and a loaded RTT, with these values in s."""
    rows = [(pair, idle_rtt_s(pair), loaded_rtt_s(pair)) for pair in given.pairs]
    return [(pair, idle, loaded) for pair, idle, loaded in rows if idle and loaded is not None]


def queue_delay_s(given: BottleneckInput) -> float | None:
    """Return the median difference between loaded and idle RTT, in s.

    None if it is unknown for more than half of the traffic.
    """
    delays = _delays(given)
    if not delays or given.share([pair for pair, _, _ in delays]) < HALF:
        return None
    extra = sorted(loaded - idle for _, idle, loaded in delays)
    return extra[len(extra) // 2]


def is_queued(given: BottleneckInput) -> bool | None:
    """Return True if at least half of the traffic has a queue in its path, None if unknown."""
    delays = _delays(given)
    known = [pair for pair, _, _ in delays]
    queued = [pair for pair, idle, loaded in delays if loaded > (1 + QUEUED_RATIO) * idle]
    if not known:
        return None
    if given.share(queued) >= HALF:
        return True
    # If the pairs without an RTT also had a queue, this could be half of the traffic.
    return None if given.share(queued) + 1 - given.share(known) >= HALF else False


def has_drops(given: BottleneckInput) -> bool | None:
    """Return True if segments or datagrams were lost in the path, or None if not counted."""
    lead = given.lead
    if given.traffic.protocol is Protocol.UDP:
        return None if lead.loss_ratio is None else lead.loss_ratio > CLEAN_RATIO
    if lead.retransmit_ratio is None:
        return None
    count = lead.retransmits_count
    some = count is None or count >= DROPS_MIN_COUNT
    return some and lead.retransmit_ratio > CLEAN_RATIO


def drops_can_limit(given: BottleneckInput) -> bool | None:
    """Return True if drops can explain the mean rate of the TCP streams (Mathis).

    None if drops were not counted. If the RTT is unknown, any number of drops could be the limit.
    """
    ratio, rtt_s = given.lead.retransmit_ratio, given.lead.rtt_mean_s
    drops = has_drops(given)
    if not drops or ratio is None or not rtt_s:
        return drops
    item = sum(given.one_direction(pair) for pair in given.pairs) / len(given.pairs)
    mss_bytes = given.lead.mss_bytes or MSS_ASSUMED_BYTES
    # Highest rate of a stream with these drops, in bit/s.
    most = MATHIS * mss_bytes * 8 / (rtt_s * math.sqrt(ratio))
    return item / given.traffic.streams_count >= most


def is_idle(given: BottleneckInput) -> bool | None:
    """Return True if the path has no queue and no drops, or None if either is unknown."""
    queued, drops = is_queued(given), has_drops(given)
    if queued or drops:
        return False
    return None if queued is None or drops is None else True


def path_facts(given: BottleneckInput) -> list[str]:
    """Return texts for the queue and the loss in the path."""
    facts = []
    delay_s = queue_delay_s(given)
    if is_queued(given) and delay_s is not None:
        idle = sorted(idle for _, idle, _ in _delays(given))[len(_delays(given)) // 2]
        facts.append(
            f"the path has a queue: RTT {formatting.time(idle + delay_s)} under load, "
            f"{formatting.time(idle)} without load"
        )
    if has_drops(given):
        if given.traffic.protocol is Protocol.UDP:
            facts.append(
                f"{formatting.ratio(given.lead.loss_ratio or 0.0, 2)} of datagrams were lost"
            )
        else:
            facts.append(
                "the path drops packets: "
                f"{formatting.ratio(given.lead.retransmit_ratio or 0.0, 3)} of segments were "
                "retransmitted"
            )
    return facts


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
        f"{len(given.pairs)} pairs share one limit, one gains what another loses: the variance of "
        f"the total rate is {formatting.ratio(moved[0], 0)} of the summed variances of the pairs; "
        f"the CoV of a pair is {formatting.ratio(moved[1], 1)}"
    )


def movement_facts(given: BottleneckInput) -> list[str]:
    """Return texts about the rates of pairs and their movement.

    These facts do not show where a limit is.
    """
    facts = []
    if (item := given.stream_rate) is not None and len(given.pairs) > 1:
        facts.append(
            f"all {len(given.pairs)} pairs have the same rate per stream, {formatting.rate(item)} "
            f"(within {formatting.ratio(EQUAL_COV_RATIO, 0)}), as if each pair has its own limit"
        )
    if (shared := traded(given)) is not None:
        facts.append(shared)
    elif (moved := _movement(given)) is not None:
        ratio = formatting.ratio(moved[0], 0)
        if moved[0] > TOGETHER_RATIO:
            facts.append(
                f"the rates of all pairs rise and fall together: the variance of the total rate is "
                f"{ratio} of the summed variances of the pairs"
            )
        elif moved[0] >= CANCEL_MAX_RATIO:
            facts.append(
                f"the rates of the {len(given.pairs)} pairs are independent: the variance of the "
                f"total rate is {ratio} of the summed variances of the pairs"
            )
    return facts


def crowded_hosts(given: BottleneckInput) -> Sequence[str]:
    """Return the hosts with several pairs that are full or not known to have room.

    Pairs on such a host may share a limit of the host and not one in the network.
    """
    seen: dict[str, list[bool]] = {}
    for pair in given.pairs:
        client = _has_capacity(pair.client_cpu_ratio, pair.client_core_ratio, pair.client_nic_ratio)
        server = _has_capacity(pair.server_cpu_ratio, pair.server_core_ratio, pair.server_nic_ratio)
        for agent, space in ((pair.client_agent_id, client), (pair.server_agent_id, server)):
            if agent is not None:
                seen.setdefault(agent, []).append(space)
    return [agent for agent, rooms in seen.items() if len(rooms) > 1 and not all(rooms)]


def _has_capacity(cpu: float | None, core: float | None, nic: float | None) -> bool:
    busiest = None if cpu is None or core is None else max(cpu, core)
    return busiest is not None and busiest < CPU_FULL_RATIO and nic is not None and nic < ROOM_RATIO
