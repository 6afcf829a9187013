"""Attacks on the agents' port by strangers and by a compromised agent."""

import asyncio
import json
import secrets
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import httpx

from broadside.coordinator import bounded_listener
from broadside.coordinator.agent_gateway.agent_permissions import AgentPermissions, DeliveredJobs
from broadside.coordinator.agent_gateway.enrolment import Enrolment, Enrolments, JoinTerms
from broadside.coordinator.agent_gateway.exchange_app import ExchangeApp
from broadside.coordinator.agent_gateway.exchange_service import ExchangeService
from broadside.coordinator.auth.audit import Audit
from broadside.coordinator.auth.static_tokens import digest
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import Claim, Job, JobPhase, Role
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Entity, Value
from broadside.exchange.row_text import entity_fields
from tests.attack import Attack, attack_variants, lasting
from tests.unit.agent.jobs import make_job

PORT: Final = "other hosts to coordinator"
BASE: Final = "/v1/exchange/"
# Path of the first client's raw output.
OWN_RAW: Final = f"{BASE}raw/raw.run-1.00000/client.00000"
AGENTS: Final = {"c1": Role.CLIENT, "c2": Role.CLIENT, "s1": Role.SERVER, "gone": Role.CLIENT}
# Number of agents and hours of validity of each join code.
CODES: Final = {"open": (9, 1.0), "ended": (9, -1.0), "used": (1, 1.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """Application on a fabric with two clients that claimed a pair each, and a server.

    Attributes:
        secrets: Secrets by agent, and by join code.
    """

    fabric: Fabric
    app: ExchangeApp
    delivered: DeliveredJobs
    secrets: Mapping[str, str] = field(repr=False)

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        header: str | None = None,
        encoding: str = "",
        endless: bool = False,
    ) -> httpx.Response:
        """Send one request as a server would forward it. With ``endless`` its body never ends."""

        async def parts() -> AsyncIterator[bytes]:
            yield body
            if endless:
                await asyncio.Event().wait()

        headers = {} if header is None else {"Authorization": header}
        headers |= {"Content-Encoding": encoding} if encoding else {}
        transport = httpx.ASGITransport(self.app, client=("192.0.2.9", 4711))
        async with (
            asyncio.timeout(300),
            httpx.AsyncClient(transport=transport, base_url="http://c") as http,
        ):
            return await http.request(method, path, content=parts(), headers=headers)

    def rights(self, name: str) -> AgentPermissions:
        return AgentPermissions(
            agent_id=name, role=AGENTS[name], address="", delivered=self.delivered
        )

    def bearer(self, name: str) -> str:
        return f"Bearer {self.secrets[name]}"

    async def do(self, agent: str, operations: list[Any]) -> list[dict[str, Any]]:
        body = json.dumps(operations).encode()
        reported = await self.ask("POST", f"{BASE}operations", body, header=self.bearer(agent))
        assert reported.status_code == 200, reported.text
        answers: list[dict[str, Any]] = json.loads(reported.text)
        return answers


def job(pair_index: int) -> Job:
    return make_job(run_id="run-1", burst_index=0, pair_index=pair_index)


def claim(pair_index: int, agent_id: str) -> Entity:
    claimed = Claim(
        job_id=job(pair_index).job_id,
        agent_id=agent_id,
        phase=JobPhase.CLAIMED,
        claimed_at=utc_now(),
    )
    return make_row(f"claim.{pair_index:05d}", json=claimed.model_dump_json())


def make_row(key: str, partition: str = "burst.run-1.00000", **properties: Value) -> Entity:
    return Entity(partition_key=partition, row_key=key, properties=properties)


@cache
def port() -> Port:
    """Create the port once, because it must survive every attack."""
    folder = Path(lasting(tempfile.TemporaryDirectory()))
    fabric = open_fabric(FabricSettings(data_dir=folder / "data"))
    delivered = DeliveredJobs(fabric.records)
    entry = Enrolment(fabric.private, delivered, Audit(fabric.private), "PEM")
    app = ExchangeApp(fabric, entry, ExchangeService(fabric, entry.refused))
    given = {name: secrets.token_urlsafe(32) for name in (*AGENTS, *CODES, *Role)}
    made = Port(fabric=fabric, app=app, delivered=delivered, secrets=given)

    async def prepare() -> None:
        now, known = utc_now(), Enrolments(fabric.private)
        for role in Role:
            await known.add_code(given[role], JoinTerms(role, 9, _later(now, 1)), by="x", now=now)
        for name, (count, hours) in CODES.items():
            code = given[name]
            await known.add_code(
                code, JoinTerms(Role.CLIENT, count, _later(now, hours)), by="x", now=now
            )
        for name, agent_role in AGENTS.items():
            reported = await joined(made, given[agent_role], name, agent_role, digest(given[name]))
            assert reported.status_code == 200, reported.text
        assert (await joined(made, given["used"], "only", Role.CLIENT, "0" * 64)).status_code == 200
        await known.revoke("gone", now)
        for pair_index, name in enumerate(("c1", "c2")):
            await delivered.record_delivery(job(pair_index), name)
            [answer] = await made.do(name, [write("insert", claim(pair_index, name))])
            assert "ok" in answer, answer

    asyncio.run(prepare())
    return made


def _later(now: datetime, hours: float) -> datetime:
    return now + timedelta(hours=hours)


async def joined(
    made: Port, code: str, agent_id: object, role: str, sha256: object
) -> httpx.Response:
    identity = {"code": code, "agent_id": agent_id, "role": role, "sha256": sha256}
    return await made.ask("POST", f"{BASE}join", json.dumps(identity).encode())


def write(do: str, row: Entity) -> dict[str, Any]:
    operation = {"id": secrets.token_hex(8), "do": do, "table": "results"}
    return {**operation, "row": entity_fields(row)}


# Strangers ---------------------------------------------------------------------------------------

_PATHS: Final = {
    "POST operations": ("POST", f"{BASE}operations", 401),
    "GET stream": ("GET", f"{BASE}stream?session=s", 401),
    "POST renew": ("POST", f"{BASE}renew", 401),
    "PUT raw": ("PUT", OWN_RAW, 401),
    "GET raw": ("GET", OWN_RAW, 401),
    "the operators' API": ("POST", "/v1/runs", 404),
    "metrics": ("GET", "/metrics", 404),
    "the page": ("GET", "/", 404),
    "a path before ours": ("GET", "/x/v1/exchange/operations", 404),
    "ours in other letters": ("POST", "/V1/EXCHANGE/operations", 404),
    "ours, escaped": ("POST", "/v1/exchange%2foperations", 404),
}
_FORGED: Final[dict[str, Callable[[Port], str]]] = {
    "none": lambda _: "",
    "an empty one": lambda _: "Bearer ",
    "a guessed one": lambda _: f"Bearer {secrets.token_urlsafe(32)}",
    "its hash in its place": lambda made: f"Bearer {digest(made.secrets['c1'])}",
    "cut short": lambda made: made.bearer("c1")[:-1],
    "in other letters": lambda made: f"Bearer {made.secrets['c1'].swapcase()}",
    "as a password": lambda made: f"Basic {made.secrets['c1']}",
    "a revoked one, again": lambda made: made.bearer("gone"),
    "a join code": lambda made: made.bearer("open"),
    "100 kB": lambda _: "Bearer " + "a" * 100_000,
}


def refused(response: httpx.Response, *expected: int) -> str:
    assert response.status_code in expected, response
    assert "Traceback" not in response.text
    return f"{response.status_code} {response.text[:80]}"


def at_port(attack: Callable[..., Coroutine[Any, Any, str]], *given: object) -> str:
    return asyncio.run(attack(port(), *given))


async def _stranger(made: Port, method: str, path: str, expected: int) -> str:
    return refused(await made.ask(method, path, b"[]"), expected)


async def _forged(made: Port, header: Callable[[Port], str]) -> str:
    call = (f"{BASE}operations", b'[{"do":"ping"}]')
    return refused(await made.ask("POST", *call, header=header(made)), 401)


# Values are the name of the code, the id, the role and the hash.
_JOINS: Final[dict[str, tuple[str, object, str, object]]] = {
    "an ended code": ("ended", "new", "client", "1" * 64),
    "a code that is used up": ("used", "new", "client", "1" * 64),
    "as a server by a client's code": ("open", "new", "server", "1" * 64),
    "as the coordinator": ("open", "new", "coordinator", "1" * 64),
    "in another's name": ("open", "c1", "client", "1" * 64),
    "a path as a name": ("open", "../tokens", "client", "1" * 64),
    "a name of commands": ("open", "a;reboot", "client", "1" * 64),
    "a name of 100 kB": ("open", "a" * 3_000, "client", "1" * 64),
    "a list as a name": ("open", ["c1"], "client", "1" * 64),
    "no hash": ("open", "new", "client", "secret"),
    "a hash of another's": ("open", "c1", "client", None),
}


async def _join(made: Port, code: str, agent_id: object, role: str, sha256: object) -> str:
    known = Enrolments(made.fabric.private)
    before = {agent.key for agent in await known.agents()}
    reported = await joined(made, made.secrets[code], agent_id, role, sha256)
    assert {agent.key for agent in await known.agents()} == before
    return refused(reported, 403)


async def _probe_names(made: Port) -> str:
    """Check that names cannot be probed if there is no code."""
    reported = {
        (await joined(made, "no code", name, "client", "1" * 64)).text
        for name in ("c1", "c2", "gone", "nobody")
    }
    assert len(reported) == 1, reported
    return reported.pop()


async def _guesses(made: Port) -> str:
    """Try a thousand codes: random ones, similar ones, and the hash of the valid one."""
    true = made.secrets["open"]
    near = [true[:n] + ("A" if true[n] != "A" else "B") + true[n + 1 :] for n in range(22)]
    guesses = [digest(true), true.lower(), f" {true}", "*", "", *near]
    guesses += [secrets.token_urlsafe(16) for _ in range(300)]
    reported = [await joined(made, one, "new", "client", "1" * 64) for one in guesses]
    lines = {(one.status_code, one.text) for one in reported}
    assert lines == {(403, "the join code is not known here")}, lines
    return f"{len(guesses)} guesses, one answer; 128 random bits, and an end"


# Bodies ------------------------------------------------------------------------------------------

_SMALL: Final = b'{"do":"ping"}'
_BODIES: Final[dict[str, tuple[Callable[[], bytes], str, int]]] = {
    "13 MB": (lambda: b" " * 13_000_000, "", 413),
    "a billion bytes in a megabyte": (lambda: zlib.compress(bytes(10**9), 9), "deflate", 413),
    "cut short": (lambda: zlib.compress(b"[]" * 900)[:-9], "deflate", 413),
    "not deflated": (lambda: b"[]", "deflate", 400),
    "another packing": (lambda: zlib.compress(b"[]"), "gzip", 400),
    "a million brackets": (lambda: b"[" * 10**6, "", 400),
    "deep objects": (lambda: b'{"a":' * 10**6, "", 400),
    "no list": (lambda: _SMALL, "", 400),
    "no UTF-8": (lambda: b"\xff\xfe", "", 400),
    "a number of 5,000 digits": (lambda: b"[" + b"9" * 5_000 + b"]", "", 400),
    "800,000 operations": (lambda: b"[" + b",".join([_SMALL] * 800_000) + b"]", "", 413),
}


async def _body(made: Port, body: Callable[[], bytes], encoding: str, expected: int) -> str:
    call = (f"{BASE}operations", body())
    reported = await made.ask("POST", *call, header=made.bearer("c1"), encoding=encoding)
    return refused(reported, expected)


async def _slow(made: Port, method: str, path: str, name: str | None) -> str:
    """Send the first byte of a body and no more. The server should end the request."""
    header = None if name is None else made.bearer(name)
    with mock.patch.object(bounded_listener, "BODY_S", 0.2):
        calls = (made.ask(method, path, b"[", header=header, endless=True) for _ in range(5))
        reported = await asyncio.gather(*calls)
    assert {one.status_code for one in reported} == {408}, reported
    return f"5 of them: {reported[0].status_code} {reported[0].text}, and the next are served"


ATTACKS: Final[tuple[Attack, ...]] = (
    *attack_variants(
        "stranger: {}",
        PORT,
        lambda method, path, _: f"{method} {path}",
        partial(at_port, _stranger),
        _PATHS,
    ),
    *attack_variants(
        "credential: {}", PORT, "an agent's place", partial(at_port, _forged), _FORGED
    ),
    *attack_variants("join: {}", PORT, "a credential", partial(at_port, _join), _JOINS),
    Attack("names without a code", PORT, "which agents there are", partial(at_port, _probe_names)),
    Attack("join codes guessed", PORT, "327 of them, near and far", partial(at_port, _guesses)),
    *attack_variants("body: {}", PORT, "memory, or the loop", partial(at_port, _body), _BODIES),
    *(
        Attack(f"slow {name}", PORT, tried, partial(at_port, _slow, *call))
        for name, tried, *call in (
            ("join", "connections that never end", "POST", f"{BASE}join", None),
            ("operations", "the same", "POST", f"{BASE}operations", "c1"),
            ("output", "both places for output, for ever", "PUT", OWN_RAW, "c1"),
        )
    ),
)
