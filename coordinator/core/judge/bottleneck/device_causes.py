"""Causes in the device, for example SNAT ports, CPU, documented rate, queue and drops."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import numpy as np

from broadside.coordinator.core import formatting
from broadside.coordinator.core.documented_limits import DOCUMENTED
from broadside.coordinator.core.judge.bottleneck.bottleneck_evidence import (
    ABSENT,
    CPU_FULL_RATIO,
    QUEUED_RATIO,
    BottleneckCause,
    BottleneckInput,
    Evidence,
    crowded_hosts,
    found,
    has_drops,
    is_idle,
    pair_cov_ratio,
    path_facts,
    queue_delay_s,
    traded,
    unknown,
)
from broadside.coordinator.core.measure.formulas.headers import MSS_ASSUMED_BYTES
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.summary import BottleneckName, Reconciliation, Window

# Azure recommends to scale out at this value (SNAT utilisation metric).
SNAT_FULL_RATIO: Final = 0.95
# A rate with a lower CoV is constant (RFC 9411, results validation).
FLAT_COV_RATIO: Final = 0.05
# Largest relative difference from a documented rate. Documented rates have only one or two digits.
NEAR_RATIO: Final = 0.1
# Pings to the device need to show at least this share of the streams' queueing delay.
PING_RATIO: Final = 0.5
# A device can count a super frame of several segments as one drop. This is its largest size (IP: 64
# KiB).
SUPER_FRAME_BYTES: Final = 65_536
_REFUTED: Final = (
    "the same total rate without the firewall (device.path=bypass), or half the total rate with "
    "half the pairs"
)
_SCALE_OUT: Final = (
    "Give the firewall more capacity before the run (on Azure a higher minimum capacity), or lower "
    "the target (`--set target`)"
)


def _snat(given: BottleneckInput) -> Evidence:
    """Check that the firewall has run out of SNAT ports.

    Evidence: 95 % of its SNAT ports are in use.
    Reads: the telemetry of the device.
    If absent: not this cause.
    """
    used = given.snat_utilization_ratio
    if used is None or used < SNAT_FULL_RATIO:
        return ABSENT
    return found(
        f"{formatting.ratio(used, 0)} of the firewall's SNAT ports are in use (limit "
        f"{formatting.ratio(SNAT_FULL_RATIO, 0)})"
    )


SNAT_PORTS: Final = BottleneckCause(
    id="snat-ports",
    name=BottleneckName.SNAT_PORTS,
    refuted_by="the same rate with fewer connections",
    advice="Give the firewall more public addresses, or use private addresses for the traffic",
    evaluate=_snat,
)


def _cpu(given: BottleneckInput) -> Evidence:
    """Check that the CPU of the device is full.

    Evidence: a device on the path has all cores, or one core, 95 % busy.
    Reads: the telemetry of the device.
    If absent: not this cause.
    """
    devices = [(item.device, item.cpu_ratio) for item in given.devices if given.crosses]
    facts = []
    for device, cpu in devices:
        if cpu is not None and max(cpu.mean, cpu.busiest or 0.0) >= CPU_FULL_RATIO:
            core = (
                ""
                if cpu.busiest is None
                else f", its busiest core {formatting.ratio(cpu.busiest, 0)}"
            )
            facts.append(f"the CPU of {device} is {formatting.ratio(cpu.mean, 0)} busy{core}")
    if not facts:
        return ABSENT
    if len(facts) < len(devices):
        facts.append(f"{len(facts)} of {len(devices)} devices")
    return found(*facts)


DEVICE_CPU: Final = BottleneckCause(
    id="device-cpu",
    name=BottleneckName.FIREWALL,
    refuted_by="the same rate with less work for the device (fewer rules, no inspection), or with "
    "a larger device",
    advice="Give the device more cores or units, or less work for each byte",
    evaluate=_cpu,
)


def flat_counter(counter: Reconciliation | None) -> str | None:
    """Return a text if the rate in the device counter is constant.

    None if it is not constant or unknown.
    """
    if (
        counter is None
        or counter.firewall_bits_per_second is None
        or counter.counter_cov_ratio is None
    ):
        return None
    if counter.counter_cov_ratio >= FLAT_COV_RATIO:
        return None
    return (
        "the rate in the device counter is constant at "
        f"{formatting.rate(counter.firewall_bits_per_second)} (CoV "
        f"{formatting.ratio(counter.counter_cov_ratio, 1)})"
    )


def _known_rate(given: BottleneckInput) -> Evidence:
    """Check that the device counter is constant at the documented rate of the device.

    Evidence: CoV of the counter under 5 %; its rate within 10 % of the documented one; the senders'
        NICs have room; the path is not known to be idle.
    Reads: the device counter; the table of documented limits (device.sku).
    If absent: missing: the counter, or device.sku.
    """
    if not given.crosses or not given.senders_have_capacity or is_idle(given):
        return ABSENT
    known, stored = DOCUMENTED.firewall.get(given.sku or ""), given.reconciliation
    if stored is None or stored.firewall_bits_per_second is None:
        return unknown("the device counter (configure its source)")
    if known is None:
        return unknown("the documented rate of the firewall (set device.sku)")
    flat = flat_counter(stored)
    documented = known.bits_per_second / given.scale
    if flat is None or abs(stored.firewall_bits_per_second / documented - 1) >= NEAR_RATIO:
        return ABSENT
    return found(
        f"{flat}; the documented rate of {given.sku} is {formatting.rate(known.bits_per_second)} "
        f"({known.source}, {known.as_of})",
        *path_facts(given),
        *_capacity_facts(given),
    )


KNOWN_RATE: Final = BottleneckCause(
    id="device-known-rate",
    name=BottleneckName.FIREWALL,
    refuted_by=_REFUTED,
    advice=_SCALE_OUT,
    evaluate=_known_rate,
)


def _device_queue(given: BottleneckInput) -> Evidence:
    """Check that pairs share one limit, and that the device itself queues or drops packets.

    Evidence: the variance of the fleet's total rate is under the 1 % quantile of independent pairs;
        and pings to the device wait half as long as the streams' extra RTT or more, or the device's
        own drops cover half of what the fleet lost; the senders' NICs and shared hosts have room.
    Reads: receivers' seconds; pings to the device (traffic.probe.device); the device's drop
        counter; the idle RTT.
    If absent: missing: seconds of three pairs, or where the shared limit is.
    """
    if not given.crosses or not given.senders_have_capacity or is_idle(given):
        return ABSENT
    shared = traded(given)
    if shared is None:
        if given.lead.share_movement_ratio is None or pair_cov_ratio(given) is None:
            return unknown(
                "if the pairs share one limit (three pairs or more, one reading per second, for "
                "30 s or more)"
            )
        return ABSENT
    if crowded := crowded_hosts(given):
        return unknown(
            f"the free capacity of {crowded[0]}, which has several pairs (use one host per pair, "
            "or set its NIC rate and let the agent read its counters)"
        )
    local = [fact for fact in (_ping_fact(given), _drops_fact(given)) if fact is not None]
    if not local:
        return unknown(
            "the place of the shared limit (ping the device with traffic.probe.device, or read its "
            "drop counter)"
        )
    flat = flat_counter(given.reconciliation)
    return found(
        shared, *local, *path_facts(given), *([flat] if flat else []), *_capacity_facts(given)
    )


def _capacity_facts(given: BottleneckInput) -> list[str]:
    nic = given.nic_ratio
    if nic is None:
        return []
    return [f"the highest utilization of a sender's NIC is {formatting.ratio(nic, 0)}"]


def _ping_fact(given: BottleneckInput) -> str | None:
    """Return a text if pings to the device wait in the streams' queue, else None."""
    delay_s = queue_delay_s(given)
    for device in given.devices:
        for ping in (device.ping_icmp_s, device.ping_tcp_s):
            if ping is None or not ping.idle or not delay_s or delay_s <= 0:
                continue
            extra_s = ping.mean - ping.idle
            if extra_s >= PING_RATIO * delay_s and extra_s > QUEUED_RATIO * ping.idle:
                return (
                    f"pings to {device.device} take {formatting.time(ping.mean)} under load and "
                    f"{formatting.time(ping.idle)} without load, so the queue is in or before it"
                )
    return None


