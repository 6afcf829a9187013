"""Which trial comes next: a function of the question and the results so far. Pure."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, assert_never

from coordinator.core import words
from coordinator.core.plan.spec import RunSpec
from coordinator.studies.search import next_offer
from coordinator.studies.study import (
    AB,
    Matrix,
    Mode,
    Search,
    StudySpec,
    Sweep,
    Trial,
    TrialResult,
)


def next_trial(study: StudySpec, results: Sequence[TrialResult]) -> Trial | None:
    """The trial after ``results``, which are those of trials 0, 1, 2...; None: there is none."""
    question = study.question
    if isinstance(question, Search):
        offer = next_offer(question, study.spec, results)
        return None if offer is None else _offered(question, study.spec, len(results), offer)
    trials = planned_trials(question)
    return trials[len(results)] if len(results) < len(trials) else None


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


def _offered(question: Search, spec: RunSpec, index: int, offer: float) -> Trial:
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
    if not isinstance(question, Search):
        return planned_trials(question)[result.index].says
    offer = result.offered_bits_per_second
    return {} if offer is None else {"offered": words.rate(offer)}


def trials_count(study: StudySpec) -> int:
    """How many trials there will be at most."""
    question = study.question
    if isinstance(question, Search):
        return question.trials_max_count
    return len(planned_trials(question))
