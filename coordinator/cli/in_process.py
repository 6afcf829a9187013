"""A coordinator inside this process, and the HTTP transport to it.

The transport streams: httpx's own waits for the application to end, and an event stream ends with
its run.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import httpx

from coordinator.api.app import create_app
from coordinator.api.door import Guard
from coordinator.auth.principal import Access, Principal
from coordinator.coordinator_settings import CoordinatorSettings
from coordinator.device.ledgers.open import open_ledger
from coordinator.prices import load as load_prices
from coordinator.runs.coordinator import Coordinator
from coordinator.studies.switch import read_switches
from exchange.fabric import FabricSettings, open_fabric

Message = MutableMapping[str, Any]


@contextlib.asynccontextmanager
async def local_coordinator(name: str, *, drive: bool) -> AsyncIterator[httpx.AsyncClient]:
    """A coordinator on the settings' fabric; with ``drive`` it looks after unfinished runs."""
    settings = CoordinatorSettings()
    fabric = open_fabric(FabricSettings())
    prices = load_prices(settings.prices)
    coordinator = Coordinator(fabric, open_ledger(settings), prices=prices)
    # Who holds the fabric's credential needs no token.
    local = Principal(name=name, access=Access.OPERATOR, key=f"local:{name}", signed_in=False)
    app = create_app(
        coordinator,
        tick_s=None,
        guard=Guard(unsigned=local),
        switches=read_switches(settings.switches_file),
    )
    loop = asyncio.create_task(coordinator.run_forever(settings.tick_s)) if drive else None
    transport = InProcessTransport(app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://in-process") as http:
            yield http
    finally:
        if loop is not None:
            loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loop
        await fabric.close()


class InProcessTransport(httpx.AsyncBaseTransport):
    """Calls ``app`` for each request; the body comes as it is sent."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = _Answer(self._app, request, await request.aread())
        start = await answer.started()
        return httpx.Response(start["status"], headers=start["headers"], stream=answer)


class _Answer(httpx.AsyncByteStream):
    """One call of the application, in a task of its own; closing it ends the call."""

    def __init__(self, app: Any, request: httpx.Request, body: bytes) -> None:
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue()
        self._closed = asyncio.Event()
        self._body: bytes | None = body
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.split(b"?")[0],
            "query_string": request.url.query,
            "server": (request.url.host, request.url.port),
            "client": ("", 0),  # no address: this process
            "root_path": "",
        }
        self._task = asyncio.create_task(self._call(app, scope))

    async def _call(self, app: Any, scope: Message) -> None:
        try:
            await app(scope, self._receive, self._sent.put)
        finally:
            self._sent.put_nowait(None)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._closed.wait()
        return {"type": "http.disconnect"}

    async def started(self) -> Message:
        """The head of the answer. What the application raises before it is raised here."""
        start = await self._sent.get()
        if start is None:
            await self._task
            raise httpx.ReadError("the application ended without an answer")
        return start

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._sent.get()) is not None:
            if message["type"] == "http.response.body":
                if message.get("body"):
                    yield message["body"]
                if not message.get("more_body", False):
                    break

    async def aclose(self) -> None:
        self._closed.set()
        if not self._task.done():
            await asyncio.wait({self._task}, timeout=1.0)
        if not self._task.done():
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
