"""Exchange service for the contract suite, with a new fabric for each test."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final
from uuid import uuid4

import uvicorn
from starlette.types import Receive, Scope, Send

from broadside.coordinator.agent_gateway.agent_permissions import ClientPermissions
from broadside.coordinator.agent_gateway.exchange_app import ExchangeApp
from broadside.coordinator.agent_gateway.exchange_service import ExchangeService
from broadside.coordinator.agent_gateway.gateway_server import END_S, IDLE_S
from broadside.coordinator.bounded_listener import Listener
from broadside.exchange.fabric import Fabric
from broadside.exchange.ports import Delivery

STOP_S: Final = 60.0


class UnlimitedRights:
    """Unlimited rights, because the suite needs to use all operations."""

    name = "everybody"
    address = ""

    async def allow(self, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        """Allow the operation without a change."""
        return operation

    async def record_delivery(self, delivery: Delivery) -> None:
        """Do nothing."""


class _Entry:
    authority = None

    async def identify(self, secret: str, address: str) -> UnlimitedRights:
        return UnlimitedRights()

    async def join(self, fields: Mapping[str, Any], address: str) -> Mapping[str, Any]:
        raise NotImplementedError

    async def renew(self, rights: ClientPermissions, fields: Mapping[str, Any]) -> None:
        raise NotImplementedError


class HttpPlaces:
    """Listener for many places. The secret in a request is used to select the place."""

    def __init__(self) -> None:
        self._apps: dict[str, ExchangeApp] = {}
        self._ends: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._socket = Listener("127.0.0.1", 0)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                interface="asgi3",
                http=self._socket.protocol,
                log_config=None,
                lifespan="off",
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=END_S,
            )
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_S)
        if not self._thread.is_alive():
            return
        tasks = [str(task) for task in asyncio.all_tasks(self._loop)]
        text = f"the listener did not end within {STOP_S:g} s; running tasks:"
        raise AssertionError("\n".join([text, *tasks]))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._socket])
        for end in self._ends.values():
            await end()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        header = next(v for n, v in scope["headers"] if n == b"authorization")
        await self._apps[header.decode().removeprefix("Bearer ")](scope, receive, send)

    def add(self, fabric: Fabric) -> str:
        """Add a place for a fabric and return its secret."""

        async def begin() -> str:
            name = uuid4().hex
            service = ExchangeService(fabric)
            self._apps[name] = ExchangeApp(fabric, _Entry(), service)
            tasks = [
                asyncio.create_task(service.deliver_jobs()),
                asyncio.create_task(service.watch_control()),
            ]

            async def end() -> None:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await fabric.close()

            self._ends[name] = end
            return name

        return asyncio.run_coroutine_threadsafe(begin(), self._loop).result()

    def remove(self, secret: str) -> None:
        """Remove a place at the end of its test.

        To close hundreds of places together would take longer than ``STOP_S``.
        """
        end = self._ends.pop(secret)
        asyncio.run_coroutine_threadsafe(end(), self._loop).result(STOP_S)
        del self._apps[secret]