def _drops_fact(given: BottleneckInput) -> str | None:
    """Return a text if the drops of the device explain the loss of the fleet, else None."""
    rates = [
        (device.device, device.drops_per_second.mean, device.drops_per_second.idle)
        for device in given.devices
        if device.drops_per_second is not None
    ]
    if given.drops_per_second is not None:
        rates.append(("the device", *given.drops_per_second))
    count = given.lead.retransmits_count
    lost = None if count is None or not given.window_s else count / given.window_s
    segments_a_drop = SUPER_FRAME_BYTES / (given.lead.mss_bytes or MSS_ASSUMED_BYTES)
    for name, loaded, idle in rates:
        grown = loaded - (idle or 0.0)
        if lost and has_drops(given) and grown * segments_a_drop >= lost / 2:
            return (
                f"{name} drops {formatting.number(loaded, 3)} packets/s "
                f"({formatting.number(idle or 0.0, 3)} without load); the fleet lost "
                f"{formatting.number(lost, 3)} segments/s"
            )
    return None


OWN_QUEUE: Final = BottleneckCause(
    id="device-queue",
    name=BottleneckName.FIREWALL,
    refuted_by=_REFUTED,
    advice=_SCALE_OUT,
    evaluate=_device_queue,
)


def _single_flow(given: BottleneckInput) -> Evidence:
    """Check that each stream has the documented rate of one connection through the device.

    Evidence: the rates of the pairs are equal (CoV under 3 %), and the rate of a stream is within
        10 % of the documented one; the senders' NICs have room.
    Reads: receivers' seconds; the table of documented limits (device.sku).
    If absent: not this cause.
    """
    item, known = given.stream_rate, DOCUMENTED.flow.get(given.sku or "")
    if item is None or not given.senders_have_capacity or not given.crosses or known is None:
        return ABSENT
    if abs(item / known.bits_per_second * given.scale - 1) >= NEAR_RATIO:
        return ABSENT
    return found(
        f"all {len(given.pairs)} pairs have the same rate per stream, {formatting.rate(item)}",
        f"the documented rate of one TCP connection through {given.sku} is "
        f"{formatting.rate(known.bits_per_second)} ({known.source}, {known.as_of})",
    )


