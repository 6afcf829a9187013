"""Run cost so far, and the budget check before each burst. Pure.

All prices are at real scale, as in :mod:`broadside.coordinator.core.plan.cost_estimate`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from broadside.coordinator.core.formatting import dollars, ratio
from broadside.coordinator.core.guards import stopped_by_guard
from broadside.coordinator.core.plan.cost_estimate import not_charged_why, required_units
from broadside.coordinator.core.plan.expected_usage import ExpectedUsage, ip_bytes_of
from broadside.coordinator.core.plan.price import (
    Bill,
    CostRange,
    Prices,
    Usage,
    compute_bill,
    exactly,
)
from broadside.coordinator.core.run_spec import Burst, Plan, RunSpec, due_at
from broadside.coordinator.core.summary import RunSummary, Verdict, caution, order, problem
from broadside.exchange.messages import Control, Message, RunId

# Value of ``cancelled_by`` when a run is stopped by its budget.
STOPPED_BY: Final = "broadside's budget"


class PriceMeter(Message):
    """Run cost so far, and the projected cost when it ends.

    Attributes:
        charged: True if Azure bills this run. The amounts are at real scale in both cases.
        not_charged_why: Reason why Azure does not bill the run. None if it does.
        prices: Name of the price table.
        prices_as_of: Date of the price table.
        region: Azure region of the prices.
        measured_bytes: Measured payload of all bursts so far, in bytes.
        real_ip_bytes: Bytes at the IP layer and at real scale, which are billed.
        elapsed_s: Seconds since the launch, up to the end of the run.
        spent: Cost so far.
        projected: Projected cost when the run ends.
        budget_left_usd: Rest of the budget in US dollars. None without a budget.
        stopped: Reason why the remaining bursts were cancelled, or None.
    """

    run_id: RunId
    charged: bool
    not_charged_why: str | None = None
    prices: str
    prices_as_of: date
    region: str
    measured_bytes: int
    real_ip_bytes: float
    elapsed_s: float
    spent: Bill
    projected: Bill
    budget_usd: float | None = None
    budget_left_usd: float | None = None
    stopped: str | None = None


class PriceBasis(Message):
    """Inputs for the price other than the bytes, to be stored at launch.

    Attributes:
        machines: Number of machines to bill by VM size. The empty string is an unknown size.
        burst_ip_bytes: Estimated IP bytes for one burst at real scale, or None if unknown.
        burst_ip_bytes_low: Lower bound.
        burst_ip_bytes_high: Upper bound.
    """

    machines: Mapping[str, int]
    burst_ip_bytes: float | None
    burst_ip_bytes_low: float | None
    burst_ip_bytes_high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """Traffic of a run as far as it is known.

    Attributes:
        plan: The plan.
        basis: Price basis from the launch.
        payload_bytes: Payload by burst index, as measured or as uploaded so far. There is no entry
            for a burst that has no data.
        over: Indices of the bursts that will not send any more, measured or not.
    """

    plan: Plan
    basis: PriceBasis
    payload_bytes: Mapping[int, int]
    over: frozenset[int]

    @property
    def over_ip_bytes(self) -> CostRange:
        """IP bytes for all finished bursts at real scale.

        For a burst that has no data, the expected bytes are used.
        """
        reported = [self.payload_bytes[i] for i in self.over if i in self.payload_bytes]
        unreported = self.next_ip_bytes.times(len(self.over) - len(reported))
        known = exactly(ip_bytes_of(self.plan.spec, sum(reported)))
        return known.add(unreported) if len(reported) < len(self.over) else known

    @property
    def next_ip_bytes(self) -> CostRange:
        """Expected IP bytes of a later burst, from finished bursts or from the estimate."""
        measured = [self.payload_bytes[i] for i in self.over if self.payload_bytes.get(i)]
        if measured:
            return exactly(ip_bytes_of(self.plan.spec, sum(measured) / len(measured)))
        return CostRange(
            value=self.basis.burst_ip_bytes,
            low=self.basis.burst_ip_bytes_low,
            high=self.basis.burst_ip_bytes_high,
        )

    def compute_bill(self, ip_bytes: CostRange, until_at: datetime, prices: Prices) -> Bill:
        """Return the bill for some bytes and the time since launch.

        Args:
            ip_bytes: IP bytes at real scale.
            until_at: End of the time to bill.
            prices: The price table to use.
        """
        elapsed_s = max(0.0, (until_at - self.plan.created_at).total_seconds())
        machines = {size or None: count for size, count in self.basis.machines.items()}
        spec, burst_bytes = self.plan.spec, self.basis.burst_ip_bytes
        burst_s = spec.burst_s + spec.traffic.omit_s
        rate = None if burst_bytes is None else burst_bytes * 8 / burst_s
        usage = Usage(
            ip_bytes=ip_bytes,
            hours=elapsed_s / 3600,
            units_count=required_units(spec, rate, prices),
            machines=machines,
            sku=spec.sku,
        )
        return compute_bill(usage, prices)


def basis(spec: RunSpec, usage: ExpectedUsage) -> PriceBasis:
    """Return the price basis of a run.

    Args:
        spec: The specification.
        usage: Its expected usage.
    """
    sent = usage.rate.times((spec.burst_s + spec.traffic.omit_s) / 8)
    return PriceBasis(
        machines={size or "": count for size, count in usage.machines.items()},
        burst_ip_bytes=sent.value,
        burst_ip_bytes_low=sent.low,
        burst_ip_bytes_high=sent.high,
    )


def measure(spending: Spend, prices: Prices, now: datetime, control: Control | None) -> PriceMeter:
    """Return the run cost so far and the projected cost.

    Args:
        spending: Known traffic of the run.
        prices: The price table to use.
        now: Current time to use.
        control: Control row for the run, or None.
    """
    plan, spec = spending.plan, spending.plan.spec
    cancelled_at = None if control is None else control.cancelled_at
    ends_at = due_at(plan.bursts[-1])
    until_at = min(now, ends_at, cancelled_at or now)
    measured_bytes = sum(spending.payload_bytes.values())
    spent_bytes = ip_bytes_of(spec, measured_bytes)
    spent = projected = spending.compute_bill(exactly(spent_bytes), until_at, prices)
    if cancelled_at is None:
        to_come = spending.over_ip_bytes
        for burst in plan.bursts:
            if burst.index not in spending.over:
                seen = ip_bytes_of(spec, spending.payload_bytes.get(burst.index, 0))
                to_come = to_come.add(spending.next_ip_bytes.at_least(seen))
        projected = spending.compute_bill(to_come, ends_at, prices)
    known = spec.budget_usd is not None and spent.total_usd is not None
    return PriceMeter(
        run_id=plan.run_id,
        charged=not_charged_why(spec) is None,
        not_charged_why=not_charged_why(spec),
        prices=prices.name,
        prices_as_of=prices.as_of,
        region=prices.region,
        measured_bytes=measured_bytes,
        real_ip_bytes=spent_bytes,
        elapsed_s=max(0.0, (until_at - plan.created_at).total_seconds()),
        spent=spent,
        projected=projected,
        budget_usd=spec.budget_usd,
        budget_left_usd=(spec.budget_usd or 0.0) - (spent.total_usd or 0.0) if known else None,
        stopped=control.cancel_reason if control and stopped_by_budget(control) else None,
    )


def over_budget_reason(spending: Spend, burst: Burst, prices: Prices) -> str | None:
    """Return the reason why the budget prevents the start of a burst.

    Args:
        spending: Known traffic. All earlier bursts need to be finished.
        burst: The next burst.
        prices: The price table to use.

    Returns:
        The reason with the costs. None if the burst can start, or if there is no budget.
    """
    plan, budget = spending.plan, spending.plan.spec.budget_usd
    if budget is None or spending.next_ip_bytes.value is None:
        return None
    spent = spending.over_ip_bytes
    then = spending.compute_bill(spent.add(spending.next_ip_bytes), burst.planned_end_at, prices)
    if then.total_usd is None or then.total_usd <= budget:
        return None
    before = spending.compute_bill(spent, burst.planned_start_at, prices)
    return (
        f"budget: {dollars(before.total_usd)} are spent before burst {burst.index + 1} of "
        f"{len(plan.bursts)}; with this burst {dollars(then.total_usd)} would be above the budget "
        f"of {dollars(budget)}"
    )


def overspent_reason(spending: Spend, burst: Burst, prices: Prices, now: datetime) -> str | None:
    """Return the reason to stop a burst in progress because the budget is spent.

    Args:
        spending: Known traffic, including the bytes of this burst so far.
        burst: The burst in progress.
        prices: The price table to use.
        now: Current time.

    Returns:
        The reason with the costs. None if the budget is not spent, or if there is none.
    """
    plan, budget = spending.plan, spending.plan.spec.budget_usd
    if budget is None:
        return None
    sent_bytes = ip_bytes_of(plan.spec, spending.payload_bytes.get(burst.index, 0))
    spent = spending.compute_bill(
        spending.over_ip_bytes.add(exactly(sent_bytes)), now, prices
    ).total_usd
    if spent is None or spent <= budget:
        return None
    return (
        f"budget: {dollars(spent)} are spent in burst {burst.index + 1} of {len(plan.bursts)}, "
        f"above the budget of {dollars(budget)}"
    )


def stopped_by_budget(control: Control | None) -> bool:
    """Return True if the run was cancelled because of its budget."""
    return control is not None and control.cancelled_by == STOPPED_BY


def ran(plan: Plan, control: Control | None) -> Plan:
    """Return the plan with only the bursts that ran before the budget or a guard stopped the run.

    Any other plan will be returned unchanged. If the budget stopped a burst in progress, it is left
    out, unless it is the first one. A burst that a guard stopped is included, because it shows the
    impact.

    Args:
        plan: The whole plan.
        control: Control row for the run, or None.
    """
    if control is None or control.cancelled_at is None:
        return plan
    if stopped_by_guard(control):
        ran_until = [b for b in plan.bursts if b.planned_start_at <= control.cancelled_at]
    elif stopped_by_budget(control):
        ran_until = [b for b in plan.bursts if b.planned_end_at <= control.cancelled_at]
    else:
        return plan
    return plan.with_bursts(ran_until or plan.bursts[:1])


def with_budget(summary: RunSummary, plan: Plan, control: Control | None) -> RunSummary:
    """Add a finding to the summary if the budget stopped the run.

    Args:
        summary: The summary of the run.
        plan: The whole plan.
        control: Control row for the run, or None.

    Returns:
        A copy with the finding, or the same summary.
    """
    if control is None or not stopped_by_budget(control):
        return summary
    count = len(ran(plan, control).bursts)
    finding = caution(
        "budget",
        60,
        f"The budget ended the run: {count} of {len(plan.bursts)} bursts ran, and the verdict is "
        f"for these bursts ({control.cancel_reason}).",
        "Raise `budget_usd` (option `--budget`) to measure the other bursts",
    )
    return summary.model_copy(update={"findings": order([*summary.findings, finding])})


def with_abort(summary: RunSummary, control: Control | None) -> RunSummary:
    """Add a finding to an inconclusive summary if a user aborted the run.

    Args:
        summary: The summary of the run.
        control: Control row for the run, or None.

    Returns:
        A copy with the finding. The same summary if it is not inconclusive or was not aborted by a
        user.
    """
    if control is None or control.cancelled_at is None:
        return summary
    if stopped_by_budget(control) or stopped_by_guard(control):
        return summary
    if summary.verdict is not Verdict.INCONCLUSIVE:
        return summary
    measured = summary.completeness
    pending = summary.bursts_planned - len(summary.bursts)
    bursts = f", and {pending} of {summary.bursts_planned} bursts have no result" if pending else ""
    finding = problem(
        "run-aborted",
        107,
        f"{control.cancelled_by or 'An unknown user'} aborted the run at "
        f"{control.cancelled_at:%H:%M:%S} UTC ({control.cancel_reason or 'no reason given'}). "
        f"{measured.measured_s} of {measured.planned_s} planned seconds of all pairs were measured "
        f"({ratio(measured.completeness_ratio, 1)}){bursts}.",
        f"Ask {control.cancelled_by or 'the person who aborted'} for the reason and remove it. "
        "Then launch the run again and let it end",
    )
    # The bursts are missing because of the abort, so their own next step would contradict this one.
    others = (other for other in summary.findings if other.id != "bursts-pending")
    return summary.model_copy(update={"findings": order([*others, finding])})
