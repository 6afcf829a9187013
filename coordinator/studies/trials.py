"""Which trial comes next: a function of the question and the results so far. Pure."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final, assert_never

from broadside.coordinator.core import words
from broadside.coordinator.core.plan.spec import RunSpec
from broadside.coordinator.studies.search import next_offer
from broadside.coordinator.studies.study import (
    AB,
    Drill,
    Matrix,
    Mode,
    Search,
    Staircase,
    StudySpec,
    Sweep,
    Trial,
    TrialResult,
)

DRILL_GAP_S: Final = 20  # s between a drill's two bursts
OWN_COMMAND: Final = "own command"


def next_trial(study: StudySpec, results: Sequence[TrialResult]) -> Trial | None:
    """The trial after ``results``, which are those of trials 0, 1, 2...; None: there is none."""
    question = study.question
    if isinstance(question, Search):
        offer = next_offer(question, study.spec, results)
        return None if offer is None else _offered(study.spec, len(results), offer)
    if isinstance(question, Staircase):
        return next_hold(question, study.spec, results)
    if isinstance(question, Drill):
        return None if results else _drilled(question, study.spec)
    trials = planned_trials(question)
    return trials[len(results)] if len(results) < len(trials) else None


def next_hold(question: Staircase, spec: RunSpec, results: Sequence[TrialResult]) -> Trial | None:
    """The load that is held next: the same again until the device has settled under it."""
    count = len(question.offers_bits_per_second) or 1
    at, quiet_s = 0, 0.0
    for result in results:
        scaling = result.scaling
        if scaling is None or scaling.carried or is_downward(question, at):
            at, quiet_s = at + 1, 0.0
            continue
        quiet_s = scaling.quiet_s + (0.0 if scaling.steps_count else quiet_s)
        if quiet_s >= question.settle_s:
            at, quiet_s = at + 1, 0.0
    if at >= count or len(results) >= question.holds_max_count:
        return None
    return _held(question, spec, len(results), at)


def is_downward(question: Staircase, at: int) -> bool:
    """Whether an offer is less than one before it: such a load is held once."""
    offers = question.offers_bits_per_second[: at + 1]
    return len(offers) == at + 1 > 1 and offers[at] < max(offers)


def _held(question: Staircase, spec: RunSpec, index: int, at: int) -> Trial:
    more = {"burst_s": question.hold_s, "bursts_count": 1}
    if not question.offers_bits_per_second:
        return Trial(
            index=index,
            overrides={**more, "objective.target_bits_per_second": None},
            says={"hold": "all there is"},
        )
    trial = _offered(spec, index, question.offers_bits_per_second[at])
    return trial.model_copy(update={"overrides": {**trial.overrides, **more}})


def planned_trials(question: Sweep | AB | Matrix) -> tuple[Trial, ...]:
    """Every trial of a question whose trials do not depend on results, in order."""
    match question:
        case Sweep():
            fields = [axis.field for axis in question.axes]
            return tuple(
                Trial(
                    index=index,
                    overrides=dict(zip(fields, values, strict=True)),
                    says={f: str(v) for f, v in zip(fields, values, strict=True)},
                )
                for index, values in enumerate(product(*(axis.values for axis in question.axes)))
            )
        case AB():
            a, b = question.a, question.b
            return _in_modes([a, b, b, a] * question.rounds_count)
        case Matrix():
            return _in_modes([*question.modes] * question.rounds_count)
        case _:
            assert_never(question)


def _in_modes(modes: Sequence[Mode]) -> tuple[Trial, ...]:
    return tuple(
        Trial(index=index, overrides=mode.overrides, says={"mode": mode.name}, mode=mode.name)
        for index, mode in enumerate(modes)
    )


def _drilled(question: Drill, spec: RunSpec) -> Trial:
    """A burst with the event, and one whose sessions open after it; probes beside both."""
    apart_s = spec.burst_s + spec.traffic.omit_s + DRILL_GAP_S
    overrides: Mapping[str, Any] = {
        "bursts_count": 2,
        "period_s": max(spec.period_s, apart_s),
        "traffic.probe": {"every_s": question.probe_every_s},
        "objective.target_bits_per_second": None,
    }
    return Trial(index=0, overrides=overrides, says={"event": question.state or OWN_COMMAND})


def _offered(spec: RunSpec, index: int, offer: float) -> Trial:
    """A trial that offers the fleet's rate in equal parts to all its streams, of all flows."""
    flows = spec.traffic.direction.flows  # both directions send each stream's rate
    streams = spec.pairs_count * spec.traffic.streams_count * len(flows)
    overrides: Mapping[str, Any] = {
        "traffic.stream_bits_per_second": max(1, round(offer / streams)),
        "objective.target_bits_per_second": None,
    }
    return Trial(
        index=index,
        overrides=overrides,
        says={"offered_bits_per_second": f"{offer:.0f}"},
        offered_bits_per_second=offer,
    )


def says(study: StudySpec, result: TrialResult) -> Mapping[str, str]:
    """What was special about the trial of a result, as text by name."""
    question = study.question
    if isinstance(question, Drill):
        return {"event": question.state or OWN_COMMAND}
    if not isinstance(question, Search | Staircase):
        return planned_trials(question)[result.index].says
    offer = result.offered_bits_per_second
    if offer is None and isinstance(question, Staircase):
        return {"hold": "all there is"}
    return {} if offer is None else {"offered": words.rate(offer)}


def trials_count(study: StudySpec) -> int:
    """How many trials there will be at most."""
    question = study.question
    if isinstance(question, Search):
        return question.trials_max_count
    if isinstance(question, Staircase):
        return question.holds_max_count
    if isinstance(question, Drill):
        return 1
    return len(planned_trials(question))
