"""ASGI application for agents on other hosts.

It has a separate listener, so that agents cannot reach the operators' API. Paths below
``/v1/exchange/``::

    GET  authority      certificate of the authority, whose fingerprint is in a join code (open)
    POST join           exchange a join code for a credential (open, limited by the code)
    POST renew          store the hash of the agent's next secret
    POST operations     execute a list of operations and return the results
    GET  stream         jobs and control rows as an endless stream of JSON lines
    PUT  raw/<folder>/<file>    store deflated engine output
"""

import asyncio
import json
import logging
import zlib
from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from broadside.coordinator.agent_gateway.agent_permissions import ClientPermissions
from broadside.coordinator.agent_gateway.exchange_service import ExchangeService
from broadside.coordinator.bounded_listener import BodyClock
from broadside.coordinator.concurrency_limit import (
    RETRY_AFTER_S,
    ConcurrencyExceeded,
    ConcurrencyLimit,
)
from broadside.exchange.background import restart_on_error
from broadside.exchange.documents import inflate
from broadside.exchange.fabric import Fabric
from broadside.exchange.http.coordinator_client import OPERATIONS_MAX_COUNT
from broadside.exchange.ports import (
    EntityRefused,
    ExchangeError,
    ExchangeRefused,
    ExchangeUnavailable,
    RawName,
)
from broadside.exchange.strict_json import lone_surrogate, read_json

# Maximum inflated size of the operations in one request.
REQUEST_MAX_BYTES: Final = 12 * 2**20
# Maximum deflated size of one output.
RAW_MAX_BYTES: Final = 96 * 2**20
JOIN_MAX_BYTES: Final = 4096
# Interval at which the credential of a stream is checked, usually from the cache.
CREDENTIAL_CHECK_S: Final = 1.0
# Maximum number of outputs in memory at the same time.
RAWS_MAX_COUNT: Final = 2

_BASE: Final = "/v1/exchange/"
_NO_STORE: Final = {"Cache-Control": "no-store"}

log = logging.getLogger(__name__)


class AgentAuthenticator(Protocol):
    """Authentication and enrolment of agents."""

    async def identify(self, secret: str, address: str) -> ClientPermissions | None:
        """Return the rights of a credential.

        Args:
            secret: Secret of the credential.
            address: The client address.

        Returns:
            The rights. None if the credential is unknown or revoked.
        """

    async def join(self, fields: Mapping[str, Any], address: str) -> Mapping[str, Any]:
        """Enrol an agent.

        Args:
            fields: Fields of the request.
            address: The client address.

        Returns:
            Fields of the response, with the credential.

        Raises:
            ExchangeRefused: The request is rejected.
        """

    async def renew(self, client: ClientPermissions, fields: Mapping[str, Any]) -> None:
        """Store the hash of an agent's next secret.

        Args:
            client: The agent's permissions.
            fields: Fields of the request.

        Raises:
            ExchangeRefused: The request is rejected.
        """

    @property
    def authority(self) -> str | None:
        """Certificate of the authority as PEM, or None if the site provides the certificate."""


