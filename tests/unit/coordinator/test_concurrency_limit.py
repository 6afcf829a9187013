"""Tests for limiting the number of concurrent requests per credential."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
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
from broadside.exchange.outage_log import utc_now

MOST = 4
JSON = {"Content-Type": "application/json"}


@contextlib.asynccontextmanager
async def site(fabric: Fabric) -> AsyncIterator[tuple[httpx.AsyncClient, Mapping[str, Any]]]:
    """Create an API with two callers. Both of them use the same address."""
    tokens, now = Tokens(fabric.private), utc_now()
    headers = {
        name: {"Authorization": f"Bearer {await tokens.add(name, access, by='x', now=now)}", **JSON}
        for name, access in (("one", Access.OPERATOR), ("other", Access.OPERATOR))
    }
    guard = AuthConfig(sign_in=SignIn(tokens, None), requests_at_once=MOST)
    transport = httpx.ASGITransport(create_app(Coordinator(fabric), tick_s=None, guard=guard))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client, headers


class BlockedBodies:
    """Request bodies which will not end until they are released."""

    def __init__(self) -> None:
        self.begun = asyncio.Semaphore(0)
        self.released = asyncio.Event()

    async def body(self) -> AsyncIterator[bytes]:
        self.begun.release()
        yield b"{"
        await self.released.wait()
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
async def test_limit_of_a_caller_does_not_affect_other_callers(
    fabric: Fabric, path: str, most: int, limit: str
) -> None:
    async with site(fabric) as (client, headers):
        bodies = BlockedBodies()
        requests = [
            asyncio.create_task(client.post(path, content=bodies.body(), headers=headers["one"]))
            for _ in range(most)
        ]
        await bodies.wait_for(most)
        refused = await client.post(path, content=b"{}", headers=headers["one"])
        assert refused.status_code == 429
        assert refused.json()["title"] == "Too many requests at once"
        assert limit in refused.json()["detail"]
        assert int(refused.headers["Retry-After"]) >= 1
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/healthz", headers=headers["one"])).status_code == 200
        others = await client.post(path, content=b"{}", headers=headers["other"])
        assert others.status_code == 422
        bodies.released.set()
        assert {answer.status_code for answer in await asyncio.gather(*requests)} == {422}
        again = await client.post(path, content=b"{}", headers=headers["one"])
        assert again.status_code == 422


class _Entry:
    """Enrolment where the secret is used as the agent name."""

    authority = "PEM"

    async def identify(self, secret: str, address: str) -> Any:
        return _Permissions(secret)

    async def join(self, fields: Mapping[str, Any], address: str) -> Mapping[str, Any]:
        return {}

    async def renew(self, permissions: Any, fields: Mapping[str, Any]) -> None:
        """Ignore the renewal."""


class _Permissions:
    address = ""

    def __init__(self, name: str) -> None:
        self.name = name

    async def allow(self, operation: Mapping[str, Any]) -> None:
        """Allow all operations."""

    async def hand(self, delivery: Any) -> None:
        """Ignore the delivery."""


async def test_limit_of_an_agent_does_not_affect_other_agents(fabric: Fabric) -> None:
    app = ExchangeApp(fabric, _Entry(), ExchangeService(fabric), MOST)
    transport, path = httpx.ASGITransport(app), "/v1/exchange/operations"
    headers = {name: {"Authorization": f"Bearer {name}"} for name in ("one", "other")}
    async with httpx.AsyncClient(transport=transport, base_url="http://c") as client:
        bodies = BlockedBodies()
        requests = [
            asyncio.create_task(client.post(path, content=bodies.body(), headers=headers["one"]))
            for _ in range(MOST)
        ]
        await bodies.wait_for(MOST)
        refused = await client.post(path, content=b"[]", headers=headers["one"])
        assert refused.status_code == 429
        assert "BROADSIDE_REQUESTS_AT_ONCE" in refused.text
        assert "Retry-After" in refused.headers
        assert (await client.get("/v1/exchange/authority")).status_code == 200
        assert (await client.post("/v1/exchange/join", content=b"{}")).status_code == 200
        others = await client.post(path, content=b"[]", headers=headers["other"])
        assert others.status_code == 200
        bodies.released.set()
        assert {answer.status_code for answer in await asyncio.gather(*requests)} == {400}
        again = await client.post(path, content=b"[]", headers=headers["one"])
        assert again.status_code == 200


def test_failed_request_releases_its_slot() -> None:
    limit = ConcurrencyLimit(1)
    with contextlib.suppress(ValueError), limit.count("a"):
        raise ValueError
    with limit.count("a"), limit.count("b"), pytest.raises(ConcurrencyExceeded):
        limit.count("a").__enter__()
