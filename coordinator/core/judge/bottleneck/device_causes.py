"""Causes in the device, for example SNAT ports, CPU, documented rate, queue and drops."""

from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.judge.bottleneck.cause_types import (
    ABSENT,
    BottleneckInput,
    Cause,
    Evidence,
    found,
    unknown,
)
from broadside.coordinator.core.judge.bottleneck.path_evidence import (
    QUEUED_RATIO,
    has_drops,
    is_idle,
    path_facts,
    queue_delay_s,
)
from broadside.coordinator.core.judge.bottleneck.share_evidence import (
    CPU_FULL_RATIO,
    crowded_hosts,
    pair_cov_ratio,
    traded,
)
from broadside.coordinator.core.judge.documented_limits import DOCUMENTED
from broadside.coordinator.core.measure.headers import MSS_ASSUMED_BYTES
from broadside.coordinator.core.summary import DeviceFigure, LimiterName, Reconciliation

# Azure recommends to scale out at this value (SNAT utilisation metric).
SNAT_FULL_RATIO: Final = 0.95
# A rate with a lower CoV is constant (RFC 9411, results validation).
FLAT_COV_RATIO: Final = 0.05
# Largest relative difference from a documented rate. Documented rates have only one or two digits.
NEAR_RATIO: Final = 0.1
# Pings to the device must show at least this share of the streams' queueing delay.
PING_RATIO: Final = 0.5
# A device can count a super frame of several segments as one drop. This is its largest size (IP: 64
# KiB).
SUPER_FRAME_BYTES: Final = 65_536

_REFUTED: Final = (
    "the same sum with the pairs past the firewall (device.path=bypass), or half the pairs that "
    "carry only half of it"
)
_SCALE: Final = "scale the firewall out (pre-scale it), or lower the target"


def _snat(given: BottleneckInput) -> Evidence:
    used = given.snat_utilization_ratio
    if used is None or used < SNAT_FULL_RATIO:
        return ABSENT
    return found(f"the firewall's SNAT ports are {words.ratio(used, 0)} used")


SNAT_PORTS: Final = Cause(
    id="snat-ports",
    name=LimiterName.SNAT_PORTS,
    question="Has the firewall run out of SNAT ports?",
    evidence="95 % of its SNAT ports are in use",
    reads="the device's telemetry",
    when_absent="not this cause",
    refuted_by="the same rate with fewer connections",
    advice="give the firewall more public addresses, or keep the traffic private",
    evaluate=_snat,
)


def _cpu(given: BottleneckInput) -> Evidence:
    if not given.crosses:
        return ABSENT
    full = [
        (each.device, seen)
        for each in given.devices
        if (seen := each.cpu_ratio) is not None
        and max(seen.mean, seen.busiest or 0.0) >= CPU_FULL_RATIO
    ]
    if not full:
        return ABSENT
    facts = [_busy(name, seen) for name, seen in full]
    if len(full) < len(given.devices):
        facts.append(f"{len(full)} of {len(given.devices)} devices")
    return found(*facts)


def _busy(device: str, seen: DeviceFigure) -> str:
    core = "" if seen.busiest is None else f", its busiest core {words.ratio(seen.busiest, 0)}"
    return f"{device}'s CPU is {words.ratio(seen.mean, 0)} busy{core}"


DEVICE_CPU: Final = Cause(
    id="device-cpu",
    name=LimiterName.FIREWALL,
    question="Is the device's CPU full?",
    evidence="a device that the traffic crosses has all cores, or one core, 95 % busy",
    reads="the device's telemetry",
    when_absent="not this cause",
    refuted_by="the same rate with less for the device to do (fewer rules, inspection off), or on "
    "a larger one",
    advice="give the device more cores or units, or less to do for each byte",
    evaluate=_cpu,
)


def flat_counter(held: Reconciliation | None) -> str | None:
    """Return a text if the rate in the device counter is constant.

    None if it is not constant or unknown.
    """
    if (
        held is None
        or held.firewall_bits_per_second is None
        or held.ledger_cov_ratio is None
        or held.ledger_cov_ratio >= FLAT_COV_RATIO
    ):
        return None
    return (
        f"the device counter is flat at {words.rate(held.firewall_bits_per_second)} "
        f"(CoV {words.ratio(held.ledger_cov_ratio, 1)})"
    )


def _known_rate(given: BottleneckInput) -> Evidence:
    if not given.crosses or not given.senders_have_room or is_idle(given):
        return ABSENT
    known, held = DOCUMENTED.firewall.get(given.sku or ""), given.reconciliation
    if held is None or held.firewall_bits_per_second is None:
        return unknown("what the firewall counted (configure its counter)")
    if known is None:
        return unknown("the rate that the firewall is documented for (set device.sku)")
    flat = flat_counter(held)
    documented = known.bits_per_second / given.scale
    if flat is None or abs(held.firewall_bits_per_second / documented - 1) >= NEAR_RATIO:
        return ABSENT
    return found(
        f"{flat}, and {given.sku} is documented for {words.rate(known.bits_per_second)} "
        f"({known.source}, {known.as_of})",
        *path_facts(given),
        *_room_facts(given),
    )


