"""Tests for the log messages when a client disconnects during a response."""

import asyncio
import logging
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from starlette.requests import ClientDisconnect

from broadside.coordinator.api.auth_middleware import _is_disconnect
from broadside.coordinator.views.feeds import Feed, FeedEvent
from broadside.exchange.fabric import Fabric
from tests.unit.coordinator.stored_run import store_run


async def disconnect(app: FastAPI, path: str, beats: list[int]) -> None:
    """Request a stream, read the first event and disconnect when the buffers are full."""
    left, stuck = asyncio.Event(), asyncio.Event()
    requested = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not requested.is_set():
            requested.set()
            return {"type": "http.request", "body": b"", "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body" and message.get("body"):
            stuck.set()
            await asyncio.Event().wait()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 4711),
        "server": ("127.0.0.1", 80),
    }
    asking = asyncio.create_task(app(scope, receive, send))
    async with asyncio.timeout(30):
        await stuck.wait()
        before = -1
        # Wait until the producer is blocked too.
        while before < len(beats):
            before = len(beats)
            await asyncio.sleep(0.1)
        left.set()
        await asking


async def test_disconnect_during_event_is_a_debug_message(
    fabric: Fabric,
    app: FastAPI,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    beats: list[int] = []

    async def beat_for_ever(_: Feed, __: str | None) -> AsyncGenerator[FeedEvent]:
        while True:
            beats.append(1)
            yield FeedEvent()
            await asyncio.sleep(0)

    monkeypatch.setattr(Feed, "follow", beat_for_ever)
    path = f"/v1/runs/{await store_run(fabric)}/events"
    caplog.set_level(logging.DEBUG)
    await disconnect(app, path, beats)
    records = [record for record in caplog.records if record.name.startswith("broadside")]
    assert [record.levelno for record in records if "disconnected" in record.getMessage()] == [
        logging.DEBUG
    ]
    assert [record for record in records if record.levelno > logging.DEBUG or record.exc_info] == []


@pytest.mark.parametrize(
    ("error", "is_disconnect"),
    [
        (anyio.BrokenResourceError(), True),
        (ConnectionResetError(), True),
        (ExceptionGroup("", [ClientDisconnect(), ExceptionGroup("", [BrokenPipeError()])]), True),
        (KeyError("ours"), False),
        (ExceptionGroup("", [anyio.BrokenResourceError(), KeyError("ours")]), False),
    ],
)
def test_internal_error_is_not_reported_as_disconnect(
    error: Exception, is_disconnect: bool
) -> None:
    """An internal error should not be hidden in the debug log."""
    assert _is_disconnect(error) is is_disconnect
