"""Attacks by a compromised remote agent with a valid credential."""

import asyncio
import json
import secrets
import time
import zlib
from datetime import timedelta
from functools import partial
from typing import Any, Final
from unittest import mock

from broadside.coordinator.agent_gateway import exchange_service
from broadside.coordinator.agent_gateway.agent_permissions import AgentPermissions
from broadside.coordinator.auth.static_tokens import digest
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Delivery, EntityExists, EntityRefused, Outgoing
from broadside.exchange.row_text import entity_fields
from tests.attack import Attack, attack_variants
from tests.attack.on_hosts import (
    BASE,
    OWN_RAW,
    PORT,
    Port,
    at_port,
    claim,
    job,
    joined,
    make_row,
    refused,
    write,
)

_TURNED: Final[dict[str, dict[str, Any]]] = {
    "another's claim": write("upsert", claim(1, "c1")),
    "its own claim as another's": write("upsert", claim(0, "c2")),
    "another's report": write("upsert", make_row("report.00001", json='{"agent_id":"c1"}')),
    "another's seconds": write("upsert", make_row("chunk.client.00001.000")),
    "another's seconds among its own": {
        "id": "b",
        "do": "batch",
        "table": "results",
        "rows": [entity_fields(make_row(f"chunk.client.{n:05d}.000")) for n in (0, 1)],
    },
    "another's presence": write("upsert", make_row("client.c2", "presence", json="{}")),
    "another's passport": write("upsert", make_row("client.c2", "passport", json="{}")),
    "a job that it did not receive": write("insert", claim(2, "c1")),
    "a server's test": write("upsert", make_row("1700000000000.s1.5201", "tests.2026-11-22T12")),
    "a plan": write("upsert", make_row("plan", "run.run-1", json="{}")) | {"table": "control"},
    "a token": write("upsert", make_row("rogue", "tokens", json="{}")) | {"table": "private"},
    "reading tokens": {"do": "scan", "table": "private", "partition": "tokens"},
    "reading a run it is not in": {
        "do": "get", "table": "control", "partition": "run.run-2", "key": "control",
    },
    "reading another's report": {
        "do": "get", "table": "results", "partition": "burst.run-1.00000", "key": "report.00001",
    },
    "a job to everybody": {"id": "s", "do": "send", "messages": []},
    "everybody's jobs cancelled": {"id": "x", "do": "cancel", "numbers": [1, 2, 3]},
    "dead letters": {"do": "dead_letters", "limit": 10},
    "dead letters sent again": {"id": "r", "do": "resend", "number": 1, "expires_at": "2033"},
    "dead letters purged": {"id": "p", "do": "purge", "number": None, "limit": 1000},
    "a burst's rows deleted": {
        "id": "d", "do": "delete_partition", "table": "results", "partition": "burst.run-1.00000",
    },
    "its claim deleted": {
        "id": "c", "do": "delete", "table": "results", "partition": "burst.run-1.00000",
        "key": "claim.00000",
    },
    "all raw output deleted": {"id": "f", "do": "delete_folder", "folder": "raw.run-1.00000"},
    "a method of the service": {"do": "__init__"},
}  # fmt: skip


async def _turned(made: Port, operation: dict[str, Any]) -> str:
    [answer] = await made.do("c1", [operation])
    assert answer.get("error") in ("EntityRefused", "ExchangeRefused"), answer
    return f"{answer['error']}: {answer['said']}"


_NO_OPERATIONS: Final[dict[str, Any]] = {
    "a number": 7,
    "no object": [],
    "a table's name as a list": {"id": "1", "do": "upsert", "table": ["results"], "row": []},
    "an empty row": write("upsert", make_row("claim.00000")) | {"row": []},
    "a row of 20,000 brackets": write("upsert", make_row("report.00000", json="[" * 20_000)),
    "half a character": write("upsert", make_row("report.00000", json='{"agent_id":"\ud800"}')),
    "an instant of text": {"id": "i", "do": "want", "session": "x", "want": "w", "wait_s": "long"},
    "a burst of 600 digits": {
        "do": "get", "table": "results", "partition": f"burst.run-1.{'9' * 600}", "key": "claim.0",
    },
    "a page without end": {
        "do": "scan", "table": "results", "partition": "tunnel.s1", "limit": 1e999,
    },
    "a page from a list": {
        "do": "scan", "table": "results", "partition": "tunnel.s1", "row_from": [1],
    },
    "an instant before the first": {
        "id": "o", "do": "upsert", "table": "results",
        "row": ["burst.run-1.00000", "probe.00000.000", {"a": {"at": "0001-01-01T00:00:00+23:59"}}],
    },
    "bytes that are none": {
        "id": "y", "do": "upsert", "table": "results",
        "row": ["burst.run-1.00000", "probe.00000.000", {"a": {"bytes": "%%%"}}],
    },
}  # fmt: skip


