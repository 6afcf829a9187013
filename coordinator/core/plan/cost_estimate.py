"""Cost estimate for a run before launch, and a check against the budget. Pure.

All prices are at real scale. A lab run is not billed, but the cost for the real device is still
estimated and compared to the budget. This should allow users to rehearse a soak.

Traffic is counted once, as IP packets. Hours cover only the run itself. Machines and firewalls that
exist before and after it have the same price per hour, but this time is not included.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Final

from broadside.coordinator.core.documented_limits import DOCUMENTED
from broadside.coordinator.core.formatting import dollars
from broadside.coordinator.core.measure.formulas.headers import tcp_headers, udp_headers
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.plan.planner import Infeasible, Problem, first_start
from broadside.coordinator.core.plan.price import (
    Bill,
    CostRange,
    Prices,
    Usage,
    compute_bill,
    exactly,
)
from broadside.coordinator.core.run_spec import COLLECT_S, RunSpec
from broadside.exchange.engines import offered_bits_per_second
from broadside.exchange.messages import Message, Presence, Protocol, Role

# Minimum number of capacity units that a firewall uses.
UNITS_MIN_COUNT: Final = 2
UNITS_MAX_COUNT: Final = 50


class OverBudget(Infeasible):
    """The estimated cost is above the budget or unknown."""


class EarlyStopEstimate(Message):
    """Expected cost of a run whose bursts end as soon as their rate is certain.

    Attributes:
        margin_ratio: Expected rate divided by the limit, minus one. None if the rate is unknown.
        scatter_ratio: Standard deviation of the seconds divided by the rate.
        correlation: Correlation of neighbouring seconds (-1 to 1).
        history_bursts_count: Earlier bursts of the same device and traffic. If 0, scatter and
            correlation are assumed.
        how: How the rate was estimated.
        expected_burst_s: Mean duration of simulated bursts in seconds.
        expected_usd: Expected cost in US dollars. None if a price is unknown.
        worst_usd: Cost in US dollars if every burst has its planned duration. None if a price is
            unknown.
    """

    margin_ratio: float | None
    scatter_ratio: float
    correlation: float
    history_bursts_count: int
    how: str
    expected_burst_s: float
    expected_usd: float | None
    worst_usd: float | None


class Estimate(Message):
    """Estimated cost of a run before launch.

    Attributes:
        charged: True if Azure will bill this run. The amounts are at real scale in both cases.
        not_charged_why: Reason why Azure will not bill the run. None if it will.
        prices: Name of the price table.
        prices_as_of: Date of the price table.
        region: Azure region of the prices.
        ip_bits_per_second: Rate through the firewall at the IP layer and at real scale, in bit/s.
        rate_how: How the rate was estimated.
        traffic_s: Seconds of traffic in all bursts.
        elapsed_s: Seconds from the launch to the last report.
        bill: Items of the cost.
        assumed: Assumptions, as sentences.
        over_budget: Reason to reject a launch, or None.
        early_stop: Estimate for bursts that end when certain. None if bursts have their planned
            duration.
    """

    charged: bool
    not_charged_why: str | None = None
    prices: str
    prices_as_of: date
    region: str
    ip_bits_per_second: float | None
    rate_how: str
    traffic_s: float
    elapsed_s: float
    bill: Bill
    assumed: tuple[str, ...]
    budget_usd: float | None = None
    over_budget: Problem | None = None
    early_stop: EarlyStopEstimate | None = None


def estimate(
    spec: RunSpec, fleet: Sequence[Presence], prices: Prices, now: datetime | None = None
) -> Estimate:
    """Estimate the cost for a run before launch.

    Args:
        spec: The specification to price.
        fleet: Live agents. Use an empty list if they are not known.
        prices: The price table to use.
        now: Launch time, to include the wait for the boundary of a period. None assumes a launch at
            such a boundary.
    """
    rate, how = rate_of(spec, fleet)
    traffic_s = float(spec.bursts_count * (spec.burst_s + spec.traffic.omit_s))
    elapsed_s = _elapsed_s(spec, now)
    machines = machines_of(spec, fleet)
    sent = rate.times(traffic_s / 8)
    usage = Usage(
        ip_bytes=sent,
        hours=elapsed_s / 3600,
        units_count=required_units(spec, rate.value, prices),
        machines=machines,
        sku=spec.sku,
    )
    bill = compute_bill(usage, prices)
    return Estimate(
        charged=not_charged_why(spec) is None,
        not_charged_why=not_charged_why(spec),
        prices=prices.name,
        prices_as_of=prices.as_of,
        region=prices.region,
        ip_bits_per_second=rate.value,
        rate_how=how,
        traffic_s=traffic_s,
        elapsed_s=elapsed_s,
        bill=bill,
        assumed=tuple(_assumed(spec, machines, prices)),
        budget_usd=spec.budget_usd,
        over_budget=_over_budget(spec, bill, rate),
    )


def not_charged_why(spec: RunSpec) -> str | None:
    """Return the reason why Azure does not bill a run, or None if it does."""
    if spec.scale != 1:
        return f"a lab run at 1:{spec.scale:g} costs nothing"
    if spec.sku is None:
        return "without an Azure device (device.sku) it costs nothing"
    return None


def machines_of(spec: RunSpec, fleet: Sequence[Presence]) -> Mapping[str | None, int]:
    """Return the number of machines by VM size, at most one per pair on each side.

    Args:
        spec: The specification to price.
        fleet: Live agents. If empty, all sizes are unknown (None).
    """
    if not fleet:
        return {None: 2 * spec.pairs_count}
    sizes: Counter[str | None] = Counter()
    for role in Role:
        side = [agent.vm_size for agent in fleet if agent.role is role]
        sizes.update(side[: spec.pairs_count])
    return sizes


def ip_bytes_of(spec: RunSpec, payload_bytes: float) -> float:
    """Convert measured payload to IP bytes at real scale.

    Args:
        spec: The specification with the scale and the traffic.
        payload_bytes: Payload as measured.
    """
    return payload_bytes * _ip_ratio(spec) * spec.scale


def rate_of(spec: RunSpec, fleet: Sequence[Presence]) -> tuple[CostRange, str]:
    """Estimate the rate through the firewall during a burst.

    Args:
        spec: The specification.
        fleet: Live agents.

    Returns:
        The IP rate in bit/s at real scale with bounds, and a text on how it was found.
    """
    if spec.mix:
        return _mixed_rate(spec, fleet)
    flows = len(spec.traffic.direction.flows)
    ip_ratio = _ip_ratio(spec)
    caps = _caps(spec, fleet)
    reach = None if caps is None else caps * flows
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
    parts = [rate_of(part, fleet) for part in spec.parts]
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
        low = None if target is None else target
        return CostRange(value=carried, low=low, high=carried), how
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


def required_units(spec: RunSpec, ip_bits_per_second: float | None, prices: Prices) -> CostRange:
    """Return the capacity units, from ``device.capacity_units`` or from the rate.

    Args:
        spec: The specification.
        ip_bits_per_second: IP rate in bit/s at real scale, or None if unknown.
        prices: The price table to use.
    """
    answer = spec.device.get("capacity_units", "")
    if answer.isdigit():
        return exactly(float(answer))
    table = prices.firewall.get(spec.sku or "premium")
    if ip_bits_per_second is None or table is None or table.unit_bits_per_second is None:
        return CostRange()
    units = math.ceil(ip_bits_per_second / table.unit_bits_per_second)
    return exactly(float(min(UNITS_MAX_COUNT, max(UNITS_MIN_COUNT, units))))


def _over_budget(spec: RunSpec, bill: Bill, rate: CostRange) -> Problem | None:
    budget = spec.budget_usd
    if budget is None:
        return None
    if rate.value is None or bill.total_usd is None:
        return Problem(
            field="budget_usd",
            message=f"the budget is {dollars(budget)}, but the rate of the run is unknown, so its "
            "cost is unknown",
            fix="set objective.target_bits_per_second or traffic.stream_bits_per_second",
        )
    if bill.total_usd <= budget:
        return None
    heaviest = sorted(bill.lines, key=lambda line: -(line.usd or 0.0))[:2]
    parts = " + ".join(f"{line.item} {dollars(line.usd)}" for line in heaviest)
    scaled = "" if not_charged_why(spec) is None else " at real scale"
    least = "at least " if bill.unknown else ""
    return Problem(
        field="budget_usd",
        message=f"the run is estimated at {least}{dollars(bill.total_usd)}{scaled} ({parts}, ...), "
        f"above its budget of {dollars(budget)}",
        fix="raise the budget, or request fewer or shorter bursts or a lower rate",
    )


def _assumed(spec: RunSpec, machines: Mapping[str | None, int], prices: Prices) -> Iterator[str]:
    """Yield the assumptions for the estimate, in addition to the price table."""
    yield "hours include only the run, from launch to the last report"
    if any(offered_bits_per_second(part.traffic) is None for part in spec.parts):
        yield "traffic that is not paced sends as much as NICs and device can carry"
    if spec.sku is None:
        yield "device.sku is not set: prices are between standard and premium"
    if not spec.device.get("capacity_units", "").isdigit():
        yield (
            "the firewall uses as many capacity units as the rate needs, at least two; "
            "device.capacity_units sets another number"
        )
    if None in machines:
        yield "agents did not report their VM size (BROADSIDE_AGENT_VM_SIZE): its price is unknown"
    if prices.peering is not None:
        yield "client and server networks are peered with the firewall's network, in one region"


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


class Appraisal(Message):
    """Result of a launch check, with problems, warnings and cost.

    Attributes:
        feasible: True if the live fleet can carry the run within its budget.
        problems: Reasons why the run cannot be launched.
        warnings: Warnings, as sentences.
        price: Estimated cost.
    """

    feasible: bool
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    price: Estimate
