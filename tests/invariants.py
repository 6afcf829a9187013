"""Rules that must be true for every run, even when processes were killed.

:func:`broken` checks the stored data and returns a line for each violation. Every planned
pair-second should have exactly one state. If a message was delivered twice, it should only be
counted once. Sums should match. There should be no process or namespace left.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from broadside.coordinator.core.measure.completeness import combine
from broadside.coordinator.core.metrics import RECEIVED
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import BurstSummary, RunSummary, SecondState
from broadside.exchange.messages import Claim, JobReport
from broadside.exchange.records import Records
from broadside.lab.namespaces import list_namespaces, list_owned

# Values are stored with nine digits.
SUM_TOLERANCE_RATIO = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Stored data of a finished run.

    Attributes:
        plan: The plan.
        summary: The summary with the verdict.
        claims: Claims by burst and pair.
        reports: Reports by burst and pair.
    """

    plan: Plan
    summary: RunSummary
    claims: Mapping[int, Mapping[int, Claim]] = field(default_factory=dict)
    reports: Mapping[int, Mapping[int, JobReport]] = field(default_factory=dict)


async def read_stored(records: Records, plan: Plan, summary: RunSummary) -> Stored:
    """Read the data that :func:`broken` needs.

    Args:
        records: Storage to read from.
        plan: Plan of the run.
        summary: Summary of the run.
    """
    return Stored(
        plan=plan,
        summary=summary,
        claims={
            b.index: await records.bursts.read_claims(plan.run_id, b.index) for b in plan.bursts
        },
        reports={
            b.index: await records.bursts.read_reports(plan.run_id, b.index) for b in plan.bursts
        },
    )


def broken(stored: Stored) -> list[str]:
    """Return a line for each rule that is violated."""
    plan, summary = stored.plan, stored.summary
    results = []
    indices = [burst.index for burst in summary.bursts]
    if sorted(indices) != [burst.index for burst in plan.bursts]:
        results.append(f"bursts on record are {indices}, planned were {len(plan.bursts)}")
    for burst in summary.bursts:
        results += [f"burst {burst.index + 1}: {text}" for text in _burst(plan, burst)]
    planned_s = sum(burst.duration_s for burst in plan.bursts) * len(plan.pairs)
    if summary.completeness.planned_s != planned_s:
        results.append(f"{summary.completeness.planned_s} pair-seconds planned, {planned_s} asked")
    if combine(burst.completeness for burst in summary.bursts) != summary.completeness:
        results.append("the bursts' completeness does not add up to the run's")
    if summary.completeness.pending_s:
        results.append(f"{summary.completeness.pending_s} pair-seconds are pending in a judged run")
    results += _twice(stored)
    return results


def _burst(plan: Plan, burst: BurstSummary) -> Iterator[str]:
    planned_s = burst.duration_s * len(plan.pairs)
    seconds = {state: burst.completeness.seconds(state) for state in SecondState}
    if sum(seconds.values()) != planned_s:
        yield f"states add up to {sum(seconds.values())} of {planned_s} pair-seconds: {seconds}"
    if any(count < 0 for count in seconds.values()):
        yield f"a state has less than nothing: {seconds}"
    availability = burst.availability
    if availability is not None:
        if (
            availability.up_s + availability.down_s + availability.unknown_s != planned_s
            or availability.unknown_s < 0
        ):
            yield f"availability does not add up to {planned_s}: {availability}"
        seen_s = seconds[SecondState.MEASURED] + seconds[SecondState.LATE]
        if availability.up_s > seen_s:
            yield f"{availability.up_s} pair-seconds were up, {seen_s} were seen"
    if not burst.pairs:
        # If the run is large, the pairs will be in the documents of the bursts.
        return
    indices = Counter(pair.pair_index for pair in burst.pairs)
    if indices != Counter(pair.index for pair in plan.pairs):
        yield f"pairs on record are not the planned ones, each once: {sorted(indices.elements())}"
    received = [pair.received_bits_per_second for pair in burst.pairs]
    complete = RECEIVED.of_burst(burst)
    if complete is not None:
        # The rate of the fleet includes all rows. If a pair has no second in the window, it will
        # not be added.
        parts = math.fsum(rate for rate in received if rate is not None)
        if not math.isclose(parts, complete, rel_tol=SUM_TOLERANCE_RATIO, abs_tol=1.0):
            yield f"pairs received {parts:.9g} bit/s together, the fleet {complete:.9g}"


def _twice(stored: Stored) -> Iterator[str]:
    """Yield pairs with more than one claim, report or engine test in a burst."""
    yield from _wrong_claims(stored)
    cookies = Counter(
        report.engine.cookie
        for reports in stored.reports.values()
        for report in reports.values()
        if report.engine is not None and report.engine.cookie is not None
    )
    for cookie, count in cookies.items():
        if count > 1:
            yield f"test {cookie} is in {count} reports"
    for index, claims in stored.claims.items():
        holders = Counter(claim.agent_id for claim in claims.values())
        for agent_id, count in holders.items():
            if count > 1:
                yield f"burst {index + 1}: {agent_id} holds {count} pairs at one instant"


def _wrong_claims(stored: Stored) -> Iterator[str]:
    """Yield reports without a claim, or with a claim of another agent."""
    for index, reports in stored.reports.items():
        for pair_index, report in reports.items():
            text = f"burst {index + 1}, pair {pair_index + 1}"
            claim = stored.claims.get(index, {}).get(pair_index)
            if claim is None:
                yield f"{text}: reported by {report.agent_id}, claimed by nobody"
            elif claim.agent_id != report.agent_id:
                yield f"{text}: claimed by {claim.agent_id}, reported by {report.agent_id}"


def left_behind(prefix: str) -> list[str]:
    """Return processes and namespaces that should have been removed with the lab."""
    processes = [f"process {process.pid}: {process.command}" for process in list_owned(prefix)]
    return processes + [f"namespace {name}" for name in list_namespaces(prefix)]
