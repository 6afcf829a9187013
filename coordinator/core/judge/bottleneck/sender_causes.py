"""Causes in the hosts or their settings, for example rate, NICs, CPUs and socket windows."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.judge.bottleneck.cause_types import (
    ABSENT,
    HALF,
    BottleneckInput,
    Cause,
    Evidence,
    found,
    unknown,
)
from broadside.coordinator.core.judge.bottleneck.path_evidence import (
    NO_BASELINE,
    drops_could_hold,
    has_drops,
    idle_rtt_s,
    is_queued,
)
from broadside.coordinator.core.judge.bottleneck.share_evidence import CPU_FULL_RATIO
from broadside.coordinator.core.measure.cross_examination import CAP_CREDIT_S, CAP_RATIO
from broadside.coordinator.core.summary import LimiterName, PairSummary
from broadside.exchange.engines import offered_bits_per_second, scaled
from broadside.exchange.messages import Direction, Protocol, Side

# From this share of the requested rate on, all of it was received. The rest is missing at the edges
# of the window.
CARRIED_RATIO: Final = 0.97
# A NIC with this share of its limit is full.
NIC_FULL_RATIO: Final = 0.95
# A host's egress is full if its queue is not empty in this share of the samples. A queue that can
# always send is filled only while it sends, so this share is at most the link's utilization.
EGRESS_FULL_RATIO: Final = 0.95
# The requested window is full if this share of it is in flight.
FULL_WINDOW_RATIO: Final = 0.7
# Same share for the kernel's own window. It is higher, because this window grows with a queue.
FULL_CWND_RATIO: Final = 0.9


# Offered load -------------------------------------------------------------------------------------


def _offered(given: BottleneckInput) -> Evidence:
    offered = offered_bits_per_second(scaled(given.traffic, given.scale))
    if offered is None:
        return ABSENT
    # A UDP sender does not slow down because of loss, so the lost part of its rate was not carried.
    if given.traffic.protocol is Protocol.UDP and has_drops(given):
        return ABSENT
    low = CARRIED_RATIO * offered
    full = [pair for pair in given.pairs if (pair.received_bits_per_second or 0.0) >= low]
    if len(full) < HALF * len(given.pairs):
        return ABSENT
    return found(f"{given.of_pairs(full)} carry the {words.rate(offered)} asked")


OFFERED_LOAD: Final = Cause(
    id="offered-load",
    name=LimiterName.OFFERED_LOAD,
    question="Did the pairs receive the requested rate?",
    evidence="half of the pairs or more receive 97 % of the rate that was asked; UDP: without loss",
    reads="the plan; receivers' seconds",
    when_absent="no rate was asked: not this cause",
    refuted_by="the same rate when a higher rate is requested",
    advice="raise the rate that is asked, or leave it out",
    evaluate=_offered,
)

# NICs ---------------------------------------------------------------------------------------------


def _sends(given: BottleneckInput, side: Side) -> bool:
    """Return True if this end sends payload."""
    idle = Direction.REVERSE if side is Side.CLIENT else Direction.FORWARD
    return given.traffic.direction is not idle


def _nic(given: BottleneckInput, side: Side) -> Evidence:
    if not _sends(given, side):
        return ABSENT
    uses = [(pair, getattr(pair, f"{side}_nic_ratio")) for pair in given.pairs]
    waits = [(pair, getattr(pair, f"{side}_egress_queued_ratio")) for pair in given.pairs]
    most = 1 + CAP_RATIO + CAP_CREDIT_S / (given.window_s or CAP_CREDIT_S)
    over = [pair for pair, use in uses if use is not None and use > most]
    if over and given.share(over) >= HALF:
        return unknown(
            f"the {side}s' NIC caps: {given.of_pairs(over)} send more than the cap that is declared"
        )
    full = [(pair, use) for pair, use in uses if use is not None and use >= NIC_FULL_RATIO]
    if full and given.share([pair for pair, _ in full]) >= HALF:
        low = words.ratio(min(1.0, *(use for _, use in full)), 0)
        chosen = given.of_pairs([pair for pair, _ in full])
        return found(f"{chosen} have a {side} that sends at {low} of its NIC's cap or more")
    queued = [(p, wait) for p, wait in waits if wait is not None and wait >= EGRESS_FULL_RATIO]
    if queued and given.share([pair for pair, _ in queued]) >= HALF:
        low = words.ratio(min(wait for _, wait in queued), 0)
        chosen = given.of_pairs([pair for pair, _ in queued])
        return found(
            f"{chosen} have a {side} whose egress queue (qdisc) held packets at {low} of all looks "
            "or more: its NIC, or the limit set on it, is full"
        )
    blind = [pair for pair, use in uses if use is None]
    if not blind:
        return ABSENT
    return unknown(
        f"the {side}s' NIC caps of {given.of_pairs(blind)} (set the agents' VM size or NIC rate)"
    )


def _nic_cause(side: Side) -> Cause:
    return Cause(
        id=f"{side}-nic",
        name=LimiterName.CLIENT_NIC if side is Side.CLIENT else LimiterName.SERVER_NIC,
        question=f"Are the NICs of the {side}s that send full?",
        evidence=f"{side}s of half of the traffic or more send at 95 % of their NIC's cap "
        "(declared, or documented for the VM size), or their egress queue is filled in 95 % of "
        "the seconds",
        reads=f"the {side}s' interface counters, qdisc backlog, VM size or declared NIC rate",
        when_absent="missing: the NIC caps",
        refuted_by="a higher rate from one pair than that cap; then the declared cap is wrong",
        advice=f"use larger {side} VMs or more of them",
        evaluate=partial(_nic, side=side),
    )


CLIENT_NIC: Final = _nic_cause(Side.CLIENT)
SERVER_NIC: Final = _nic_cause(Side.SERVER)

# CPUs ---------------------------------------------------------------------------------------------


def _cpu(given: BottleneckInput, side: Side) -> Evidence:
    uses = [(pair, cpu_use(pair, side)) for pair in given.pairs]
    full = [(pair, use) for pair, use in uses if use is not None and use >= CPU_FULL_RATIO]
    if full and given.share([pair for pair, _ in full]) >= HALF:
        low = words.ratio(min(1.0, *(use for _, use in full)), 0)
        chosen = given.of_pairs([pair for pair, _ in full])
        return found(f"{chosen} have a {side} whose cores (or busiest core) are {low} busy or more")
    blind = [pair for pair, use in uses if use is None]
    if not blind:
        return ABSENT
    return unknown(
        f"the {side}s' CPU of {given.of_pairs(blind)} (let the agents read their hosts' counters)"
    )


def cpu_use(pair: PairSummary, side: Side) -> float | None:
    """Return how busy a host's CPU is, 0 to 1, or None if unknown.

    It is the load on all cores together or on the busiest core, whichever is higher.

    Args:
        pair: Pair with the CPU load of both hosts.
        side: Host to look at, client or server.
    """
    told = (getattr(pair, f"{side}_cpu_ratio"), getattr(pair, f"{side}_core_ratio"))
    return max((ratio for ratio in told if ratio is not None), default=None)


def _cpu_cause(side: Side, advice: str) -> Cause:
    return Cause(
        id=f"{side}-cpu",
        name=LimiterName.CLIENT_CPU if side is Side.CLIENT else LimiterName.SERVER_CPU,
        question=f"Are the CPUs of the {side}s full?",
        evidence=f"{side}s of half of the traffic or more have all cores, or one core, 95 % busy",
        reads=f"the {side}s' /proc/stat",
        when_absent="missing: the CPU counters",
        refuted_by="the same rate with more cores or fewer streams",
        advice=advice,
        evaluate=partial(_cpu, side=side),
    )


CLIENT_CPU: Final = _cpu_cause(
    Side.CLIENT,
    "use clients with more cores, fewer streams, or iperf3 3.16 or later (a thread a stream)",
)
SERVER_CPU: Final = _cpu_cause(Side.SERVER, "use servers with more cores or more servers")

# Window -------------------------------------------------------------------------------------------


def _full_windows(given: BottleneckInput) -> Sequence[PairSummary]:
    """Return the pairs with a full window, if they have at least half of the traffic."""
    asked = given.traffic.window_bytes
    least = FULL_WINDOW_RATIO if asked else FULL_CWND_RATIO
    full = []
    for pair in given.pairs:
        limit = asked * given.traffic.streams_count if asked else pair.cwnd_bytes
        if not limit or not pair.rtt_mean_s:
            continue
        if given.one_way(pair) / 8 * pair.rtt_mean_s >= least * limit:
            full.append(pair)
    return full if full and given.share(full) >= HALF else ()


def _window(given: BottleneckInput) -> Evidence:
    """Evaluate if the window limits the rate (rate = window / RTT).

    A sender always has about rate x RTT in flight (Little's law), so a full window alone is not
    evidence of a limit. The path must also have no queue and no loss. For a requested window, loss
    matters only if there are enough drops to limit the rate.
    """
    full = _full_windows(given)
    asked = given.traffic.window_bytes is not None
    if given.traffic.protocol is Protocol.UDP or not full or is_queued(given):
        return ABSENT
    shrunk = drops_could_hold(given) if asked else has_drops(given)
    if shrunk:
        return ABSENT
    if is_queued(given) is None:
        return unknown(NO_BASELINE)
    if shrunk is None and not asked:
        return unknown("whether the path drops (use an engine that reports it: iperf3)")
    rtt_s = max(pair.rtt_mean_s or 0.0 for pair in full)
    return found(
        f"{given.of_pairs(full)} keep a full window in flight (RTT {words.time(rtt_s)}) and "
        f"{_no_pressure(given)}"
    )


def _no_pressure(given: BottleneckInput) -> str:
    ratio = given.lead.retransmit_ratio
    if ratio is None:
        return "nothing is queued; whether anything is dropped is unknown"
    if ratio > 0 and given.lead.retransmits_count != 0:
        share = f"{words.number(ratio * 100, 2)}% of segments dropped"
        return f"nothing is queued; {share} are too few to hold it"
    return "nothing is dropped or queued"


def _window_advice(given: BottleneckInput) -> str:
    """Return a text with the bandwidth-delay product and the smallest window for it (RFC 6349)."""
    full = _full_windows(given)
    rtt_s = max(idle_rtt_s(pair) or pair.rtt_mean_s or 0.0 for pair in full)
    down = given.traffic.direction is Direction.REVERSE
    caps = [
        given.one_way(pair) / nic
        for pair in full
        if (nic := pair.server_nic_ratio if down else pair.client_nic_ratio)
    ]
    wanted = max(caps) if caps else 2 * max(given.one_way(pair) for pair in full)
    product = wanted / 8 * rtt_s
    each = product / given.traffic.streams_count
    return (
        f"the bandwidth-delay product at {words.rate(wanted)} and {words.time(rtt_s)} is "
        f"{words.size(product)} a pair: set window_bytes to at least {words.size(each)} a "
        "stream (and tcp_rmem/tcp_wmem to allow it), or use more streams"
    )


WINDOW: Final = Cause(
    id="window",
    name=LimiterName.WINDOW,
    question="Is the window full while the path is idle?",
    evidence="pairs of half of the traffic or more have rate x RTT at 70 % of the window that was "
    "asked (90 % of the kernel's own); the RTT is at most 1.5 times that of the idle path; drops "
    "are none, or too few to hold the rate (Mathis)",
    reads="senders' RTT, window and retransmissions; the idle RTT before the burst",
    when_absent="missing: the idle RTT, or the retransmissions",
    refuted_by="the same rate with a larger window or more streams",
    advice="set a larger window or use more streams",
    evaluate=_window,
    advise=_window_advice,
)
