"""Check: are the thresholds met that the objective sets?"""

from collections.abc import Iterator
from typing import Final, assert_never

from broadside.coordinator.core import words
from broadside.coordinator.core.goals import GOALS, Goal, Teller
from broadside.coordinator.core.judge.checks.check_types import BurstInput, Check, Result, Stage
from broadside.coordinator.core.judge.rates import WHOLE_RATIO
from broadside.coordinator.core.measure.measures import find
from broadside.coordinator.core.summary import BurstSummary, Verdict, problem, worse

DEVICE_KNOWN_RATIO: Final = 0.8  # of a window's seconds: its first and last readings reach out


def _evaluate(given: BurstInput) -> Result:
    """Hold every threshold; one that was not measured for every pair is not met."""
    spec, burst = given.spec, given.burst
    count = len(burst.pairs)
    whole = burst.completeness.completeness_ratio >= WHOLE_RATIO
    verdicts, findings = [Verdict.PASS], []
    for goal in GOALS:
        bound = getattr(spec.objective, goal.bound)
        for where, value, told_count, of_what in () if bound is None else _told(goal, burst):
            if value is not None and goal.broken_by(value, bound):
                verdicts.append(Verdict.FAIL)
                findings.append(
                    problem(
                        id=f"{goal.id}-limit",
                        weight=90,
                        sentence=f"{where}the {goal.words} is {goal.say(value)}, "
                        f"the limit {goal.say(bound)}",
                        next_step=goal.next_step,
                    )
                )
            elif value is None or told_count < count or not whole:
                verdicts.append(Verdict.INCONCLUSIVE)
                findings.append(
                    problem(
                        id=f"{goal.id}-unproven",
                        weight=70,
                        sentence=f"{where}the {goal.words} {goal.teller} {of_what}; its limit of "
                        f"{goal.say(bound)} needs all of them",
                        next_step="make the witness answer, then run again"
                        if goal.teller is Teller.DEVICE
                        else "run again with every pair",
                    )
                )
    return Result(worse(verdicts), tuple(findings))


def _told(goal: Goal, burst: BurstSummary) -> Iterator[tuple[str, float | None, int, str]]:
    """Whose figure it is, the figure, how many pairs told it, and that in words."""
    if goal.teller is Teller.DEVICE:
        yield from _told_of_devices(goal, burst)
        return
    for where, value, told_count in _told_by_pairs(goal, burst):
        yield where, value, told_count, f"{told_count} of {len(burst.pairs)} pairs"


def _told_of_devices(
    goal: Goal, burst: BurstSummary
) -> Iterator[tuple[str, float | None, int, str]]:
    """Each device's own; one of which too little of the window is known is not told of."""
    quantity, _, statistic = goal.figure.partition(".")
    if not burst.devices:
        yield "", None, 0, "no device"
    for device in burst.devices:
        seen = getattr(device, quantity)
        known = 0.0 if seen is None else seen.covered_ratio
        value = None if seen is None else getattr(seen, statistic)
        told_count = len(burst.pairs) if known >= DEVICE_KNOWN_RATIO else 0
        said = f"{words.ratio(known, 0)} of the window's seconds"
        yield f"{device.device}: ", value, told_count, said


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
    question="Are the thresholds met that the objective sets?",
    formula="value <= limit (or >= for a floor), known for every pair or for 80 % of the window",
    reads="the metric that each threshold names: engine, probes or telemetry",
    when_absent="inconclusive",
    findings=tuple(f"{goal.id}-{outcome}" for goal in GOALS for outcome in ("limit", "unproven")),
    evaluate=_evaluate,
)
