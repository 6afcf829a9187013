"""What of a run goes along when a trial has another engine make its traffic. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.core.goals import GOALS, PROBES
from coordinator.core.plan.spec import RunSpec
from exchange.engines import find, traffic_of
from exchange.engines.port import EVERY_ENGINE


def with_engine(spec: RunSpec, name: str) -> Mapping[str, Any]:
    """The specification's plain values for the engine of that name.

    A field that stands as the first engine has it by itself is nobody's wish, so the other engine
    has it its own way; so it has what it does not take. The first engine's options go, and so do
    goals that the other's figures do not answer.
    """
    values = spec.model_dump(mode="json")
    engine = find(name)
    if engine is None or name == spec.traffic.engine:
        return values  # what no engine is will be refused by name
    usual = dict(traffic_of(engine=spec.traffic.engine))
    takes = (engine.honours | EVERY_ENGINE) - {"engine", "options"}
    wished = {field for field, value in spec.traffic if value != usual[field]}
    traffic = {"engine": name} | {
        field: value for field, value in values["traffic"].items() if field in wished & takes
    }
    measured = engine.measures(traffic_of(**traffic)) | {PROBES}
    unanswered = [goal.bound for goal in GOALS if goal.needs not in measured]
    objective = values["objective"] | dict.fromkeys(unanswered)
    return {**values, "traffic": traffic, "objective": objective}


def differences(spec: RunSpec, name: str) -> Iterator[str]:
    """What a run by that engine has otherwise than the specification, as ``field: value``."""
    other = RunSpec.model_validate(with_engine(spec, name))
    for part, before, after in (
        ("traffic", spec.traffic, other.traffic),
        ("objective", spec.objective, other.objective),
    ):
        for field, value in dict(before).items():
            now = dict(after)[field]
            if now != value and field != "engine":
                said = "none" if now in (None, {}) else getattr(now, "value", now)
                yield f"{part}.{field}: {said}"
