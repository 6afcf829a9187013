"""Fuzzing of a real coordinator's agents' port with invalid operations from a seed.

A separate ``broadside serve`` will receive them over TLS from agents that joined. An operation must
not stop it or get a 500. To compare, its loop lag and memory are printed.
"""

import asyncio
import json
import random
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from broadside.coordinator.loop_lag import KEPT_S
from broadside.exchange.http.coordinator_client import open_client
from broadside.exchange.messages import Role
from broadside.exchange.row_text import entity_fields
from tests.attack import Attack
from tests.attack.between import WIRE, Listening, listening
from tests.attack.fuzzed import mangled
from tests.attack.injections import INJECTIONS
from tests.attack.on_hosts import BASE, claim, make_row, write
from tests.attack.unfolding_rows import forged
from tests.unit.coordinator.presences import presence

ASKERS_COUNT: Final = 4
# Operations in a request. Some requests have the maximum instead.
_MOST: Final = 300
_LAG: Final = re.compile(r"^broadside_loop_lag_seconds (\S+)$", re.MULTILINE)
_ODD: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 2**63, -(10**40), 1e308, "", [], {}, [[]] * 50, "a" * 5_000,
    {"bytes": "!"}, {"bytes": "QQ=="}, {"at": "never"}, *INJECTIONS[:-1],
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class PortTally:
    """Operations sent to the port, and their results.

    Attributes:
        lag_s: Longest loop lag that the coordinator reported.
        idle_lag_s: Longest loop lag of an idle minute before, or None if not measured.
        memory_bytes: Highest memory of the coordinator.
    """

    operations_count: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    lag_s: float = 0.0
    idle_lag_s: float | None = None
    memory_bytes: int = 0

    def __str__(self) -> str:
        idle = "" if self.idle_lag_s is None else f" (idle: {self.idle_lag_s * 1000:.0f} ms)"
        statuses = ", ".join(f"{n} x {status}" for status, n in sorted(self.statuses.items()))
        return (
            f"{self.operations_count} operations on the agents' port: {statuses}; longest loop lag "
            f"{self.lag_s * 1000:.0f} ms{idle}; most memory {self.memory_bytes / 1e6:.0f} MB"
        )


def _hollow(draw: random.Random) -> bytes:
    rows_count = draw.choice((0, 3, 10**6, 10**9))
    return forged([rows_count, [[name, 0, 0, 0, 1, 1, []] for name in ("gap_us", "span_us")]])


def _operation(draw: random.Random, agent: str) -> Any:
    """Return an operation that is valid, or almost valid, for an agent."""
    chunk: dict[str, Any] = {"client_up_0": _hollow(draw), "client_up_first_data_at_s": 1.0}
    beat = presence(Role.CLIENT, 1).model_copy(update={"agent_id": agent})
    made: list[Callable[[], dict[str, Any]]] = [
        lambda: {"do": "ping"},
        lambda: write("upsert", make_row(f"client.{agent}", "presence", json=beat.to_json())),
        lambda: write("upsert", make_row(f"client.{agent}", "passport", json=_text(draw))),
        lambda: write("insert", claim(draw.randrange(3), agent)),
        lambda: write("upsert", make_row(f"chunk.client.{draw.randrange(3):05d}.000", **chunk)),
        lambda: {
            "id": f"b.{draw.randrange(10**6)}",
            "do": "batch",
            "table": "results",
            "rows": [entity_fields(make_row(f"client.{agent}", "passport", **chunk))] * 3,
        },
        lambda: {"do": "get", "table": "control", "partition": "run.run-1", "key": "control"},
        lambda: {"do": "scan", "table": "results", "partition": f"tunnel.{agent}"},
        lambda: {"do": "watch", "session": "s", "partition": "run.run-1"},
        lambda: {"do": "want", "session": "s", "want": str(draw.random()), "wait_s": 1.0},
        lambda: {"id": "c", "do": "complete", "token": "t"},
        lambda: {"id": "d", "do": "dead_letter", "token": "t", "reason": "r", "description": "d"},
    ]
    operation: Any = draw.choice(made)()
    for _ in range(draw.choice((0, 1, 1, 2))):
        name = draw.choice([*operation, "extra", INJECTIONS[0]])
        operation[name] = draw.choice(_ODD)
    return operation if draw.random() < 0.97 else draw.choice(_ODD)