class _Rejected(Exception):
    """Ends the request with a status and a text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class ExchangeApp:
    """ASGI application with the routes that the module docstring lists."""

    def __init__(
        self,
        fabric: Fabric,
        entry: AgentAuthenticator,
        service: ExchangeService,
        requests_at_once: int | None = None,
    ) -> None:
        """Create the application.

        Args:
            fabric: The coordinator's fabric.
            entry: Authenticates and enrols agents.
            service: Executes operations.
            requests_at_once: Limit for concurrent requests from one agent, including its
                stream.
        """
        self._limit = ConcurrencyLimit(requests_at_once)
        self._fabric = fabric
        self._entry = entry
        self._service = service
        self._raws = asyncio.Semaphore(RAWS_MAX_COUNT)
        self._background: list[asyncio.Task[None]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            response = await self._respond(Request(scope, receive, send))
        except _Rejected as error:
            response = _text(error.status, error)
        except ConcurrencyExceeded as error:
            response = _text(429, error)
            response.headers["Retry-After"] = str(RETRY_AFTER_S)
        except (ExchangeRefused, EntityRefused) as error:
            response = _text(403, error)
        except ExchangeError as error:
            response = _text(503, error)
        if response is not None:
            await response(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] == "lifespan.startup":
            self._background = [
                asyncio.create_task(restart_on_error(work))
                for work in (self._service.deliver_jobs, self._service.watch_control)
            ]
            await send({"type": "lifespan.startup.complete"})
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await send({"type": "lifespan.shutdown.complete"})

    async def _respond(self, request: Request) -> Response | None:
        """Return the response, or None if it has been sent as a stream."""
        # We need to use the raw path, because the name of a folder or file can contain an escaped
        # slash.
        base, _, name = request.scope["raw_path"].decode("ascii", "replace").partition(_BASE)
        if base:
            raise _Rejected(404, "not found")
        match request.method, name:
            case "GET", "authority":
                if self._entry.authority is None:
                    raise _Rejected(404, "this coordinator uses certificates of the site")
                return Response(self._entry.authority, 200, _NO_STORE, "application/x-pem-file")
            case "POST", "join":
                joined = await self._entry.join(await _fields(request), _address(request))
                return _json(json.dumps(joined).encode())
        client = await self._identify(request)
        with self._limit.count(client.name):
            return await self._respond_to(client, name, request)

    async def _respond_to(
        self, client: ClientPermissions, name: str, request: Request
    ) -> Response | None:
        match request.method, name.split("/"):
            case "POST", ["operations"]:
                return _json(await self._operations(client, request))
            case "GET", ["stream"]:
                await self._stream(client, request)
                return None
            case "POST", ["renew"]:
                await self._entry.renew(client, await _fields(request))
                return _json(b"{}")
            case "PUT", ["raw", folder, file]:
                await self._put_raw(
                    client, RawName(folder=unquote(folder), file=unquote(file)), request
                )
                return _json(b"{}")
        raise _Rejected(404, "not found")

    async def _identify(self, request: Request) -> ClientPermissions:
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        client = None
        if scheme.lower() == "bearer" and secret:
            client = await self._entry.identify(secret.strip(), _address(request))
        if client is None:
            raise _Rejected(401, "the credential is not enrolled here, or it was revoked")
        return client

    async def _operations(self, client: ClientPermissions, request: Request) -> bytes:
        body = await _body(request, REQUEST_MAX_BYTES)
        if request.headers.get("content-encoding") == "deflate":
            body = await asyncio.to_thread(_inflated, body)
        operations = await _parsed(body)
        if not isinstance(operations, list):
            raise _Rejected(400, "not a list of operations")
        if len(operations) > OPERATIONS_MAX_COUNT:
            raise _Rejected(413, f"over {OPERATIONS_MAX_COUNT} operations in one request")
        results = await self._service.do(client, operations)
        return await asyncio.to_thread(_dumped, results)

    async def _stream(self, client: ClientPermissions, request: Request) -> None:
        session = request.query_params.get("session", "")
        if not session or len(session) > 64:
            raise _Rejected(400, "a stream needs a session")
        lines = self._service.stream(client, session)
        first = await anext(lines)
        # We cannot use a ``StreamingResponse``, because the stream should also end when the
        # credential has expired.
        send = request._send

        async def write() -> None:
            headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for line in lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})

        ends = (write(), _disconnected(request), self._credential_ended(request))
        tasks = [asyncio.create_task(end) for end in ends]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await lines.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _credential_ended(self, request: Request) -> None:
        """Wait until the credential is no longer valid, because a stream can last for days."""
        while True:
            await asyncio.sleep(CREDENTIAL_CHECK_S)
            try:
                await self._identify(request)
            except _Rejected:
                return
            # We cannot check the credential now, so the stream will not be closed.
            except ExchangeError:
                continue

    async def _put_raw(self, client: ClientPermissions, name: RawName, request: Request) -> None:
        operation = {"do": "put_raw", "folder": name.folder, "file": name.file}
        await self._service.allow(client, operation)
        async with self._raws:
            packed = await _body(request, RAW_MAX_BYTES)
            text = await asyncio.to_thread(inflate, packed, f"output {name.folder}/{name.file}")
            await self._fabric.raw_store.save(name, text)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


async def _fields(request: Request) -> Mapping[str, Any]:
    fields = await _parsed(await _body(request, JOIN_MAX_BYTES))
    if not isinstance(fields, dict):
        raise _Rejected(400, "not an object")
    if (field := lone_surrogate(fields)) is not None:
        raise _Rejected(400, f"{field}: invalid Unicode (a lone surrogate)")
    return fields


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    clock = BodyClock()
    while True:
        try:
            message = await clock.next(request.receive)
        except TimeoutError as error:
            text = f"the body is incomplete after {clock.total_bytes} bytes: too slow"
            raise _Rejected(408, text) from error
        if message["type"] == "http.disconnect":
            raise ExchangeUnavailable("the client has disconnected")
        if clock.total_bytes > max_bytes:
            raise _Rejected(413, f"over {max_bytes} bytes")
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _inflated(body: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(body, REQUEST_MAX_BYTES)
    except zlib.error as error:
        raise _Rejected(400, f"not deflated: {error}") from error
    if not stream.eof:
        raise _Rejected(413, f"incomplete, or over {REQUEST_MAX_BYTES} bytes after decompression")
    return text


def _dumped(results: list[dict[str, Any]]) -> bytes:
    """Encode results one by one, so that other threads can run between them."""
    return b"[" + b",".join(json.dumps(result).encode() for result in results) + b"]"


async def _parsed(body: bytes) -> Any:
    try:
        return await read_json(body, REQUEST_MAX_BYTES)
    except (ValueError, RecursionError) as error:
        raise _Rejected(400, f"not JSON: {error}"[:300]) from error


def _json(body: bytes) -> Response:
    return Response(body, 200, _NO_STORE, "application/json")


def _text(status: int, error: Exception) -> Response:
    """Return a text response. Invalid characters are escaped."""
    text = str(error).encode(errors="backslashreplace")
    return Response(text, status, _NO_STORE, "text/plain")
