"""What the content of an agent's row must say, given its key and the agent's credential.

The rights (:mod:`broadside.coordinator.hosts.agent_rights`) decide which keys an agent may write.
The reader of the rows joins them by their content. So each field that names an agent, a run, a
pair, an endpoint's port or the start of a test must repeat the key, which names the writer.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from broadside.exchange.ports import PROPERTY_MAX_BYTES, Entity
from broadside.exchange.records.keys import ASK, CLAIM, PRESENCE, REPORT, epoch_ms
from broadside.exchange.rows import bounded_json

TEST: Final = "test"  # a server's record of one test

# By kind of row: the content's fields, with the fact of the key or credential that each repeats.
CONTENT_RULES: Final[Mapping[str, Mapping[str, str]]] = {
    CLAIM: {"agent_id": "agent", "job_id": "job"},
    REPORT: {
        "agent_id": "agent",
        "job_id": "job",
        "run_id": "run",
        "burst_index": "burst",
        "pair_index": "pair",
    },
    PRESENCE: {"agent_id": "agent", "role": "role"},
    TEST: {
        "agent_id": "agent",
        "endpoint.agent_id": "agent",
        "endpoint.port": "port",
        "started_at": "started_ms",
    },
    ASK: {"vni": "vni", "opened_by": "job"},
}


def wrong_field(kind: str, row: Entity, facts: Mapping[str, object]) -> str | None:
    """Return the first field whose value is not the fact that it must repeat; None: all are.

    Args:
        kind: A key of :data:`CONTENT_RULES`.
        row: The row, whose content is JSON in the property ``json``.
        facts: By name, what the row's key and the writer's credential say.
    """
    content = _content(row)
    for path, name in CONTENT_RULES[kind].items():
        if _value_at(content, path) != facts[name]:
            return path
    return None


def _content(row: Entity) -> Any:
    """Return the row's JSON; None where there is none."""
    try:
        return json.loads(bounded_json(str(row.properties.get("json")), PROPERTY_MAX_BYTES))
    except ValueError:
        return None


def _value_at(content: Any, path: str) -> object:
    for name in path.split("."):
        content = content.get(name) if isinstance(content, dict) else None
    if path != "started_at":
        return content
    try:
        return epoch_ms(datetime.fromisoformat(str(content)))
    except (ValueError, TypeError, OverflowError):  # no instant, or one without its zone
        return None
