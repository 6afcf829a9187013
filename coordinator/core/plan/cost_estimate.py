"""Cost estimate for a run before launch, and a check against the budget. Pure.

All prices are at real scale. A lab run is not billed, but the cost for the real device is still
estimated and compared to the budget. This should allow users to rehearse a soak.

Machines and firewalls that exist before and after the run have the same price per hour, but this
time is not included.
"""

import math
from collections.abc import Iterator
from datetime import date
from typing import Final

from broadside.coordinator.core.formatting import dollars
from broadside.coordinator.core.plan.expected_usage import ExpectedUsage
from broadside.coordinator.core.plan.planner import Infeasible, Problem
from broadside.coordinator.core.plan.price import (
    Bill,
    CostRange,
    Prices,
    Usage,
    compute_bill,
    exactly,
)
from broadside.coordinator.core.run_spec import RunSpec
from broadside.exchange.engines import offered_bits_per_second
from broadside.exchange.messages import Message

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


def estimate(spec: RunSpec, usage: ExpectedUsage, prices: Prices) -> Estimate:
    """Estimate the cost of a run before launch.

    Args:
        spec: The specification to price.
        usage: Its expected usage.
        prices: The price table to use.

    Returns:
        Low and high cost in US dollars, with the assumptions. Unknown prices are named and not
        zero.
    """
    bill = expected_bill(spec, usage, prices)
    return Estimate(
        charged=not_charged_why(spec) is None,
        not_charged_why=not_charged_why(spec),
        prices=prices.name,
        prices_as_of=prices.as_of,
        region=prices.region,
        ip_bits_per_second=usage.rate.value,
        rate_how=usage.rate_how,
        traffic_s=usage.traffic_s,
        elapsed_s=usage.elapsed_s,
        bill=bill,
        assumed=tuple(_assumed(spec, usage, prices)),
        budget_usd=spec.budget_usd,
        over_budget=_over_budget(spec, usage, bill),
    )


def expected_bill(spec: RunSpec, usage: ExpectedUsage, prices: Prices) -> Bill:
    """Return the bill of a run for its expected usage.

    Args:
        spec: The specification to price.
        usage: Its expected usage.
        prices: The price table to use.
    """
    billed = Usage(
        ip_bytes=usage.rate.times(usage.traffic_s / 8),
        hours=usage.elapsed_s / 3600,
        units_count=required_units(spec, usage.rate.value, prices),
        machines=usage.machines,
        sku=spec.sku,
    )
    return compute_bill(billed, prices)


def not_charged_why(spec: RunSpec) -> str | None:
    """Return the reason why Azure does not bill a run, or None if it does."""
    if spec.scale != 1:
        return f"a lab run at 1:{spec.scale:g} costs nothing"
    if spec.sku is None:
        return "without an Azure device (device.sku) it costs nothing"
    return None


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


def _over_budget(spec: RunSpec, usage: ExpectedUsage, bill: Bill) -> Problem | None:
    budget = spec.budget_usd
    if budget is None:
        return None
    if usage.rate.value is None or bill.total_usd is None:
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


def _assumed(spec: RunSpec, usage: ExpectedUsage, prices: Prices) -> Iterator[str]:
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
    if None in usage.machines:
        yield "agents did not report their VM size (BROADSIDE_AGENT_VM_SIZE): its price is unknown"
    if prices.peering is not None:
        yield "client and server networks are peered with the firewall's network, in one region"


class LaunchEstimate(Message):
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