def _text(draw: random.Random) -> str:
    return mangled('{"a":{"b":1},"c":[1,2]}', draw)[:5_000].decode(errors="replace")


def _request(draw: random.Random, agent: str, left: int) -> tuple[bytes, dict[str, str], int]:
    """Return a body, its headers and the number of operations in it."""
    count = min(left, 1_000 if draw.random() < 0.1 else draw.randrange(1, _MOST))
    body = json.dumps([_operation(draw, agent) for _ in range(count)]).encode()
    match draw.randrange(12):
        case 0:
            return mangled(f'{{"operations":{body.decode()}}}', draw), {}, count
        case 1:
            return zlib.compress(body), {"Content-Encoding": "deflate"}, count
        case 2:
            large = b"[" + b",".join([body[1:-1]] * draw.randrange(1, 40)) + b"]"
            return large, {}, count
    return body, {}, count


async def _ask(at: Listening, agent: str, seed: int, count: int, tally: PortTally) -> None:
    draw = random.Random(seed)
    credential = await asyncio.to_thread(lambda: at.join(at.code(), agent))
    headers = {"Authorization": f"Bearer {credential.secret}"}
    done_count = 0
    async with open_client(credential.authority) as client:
        while done_count < count:
            body, more, some = await asyncio.to_thread(_request, draw, agent, count - done_count)
            answer = await client.post(
                f"{at.at}{BASE}operations", content=body, headers=headers | more, timeout=120
            )
            done_count += some
            tally.operations_count += some
            tally.statuses[answer.status_code] += 1
            if answer.status_code == httpx.codes.OK:
                response: list[Mapping[str, Any]] = answer.json()
                tally.answers.update(str(item.get("error", "ok")) for item in response)


def _memory_bytes(pid: int) -> int:
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(peak[1]) * 1024 if peak else 0


async def _shown_lag_s(client: httpx.AsyncClient, at: Listening) -> float:
    shown = _LAG.search((await client.get(f"{at.api}/metrics")).text)
    return float(shown[1]) if shown else 0.0


async def _watch(at: Listening, tally: PortTally) -> None:
    async with httpx.AsyncClient(timeout=120) as client:
        while True:
            tally.lag_s = max(tally.lag_s, await _shown_lag_s(client, at))
            tally.memory_bytes = _memory_bytes(at.pid)
            await asyncio.sleep(2.0)


async def _fuzz(at: Listening, count: int, seed: int, settles: bool) -> PortTally:
    tally = PortTally()
    if settles:
        # The figure will not include the start-up after this time.
        await asyncio.sleep(KEPT_S + 5)
        async with httpx.AsyncClient(timeout=60) as client:
            tally.idle_lag_s = await _shown_lag_s(client, at)
    parts = [count // ASKERS_COUNT + (n < count % ASKERS_COUNT) for n in range(ASKERS_COUNT)]
    watching = asyncio.create_task(_watch(at, tally))
    try:
        await asyncio.gather(
            *(_ask(at, f"c{n}", seed + n, part, tally) for n, part in enumerate(parts))
        )
        # The coordinator measures its lag once more in this time.
        await asyncio.sleep(2.5)
    finally:
        watching.cancel()
    async with httpx.AsyncClient(timeout=60) as client:
        assert (await client.get(f"{at.api}/healthz")).status_code == httpx.codes.OK
    return tally


def fuzz_port(count: int, seed: int, *, settles: bool = False) -> PortTally:
    """Send ``count`` operations, with ``settles`` after an idle minute for comparison.

    Raises:
        AssertionError: An operation returned 500, or the process ended.
    """
    with listening() as at:
        tally = asyncio.run(_fuzz(at, count, seed, settles))
    broken = {status: n for status, n in tally.statuses.items() if status >= 500}
    assert not broken, f"answers {broken}"
    return tally


ATTACKS: Final = (
    Attack("fuzzed operations", WIRE, "1,000 random operations", lambda: str(fuzz_port(1_000, 1))),
)
