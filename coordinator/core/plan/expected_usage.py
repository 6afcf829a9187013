"""Expected usage of a run before launch: time, rate through the firewall, and machines. Pure.

Rates are IP rates at real scale, also for a lab run. Traffic is counted once. Hours cover only the
run itself.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from broadside.coordinator.core.documented_limits import DOCUMENTED
from broadside.coordinator.core.measure.formulas.headers import tcp_headers, udp_headers
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.plan.planner import first_start
from broadside.coordinator.core.plan.price import CostRange, exactly
from broadside.coordinator.core.run_spec import COLLECT_S, RunSpec
from broadside.exchange.engines import offered_bits_per_second
from broadside.exchange.messages import Presence, Protocol, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedUsage:
    """Expected usage of a run, without prices.

    Attributes:
        rate: IP rate through the firewall during a burst in bit/s at real scale, with bounds.
        rate_how: How the rate was estimated.
        machines: Number of machines by VM size, at most one per pair on each side. None is an
            unknown size.
        traffic_s: Seconds of traffic in all bursts.
        elapsed_s: Seconds from the launch to the last report.
    """

    rate: CostRange
    rate_how: str
    machines: Mapping[str | None, int]
    traffic_s: float
    elapsed_s: float


def expect_usage(
    spec: RunSpec, fleet: Sequence[Presence], now: datetime | None = None
) -> ExpectedUsage:
    """Estimate the usage of a run before launch.

    Args:
        spec: The specification.
        fleet: Live agents. Use an empty list if they are not known.
        now: Launch time, to include the wait for the boundary of a period. None assumes a launch at
            such a boundary.

    Returns:
        Rate, VMs and times at real scale. A rate that cannot be estimated has no values.
    """
    rate, how = _rate_of(spec, fleet)
    return ExpectedUsage(
        rate=rate,
        rate_how=how,
        machines=_machines_of(spec, fleet),
        traffic_s=float(spec.bursts_count * (spec.burst_s + spec.traffic.omit_s)),
        elapsed_s=_elapsed_s(spec, now),
    )


def ip_bytes_of(spec: RunSpec, payload_bytes: float) -> float:
    """Convert measured payload to IP bytes at real scale.

    Args:
        spec: The specification with the scale and the traffic.
        payload_bytes: Payload as measured.

    Returns:
        Bytes at the IP layer, with the headers of the traffic.
    """
    return payload_bytes * _ip_ratio(spec) * spec.scale


def _rate_of(spec: RunSpec, fleet: Sequence[Presence]) -> tuple[CostRange, str]:
    """Return the IP rate during a burst in bit/s at real scale, and how it was estimated."""
    if spec.mix:
        return _mixed_rate(spec, fleet)
    caps = _caps(spec, fleet)
    reach = None if caps is None else caps * len(spec.traffic.direction.flows)
    ip_ratio = _ip_ratio(spec)
    item = offered_bits_per_second(spec.traffic)
    if item is not None:
        offered = spec.pairs_count * item * ip_ratio
        rate = offered if reach is None else min(offered, reach)
        how = f"{spec.pairs_count} pairs x {spec.traffic.streams_count} streams at the set pace"
        return exactly(rate), how if rate == offered else f"{how}, capped by the NICs"
    target = spec.objective.target_bits_per_second
    sku = spec.sku
    if sku is None and target is not None and any(agent.vm_size for agent in fleet):
        # On Azure without a SKU, the highest price is that of Premium, so we use its limit too.
        sku = "premium"
    documented = DOCUMENTED.firewall.get(sku or "")
    device = None if documented is None else documented.bits_per_second
    if target is not None and spec.objective.layer is Layer.PAYLOAD:
        target *= ip_ratio
    return _unpaced_rate(target, reach, device)


def _mixed_rate(spec: RunSpec, fleet: Sequence[Presence]) -> tuple[CostRange, str]:
    """Estimate the rate of a mixed run as the sum of its parts.

    Parts that are not paced share what the device can carry.
    """
    parts = [_rate_of(part, fleet) for part in spec.parts]
    total = parts[0][0]
    for rate, _ in parts[1:]:
        total = total.add(rate)
    documented = DOCUMENTED.firewall.get(spec.sku or "")
    if documented is not None and total.value is not None:
        target = spec.objective.target_bits_per_second or 0.0
        most = max(documented.bits_per_second, target)
        total = CostRange(
            value=min(total.value, most),
            low=None if total.low is None else min(total.low, most),
            high=None if total.high is None else min(total.high, most),
        )
    named = zip(spec.part_names, parts, strict=True)
    return total, "; ".join(f"{name}: {how}" for name, (_, how) in named)


def _unpaced_rate(
    target: float | None, reach: float | None, device: float | None
) -> tuple[CostRange, str]:
    """Estimate the rate without pacing, which is as much as NICs and device can carry.

    A target above the documented limit of the device counts, because devices can exceed it.

    Args:
        target: Target in bit/s, or None.
        reach: Total NIC limit in bit/s, or None if unknown.
        device: Documented limit of the device in bit/s, or None if unknown.
    """
    limits = [most for most in (reach, device) if most is not None]
    carried = min(limits, default=None)
    if target is None and carried is None:
        return CostRange(), "unknown: no target, no pacing, and no known NIC or device limit"
    if target is None or (carried is not None and carried > target):
        how = "not paced: the known limit of NICs and device"
        return CostRange(value=carried, low=target, high=carried), how
    if reach is not None and reach < target:
        return CostRange(value=reach, low=reach, high=reach), (
            "the total of the NICs, which is below the target"
        )
    return CostRange(value=target, low=target, high=reach), "the target"


def _caps(spec: RunSpec, fleet: Sequence[Presence]) -> float | None:
    """Return the total NIC limit of the clients in bit/s at real scale, or None if unknown."""
    caps: list[float | None] = []
    for agent in fleet:
        if agent.role is Role.CLIENT:
            nic_bits_per_second = agent.nic_bits_per_second
            caps.append(
                DOCUMENTED.of_vm(agent.vm_size)
                if nic_bits_per_second is None
                else nic_bits_per_second * spec.scale
            )
    known_caps = [cap for cap in caps if cap is not None]
    if not caps or len(known_caps) < len(caps):
        return None
    return sum(sorted(known_caps, reverse=True)[: spec.pairs_count])


def _machines_of(spec: RunSpec, fleet: Sequence[Presence]) -> Mapping[str | None, int]:
    if not fleet:
        return {None: 2 * spec.pairs_count}
    sizes: Counter[str | None] = Counter()
    for role in Role:
        side = [agent.vm_size for agent in fleet if agent.role is role]
        sizes.update(side[: spec.pairs_count])
    return sizes


def _elapsed_s(spec: RunSpec, now: datetime | None) -> float:
    """Return the seconds from launch to the time when the last report is due."""
    lead_s = spec.lead_s if now is None else (first_start(spec, now) - now).total_seconds()
    bursts_s = (spec.bursts_count - 1) * spec.period_s + spec.burst_s + spec.traffic.omit_s
    return lead_s + bursts_s + COLLECT_S


def _ip_ratio(spec: RunSpec) -> float:
    traffic = spec.traffic
    vxlan = traffic.encapsulation is not None
    if traffic.protocol is Protocol.UDP:
        return udp_headers(traffic.block_bytes, vxlan=vxlan).ip_ratio
    return tcp_headers([], requested_mss_bytes=traffic.mss_bytes, vxlan=vxlan).ip_ratio