SINGLE_FLOW: Final = BottleneckCause(
    id="single-flow",
    name=BottleneckName.SINGLE_FLOW,
    refuted_by="the same total rate with twice the streams per pair",
    advice="Use more streams per pair",
    evaluate=_single_flow,
)


def _one_unit(given: BottleneckInput) -> Evidence:
    """Check that one unit of the device is at its limit and the others are not.

    Evidence: the streams of one unit have less than 80 % of their set rate, or of the median of the
        other units; the streams of all other units have their set rate, or equal rates at different
        totals.
    Reads: the source addresses that servers received.
    If absent: not this cause.
    """
    limit = None if given.units is None or not given.crosses else given.units.limit
    return ABSENT if limit is None else found(limit)


ONE_UNIT: Final = BottleneckCause(
    id="one-unit",
    name=BottleneckName.ONE_UNIT,
    refuted_by="the same streams with new source ports, if another unit is then slow",
    advice="Read the CPU and health of this unit. Use more streams per pair for an even spread",
    evaluate=_one_unit,
)


def drops_per_second(
    device_counter: CounterRecord | None,
    window: Window | None,
    lag_s: float | None,
    busy: Sequence[tuple[datetime, datetime]],
) -> tuple[float, float | None] | None:
    """Return the rate of drops in a window and while no burst runs, in packets/s.

    Args:
        device_counter: Device counter with its bins. None if no source returned data.
        window: Window of the burst. None if the pairs have no common second.
        lag_s: Counter lag. None if it is unknown, then 0 is used.
        busy: Start and end of every burst of the run.

    Returns:
        Both rates. The second one is None if there is no bin without a burst. The whole result is
        None if the source does not count drops, or if no bin is completely inside the window.
    """
    if device_counter is None or window is None or device_counter.drops_count is None:
        return None
    if len(device_counter.drops_count) != len(device_counter):
        return None
    start_s, end_s = device_counter.start_s - (lag_s or 0.0), device_counter.end_s - (lag_s or 0.0)
    known = np.isfinite(device_counter.drops_count)
    inside = (start_s >= window.start_at.timestamp()) & (end_s <= window.end_at.timestamp()) & known
    if not inside.any():
        return None
    quiet = known.copy()
    for from_at, to_at in busy:
        quiet &= (end_s <= from_at.timestamp()) | (
            start_s >= to_at.timestamp() + device_counter.grain_s
        )

    def rate(chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
        return float(device_counter.drops_count[chosen].sum() / (end_s - start_s)[chosen].sum())  # type: ignore[index]  # is not None: see above

    return rate(inside), rate(quiet) if quiet.any() else None
