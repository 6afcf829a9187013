"""One credential has so many requests in progress at a time; others' are answered meanwhile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from broadside.coordinator.agent_gateway.exchange_app import ExchangeApp
from broadside.coordinator.agent_gateway.exchange_service import ExchangeService
from broadside.coordinator.api.app import create_app
from broadside.coordinator.api.auth_middleware import IMPORTS_AT_ONCE, AuthConfig
from broadside.coordinator.auth.principal import Access
from broadside.coordinator.auth.signin import SignIn
from broadside.coordinator.auth.static_tokens import Tokens
from broadside.coordinator.concurrency_limit import ConcurrencyExceeded, ConcurrencyLimit
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import Fabric

MOST = 4
JSON = {"Content-Type": "application/json"}


@contextlib.asynccontextmanager
async def site(fabric: Fabric) -> AsyncIterator[tuple[httpx.AsyncClient, Mapping[str, Any]]]:
    """An API with two callers at one address, as behind an address translation."""
    tokens, now = Tokens(fabric.private), datetime.now(UTC)
    headers = {
        name: {"Authorization": f"Bearer {await tokens.add(name, access, by='x', now=now)}", **JSON}
        for name, access in (("one", Access.OPERATOR), ("other", Access.OPERATOR))
    }
    guard = AuthConfig(sign_in=SignIn(tokens, None), requests_at_once=MOST)
    transport = httpx.ASGITransport(create_app(Coordinator(fabric), tick_s=None, guard=guard))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client, headers


class Held:
    """Bodies that do not end before they are let go."""

    def __init__(self) -> None:
        self.begun = asyncio.Semaphore(0)
        self.go = asyncio.Event()

    async def body(self) -> AsyncIterator[bytes]:
        self.begun.release()
        yield b"{"
        await self.go.wait()
        yield b"}"

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(10):
            for _ in range(count):
                await self.begun.acquire()


@pytest.mark.parametrize(
    ("path", "most", "limit"),
    [
        ("/v1/estimate", MOST, "BROADSIDE_REQUESTS_AT_ONCE"),
        ("/v1/imports/iperf3", IMPORTS_AT_ONCE, "imports"),
    ],
)
async def test_one_caller_fills_its_own_places_only(
    fabric: Fabric, path: str, most: int, limit: str
) -> None:
    async with site(fabric) as (client, headers):
        stored = Held()
        requested = [
            asyncio.create_task(client.post(path, content=stored.body(), headers=headers["one"]))
            for _ in range(most)
        ]
        await stored.wait_for(most)
        refused = await client.post(path, content=b"{}", headers=headers["one"])
        assert refused.status_code == 429
        assert refused.json()["title"] == "Too many requests at once"
        assert limit in refused.json()["detail"]
        assert int(refused.headers["Retry-After"]) >= 1
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/healthz", headers=headers["one"])).status_code == 200
        others = await client.post(path, content=b"{}", headers=headers["other"])
        assert others.status_code == 422
        stored.go.set()
        assert {answer.status_code for answer in await asyncio.gather(*requested)} == {422}
        again = await client.post(path, content=b"{}", headers=headers["one"])
        assert again.status_code == 422


class _Entry:
    """Everybody is enrolled by the name that the secret is."""

    authority = "PEM"

    async def identify(self, secret: str, address: str) -> Any:
        return _Rights(secret)

    async def join(self, fields: Mapping[str, Any], address: str) -> Mapping[str, Any]:
        return {}

    async def renew(self, rights: Any, fields: Mapping[str, Any]) -> None:
        """Nothing changes."""


class _Rights:
    address = ""

    def __init__(self, name: str) -> None:
        self.name = name

    async def allow(self, operation: Mapping[str, Any]) -> None:
        """All of it."""

    async def hand(self, delivery: Any) -> None:
        """Nothing is noted."""


async def test_one_agent_fills_its_own_places_only(fabric: Fabric) -> None:
    app = ExchangeApp(fabric, _Entry(), ExchangeService(fabric), MOST)
    transport, path = httpx.ASGITransport(app), "/v1/exchange/operations"
    headers = {name: {"Authorization": f"Bearer {name}"} for name in ("one", "other")}
    async with httpx.AsyncClient(transport=transport, base_url="http://c") as client:
        stored = Held()
        requested = [
            asyncio.create_task(client.post(path, content=stored.body(), headers=headers["one"]))
            for _ in range(MOST)
        ]
        await stored.wait_for(MOST)
        refused = await client.post(path, content=b"[]", headers=headers["one"])
        assert refused.status_code == 429
        assert "BROADSIDE_REQUESTS_AT_ONCE" in refused.text
        assert "Retry-After" in refused.headers
        assert (await client.get("/v1/exchange/authority")).status_code == 200
        assert (await client.post("/v1/exchange/join", content=b"{}")).status_code == 200
        others = await client.post(path, content=b"[]", headers=headers["other"])
        assert others.status_code == 200
        stored.go.set()
        assert {answer.status_code for answer in await asyncio.gather(*requested)} == {400}
        again = await client.post(path, content=b"[]", headers=headers["one"])
        assert again.status_code == 200


def test_a_request_that_breaks_off_gives_its_place_back() -> None:
    at_once = ConcurrencyLimit(1)
    with contextlib.suppress(ValueError), at_once.count("a"):
        raise ValueError
    with at_once.count("a"), at_once.count("b"), pytest.raises(ConcurrencyExceeded):
        at_once.count("a").__enter__()
