from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel

from broadside.coordinator.core.comparison.conditions import (
    NO_CONDITIONS,
    NO_ENGINE_CONDITIONS,
    NO_FLEET_CONDITIONS,
    conditions_of,
)
from broadside.coordinator.core.run_spec import Plan, RunSpec
from broadside.exchange.messages import AgentState, EngineState, Presence, Probe, Role, Vxlan

NOW = datetime(2026, 11, 22, tzinfo=UTC)
SPEC = RunSpec(scenario="x", device={"sku": "premium"}, labels={"mode": "a"})
SPEC = SPEC.model_copy(
    update={
        "traffic": SPEC.traffic.model_copy(
            update={"probe": Probe(), "encapsulation": Vxlan(), "options": {"requests": 1}}
        )
    }
)
AGENT = Presence(
    agent_id="c1",
    role=Role.CLIENT,
    state=AgentState.IDLE,
    beat_at=NOW,
    started_at=NOW,
    address="192.0.2.1",
    broadside_version="1",
    engines=(EngineState(name="http", version="1"),),
)


def conditions(spec: RunSpec, agent: Presence = AGENT) -> Mapping[str, str]:
    plan = Plan(run_id="r", created_at=NOW, spec=spec, pairs=(), bursts=())
    return conditions_of(plan, [agent])


def changed(value: BaseModel, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field by dotted name, with a copy in which that field is changed."""
    for name in type(value).model_fields:
        inner = getattr(value, name)
        if isinstance(inner, BaseModel):
            for deeper, other in changed(inner, f"{path}{name}."):
                yield deeper, value.model_copy(update={name: other})
        elif isinstance(inner, Mapping):
            yield f"{path}{name}", value.model_copy(update={name: {**inner, "more": "x"}})
        else:
            yield f"{path}{name}", value.model_copy(update={name: other_than(inner)})
    for name, field in type(value).model_fields.items():
        if field.default is None and isinstance(getattr(value, name), BaseModel):
            yield f"{path}{name}", value.model_copy(update={name: None})


def other_than(value: Any) -> Any:
    if isinstance(value, Enum):
        return next(other for other in type(value) if other is not value)
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, tuple):
        return (*value, "more")
    return f"{value}x" if isinstance(value, str) else value + 1


FIELDS = dict(changed(SPEC))


@pytest.mark.parametrize("path", FIELDS)
def test_every_run_spec_field_is_a_condition_or_excluded(path: str) -> None:
    differ = conditions(SPEC) != conditions(FIELDS[path])
    assert differ is (path.partition(".")[0] not in NO_CONDITIONS)


def test_traffic_fields_are_covered_and_exclusions_exist() -> None:
    assert {path for path in FIELDS if path.startswith("traffic.encapsulation")}
    assert {f"traffic.{name}" for name in type(SPEC.traffic).model_fields} <= {
        ".".join(path.split(".")[:2]) for path in FIELDS
    }
    assert NO_CONDITIONS.keys() <= RunSpec.model_fields.keys()
    assert NO_FLEET_CONDITIONS.keys() <= Presence.model_fields.keys()
    assert NO_ENGINE_CONDITIONS.keys() <= EngineState.model_fields.keys()


@pytest.mark.parametrize("field", sorted(Presence.model_fields.keys() - NO_FLEET_CONDITIONS.keys()))
def test_every_host_field_is_a_condition(field: str) -> None:
    other = AGENT.model_copy(update={field: other_than(getattr(AGENT, field))})
    assert conditions(SPEC) != conditions(SPEC, other)


@pytest.mark.parametrize(
    "field", sorted(EngineState.model_fields.keys() - NO_ENGINE_CONDITIONS.keys())
)
def test_every_field_of_used_engine_is_a_condition(field: str) -> None:
    spec = SPEC.model_copy(update={"traffic": SPEC.traffic.model_copy(update={"engine": "http"})})
    state = AGENT.engines[0].model_copy(
        update={field: other_than(getattr(AGENT.engines[0], field))}
    )
    other = AGENT.model_copy(update={"engines": (state,)})
    assert conditions(spec) != conditions(spec, other)
    # The run uses iperf3, so the http engine should be ignored.
    assert conditions(SPEC) == conditions(SPEC, other)