async def _no_operation(made: Port, operation: Any) -> str:
    """Check that only the invalid operation fails, and that the others of the request succeed."""
    answer, ping = await made.do("c1", [operation, {"do": "ping"}])
    assert "error" in answer, answer
    assert ping == {"ok": None}, ping
    return f"{answer['error']}: {answer['said']}"


async def _replayed_answer(made: Port) -> str:
    """Repeat another agent's operation with the same id."""
    operation = write("upsert", make_row("probe.00000.000", n=1))
    [first] = await made.do("c1", [operation])
    [again] = await made.do("c1", [operation])
    [others] = await made.do("c2", [operation])
    assert first == again, "done twice"
    assert others["error"] == "EntityRefused", others
    return "done once for its asker; another with the same id is refused"


async def _waits_of_no_end(made: Port) -> str:
    """Send thousands of requests for a job with an endless wait."""
    service = made.app._service
    with mock.patch.object(service, "_wants", exchange_service.FairCache(50)):
        stream = service.stream(made.rights("c1"), "s")
        await anext(stream)
        wants = [
            {"id": f"w{n}", "do": "want", "session": "s", "want": f"w{n}", "wait_s": wait_s}
            for n, wait_s in enumerate([1e300, 1.7e308] * 400)
        ]
        reported = await made.do("c1", wants)
        await stream.aclose()
    assert all(answer == {"ok": None} for answer in reported), reported[0]
    # JSON has no such numbers, although Python would read them.
    for wait_s in ("NaN", "Infinity"):
        body = f'[{{"id": "w", "do": "want", "session": "s", "want": "w", "wait_s": {wait_s}}}]'
        path, header = f"{BASE}operations", made.bearer("c1")
        refused = await made.ask("POST", path, body.encode(), header=header)
        assert refused.status_code == 400, (wait_s, refused.text)
    assert len(service._waiting) <= 50, len(service._waiting)
    until_s = [want.until_s for want in service._waiting.values()]
    assert max(until_s) <= time.monotonic() + exchange_service.WANT_MAX_S
    return f"{len(until_s)} of {len(wants)} remain until their end"


async def _hoards(made: Port) -> str:
    """Send thousands of requests before another agent.

    They try to get all jobs of a burst, or to displace requests and answers of another agent.
    """
    service = exchange_service.ExchangeService(made.fabric)
    rogue, honest = made.rights("c1"), made.rights("c2")
    streams = [service.stream(rights, "s") for rights in (rogue, honest)]
    for stream in streams:
        await anext(stream)

    async def wish(rights: AgentPermissions, *names: str) -> None:
        fields = {"do": "want", "session": "s", "wait_s": 60}
        reported = await service.do(rights, [{**fields, "want": name} for name in names])
        assert all(answer == {"ok": None} for answer in reported), reported[0]

    await wish(honest, "mine")
    for number in range(25):
        await wish(rogue, *(f"{number}.{n}" for n in range(1000)))
    assert service._wants.get(honest.name, "mine") is not None, "forgotten"
    service._waiting.move_to_end((honest.name, "mine"))
    now = utc_now()
    for pair_index in (200, 201):
        message = Outgoing(
            body=job(pair_index).body, message_id=job(pair_index).job_id,
            expires_at=now + timedelta(minutes=1), enqueue_at=None,
        )  # fmt: skip
        await made.fabric.queue.send([message])
    assert await service._deliver_some() == 2
    mine = service._wants.get(honest.name, "mine")
    assert mine is not None and mine.delivery is not None, "all went to one"
    for owner, delivery in service._locks.values():
        assert owner in (rogue.name, honest.name)
        await made.fabric.queue.complete(delivery)
    for stream in streams:
        await stream.aclose()
    return "25,000 requests: one of two jobs, and the other agent's request remains"


async def _others_lock(made: Port) -> str:
    """Settle a message that another agent received."""
    # The lock is set as if the message had been delivered.
    service = made.app._service
    delivery = Delivery(
        body=b"{}", message_id="m", delivery_count=1, locked_until_at=utc_now(),
        token=None,
    )  # fmt: skip
    service._locks["t1"] = ("client.c2", delivery)
    lines = []
    for do in ("complete", "abandon", "renew", "dead_letter"):
        operation = {"id": do, "do": do, "token": "t1", "reason": "", "description": ""}
        [answer] = await made.do("c1", [operation])
        assert answer["error"] == "ExchangeRefused", answer
        lines.append(answer["said"])
    return str(lines[0])


