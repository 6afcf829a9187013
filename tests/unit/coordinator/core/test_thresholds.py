import pytest

from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import Verdict
from broadside.coordinator.core.thresholds import (
    ALL_THRESHOLDS,
    CANARIES,
    DEVICE_TELEMETRY,
    PROBES,
    Objective,
    Threshold,
)
from broadside.exchange.engines import engines, measures, traffic_of
from broadside.exchange.messages import Traffic
from tests.planted import ids, summarise
from tests.synthetic import Plant, fleet

# By ``is_floor``: limits that are never met.
STRICT = {True: 2.0, False: -1.0}


# Fields of an objective that other checks use.
OTHER_CHECKS = {
    "target_bits_per_second",
    "layer",
    "tolerance_ratio",
    "residual_max_ratio",
    "start_spread_max_s",
    "coverage_floor_ratio",
    "stop",
    "sustain_min_s",
}


def test_every_objective_field_is_a_threshold_or_used_by_a_check() -> None:
    bounds = [threshold.bound for threshold in ALL_THRESHOLDS]
    assert sorted([*bounds, *OTHER_CHECKS]) == sorted(Objective.model_fields)
    assert len({threshold.id for threshold in ALL_THRESHOLDS}) == len(ALL_THRESHOLDS)


def test_engines_or_probes_measure_every_threshold() -> None:
    measured = {PROBES, CANARIES, DEVICE_TELEMETRY}
    for name in engines():
        for protocol in ("tcp", "udp"):
            measured |= measures(traffic_of(engine=name, protocol=protocol))
    measured |= measures(traffic_of(engine="connections", options={"mode": "hold", "tls": "any"}))
    assert {threshold.requires for threshold in ALL_THRESHOLDS} == measured


@pytest.mark.parametrize("threshold", ALL_THRESHOLDS, ids=lambda threshold: threshold.bound)
def test_threshold_without_measured_value_is_inconclusive(threshold: Threshold) -> None:
    made = fleet(Plant(pairs=2))
    assert summarise(made).verdict is Verdict.MEASURED
    result = summarise(made.aiming(**{threshold.bound: STRICT[threshold.is_floor]}))
    measured = threshold.requires in measures(made.plan.spec.traffic)
    ending, verdict = ("limit", Verdict.FAIL) if measured else ("unproven", Verdict.INCONCLUSIVE)
    assert result.verdict is verdict
    assert f"{threshold.id}-{ending}" in ids(result)


@pytest.mark.parametrize(
    "threshold",
    [threshold for threshold in ALL_THRESHOLDS if threshold.requires != DEVICE_TELEMETRY],
    ids=lambda threshold: threshold.bound,
)
def test_rejects_threshold_that_no_source_measures(threshold: Threshold) -> None:
    def objective_problems(traffic: Traffic) -> list[str]:
        objective = Objective.model_validate({threshold.bound: 0.5})
        spec = RunSpec(scenario="x", traffic=traffic, objective=objective)
        return [line for line in spec.problems() if line.startswith("objective.")]

    [problem] = objective_problems(traffic_of(engine="ftp"))
    assert problem.startswith(f"objective.{threshold.bound}: ")
    named = {PROBES: "traffic.probe=udp", CANARIES: "traffic.canary.consent"}
    assert named.get(threshold.requires, "thresholds: none") in problem
