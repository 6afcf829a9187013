"""Attacks by incoming data: decompression bombs, slow responses and floods of requests."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

import httpx

from broadside.coordinator.agent_gateway import exchange_service
from broadside.coordinator.api.app import create_app
from broadside.coordinator.concurrency_limit import ConcurrencyLimit
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.http.bounded import ask
from broadside.exchange.row_text import entity_fields
from broadside.exchange.second_rows import CHUNK_ROWS_MAX_COUNT
from tests.attack import Attack, attack_variants, memory_within
from tests.attack.on_hosts import BASE, PORT, Port, at_port, make_row, write
from tests.attack.on_requests import CALLER, site
from tests.attack.unfolding_rows import forged
from tests.contract.coordinator.notices.notice_servers import DRIPS, dripping
from tests.unit.coordinator.api.test_arrivals import BODIES

OUTWARD: Final = "servers that we call"
WHOLE_S: Final = 0.4
# The body itself is parsed into Python lists.
_BODY_MEMORY_BYTES: Final = 400 * 1_048_576


def _body(path: str, body: Callable[[], Any]) -> str:
    content = json.dumps(body()).encode()
    app = create_app(Coordinator(site().fabric), tick_s=None)

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"Content-Type": "application/json"}
            return await client.post(path, content=content, headers=headers)

    with memory_within(_BODY_MEMORY_BYTES):
        answer = asyncio.run(send())
    assert answer.status_code in (413, 422), answer.text[:200]
    return f"{answer.status_code} {answer.json()['detail'][:120]}"


def _hollow(rows_count: int, columns_count: int) -> bytes:
    names = ("gap_us", "span_us", *(f"c{n}" for n in range(columns_count)))
    return forged([rows_count, [[name, 0, 0, 0, 1, 1, []] for name in names]])


_CHUNKS: Final[dict[str, dict[str, Any]]] = {
    "a million readings in 100 bytes": {"client_up_0": _hollow(10**6, 0)},
    "a million readings of 30 columns": {"client_up_0": _hollow(10**6, 30)},
    "just over": {"client_up_0": _hollow(CHUNK_ROWS_MAX_COUNT + 1, 0)},
    "a host's million seconds": {"host_0": _hollow(10**6, 0)},
    "a million probes": {"probes_0": forged([10**6, [["rtt_us", 0, 0, 0, 1, 1, []]]])},
    "in the second flow": {
        "client_up_0": _hollow(3, 0),
        "client_down_0": _hollow(10**6, 0),
    },
}


async def _chunk(made: Port, properties: dict[str, Any]) -> str:
    """Write a row of the agent's own pair, alone and in a batch, and read it."""
    text = ""
    for key in ("chunk.client.00000.000", "chunk.client.00000.tail"):
        row = make_row(key, **properties)
        batch = {
            "id": secrets.token_hex(8),
            "do": "batch",
            "table": "results",
            "rows": [entity_fields(row)],
        }
        for operation in (write("insert", row), write("upsert", row), batch):
            refused, ping = await made.do("c1", [operation, {"do": "ping"}])
            assert refused["error"] == "EntityRefused", refused
            assert ping == {"ok": None}
            text = refused["said"]
        assert await made.fabric.results.get(row.partition_key, row.row_key) is None
    return text


async def _refused_text(made: Port, operation: dict[str, Any]) -> str:
    """Send a lone surrogate in an operation, which should be rejected.

    The other operations in the batch must still succeed.
    """
    refused, ping = await made.do("c1", [operation, {"do": "ping"}])
    assert "error" in refused, refused
    assert ping == {"ok": None}, ping
    return f"{refused['error']}: {ascii(refused['said'])[:100]}"


