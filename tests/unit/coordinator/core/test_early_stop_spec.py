"""Tests for the rules on ``objective.stop``."""

from typing import Any

import pytest

from broadside.coordinator import scenarios
from broadside.coordinator.core.measure.telemetry import Quantity
from broadside.coordinator.core.plan.planner import PlanContext
from broadside.coordinator.core.plan.planner import plan as make_plan
from broadside.coordinator.studies.study import StudyRequest
from tests.unit.coordinator.presences import NOW, fleet

CERTAIN = {"objective.stop": "when-certain"}


def problems(scenario: str = "burst-280s", **overrides: Any) -> str:
    changes = {**CERTAIN, **{name.replace("__", "."): value for name, value in overrides.items()}}
    try:
        scenarios.load(scenario, changes)
    except scenarios.BadScenario as error:
        return str(error)
    return ""


def test_a_scenario_with_a_target_may_stop() -> None:
    assert problems() == ""
    spec = scenarios.load("burst-280s", CERTAIN)
    assert spec.sustain_least_s == 60
    assert spec.may_end_early
    assert not scenarios.load("burst-280s").may_end_early


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"objective__target_bits_per_second": None},
            ("objective.stop", "none is set", "set objective.target_bits_per_second"),
        ),
        ({"traffic__engine": "http"}, ("objective.stop", "http", "traffic.engine=iperf3")),
        ({"burst_s": 45}, ("objective.stop", "45 s", "60 s", "burst_s above it")),
        (
            {"description": "as RFC 9411 requires", "burst_s": 400, "objective__sustain_min_s": 90},
            ("objective.sustain_min_s: 90 s", "300 s", "RFC 9411"),
        ),
        ({"description": "as RFC 9411 requires"}, ("280 s", "shortest duration of 300 s")),
        ({"objective__stop": None, "objective__sustain_min_s": 90}, ("90 s has no effect",)),
    ],
)
def test_problems_name_field_value_and_fix(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    text = problems(**changes)
    for term in words:
        assert term in text


def test_soaks_and_drills_must_not_stop() -> None:
    assert "objective.stop: when-certain is not allowed in the scenario soak" in problems("soak")
    # A copy of the scenario under another name is a soak as well.
    assert "a soak looks for changes" in problems(bursts_count=25, period_s=1800, burst_s=1740)
    assert problems(bursts_count=24, period_s=1800, burst_s=1740) == ""
    request = StudyRequest.model_validate(
        {"scenario": "burst-280s", "overrides": CERTAIN, "question": {"kind": "drill"}, "by": "me"}
    )
    with pytest.raises(scenarios.BadScenario, match="not allowed in a study of kind drill"):
        request.study()


def test_rfc_9411_in_the_description_needs_300_seconds() -> None:
    assert scenarios.load("jumbo-1740s", CERTAIN).sustain_least_s == 300


@pytest.mark.parametrize(
    "fields", [{"labels": {"method": "RFC9411"}}, {"labels": {"rfc-9411": "yes"}}]
)
def test_rfc_9411_in_a_label_needs_300_seconds(fields: dict[str, Any]) -> None:
    assert "shortest duration of 300 s" in problems(**fields)


@pytest.mark.parametrize(
    ("device", "warned"),
    [({"sku": "premium"}, True), ({"sku": "premium", "capacity_units": "20"}, False), ({}, False)],
)
def test_autoscaling_devices_are_warned_about(device: dict[str, str], warned: bool) -> None:
    spec = scenarios.load("burst-280s", {**CERTAIN, "pairs_count": 2, "device": device})
    plan = make_plan(spec, fleet(2), NOW, "run-1")
    text = [line for line in plan.warnings if line.startswith("objective.stop")]
    assert bool(text) is warned


def test_a_device_that_reports_its_units_is_warned_about() -> None:
    spec = scenarios.load("burst-280s", {**CERTAIN, "pairs_count": 2})
    for quantity, warned in ((Quantity.UNITS, True), (Quantity.CPU, False)):
        site = PlanContext(telemetry={"fw-a": {quantity}})
        warnings = make_plan(spec, fleet(2), NOW, "run-1", site).warnings
        assert bool([line for line in warnings if "fw-a may change its number" in line]) is warned


def test_plans_without_it_have_the_same_bytes_and_seal() -> None:
    spec = scenarios.load("burst-280s", {"pairs_count": 2})
    plan = make_plan(spec, fleet(2), NOW, "run-1")
    text = plan.document.decode()
    for name in ("stop", "sustain_min_s", "may_end_early", "requested_s"):
        assert f'"{name}"' not in text
    assert "may_end_early" not in next(plan.jobs(plan.bursts[0])).body.decode()
    objective = spec.objective.model_copy(update={"stop": "when-certain"})
    with_stop = spec.model_copy(update={"objective": objective})
    certain = make_plan(with_stop, fleet(2), NOW, "run-1")
    assert '"stop":"when-certain"' in certain.document.decode()
    assert certain.seal_sha256 != plan.seal_sha256
