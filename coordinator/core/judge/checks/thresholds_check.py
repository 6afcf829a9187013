"""Check that the thresholds of the objective are met."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, assert_never

from broadside.coordinator.core import words
from broadside.coordinator.core.goals import GOALS, Goal, Teller
from broadside.coordinator.core.judge.checks.check_types import BurstInput, Check, Result, Stage
from broadside.coordinator.core.judge.rates import WHOLE_RATIO
from broadside.coordinator.core.measure.measures import find
from broadside.coordinator.core.summary import (
    BurstSummary,
    DeviceFigure,
    Finding,
    Verdict,
    problem,
    worse,
)

# A device metric must be known for this share of the window. It is below 1, because the first and
# the last reading can extend beyond the window.
DEVICE_KNOWN_RATIO: Final = 0.8


@dataclass(frozen=True, slots=True)
class _Told:
    """A metric with its measured value.

    Attributes:
        where: Device or flow, as a prefix for the finding.
        low: Lowest possible value. None if it was not measured.
        high: Highest possible value. None if it was not measured.
        told_count: Number of pairs that have a value.
        said: Text that describes how much was measured.
        bound_s: Largest time error of the readings.
    """

    where: str
    low: float | None
    high: float | None
    told_count: int
    said: str
    bound_s: float = 0.0


def _evaluate(given: BurstInput) -> Result:
    """Compare all metrics with their thresholds.

    If a metric is not known for every pair, it cannot pass.
    """
    verdicts, findings = [Verdict.PASS], []
    for goal in GOALS:
        bound = getattr(given.spec.objective, goal.bound)
        for told in () if bound is None else _told(goal, given.burst):
            verdict, finding = _held(goal, bound, told, given.burst)
            verdicts.append(verdict)
            findings += [] if finding is None else [finding]
    return Result(worse(verdicts), tuple(findings))


def _held(
    goal: Goal, bound: float, told: _Told, burst: BurstSummary
) -> tuple[Verdict, Finding | None]:
    """Return the result for one metric with one threshold.

    It fails if all possible values are beyond the threshold. It passes if no possible value is
    beyond the threshold.
    """
    count = len(burst.pairs)
    whole = burst.completeness.completeness_ratio >= WHOLE_RATIO
    values = [value for value in (told.low, told.high) if value is not None]
    beyond = [goal.broken_by(value, bound) for value in values]
    if beyond and all(beyond):
        value = values[-1] if goal.is_floor else values[0]
        return Verdict.FAIL, problem(
            id=f"{goal.id}-limit",
            weight=90,
            sentence=f"{told.where}the {goal.words} is {goal.say(value)}, "
            f"the limit {goal.say(bound)}",
            next_step=goal.next_step,
        )
    if any(beyond):
        return Verdict.INCONCLUSIVE, problem(
            id=f"{goal.id}-unproven",
            weight=70,
            sentence=f"{told.where}the {goal.words} is between {goal.say(values[0])} and "
            f"{goal.say(values[-1])}: its readings are placed within {words.time(told.bound_s)}; "
            f"the limit is {goal.say(bound)}",
            next_step="use a source whose clock can be checked, or a burst longer than the bound",
        )
    if not values or told.told_count < count or not whole:
        return Verdict.INCONCLUSIVE, problem(
            id=f"{goal.id}-unproven",
            weight=70,
            sentence=f"{told.where}the {goal.words} {goal.teller} {told.said}; its limit of "
            f"{goal.say(bound)} needs all of them",
            next_step="make the witness answer, then run again"
            if goal.teller is Teller.DEVICE
            else "run again with every pair",
        )
    return Verdict.PASS, None


def _told(goal: Goal, burst: BurstSummary) -> Iterator[_Told]:
    """Yield a threshold's metric for each of its sources."""
    if goal.teller is Teller.DEVICE:
        yield from _told_of_devices(goal, burst)
        return
    for where, value, told_count in _told_by_pairs(goal, burst):
        yield _Told(where, value, value, told_count, f"{told_count} of {len(burst.pairs)} pairs")


def _told_of_devices(goal: Goal, burst: BurstSummary) -> Iterator[_Told]:
    """Yield a threshold's metric for each device.

    ``told_count`` is 0 if too little of the window is known.
    """
    quantity, _, statistic = goal.figure.partition(".")
    if not burst.devices:
        yield _Told("", None, None, 0, "no device")
    for device in burst.devices:
        seen: DeviceFigure | None = getattr(device, quantity)
        where = f"{device.device}: "
        if seen is None:
            yield _Told(where, None, None, 0, f"{words.ratio(0.0, 0)} of the window's seconds")
        else:
            yield _placed(where, seen, statistic, len(burst.pairs))


def _placed(where: str, seen: DeviceFigure, statistic: str, count: int) -> _Told:
    """Return a device metric with the range that time errors of its readings allow."""
    known = seen.covered_ratio
    low = high = getattr(seen, statistic)
    if seen.at_least is not None and seen.at_most is not None:
        low, high = getattr(seen.at_least, statistic), getattr(seen.at_most, statistic)
    said = f"{words.ratio(known, 0)} of the window's seconds"
    told_count = count if known >= DEVICE_KNOWN_RATIO else 0
    return _Told(where, low, high, told_count, said, seen.bound_s)


def _told_by_pairs(goal: Goal, burst: BurstSummary) -> Iterator[tuple[str, float | None, int]]:
    match goal.teller:
        case Teller.FLOW:
            for flow in burst.flows:
                yield f"{flow.flow}: ", getattr(flow, goal.figure), getattr(flow, goal.pairs_count)
        case Teller.MEASURE:
            found = find(burst.measures, goal.figure)
            yield ("", None, 0) if found is None else ("", found.value, found.pairs_count)
        case Teller.PROBE:
            seen = burst.latency
            if seen is None:
                yield "", None, 0
            else:
                yield "", getattr(seen.fleet.during, goal.figure), seen.whole_pairs_count
        case Teller.DEVICE:
            return
        case _:
            assert_never(goal.teller)


THRESHOLDS: Final = Check(
    id="thresholds",
    stage=Stage.THRESHOLD,
    question="Are the thresholds of the objective met?",
    formula="value <= threshold (or >= threshold for a minimum). The value must be known for every "
    "pair (engine, probes) or for 80 % of the window (telemetry). The threshold must be met for "
    "every time offset within the clock error of the source",
    reads="the metric that each threshold names: engine, probes or telemetry",
    when_absent="inconclusive",
    findings=tuple(f"{goal.id}-{outcome}" for goal in GOALS for outcome in ("limit", "unproven")),
    evaluate=_evaluate,
)
