"""What a run has cost so far, and the burst before which it must stop. Pure.

As in :mod:`broadside.coordinator.core.plan.cost_estimate`, everything is priced at real scale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from broadside.coordinator.core.live.status import due_at
from broadside.coordinator.core.plan.cost_estimate import (
    ip_bytes_of,
    machines_of,
    not_charged_why,
    rate_of,
    usage_of,
)
from broadside.coordinator.core.plan.price import Bill, Prices, Span, charge, exactly
from broadside.coordinator.core.plan.spec import Burst, Plan, RunSpec
from broadside.coordinator.core.summary import RunSummary, caution, order
from broadside.coordinator.core.words import dollars
from broadside.exchange.messages import Control, Message, Presence, RunId

STOPPED_BY: Final = "broadside's budget"  # who cancelled a run that came to its budget


class PriceMeter(Message):
    """What a run has cost so far, and what it will have cost at its end."""

    run_id: RunId
    charged: bool  # whether Azure bills this run; the figures are at real scale in any case
    not_charged_why: str | None = None
    prices: str  # the table's name
    prices_as_of: date
    region: str
    measured_bytes: int  # payload as measured, over all bursts so far
    real_ip_bytes: float  # the same at real scale, at the IP layer: what is billed
    elapsed_s: float  # s since the launch; not beyond the run's end
    spent: Bill
    projected: Bill  # at the run's end
    budget_usd: float | None = None
    budget_left_usd: float | None = None
    stopped: str | None = None  # why the bursts to come were cancelled


class Basis(Message):
    """What a run's price rests on besides its bytes; kept with the run at its launch."""

    machines: Mapping[str, int]  # how many of each VM size; "" is an unknown one
    burst_ip_bytes: float | None  # estimated for one burst, at real scale
    burst_ip_bytes_low: float | None
    burst_ip_bytes_high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What is known of a run's traffic."""

    plan: Plan
    basis: Basis
    payload_bytes: Mapping[int, int]  # by burst: as measured, or so far; none: nobody has told yet
    over: frozenset[int]  # bursts that will send no more, measured or not

    @property
    def over_ip_bytes(self) -> Span:
        """Of the bursts that are over, at real scale; one that nobody has told of as expected."""
        told = [self.payload_bytes[i] for i in self.over if i in self.payload_bytes]
        untold = self.next_ip_bytes.times(len(self.over) - len(told))
        known = exactly(ip_bytes_of(self.plan.spec, sum(told)))
        return known.add(untold) if len(told) < len(self.over) else known

    @property
    def next_ip_bytes(self) -> Span:
        """Of a burst to come: the mean of those that are over, or the estimate."""
        measured = [self.payload_bytes[i] for i in self.over if self.payload_bytes.get(i)]
        if measured:
            return exactly(ip_bytes_of(self.plan.spec, sum(measured) / len(measured)))
        return Span(
            value=self.basis.burst_ip_bytes,
            low=self.basis.burst_ip_bytes_low,
            high=self.basis.burst_ip_bytes_high,
        )

    def charge(self, ip_bytes: Span, until_at: datetime, prices: Prices) -> Bill:
        """For so many bytes, and the time from the launch to ``until_at``."""
        elapsed_s = max(0.0, (until_at - self.plan.created_at).total_seconds())
        machines = {size or None: count for size, count in self.basis.machines.items()}
        spec, burst_bytes = self.plan.spec, self.basis.burst_ip_bytes
        burst_s = spec.burst_s + spec.traffic.omit_s
        rate = None if burst_bytes is None else burst_bytes * 8 / burst_s
        return charge(usage_of(spec, machines, ip_bytes, rate, elapsed_s, prices), prices)


def basis(spec: RunSpec, fleet: Sequence[Presence]) -> Basis:
    """On the live agents of now."""
    rate, _ = rate_of(spec, fleet)
    sent = rate.times((spec.burst_s + spec.traffic.omit_s) / 8)
    return Basis(
        machines={size or "": count for size, count in machines_of(spec, fleet).items()},
        burst_ip_bytes=sent.value,
        burst_ip_bytes_low=sent.low,
        burst_ip_bytes_high=sent.high,
    )


def measure(
    spending: Spending, prices: Prices, now: datetime, control: Control | None
) -> PriceMeter:
    """What a run has cost by ``now``, and will have cost at its end."""
    plan, spec = spending.plan, spending.plan.spec
    cancelled_at = None if control is None else control.cancelled_at
    ends_at = due_at(plan.bursts[-1])
    until_at = min(now, ends_at, cancelled_at or now)
    measured_bytes = sum(spending.payload_bytes.values())
    spent_bytes = ip_bytes_of(spec, measured_bytes)
    spent = projected = spending.charge(exactly(spent_bytes), until_at, prices)
    if cancelled_at is None:
        to_come = spending.over_ip_bytes
        for burst in plan.bursts:
            if burst.index not in spending.over:
                seen = ip_bytes_of(spec, spending.payload_bytes.get(burst.index, 0))
                to_come = to_come.add(spending.next_ip_bytes.at_least(seen))
        projected = spending.charge(to_come, ends_at, prices)
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


def crossing(spending: Spending, burst: Burst, prices: Prices) -> str | None:
    """Why ``burst`` must not begin: the run would cross its budget in it. None: it may.

    Every burst before it is over.
    """
    plan, budget = spending.plan, spending.plan.spec.budget_usd
    if budget is None or spending.next_ip_bytes.value is None:
        return None
    spent = spending.over_ip_bytes
    then = spending.charge(spent.add(spending.next_ip_bytes), burst.planned_end_at, prices)
    if then.total_usd is None or then.total_usd <= budget:
        return None
    before = spending.charge(spent, burst.planned_start_at, prices)
    return (
        f"budget: {dollars(before.total_usd)} spent when burst {burst.index + 1} of "
        f"{len(plan.bursts)} would begin, which would bring it to {dollars(then.total_usd)}, over "
        f"the budget of {dollars(budget)}"
    )


def stopped_by_budget(control: Control | None) -> bool:
    return control is not None and control.cancelled_by == STOPPED_BY


def ran(plan: Plan, control: Control | None) -> Plan:
    """The plan as far as its budget let it come; the whole of any other run.

    The budget stops a run between two bursts, so each burst ran whole or not at all.
    """
    if control is None or control.cancelled_at is None or not stopped_by_budget(control):
        return plan
    begun = tuple(b for b in plan.bursts if b.planned_start_at <= control.cancelled_at)
    return plan.model_copy(update={"bursts": begun or plan.bursts})


def with_budget(summary: RunSummary, plan: Plan, control: Control | None) -> RunSummary:
    """The summary of a run, which says that the budget ended it, where it did."""
    if control is None or not stopped_by_budget(control):
        return summary
    count = len(ran(plan, control).bursts)
    finding = caution(
        id="budget",
        weight=60,
        sentence=f"the budget ended the run: {count} of {len(plan.bursts)} bursts ran, and the "
        f"verdict is over those; {control.cancel_reason}",
        next_step="raise budget_usd to measure the rest",
    )
    return summary.model_copy(update={"findings": order([*summary.findings, finding])})
