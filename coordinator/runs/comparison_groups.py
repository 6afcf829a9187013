"""Burst groups for a comparison, and the conditions in each group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from broadside.coordinator.core.comparison.conditions import conditions_of
from broadside.coordinator.core.comparison.group_comparison import (
    Comparison,
    Group,
    compare,
    observe,
)
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import BurstSummary, RunSummary
from broadside.coordinator.imports.import_requests import TABLES_SCENARIO
from broadside.coordinator.request_errors import EmptyGroup, RunNotOver
from broadside.coordinator.runs.requests import CompareRequest, Selection
from broadside.coordinator.runs.run_documents import read_fleet
from broadside.exchange.messages import Presence

if TYPE_CHECKING:
    from broadside.coordinator.runs.coordinator import Coordinator

# Labels that do not describe a measurement condition.
NOT_CONDITIONS: Final = ("timezone", "study", "trial")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run.

    Attributes:
        plan: The run plan.
        summary: The run summary.
        fleet: Agents at the launch. Empty for an imported run.
    """

    plan: Plan
    summary: RunSummary
    fleet: Sequence[Presence] = ()


async def compare_stored(coordinator: "Coordinator", request: CompareRequest) -> Comparison:
    """Compare two groups of bursts.

    Args:
        coordinator: The coordinator with the stored runs.
        request: The two groups to compare.

    Returns:
        Each metric with both means and the 95 % interval of its relative difference.

    Raises:
        UnknownRun: The run does not exist.
        RunNotOver: A run is not finished.
        EmptyGroup: A group has no burst.
    """
    a, b = [await _runs_of(coordinator, selection) for selection in (request.a, request.b)]
    return compare_runs(request, a, b)


async def _runs_of(coordinator: "Coordinator", selection: Selection) -> list[Run]:
    runs = []
    for run_id in selection.run_ids:
        summary = await coordinator.stored.summary(run_id)
        if summary is None:
            raise RunNotOver(run_id)
        fleet = await read_fleet(coordinator.fabric.records, run_id)
        plan = await coordinator.stored.read_plan(run_id)
        runs.append(Run(plan=plan, summary=summary, fleet=fleet))
    return runs


def compare_runs(
    request: CompareRequest, a_runs: Sequence[Run], b_runs: Sequence[Run]
) -> Comparison:
    """Compare group ``b`` with group ``a``.

    A label with different values is reported as a differing condition. The label under test is
    excepted. The request names it, or it is the only label that differs.

    Args:
        request: The two groups to compare.
        a_runs: Runs of group ``a``.
        b_runs: Runs of group ``b``.

    Returns:
        Each metric with both means and the 95 % interval of its relative difference.

    Raises:
        EmptyGroup: A group has no burst.
    """
    labels = (_labels(a_runs), _labels(b_runs))
    differ = {
        name
        for name in labels[0].keys() | labels[1].keys()
        if labels[0].get(name) != labels[1].get(name)
    }
    tested_label = request.label or (next(iter(differ)) if len(differ) == 1 else None)
    groups = [
        _group(side, selection, runs, group_labels, tested_label)
        for side, selection, runs, group_labels in zip(
            "ab", (request.a, request.b), (a_runs, b_runs), labels, strict=True
        )
    ]
    return compare(*groups)


def _group(
    side: str,
    selection: Selection,
    runs: Sequence[Run],
    labels: Mapping[str, str],
    tested_label: str | None,
) -> Group:
    bursts = sorted(
        (burst for run in runs for burst in run.summary.bursts if _chosen(burst, selection)),
        key=lambda burst: burst.planned_start_at,
    )
    name = selection.name or ", ".join(selection.run_ids)
    if not bursts:
        raise EmptyGroup(f"{side} {name}: no burst; {_span(runs)}")
    conditions = {
        f"label {key}": value
        for key, value in labels.items()
        if key != tested_label and key not in NOT_CONDITIONS
    }
    if tested_label is not None and tested_label in labels and selection.name is None:
        name = f"{name} ({tested_label}={labels[tested_label]})"
    layers = {run.summary.target_layer for run in runs}
    return Group(
        name=name,
        observations=tuple(observe(burst) for burst in bursts),
        conditions={**_merged([_conditions(run) for run in runs]), **conditions},
        layer=layers.pop() if len(layers) == 1 else None,
    )


def _chosen(burst: BurstSummary, selection: Selection) -> bool:
    after = selection.from_at is None or burst.planned_start_at > selection.from_at
    return after and (selection.before_at is None or burst.planned_end_at <= selection.before_at)


def _span(runs: Sequence[Run]) -> str:
    starts: list[datetime] = [
        burst.planned_start_at for run in runs for burst in run.summary.bursts
    ]
    if not starts:
        return "the run has none"
    return f"bursts start from {min(starts):%Y-%m-%dT%H:%M:%SZ} to {max(starts):%Y-%m-%dT%H:%M:%SZ}"


def _labels(runs: Sequence[Run]) -> Mapping[str, str]:
    return _merged([{**run.plan.spec.device, **run.plan.spec.labels} for run in runs])


def _conditions(run: Run) -> Mapping[str, str]:
    """Return the known conditions of a run. Imported tables lack the traffic settings."""
    conditions = conditions_of(run.plan, run.fleet)
    if run.plan.spec.scenario != TABLES_SCENARIO:
        return conditions
    return {name: text for name, text in conditions.items() if not name.startswith("traffic.")}


def _merged(parts: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """Merge mappings. Different values of a name are joined with "/"."""
    names = {name for part in parts for name in part}
    return {
        name: "/".join(sorted({part.get(name, "unknown") for part in parts}))
        for name in sorted(names)
    }