_HALF: Final = "\ud800"
_NAMED: Final[dict[str, Any]] = {_HALF: 1}
_HALVES: Final[dict[str, dict[str, Any]]] = {
    "an operation": {"do": _HALF},
    "a table": {"id": "1", "do": "upsert", "table": _HALF, "row": []},
    "a partition": {"do": "get", "table": "results", "partition": _HALF, "key": "k"},
    "a key": {"do": "get", "table": "results", "partition": "tunnel.s9", "key": _HALF},
    "a row's key": write("upsert", make_row(_HALF)),
    "a row's partition": write("upsert", make_row("k", _HALF)),
    "a property's name": write("upsert", make_row("chunk.client.00001.000", **_NAMED)),
    "a run": {"do": "watch", "session": "s", "partition": f"run.{_HALF}"},
    "an id": write("upsert", make_row("chunk.client.00001.000")) | {"id": _HALF},
}


async def _many_answers(made: Port) -> str:
    """Send a thousand small requests with a large answer each."""
    row = make_row("client.c1", "passport", **{f"a{n}": b"0" * 60_000 for n in range(10)})
    await made.fabric.results.upsert(row)
    local = make_row("ask.00000001.x", "tunnel.s1", **row.properties)
    await made.fabric.results.upsert(local)
    requested = [{"do": "scan", "table": "results", "partition": "tunnel.s1"}] * 1_000
    reported = await made.do("s1", requested)
    await made.fabric.results.delete(local.partition_key, local.row_key)
    done = [answer for answer in reported if "ok" in answer]
    assert len(json.dumps(done)) < 2 * exchange_service.ANSWERS_MAX_BYTES
    assert {answer["error"] for answer in reported if "error" in answer} == {"ExchangeUnavailable"}
    return f"{len(done)} of {len(reported)} answered: {reported[-1]['said']}"


async def _at_once(made: Port) -> str:
    """Send endless requests by one agent. Another agent should still be served."""
    app, most = made.app, 8
    limited = ConcurrencyLimit(most)
    begun, go = asyncio.Semaphore(0), asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        begun.release()
        yield b"["
        await go.wait()
        yield b"]"

    before, app._limit = app._limit, limited
    try:
        transport = httpx.ASGITransport(app, client=("192.0.2.9", 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://c") as http:

            async def operations(name: str, content: Any) -> httpx.Response:
                headers = {"Authorization": made.bearer(name)}
                return await http.post(f"{BASE}operations", content=content, headers=headers)

            requested = [asyncio.create_task(operations("c1", endless())) for _ in range(most)]
            async with asyncio.timeout(200):
                for _ in range(most):
                    await begun.acquire()
            refused = [await operations("c1", b"[]") for _ in range(100)]
            others = await operations("c2", b"[]")
            go.set()
            await asyncio.gather(*requested)
    finally:
        app._limit = before
    assert {answer.status_code for answer in refused} == {429}
    assert others.status_code == 200
    return f"429: {refused[0].text}; others at the same address are served"


async def _drips(name: str) -> str:
    """Receive a response that sends its bytes in time but will never end."""
    with dripping(name) as url:
        began_s = time.monotonic()
        async with httpx.AsyncClient(timeout=200) as client:
            try:
                await ask(client, "GET", url, 1 << 20, total_s=WHOLE_S)
            except httpx.ReadTimeout as error:
                assert time.monotonic() - began_s < 20
                return str(error)
    raise AssertionError("it was an answer")


ATTACKS: Final[tuple[Attack, ...]] = (
    *attack_variants("body: {}", CALLER, "the loop, or memory", _body, BODIES),
    *attack_variants(
        "seconds: {}", PORT, "the coordinator's memory", partial(at_port, _chunk), _CHUNKS
    ),
    *attack_variants(
        "half a character: {}", PORT, "others' answers", partial(at_port, _refused_text), _HALVES
    ),
    Attack("a thousand large answers", PORT, "memory", partial(at_port, _many_answers)),
    Attack("requests without end", PORT, "others' turn", partial(at_port, _at_once)),
    *attack_variants("drips: {}", OUTWARD, "a place's, or a thread's time", _drips, list(DRIPS)),
)