KNOWN_RATE: Final = Cause(
    id="device-known-rate",
    name=LimiterName.FIREWALL,
    question="Is the device counter flat at the device's documented rate?",
    evidence="CoV of the counter under 5 %; its rate within 10 % of the documented one; the "
    "senders' NICs have room; the path is not known to be idle",
    reads="the device counter; the table of documented limits (device.sku)",
    when_absent="missing: the counter, or device.sku",
    refuted_by=_REFUTED,
    advice=_SCALE,
    evaluate=_known_rate,
)


def _own_queue(given: BottleneckInput) -> Evidence:
    """Evaluate if pairs share one limit and if the device queues or drops packets."""
    if not given.crosses or not given.senders_have_room or is_idle(given):
        return ABSENT
    shared = traded(given)
    if shared is None:
        if given.lead.share_movement_ratio is None or pair_cov_ratio(given) is None:
            return unknown(
                "whether pairs trade shares of one limit (three pairs or more, read once a second, "
                "for 30 s or more)"
            )
        return ABSENT
    if crowded := crowded_hosts(given):
        return unknown(
            f"whether {crowded[0]}, which serves several pairs, has room (use one host a pair, or "
            "state its NIC cap and let the agent read its counters)"
        )
    own = [fact for fact in (_ping_fact(given), _drops_fact(given)) if fact is not None]
    if not own:
        return unknown(
            "where the shared limit is (ping the device: traffic.probe.device; or read its drop "
            "counter)"
        )
    flat = flat_counter(given.reconciliation)
    return found(shared, *own, *path_facts(given), *([flat] if flat else []), *_room_facts(given))


def _room_facts(given: BottleneckInput) -> list[str]:
    nic = given.nic_ratio
    if nic is None:
        return []
    return [f"the fullest sender's NIC is at {words.ratio(nic, 0)} of its cap"]


def _ping_fact(given: BottleneckInput) -> str | None:
    """Return a text if pings to the device wait in the streams' queue, else None."""
    delay_s = queue_delay_s(given)
    for each in given.devices:
        for ping in (each.ping_icmp_s, each.ping_tcp_s):
            if ping is None or not ping.idle or not delay_s or delay_s <= 0:
                continue
            extra_s = ping.mean - ping.idle
            if extra_s >= PING_RATIO * delay_s and extra_s > QUEUED_RATIO * ping.idle:
                return (
                    f"pings to {each.device} take {words.time(ping.mean)} under load, "
                    f"{words.time(ping.idle)} idle: the queue is at or before it"
                )
    return None


def _drops_fact(given: BottleneckInput) -> str | None:
    """Return a text if the drops of the device explain the loss of the fleet, else None."""
    told = [(each.device, each.drops_per_second) for each in given.devices]
    rates = [(name, seen.mean, seen.idle) for name, seen in told if seen is not None]
    if given.drops_per_second is not None:
        rates.append(("the device", *given.drops_per_second))
    lost = _lost_per_second(given)
    for name, loaded, idle in rates:
        grown = loaded - (idle or 0.0)
        if lost and has_drops(given) and grown * _segments_a_drop(given) >= lost / 2:
            return (
                f"{name} drops {words.number(loaded, 3)} packets/s "
                f"({words.number(idle or 0.0, 3)} idle), the fleet lost {words.number(lost, 3)}"
            )
    return None


def _segments_a_drop(given: BottleneckInput) -> float:
    return SUPER_FRAME_BYTES / (given.lead.mss_bytes or MSS_ASSUMED_BYTES)


def _lost_per_second(given: BottleneckInput) -> float | None:
    """Return the retransmitted segments/s, or None if unknown."""
    count = given.lead.retransmits_count
    return None if count is None or not given.window_s else count / given.window_s


OWN_QUEUE: Final = Cause(
    id="device-queue",
    name=LimiterName.FIREWALL,
    question="Do pairs trade shares of one limit, and does the device itself queue or drop?",
    evidence="the variance of the fleet's sum is under the 1 % quantile of independent pairs; and "
    "pings to the device wait half as long as the streams' extra RTT or more, or the device's own "
    "drops cover half of what the fleet lost; the senders' NICs and shared hosts have room",
    reads="receivers' seconds; pings to the device (traffic.probe.device); the device's drop "
    "counter; the idle RTT",
    when_absent="missing: seconds of three pairs, or where the shared limit is",
    refuted_by=_REFUTED,
    advice=_SCALE,
    evaluate=_own_queue,
)


def _single_flow(given: BottleneckInput) -> Evidence:
    each, known = given.each_stream, DOCUMENTED.flow.get(given.sku or "")
    if each is None or not given.senders_have_room or not given.crosses or known is None:
        return ABSENT
    if abs(each / known.bits_per_second * given.scale - 1) >= NEAR_RATIO:
        return ABSENT
    return found(
        f"{len(given.pairs)} pairs carry the same {words.rate(each)} a stream",
        f"{given.sku} carries {words.rate(known.bits_per_second)} in one TCP connection "
        f"({known.source}, {known.as_of})",
    )


SINGLE_FLOW: Final = Cause(
    id="single-flow",
    name=LimiterName.SINGLE_FLOW,
    question="Does each stream carry what the device is documented for in one connection?",
    evidence="the pairs' rates are equal (CoV under 3 %), and a stream's rate is within 10 % of "
    "the documented one; the senders' NICs have room",
    reads="receivers' seconds; the table of documented limits (device.sku)",
    when_absent="not this cause",
    refuted_by="the same sum with twice the streams a pair",
    advice="use more streams a pair",
    evaluate=_single_flow,
)
