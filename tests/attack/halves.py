"""Attacks that use lone surrogates, which can be in JSON but not in answers, logs and rows."""

import asyncio
import json
from collections.abc import Coroutine, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from broadside.coordinator.agent_gateway.enrolment import REPEAT_S
from broadside.coordinator.auth.audit import Audit
from broadside.exchange.messages import Role
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Entity
from tests.attack import Attack, attack_variants
from tests.attack.on_hosts import BASE, PORT, Port, make_row, port, write

HALF: Final = "\ud800"

_NAMED: Final = Entity(partition_key="p", row_key="k", properties={HALF: 1})
# The key is the field that should be in the answer. One of three operations has the value.
_OPERATIONS: Final[Mapping[str, dict[str, Any]]] = {
    "do": {"do": HALF, "id": "x.1"},
    "table": {"do": "get", "table": HALF, "partition": "p", "key": "k"},
    "partition": {"do": "get", "table": "results", "partition": HALF, "key": "k"},
    "key": {"do": "get", "table": "results", "partition": "presence", "key": HALF},
    "row[0]": write("upsert", make_row("k", partition=HALF)),
    "row[1]": write("upsert", make_row(HALF)),
    "row[2].json": write("upsert", make_row("client.c1", partition="presence", json=HALF)),
    "a name in row[2]": write(
        "upsert", Entity(partition_key="p", row_key="k", properties={HALF: 1})
    ),
    "a name in it": {"do": "ping", HALF: 1},
    "rows[0][1]": {"do": "batch", "table": "results", "id": "x.2", "rows": [["p", HALF, {}]]},
    "token": {"do": "complete", "id": "x.3", "token": HALF},
    "reason": {"do": "dead_letter", "id": "x.4", "token": "t", "reason": HALF, "description": ""},
    "session": {"do": "watch", "session": HALF, "partition": "run.run-1"},
    "folder": {"do": "put_raw", "id": "x.5", "folder": HALF, "file": "f"},
}


def _in_a_batch(field: str, operation: dict[str, Any]) -> Coroutine[Any, Any, str]:
    return _batched(port(), field, operation)


async def _batched(target: Port, field: str, operation: dict[str, Any]) -> str:
    """Check that the operation is rejected with the field name, and others succeed."""
    # A rejection should be recorded once in this time.
    since = utc_now() - timedelta(seconds=REPEAT_S)
    before, answer, after = await target.do("c1", [{"do": "ping"}, operation, {"do": "ping"}])
    assert before == after == {"ok": None}, "its neighbours are done"
    assert answer["said"].startswith(f"{field}: invalid Unicode"), answer
    async with asyncio.timeout(30):
        # The audit row is written concurrently with the answer.
        while True:
            rows, _ = await Audit(target.fabric.private).read(utc_now(), limit=100)
            stored = [row.path for row in rows if row.at >= since and row.by == "client.c1"]
            if any(quote(f"{field}: invalid") in path for path in stored):
                return str(answer["said"])
            await asyncio.sleep(0.02)


def _alone(path: str, body: dict[str, Any]) -> Coroutine[Any, Any, str]:
    return _send(port(), path, body)


async def _send(target: Port, path: str, body: dict[str, Any]) -> str:
    text = json.dumps(body).encode()
    reported = await target.ask("POST", f"{BASE}{path}", text, header=target.bearer("c1"))
    assert reported.status_code == 400, reported.text
    assert "invalid Unicode" in reported.text
    return reported.text


_JOIN: Final = {"code": "c", "agent_id": "a", "role": Role.CLIENT.value, "sha256": "0" * 64}
ATTACKS: Final[tuple[Attack, ...]] = (
    *(
        Attack(
            f"half a character in an operation: {field}",
            PORT,
            "an answer of 500, neighbours' answers, a missing audit row",
            partial(_in_a_batch, field, operation),
        )
        for field, operation in _OPERATIONS.items()
    ),
    *attack_variants(
        "half a character in a request to join: {}",
        PORT,
        "an answer of 500",
        lambda name: _alone("join", _JOIN | {name: HALF}),
        list(_JOIN),
    ),
    Attack(
        "half a character in a new secret's hash",
        PORT,
        "an answer of 500",
        lambda: _alone("renew", {"sha256": HALF}),
    ),
)
