"""Evidence for queues and loss in the path.

A path has a queue if its round-trip time (RTT) under load is longer than on the idle path. The idle
RTT is measured before each burst. The shortest RTT during a burst cannot be used, because it
includes a queue that never drains. RFC 6349, section 3.2, also measures the baseline RTT without
load.
"""

import math
from collections.abc import Sequence
from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.judge.bottleneck.cause_types import HALF, BottleneckInput
from broadside.coordinator.core.measure.headers import MSS_ASSUMED_BYTES
from broadside.coordinator.core.summary import PairSummary
from broadside.exchange.messages import Protocol

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
    "the RTT of the idle path (agents of this version measure it before each burst; for imports "
    "set traffic.probe=udp and launch)"
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
    # If the pairs without an RTT also had a queue, it could be half of the traffic.
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


def drops_could_hold(given: BottleneckInput) -> bool | None:
    """Return True if drops can explain the mean rate of the TCP streams (Mathis).

    None if drops were not counted. If the RTT is unknown, any number of drops could be the limit.
    """
    ratio, rtt_s = given.lead.retransmit_ratio, given.lead.rtt_mean_s
    drops = has_drops(given)
    if not drops or ratio is None or not rtt_s:
        return drops
    each = sum(given.one_way(pair) for pair in given.pairs) / len(given.pairs)
    mss_bytes = given.lead.mss_bytes or MSS_ASSUMED_BYTES
    # Highest rate of a stream with these drops, in bit/s.
    most = MATHIS * mss_bytes * 8 / (rtt_s * math.sqrt(ratio))
    return each / given.traffic.streams_count >= most


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
            f"a queue stands in the path: RTT {words.time(idle + delay_s)} under load, "
            f"{words.time(idle)} on the idle path"
        )
    if has_drops(given):
        if given.traffic.protocol is Protocol.UDP:
            facts.append(f"{words.ratio(given.lead.loss_ratio or 0.0, 2)} of datagrams were lost")
        else:
            facts.append(
                f"the path drops: {words.ratio(given.lead.retransmit_ratio or 0.0, 3)} of segments"
                " were sent again"
            )
    return facts
