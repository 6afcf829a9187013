"""Selection of the next trial from the question and the results so far. Pure."""

from collections.abc import Mapping, Sequence
from itertools import chain, product
from typing import Any, Final, assert_never

from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.studies.search import next_offer
from broadside.coordinator.studies.sequential_rounds import is_budget_spent, is_over
from broadside.coordinator.studies.study import (
    AB,
    Drill,
    Inspection,
    Matrix,
    Mode,
    Search,
    SearchLoad,
    Staircase,
    StudySpec,
    Sweep,
    Trial,
    TrialResult,
)

# Time between the two bursts of a drill.
DRILL_GAP_S: Final = 20
OWN_COMMAND: Final = "own command"


def next_trial(study: StudySpec, results: Sequence[TrialResult]) -> Trial | None:
    """Return the next trial.

    Args:
        study: Study specification.
        results: Results of trials 0, 1, 2 and so on.

    Returns:
        The trial with its overrides. None if the study is complete.
    """
    question = study.question
    if isinstance(question, Search):
        if is_budget_spent(study, results):
            return None
        offer = next_offer(question, study.spec, results, study.sequential)
        if offer is None:
            return None
        if question.load is not SearchLoad.BITS:
            return _offered_connections(question.load, study.spec, len(results), offer)
        return _offered(study.spec, len(results), offer)
    if isinstance(question, Staircase):
        return next_load(question, study.spec, results)
    if isinstance(question, Drill):
        return None if results else _drilled(question, study.spec)
    if isinstance(question, Inspection):
        offers = _loads(question)
        index = len(results)
        return _offered(study.spec, index, offers[index]) if index < len(offers) else None
    trials = planned_trials(question)
    if study.sequential is not None and is_over(study, results, trials):
        return None
    return trials[len(results)] if len(results) < len(trials) else None


def _loads(question: Inspection) -> list[float]:
    """Return the load of each trial. Every second round is reversed, as in a sweep."""
    forward = question.offers_bits_per_second
    rounds = (forward[:: -1 if number % 2 else 1] for number in range(question.rounds_count))
    return list(chain.from_iterable(rounds))


def next_load(question: Staircase, spec: RunSpec, results: Sequence[TrialResult]) -> Trial | None:
    """Return the next hold, with the same load again until the device is stable.

    Args:
        question: The scale-out study.
        spec: Run specification.
        results: Results of all holds so far.

    Returns:
        The next trial, or None if there is none.
    """
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
    return _load_trial(question, spec, len(results), at)


def is_downward(question: Staircase, at: int) -> bool:
    """Return True if a load is lower than an earlier one. Such a load is used for only one hold.

    Args:
        question: The scale-out study.
        at: Index of the load.
    """
    offers = question.offers_bits_per_second[: at + 1]
    return len(offers) == at + 1 > 1 and offers[at] < max(offers)


def _load_trial(question: Staircase, spec: RunSpec, index: int, at: int) -> Trial:
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
    """Return all trials for a question with trials that do not depend on results."""
    match question:
        case Sweep():
            fields = [axis.field for axis in question.axes]
            forward = list(product(*(axis.values for axis in question.axes)))
            # Every second round is reversed, to balance the effect of drift.
            orders = (
                forward[:: -1 if number % 2 else 1] for number in range(question.rounds_count)
            )
            return tuple(
                Trial(
                    index=index,
                    overrides=dict(zip(fields, values, strict=True)),
                    says={f: str(v) for f, v in zip(fields, values, strict=True)},
                )
                for index, values in enumerate(chain.from_iterable(orders))
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
    """Return a trial with the event in one burst, and new sessions in a second one, with probes."""
    gap_s = spec.burst_s + spec.traffic.omit_s + DRILL_GAP_S
    overrides: Mapping[str, Any] = {
        "bursts_count": 2,
        "period_s": max(spec.period_s, gap_s),
        "traffic.probe": {"every_s": question.probe_every_s},
        "objective.target_bits_per_second": None,
    }
    return Trial(index=0, overrides=overrides, says={"event": question.state or OWN_COMMAND})


def _offered(spec: RunSpec, index: int, offer: float) -> Trial:
    """Return a trial in which the rate of the fleet is divided equally between all streams."""
    # In both directions, each stream has this rate.
    flows = spec.traffic.direction.flows
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


_REPLACED: Final = (
    "objective.target_bits_per_second",
    "objective.success_min_ratio",
    "objective.connections_min_per_second",
    "objective.held_min_count",
    "objective.dropped_max_count",
)


def _offered_connections(load: SearchLoad, spec: RunSpec, index: int, offer: float) -> Trial:
    """Return a trial in which new or held connections are divided equally between all pairs."""
    count = offer / spec.pairs_count
    options: Mapping[str, Any] = {"traffic.options.attempts_per_second": count}
    if load is SearchLoad.HELD:
        options = {"traffic.options.held_count": max(1, round(count))}
    return Trial(
        index=index,
        # The limits of the search replace the thresholds of the run.
        overrides={**options, **dict.fromkeys(_REPLACED)},
        says={f"offered_{load}": f"{offer:.0f}"},
        offered_connections_count=offer,
    )


def describe_trial(study: StudySpec, result: TrialResult) -> Mapping[str, str]:
    """Return the special values of a trial, as text by name.

    Args:
        study: Study specification.
        result: Result of the trial.

    Returns:
        Text by name, such as ``offered``. Empty if the trial has no special value.
    """
    question = study.question
    if isinstance(question, Drill):
        return {"event": question.state or OWN_COMMAND}
    if not isinstance(question, Search | Staircase | Inspection):
        return planned_trials(question)[result.index].says
    offer = result.offered
    if offer is None and isinstance(question, Staircase):
        return {"hold": "all there is"}
    load = question.load if isinstance(question, Search) else SearchLoad.BITS
    return {} if offer is None else {"offered": load.describe(offer)}


def trials_count(study: StudySpec) -> int:
    """Return the largest possible number of trials."""
    question = study.question
    if isinstance(question, Search):
        return question.trials_max_count
    if isinstance(question, Staircase):
        return question.holds_max_count
    if isinstance(question, Drill):
        return 1
    if isinstance(question, Inspection):
        return len(_loads(question))
    return len(planned_trials(question))
