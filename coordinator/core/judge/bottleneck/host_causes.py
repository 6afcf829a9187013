"""Causes in the hosts or their settings, for example rate, NICs, CPUs and socket windows."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.bottleneck.bottleneck_evidence import (
    ABSENT,
    CPU_FULL_RATIO,
    HALF,
    NO_BASELINE,
    BottleneckCause,
    BottleneckInput,
    Evidence,
    cpu_use,
    drops_can_limit,
    found,
    has_drops,
    idle_rtt_s,
    is_queued,
    unknown,
)
from broadside.coordinator.core.measure.consistency_checks import CAP_CREDIT_S, CAP_RATIO
from broadside.coordinator.core.summary import BottleneckName, PairSummary
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
    """Check that the pairs received the requested rate.

    Evidence: half of the pairs or more receive 97 % of the requested rate; UDP: without loss.
    Reads: the plan; receivers' seconds.
    If absent: no rate was requested: not this cause.
    """
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
    return found(f"{given.of_pairs(full)} carry the requested rate of {formatting.rate(offered)}")


OFFERED_LOAD: Final = BottleneckCause(
    id="offered-load",
    name=BottleneckName.OFFERED_LOAD,
    refuted_by="the same rate when a higher rate is requested",
    advice="Raise the requested rate, or remove it",
    evaluate=_offered,
)

# NICs ---------------------------------------------------------------------------------------------


def _sends(given: BottleneckInput, side: Side) -> bool:
    """Return True if this end sends payload."""
    idle = Direction.REVERSE if side is Side.CLIENT else Direction.FORWARD
    return given.traffic.direction is not idle


def _nic(given: BottleneckInput, side: Side) -> Evidence:
    """Check that the NICs of the hosts that send are full. NICs that receive are not checked.

    Evidence: hosts of half of the traffic or more send at 95 % of the rate of their NIC (declared,
        or documented for the VM size), or their egress queue is filled in 95 % of the samples.
    Reads: the hosts' interface counters, qdisc backlog, VM size or declared NIC rate.
    If absent: missing: the NIC rates.
    """
    if not _sends(given, side):
        return ABSENT
    uses = [(pair, getattr(pair, f"{side}_nic_ratio")) for pair in given.pairs]
    waits = [(pair, getattr(pair, f"{side}_egress_queued_ratio")) for pair in given.pairs]
    most = 1 + CAP_RATIO + CAP_CREDIT_S / (given.window_s or CAP_CREDIT_S)
    over = [pair for pair, use in uses if use is not None and use > most]
    if over and given.share(over) >= HALF:
        return unknown(
            f"the true NIC rate of the {side}s: {given.of_pairs(over)} send more than the declared "
            "rate"
        )
    if (full := _full(given, uses, NIC_FULL_RATIO)) is not None:
        return found(f"{full[0]} have a {side} that sends at {full[1]} of its NIC's rate or more")
    if (queued := _full(given, waits, EGRESS_FULL_RATIO)) is not None:
        return found(
            f"{queued[0]} have a {side} with packets in its egress queue (qdisc) in {queued[1]} of "
            "all samples or more, so its NIC or a rate limit on it is full"
        )
    return _blind(
        given, uses, f"the NIC rate of the {side}s of", "set the agents' VM size or NIC rate"
    )


def _full(
    given: BottleneckInput, uses: Sequence[tuple[PairSummary, float | None]], least: float
) -> tuple[str, str] | None:
    """Return a text for the pairs at or above ``least``, and for their lowest use.

    None if they have less than half of the traffic.
    """
    full = [(pair, use) for pair, use in uses if use is not None and use >= least]
    if not full or given.share([pair for pair, _ in full]) < HALF:
        return None
    low = formatting.ratio(min(1.0, *(use for _, use in full)), 0)
    return given.of_pairs([pair for pair, _ in full]), low


def _blind(
    given: BottleneckInput, uses: Sequence[tuple[PairSummary, float | None]], what: str, step: str
) -> Evidence:
    """Return that the cause is absent, or unknown if the value of some pairs is unknown."""
    blind = [pair for pair, use in uses if use is None]
    return unknown(f"{what} {given.of_pairs(blind)} ({step})") if blind else ABSENT


def _nic_cause(side: Side) -> BottleneckCause:
    return BottleneckCause(
        id=f"{side}-nic",
        name=BottleneckName.CLIENT_NIC if side is Side.CLIENT else BottleneckName.SERVER_NIC,
        refuted_by="a higher rate from one pair than this NIC rate; then the declared rate is "
        "wrong",
        advice=f"Use larger {side} VMs, or more of them",
        evaluate=partial(_nic, side=side),
    )


CLIENT_NIC: Final = _nic_cause(Side.CLIENT)
SERVER_NIC: Final = _nic_cause(Side.SERVER)

# CPUs ---------------------------------------------------------------------------------------------


def _cpu(given: BottleneckInput, side: Side) -> Evidence:
    """Check that the CPUs of the hosts are full.

    Evidence: hosts of half of the traffic or more have all cores, or one core, 95 % busy.
    Reads: /proc/stat of the hosts.
    If absent: missing: the CPU counters.
    """
    uses = [(pair, cpu_use(pair, side)) for pair in given.pairs]
    if (full := _full(given, uses, CPU_FULL_RATIO)) is not None:
        return found(f"{full[0]} have a {side} with all cores, or its busiest core, {full[1]} busy")
    return _blind(given, uses, f"the CPU load of the {side}s of", "let the agents read it")


def _cpu_cause(side: Side, advice: str) -> BottleneckCause:
    return BottleneckCause(
        id=f"{side}-cpu",
        name=BottleneckName.CLIENT_CPU if side is Side.CLIENT else BottleneckName.SERVER_CPU,
        refuted_by="the same rate with more cores or fewer streams",
        advice=advice,
        evaluate=partial(_cpu, side=side),
    )


CLIENT_CPU: Final = _cpu_cause(
    Side.CLIENT,
    "Use clients with more cores, fewer streams, or iperf3 3.16 or later (one thread per stream)",
)
SERVER_CPU: Final = _cpu_cause(Side.SERVER, "Use servers with more cores, or more servers")

# Window -------------------------------------------------------------------------------------------


def _full_windows(given: BottleneckInput) -> Sequence[PairSummary]:
    """Return the pairs with a full window, if they have at least half of the traffic."""
    window_bytes = given.traffic.window_bytes
    least = FULL_WINDOW_RATIO if window_bytes else FULL_CWND_RATIO
    full = []
    for pair in given.pairs:
        limit = window_bytes * given.traffic.streams_count if window_bytes else pair.cwnd_bytes
        if not limit or not pair.rtt_mean_s:
            continue
        if given.one_direction(pair) / 8 * pair.rtt_mean_s >= least * limit:
            full.append(pair)
    return full if full and given.share(full) >= HALF else ()


def _window(given: BottleneckInput) -> Evidence:
    """Check that the TCP window is full while the path is idle (rate = window / RTT).

    A sender always has about rate x RTT in flight (Little's law), so a full window alone is not
    evidence of a limit. The path must also have no queue and no loss. For a requested window, loss
    matters only if there are enough drops to limit the rate.

    Evidence: pairs of half of the traffic or more have rate x RTT at 70 % of the requested window
        (90 % of the kernel's own); the RTT is at most 1.5 times that of the idle path; there are no
        drops, or too few to limit the rate (Mathis).
    Reads: senders' RTT, window and retransmissions; the idle RTT before the burst.
    If absent: missing: the idle RTT, or the retransmissions.
    """
    full = _full_windows(given)
    requested = given.traffic.window_bytes is not None
    if given.traffic.protocol is Protocol.UDP or not full or is_queued(given):
        return ABSENT
    shrunk = drops_can_limit(given) if requested else has_drops(given)
    if shrunk:
        return ABSENT
    if is_queued(given) is None:
        return unknown(NO_BASELINE)
    if shrunk is None and not requested:
        return unknown("the packet loss on the path (use an engine that reports it: iperf3)")
    rtt_s = max(pair.rtt_mean_s or 0.0 for pair in full)
    return found(
        f"{given.of_pairs(full)} always have a full window in flight (RTT "
        f"{formatting.time(rtt_s)}); {_no_pressure(given)}"
    )


def _no_pressure(given: BottleneckInput) -> str:
    ratio = given.lead.retransmit_ratio
    if ratio is None:
        return "the path has no queue; its packet loss is unknown"
    if ratio > 0 and given.lead.retransmits_count != 0:
        share = f"{formatting.number(ratio * 100, 2)} % of segments were dropped"
        return f"the path has no queue; {share}, which is too few to limit the rate"
    return "the path has no queue and no drops"


def _window_advice(given: BottleneckInput) -> str:
    """Return a text with the bandwidth-delay product and the smallest window for it (RFC 6349)."""
    full = _full_windows(given)
    rtt_s = max(idle_rtt_s(pair) or pair.rtt_mean_s or 0.0 for pair in full)
    down = given.traffic.direction is Direction.REVERSE
    caps = [
        given.one_direction(pair) / nic
        for pair in full
        if (nic := pair.server_nic_ratio if down else pair.client_nic_ratio)
    ]
    wanted = max(caps) if caps else 2 * max(given.one_direction(pair) for pair in full)
    product = wanted / 8 * rtt_s
    item = product / given.traffic.streams_count
    return (
        f"Set window_bytes to at least {formatting.size(item)} per stream (and tcp_rmem and "
        "tcp_wmem to allow it), or use more streams. The bandwidth-delay product at "
        f"{formatting.rate(wanted)} and {formatting.time(rtt_s)} is {formatting.size(product)} "
        "per pair"
    )


WINDOW: Final = BottleneckCause(
    id="window",
    name=BottleneckName.WINDOW,
    refuted_by="the same rate with a larger window or more streams",
    advice="Set a larger window, or use more streams",
    evaluate=_window,
    advise=_window_advice,
)
