"""Conditions that must be equal to compare two runs.

Every field is a condition, except for the fields in the tables below.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from broadside.coordinator.core.plan.plain_fields import NOT_SET, plain_fields
from broadside.coordinator.core.plan.spec import Plan
from broadside.exchange.messages import Message, Presence

# Fields of a specification that may differ between comparable runs, with the reason.
NO_CONDITIONS: Final[Mapping[str, str]] = {
    "description": "words for people",
    "labels": "people's words: groups compare them, but for the one that is meant to differ",
    "device": "what a launch says of the device: groups compare it as they do labels",
    "bursts_count": "how often was measured, not what; an interval's width says it",
    "period_s": "when was measured",
    "align_to_period": "when was measured",
    "lead_s": "when was measured",
    "objective": "what was asked of the figures, not of the traffic",
    "late_after_s": "which starts count; late pairs are findings of their own run",
    "clock_bound_max_s": "which agents stand down; they are missing pairs of their own run",
    "disruption_drop_ratio": "what is called a disruption",
    "lease_s": "how long agents go on without a coordinator",
    "unattended_s": "how long agents go on without a coordinator",
    "unattended_until_at": "how long agents go on without a coordinator",
    "budget_usd": "what it may cost",
}
# Fields of an agent's presence that may differ between comparable fleets, with the reason.
NO_FLEET_CONDITIONS: Final[Mapping[str, str]] = {
    "agent_id": "a name; what the host is, is compared",
    "role": "each role is compared with its like",
    "address": "a name",
    "nic": "a name; its cap and its MTU are compared",
    "beat_at": "of the moment",
    "started_at": "of the moment",
    "state": "of the moment",
    "ports": "of the moment",
    "busy_ports": "of the moment",
    "clock": "of the moment; each burst's clock bounds are judged",
    "problem": "of the moment",
    "warnings": "why a value is unknown; the unknown value is compared itself",
    "echo_port": "a name",
    "allowed_networks": "whom it may test, not how",
    "engine_version": "the engine that the run used is compared",
    "engines": "the engine that the run used is compared",
    "passport": "each of its fields is compared, where both sides know it",
}
# Name of the field with host information. Its unknown fields are not compared.
PASSPORT: Final = "passport"
UNKNOWN: Final = (NOT_SET, "()")
NO_ENGINE_CONDITIONS: Final[Mapping[str, str]] = {
    "name": "the traffic's own field",
    "ports": "of the moment",
    "problem": "of the moment",
}


def conditions_of(plan: Plan, fleet: Sequence[Presence]) -> Mapping[str, str]:
    """Return the conditions of a run.

    Args:
        plan: Plan for the run.
        fleet: Agents that were present at launch.

    Returns:
        The value of each condition, by the dotted name of its field.
    """
    said = _kept(plan.spec, NO_CONDITIONS)
    said["scale"] = f"1:{plan.spec.scale:g}"
    return {**said, **_fleet(plan.spec.traffic.engine, fleet)}


def _fleet(engine: str, fleet: Sequence[Presence]) -> Mapping[str, str]:
    """Return the values of each field, for all hosts of each role."""
    values: dict[str, set[str]] = {}
    for agent in fleet:
        state = agent.engine(engine)
        said = _kept(agent, NO_FLEET_CONDITIONS)
        for name, text in _kept(state, NO_ENGINE_CONDITIONS).items() if state else ():
            said[f"engine.{name}"] = text
        passport = {} if agent.passport is None else plain_fields(agent.passport)
        said |= {f"{PASSPORT}.{n}": text for n, text in passport.items() if text not in UNKNOWN}
        for name, text in said.items():
            values.setdefault(f"{agent.role.value}.{name}", set()).add(text)
    return {name: ", ".join(sorted(texts)) for name, texts in values.items()}


def is_untold(name: str, a: Mapping[str, str], b: Mapping[str, str]) -> bool:
    """Return True if a host field is unknown on at least one side.

    Such a field is not reported as a difference.

    Args:
        name: Name of the condition.
        a: Conditions of the first side.
        b: Conditions of the second side.
    """
    return f".{PASSPORT}." in name and not (name in a and name in b)


def _kept(value: Message, exceptions: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text
        for name, text in plain_fields(value).items()
        if name.partition(".")[0] not in exceptions
    }