async def _old_secret(made: Port) -> str:
    """Use the previous secret after the first use of the new one."""
    new = secrets.token_urlsafe(32)
    code, old = made.secrets["open"], secrets.token_urlsafe(32)
    name = f"renewed-{secrets.token_hex(4)}"
    assert (await joined(made, code, name, "client", digest(old))).status_code == 200
    renewal = json.dumps({"sha256": digest(new)}).encode()
    renewed = await made.ask("POST", f"{BASE}renew", renewal, header=f"Bearer {old}")
    assert renewed.status_code == 200, renewed
    ping = (f"{BASE}operations", b'[{"do":"ping"}]')
    assert (await made.ask("POST", *ping, header=f"Bearer {new}")).status_code == 200
    return refused(await made.ask("POST", *ping, header=f"Bearer {old}"), 401)


async def _two_claims(made: Port) -> str:
    """Let two agents with the same job claim it at the same time, fifty times."""
    for pair_index in range(100, 150):
        for name in ("c1", "c2"):
            await made.delivered.record_delivery(job(pair_index), name)
        reported = await asyncio.gather(
            *(made.do(name, [write("insert", claim(pair_index, name))])
              for name in ("c1", "c2"))
        )  # fmt: skip
        won = [name for name, [one] in zip(("c1", "c2"), reported, strict=True) if "ok" in one]
        lost = [one["error"] for [one] in reported if "ok" not in one]
        assert len(won) == 1, reported
        assert lost[0] in (EntityExists.__name__, EntityRefused.__name__), reported
        loser = "c2" if won == ["c1"] else "c1"
        seconds = write("upsert", make_row(f"chunk.client.{pair_index:05d}.000"))
        [answer] = await made.do(loser, [seconds])
        assert answer["error"] == "EntityRefused", answer
    return "50 jobs, 50 claims; the loser writes no second of any"


_RAWS: Final = (
    "..%2f..%2fetc/passwd",
    "raw.run-1.00000/..%2f..%2fdata",
    "raw.run-1.00000/client.00000%00",
    "raw.run-1.00000/client.00000%2f..%2fclient.00001",
    "%2fetc/passwd",
    "raw.run-1.00000%0a/client.00000",
    "raw.run-1.00000/client.00001",
    "raw.run-2.00000/client.00000",
    "raw.run-1.00000/client.00000.000",
    "raw.tests.2026-11-22T12/1700000000000.s1.5201",
    "tokens/rogue",
)


async def _raw(made: Port, method: str, name: str) -> str:
    requested = (method, f"{BASE}raw/{name}", zlib.compress(b"text"))
    return refused(await made.ask(*requested, header=made.bearer("c1")), 403, 404)


async def _raw_bomb(made: Port) -> str:
    """Upload raw output with an unpacked size of 300 MB."""
    stream = zlib.compressobj(9)
    packed = b"".join(stream.compress(bytes(2**24)) for _ in range(18)) + stream.flush()
    return refused(await made.ask("PUT", OWN_RAW, packed, header=made.bearer("c1")), 503)


ATTACKS: Final[tuple[Attack, ...]] = (
    *attack_variants("agent: {}", PORT, "what is not its own", partial(at_port, _turned), _TURNED),
    *attack_variants(
        "operation: {}",
        PORT,
        "the end of those beside it",
        partial(at_port, _no_operation),
        _NO_OPERATIONS,
    ),
    Attack(
        "an old secret, again", PORT, "a credential that was renewed", partial(at_port, _old_secret)
    ),
    Attack(
        "an operation, again",
        PORT,
        "another's answer, or a second row",
        partial(at_port, _replayed_answer),
    ),
    Attack("wishes without end", PORT, "memory", partial(at_port, _waits_of_no_end)),
    Attack("wishes before all others", PORT, "every job of a burst", partial(at_port, _hoards)),
    Attack(
        "another's message", PORT, "settling what it was not handed", partial(at_port, _others_lock)
    ),
    Attack("two claims at once", PORT, "one job carried out twice", partial(at_port, _two_claims)),
    *attack_variants(
        "PUT raw/{}", PORT, "a file, or another's output", partial(at_port, _raw, "PUT"), _RAWS
    ),
    *attack_variants(
        "GET raw/{}", PORT, "a file, or another's output", partial(at_port, _raw, "GET"), _RAWS
    ),
    Attack("an output that unfolds", PORT, "300 MB from 300 kB", partial(at_port, _raw_bomb)),
)
