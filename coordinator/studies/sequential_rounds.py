"""Rounds of a study that takes further bursts until its answer is certain. Pure.

The decision uses confidence sequences
(:mod:`broadside.coordinator.core.comparison.sequential`), so it can be made after every round.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

from broadside.coordinator.core import formatting
from broadside.coordinator.core.comparison.sequential import (
    ERROR_RATIO,
    ROUNDS_MIN_COUNT,
    Decision,
    SequentialResult,
    compare_rounds,
    expected_rounds_count,
)
from broadside.coordinator.core.plan.early_stop_estimate import DeviceHistory
from broadside.coordinator.studies.study import (
    AB,
    Question,
    Search,
    Sequential,
    StudySpec,
    Sweep,
    Trial,
    TrialResult,
)

# Scatter between bursts of a device without history.
SCATTER_RATIO: Final = 0.01


def round_size(question: Question) -> int:
    """Return the number of trials in a round."""
    match question:
        case AB():
            return 2
        case Sweep():
            return math.prod(len(axis.values) for axis in question.axes)
        case _:
            return 1


def round_rates(
    study: StudySpec, results: Sequence[TrialResult], trials: Sequence[Trial]
) -> list[Mapping[str, float]]:
    """Return the rates of each round in which all trials are complete, by alternative.

    Args:
        study: Study specification.
        results: Results of the trials in order.
        trials: All planned trials.
    """
    size, floor = round_size(study.question), study.spec.objective.coverage_floor_ratio
    rounds: list[Mapping[str, float]] = []
    for at in range(0, len(results) - size + 1, size):
        rates = {
            ", ".join(trials[result.index].says.values()): rate
            for result in results[at : at + size]
            if result.is_complete(floor) and (rate := result.received_bits_per_second)
        }
        if len(rates) == size:
            rounds.append(rates)
    return rounds


def comparisons(
    study: StudySpec, results: Sequence[TrialResult], trials: Sequence[Trial]
) -> tuple[SequentialResult, ...]:
    """Return the sequential comparison of an A/B study, or of a sweep's best value with the others.

    The error rate is divided among all pairs of values, because the best one is selected from the
    same bursts.

    Args:
        study: Study specification.
        results: Results of the trials in order.
        trials: All planned trials.

    Returns:
        One result for each pair of values with enough bursts. Empty for other kinds of study.
    """
    question, sequential = study.question, study.sequential
    rounds = round_rates(study, results, trials)
    if sequential is None or not rounds or not isinstance(question, AB | Sweep):
        return ()
    if isinstance(question, AB):
        pairs, error_ratio = [(question.a.name, question.b.name)], ERROR_RATIO
    else:
        means = {name: sum(rates[name] for rates in rounds) for name in rounds[0]}
        best = max(means, key=means.__getitem__)
        pairs = [(best, name) for name in means if name != best]
        error_ratio = ERROR_RATIO / max(1, len(list(combinations(means, 2))))
    compared = (
        compare_rounds(
            (a, b),
            [(rates[a], rates[b]) for rates in rounds],
            sequential.margin_ratio,
            error_ratio,
        )
        for a, b in pairs
    )
    return tuple(result for result in compared if result is not None)


def is_over(study: StudySpec, results: Sequence[TrialResult], trials: Sequence[Trial]) -> bool:
    """Return True if no further round is needed, or if the budget does not cover it.

    Args:
        study: Study specification.
        results: Results of the trials in order.
        trials: All planned trials.
    """
    if len(results) % round_size(study.question):
        return False
    compared = comparisons(study, results, trials)
    decided = bool(compared) and all(one.decision is not Decision.OPEN for one in compared)
    return decided or is_budget_spent(study, results)


def is_budget_spent(study: StudySpec, results: Sequence[TrialResult]) -> bool:
    """Return True if the next round is expected to exceed the budget.

    Args:
        study: Study specification.
        results: Results of the trials in order.
    """
    sequential = study.sequential
    costs = [result.cost_usd for result in results if result.cost_usd is not None]
    if sequential is None or sequential.budget_usd is None or not costs:
        return False
    next_usd = sum(costs) / len(costs) * round_size(study.question)
    return sum(costs) + next_usd > sequential.budget_usd


def expected_text(study: StudySpec, history: DeviceHistory | None = None) -> str | None:
    """Return the expected number of bursts.

    Args:
        study: Study specification.
        history: Earlier bursts of the device with the same traffic, if there are any. None if there
            are none.

    Returns:
        Text for the launch. None for a fixed number of trials.
    """
    sequential = study.sequential
    if sequential is None:
        return None
    bursts_count = study.spec.bursts_count
    size = round_size(study.question) * bursts_count
    if isinstance(study.question, Search):
        rates = math.ceil(math.log2(1 / study.question.precision_ratio)) + 1
        return (
            f"expected bursts: {ROUNDS_MIN_COUNT * size} for each rate where the loss is far from "
            f"the limit, at most {sequential.rounds_max_count * size}; about {rates} rates; at "
            f"most {study.question.trials_max_count * bursts_count} bursts in total"
        )
    known = None if history is None else history.between_ratio
    scatter_ratio = sequential.scatter_ratio or known or SCATTER_RATIO
    expected = _expected_rounds(study, sequential, scatter_ratio)
    most = sequential.rounds_max_count
    margin, scatter = map(formatting.ratio, (sequential.margin_ratio, scatter_ratio))
    limit = "" if expected <= most else "; that is above the limit, so the answer can stay open"
    budget = (
        f" or {formatting.dollars(sequential.budget_usd)}"
        if sequential.budget_usd is not None
        else ""
    )
    return (
        f"expected bursts: {ROUNDS_MIN_COUNT * size} for a large difference, about "
        f"{expected * size} for none or for one of twice the margin of {margin}, with a scatter of "
        f"{scatter} between bursts ({_scatter_source(sequential, history)}); at most "
        f"{most * size} bursts{budget}{limit}"
    )


def _scatter_source(sequential: Sequential, history: DeviceHistory | None) -> str:
    if sequential.scatter_ratio is not None:
        return "given"
    if history is None or not history.between_ratio:
        return "assumed"
    return f"from {history.bursts_count} earlier bursts of this device"


def _expected_rounds(study: StudySpec, sequential: Sequential, scatter_ratio: float) -> int:
    size = round_size(study.question)
    pairs = 1 if isinstance(study.question, AB) else size * (size - 1) // 2
    # Bursts of one trial are averaged.
    scatter = scatter_ratio / math.sqrt(study.spec.bursts_count)
    return expected_rounds_count(sequential.margin_ratio, scatter, ERROR_RATIO / max(1, pairs))


def notes(study: StudySpec, results: Sequence[TrialResult]) -> Iterator[str]:
    """Yield why a sequential study ended, and what its intervals mean.

    Args:
        study: Study specification.
        results: Results of the trials in order.
    """
    sequential = study.sequential
    if sequential is None:
        return
    if is_budget_spent(study, results):
        budget = formatting.dollars(sequential.budget_usd or 0.0)
        yield f"ended because the next round would exceed the budget of {budget}"
    if not isinstance(study.question, Search):
        yield (
            f"the intervals hold after every round, with an error rate of "
            f"{formatting.ratio(ERROR_RATIO, 0)} for the whole study; the 95 % intervals of the "
            "table of metrics hold for a fixed number of bursts only"
        )
