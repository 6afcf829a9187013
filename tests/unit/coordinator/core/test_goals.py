"""A goal that nothing judges cannot exist, and one that nothing measured is never met."""

import pytest

from broadside.coordinator.core.goals import GOALS, JUDGED_APART, PROBES, WITNESSES, Goal
from broadside.coordinator.core.plan.spec import Objective, RunSpec
from broadside.coordinator.core.summary import Verdict
from broadside.exchange.engines import engines, measures, traffic_of
from broadside.exchange.messages import Traffic
from tests.planted import ids, summarise
from tests.synthetic import Plant, fleet

STRICT = {True: 2.0, False: -1.0}  # by is_floor: nothing keeps these


def test_every_field_of_an_objective_is_a_goal_or_judged_apart() -> None:
    bounds = [goal.bound for goal in GOALS]
    assert sorted([*bounds, *JUDGED_APART]) == sorted(Objective.model_fields)
    assert len({goal.id for goal in GOALS}) == len(GOALS)


def test_every_goal_can_be_measured_by_some_engine_or_by_probes() -> None:
    told = {PROBES, WITNESSES}
    for name in engines():
        for protocol in ("tcp", "udp"):
            told |= measures(traffic_of(engine=name, protocol=protocol))
    assert {goal.needs for goal in GOALS} == told


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.bound)
def test_a_goal_is_judged_and_without_its_figure_is_inconclusive(goal: Goal) -> None:
    made = fleet(Plant(pairs=2))
    assert summarise(made).verdict is Verdict.MEASURED
    found = summarise(made.aiming(**{goal.bound: STRICT[goal.is_floor]}))
    told = goal.needs in measures(made.plan.spec.traffic)
    ending, verdict = ("limit", Verdict.FAIL) if told else ("unproven", Verdict.INCONCLUSIVE)
    assert found.verdict is verdict
    assert f"{goal.id}-{ending}" in ids(found)


@pytest.mark.parametrize(
    "goal", [goal for goal in GOALS if goal.needs != WITNESSES], ids=lambda goal: goal.bound
)
def test_a_launch_is_refused_where_nothing_measures_the_goal(goal: Goal) -> None:
    def said(traffic: Traffic) -> list[str]:
        objective = Objective.model_validate({goal.bound: 0.5})
        spec = RunSpec(scenario="x", traffic=traffic, objective=objective)
        return [line for line in spec.problems() if line.startswith("objective.")]

    [problem] = said(traffic_of(engine="ftp"))
    assert problem.startswith(f"objective.{goal.bound}: ")
    assert ("traffic.probe=udp" if goal.needs == PROBES else "that it can answer: none") in problem
