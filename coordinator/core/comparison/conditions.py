"""Conditions that must be equal to compare two runs.

Every field is a condition, except for the fields in the tables below.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from broadside.coordinator.core.plain_fields import UNKNOWN_TEXTS, plain_fields
from broadside.coordinator.core.run_spec import Plan
from broadside.exchange.messages import Message, Presence

# Fields of a specification that may differ between comparable runs, with the reason.
NO_CONDITIONS: Final[Mapping[str, str]] = {
    "description": "text for people",
    "labels": "text for people; groups compare all labels except the one that defines them",
    "device": "description of the device; groups compare it like labels",
    "bursts_count": "number of measurements; it shows in the width of the intervals",
    "period_s": "time of the measurement",
    "align_to_period": "time of the measurement",
    "lead_s": "time of the measurement",
    "objective": "limits for the result, not a property of the traffic",
    "late_after_s": "late pairs are findings of their own run",
    "clock_bound_max_s": "missing pairs are findings of their own run",
    "disruption_drop_ratio": "definition of a disruption",
    "lease_s": "time that agents continue without a coordinator",
    "unattended_s": "time that agents continue without a coordinator",
    "unattended_until_at": "time that agents continue without a coordinator",
    "budget_usd": "limit for the cost",
    "guards": "limits that stop the traffic",
    "dry_run": "no traffic",
}
# Fields of an agent's presence that may differ between comparable fleets, with the reason.
NO_FLEET_CONDITIONS: Final[Mapping[str, str]] = {
    "agent_id": "a name; the properties of the host are compared",
    "role": "hosts are compared with hosts of the same role",
    "address": "a name",
    "nic": "a name; its rate and MTU are compared",
    "beat_at": "current value",
    "started_at": "current value",
    "state": "current value",
    "ports": "current value",
    "busy_ports": "current value",
    "clock": "current value; the clock errors of each burst are checked",
    "problem": "current value",
    "warnings": "reason for an unknown value; the unknown value itself is compared",
    "echo_port": "a name",
    "canary_ports": "a name",
    "allowed_networks": "allowed targets, not a property of the traffic",
    "engine_version": "the engine that the run used is compared",
    "engines": "the engine that the run used is compared",
    "passport": "each of its fields is compared if both sides know it",
}
# Name of the field with host information. Its unknown fields are not compared.
PASSPORT: Final = "passport"
NO_ENGINE_CONDITIONS: Final[Mapping[str, str]] = {
    "new_options": "a property of the version",
    "name": "a field of the traffic",
    "ports": "current value",
    "problem": "current value",
    "tls": "a field of the traffic",
}


def conditions_of(plan: Plan, fleet: Sequence[Presence]) -> Mapping[str, str]:
    """Return the conditions of a run.

    Args:
        plan: Plan for the run.
        fleet: Agents that were present at launch.

    Returns:
        The value of each condition, by the dotted name of its field.
    """
    text = _comparable(plan.spec, NO_CONDITIONS)
    text["scale"] = f"1:{plan.spec.scale:g}"
    return {**text, **_fleet(plan.spec.traffic.engine, fleet)}


def _fleet(engine: str, fleet: Sequence[Presence]) -> Mapping[str, str]:
    """Return the values of each field, for all hosts of each role."""
    values: dict[str, set[str]] = {}
    for agent in fleet:
        state = agent.engine(engine)
        message = _comparable(agent, NO_FLEET_CONDITIONS)
        for name, text in _comparable(state, NO_ENGINE_CONDITIONS).items() if state else ():
            message[f"engine.{name}"] = text
        passport = {} if agent.passport is None else plain_fields(agent.passport)
        message |= {
            f"{PASSPORT}.{n}": text for n, text in passport.items() if text not in UNKNOWN_TEXTS
        }
        for name, text in message.items():
            values.setdefault(f"{agent.role.value}.{name}", set()).add(text)
    return {name: ", ".join(sorted(texts)) for name, texts in values.items()}


def is_unreported(name: str, a: Mapping[str, str], b: Mapping[str, str]) -> bool:
    """Return True if a host field is unknown on at least one side.

    Such a field is not reported as a difference.

    Args:
        name: Name of the condition.
        a: Conditions of the first side.
        b: Conditions of the second side.
    """
    return f".{PASSPORT}." in name and not (name in a and name in b)


def _comparable(value: Message, exceptions: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text
        for name, text in plain_fields(value).items()
        if name.partition(".")[0] not in exceptions
    }
