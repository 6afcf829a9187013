"""Tests that an event stream ends when the token is revoked or expires.

The feed will not find new data here, but each poll wakes the stream.
"""

import asyncio
from datetime import timedelta

import httpx
import pytest

from broadside.coordinator.api.app import create_app
from broadside.coordinator.api.auth_middleware import AuthConfig
from broadside.coordinator.auth.principal import Access
from broadside.coordinator.auth.signin import SignIn
from broadside.coordinator.auth.static_tokens import Tokens
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.views.feeds import Feed
from broadside.exchange.fabric import Fabric
from broadside.exchange.outage_log import utc_now
from tests.unit.coordinator.stored_run import store_run


@pytest.mark.parametrize("how", ["revoked", "expired", "neither"])
async def test_event_stream_ends_with_its_token(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    checks: list[int] = []

    async def find_nothing(_: Feed) -> None:
        checks.append(1)

    monkeypatch.setattr(Feed, "_poll", find_nothing)
    monkeypatch.setattr("broadside.coordinator.views.feeds.POLL_S", 0.01)
    monkeypatch.setattr("broadside.coordinator.views.feeds.BEAT_S", 0.05)
    monkeypatch.setattr("broadside.coordinator.api.event_routes.CHECK_S", 0.05)
    tokens = Tokens(fabric.private)
    expires_at = utc_now() + timedelta(seconds=1) if how == "expired" else None
    secret = await tokens.add(
        "page", Access.VIEWER, by="test", now=utc_now(), expires_at=expires_at
    )
    app = create_app(
        Coordinator(fabric), tick_s=None, guard=AuthConfig(sign_in=SignIn(tokens, None))
    )
    path = f"/v1/runs/{await store_run(fabric)}/events"
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://localhost",
        headers={"Authorization": f"Bearer {secret}"},
    ) as client:
        reading = asyncio.create_task(client.get(path))
        while len(checks) < 30 and not reading.done():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        if how == "revoked":
            await tokens.revoke("page", now=utc_now())
        done, _ = await asyncio.wait({reading}, timeout=1.0 if how == "neither" else 10)
        assert bool(done) is (how != "neither")
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        again = await client.get("/v1/runs")
    assert again.status_code == (200 if how == "neither" else 401)
