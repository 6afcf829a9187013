"""ASGI application for agents on other hosts, without a web framework.

It has a separate listener, so that agents cannot reach the operators' API. Paths below
``/v1/exchange/``::

    GET  authority      certificate of the authority, whose fingerprint is in a join code (open)
    POST join           exchange a join code for a credential (open, limited by the code)
    POST renew          store the hash of the agent's next secret
    POST operations     execute a list of operations and return the results
    GET  stream         jobs and control rows as an endless stream of JSON lines
    PUT  raw/<folder>/<file>    store deflated engine output, GET returns it if allowed
"""

import asyncio
import json
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, unquote

from broadside.coordinator.bounded_listener import BodyClock
from broadside.coordinator.hosts.agent_rights import Rights
from broadside.coordinator.hosts.exchange_service import ExchangeService
from broadside.coordinator.requests_at_once import RETRY_AFTER_S, RequestsAtOnce, TooManyAtOnce
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
from broadside.exchange.rows import lone_surrogate, read_json

# Maximum inflated size of the operations in one request.
REQUEST_MAX_BYTES: Final = 12 * 2**20
# Maximum deflated size of one output.
RAW_MAX_BYTES: Final = 96 * 2**20
JOIN_MAX_BYTES: Final = 4096
# Interval at which the credential of a stream is checked, usually from the cache.
SHUT_OUT_LOOK_S: Final = 1.0
RETRY_AFTER: Final = ((b"retry-after", str(RETRY_AFTER_S).encode()),)
# Maximum number of outputs in memory at the same time.
RAWS_AT_ONCE: Final = 2

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

log = logging.getLogger(__name__)


class Entry(Protocol):
    """Authentication and enrolment of agents."""

    async def identify(self, secret: str, address: str) -> Rights | None:
        """Return the rights of a credential, or None if it is unknown or revoked.

        Args:
            secret: Secret of the credential.
            address: The client address.
        """

    async def join(self, fields: Mapping[str, Any], address: str) -> Mapping[str, Any]:
        """Enrol an agent.

        Args:
            fields: Fields of the request.
            address: The client address.

        Raises:
            ExchangeRefused: The request is rejected.
        """

    async def renew(self, rights: Rights, fields: Mapping[str, Any]) -> None:
        """Store the hash of an agent's next secret.

        Args:
            rights: The agent's rights.
            fields: Fields of the request.

        Raises:
            ExchangeRefused: The request is rejected.
        """

    @property
    def authority(self) -> str | None:
        """Certificate of the authority as PEM, or None if the site provides the certificate."""


class _Answered(Exception):
    """Ends the request with a status and a text."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


class ExchangeApp:
    """ASGI application with the routes that the module docstring lists."""

    def __init__(
        self,
        fabric: Fabric,
        entry: Entry,
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
        self._at_once = RequestsAtOnce(requests_at_once)
        self._fabric = fabric
        self._entry = entry
        self._service = service
        self._raws = asyncio.Semaphore(RAWS_AT_ONCE)
        self._background: list[asyncio.Task[None]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            await self._http(scope, receive, send)
        except _Answered as answer:
            await _respond_text(send, answer.status, str(answer))
        except TooManyAtOnce as error:
            await _respond(send, 429, str(error).encode(), "text/plain", RETRY_AFTER)
        except (ExchangeRefused, EntityRefused) as error:
            await _respond_text(send, 403, str(error))
        except ExchangeError as error:
            await _respond_text(send, 503, str(error))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            if (await receive())["type"] == "lifespan.startup":
                self._background = [
                    asyncio.create_task(restart_on_error(work))
                    for work in (self._service.hand_out, self._service.watch_control)
                ]
                await send({"type": "lifespan.startup.complete"})
                continue
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)
            await send({"type": "lifespan.shutdown.complete"})
            return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["raw_path"].decode("ascii", "replace")
        base, _, name = path.partition("/v1/exchange/")
        if base:
            raise _Answered(404, "not found")
        match method, name:
            case "GET", "authority":
                if self._entry.authority is None:
                    raise _Answered(404, "the certificates here are the site's own")
                pem = self._entry.authority.encode()
                await _respond(send, 200, pem, "application/x-pem-file")
                return
            case "POST", "join":
                told = await self._entry.join(await _fields(receive), _address(scope))
                await _respond(send, 200, json.dumps(told).encode())
                return
        rights = await self._identified(scope)
        with self._at_once.one_of(rights.name):
            await self._do(rights, method, name, scope, receive, send)

    async def _do(
        self, rights: Rights, method: str, name: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        match method, name.split("/"):
            case "POST", ["operations"]:
                await self._operations(rights, scope, receive, send)
            case "GET", ["stream"]:
                await self._stream(rights, scope, receive, send)
            case "POST", ["renew"]:
                await self._entry.renew(rights, await _fields(receive))
                await _respond(send, 200, b"{}")
            case "PUT", ["raw", folder, file]:
                await self._put_raw(rights, unquote(folder), unquote(file), receive, send)
            case "GET", ["raw", folder, file]:
                await self._get_raw(rights, unquote(folder), unquote(file), send)
            case _:
                raise _Answered(404, "not found")

    async def _identified(self, scope: Scope) -> Rights:
        header = next((v for n, v in scope["headers"] if n == b"authorization"), b"")
        scheme, _, secret = header.decode("latin-1").partition(" ")
        rights = None
        if scheme.lower() == "bearer" and secret:
            rights = await self._entry.identify(secret.strip(), _address(scope))
        if rights is None:
            raise _Answered(401, "not a credential that is enrolled here, or one that was revoked")
        return rights

    async def _operations(self, rights: Rights, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive, REQUEST_MAX_BYTES)
        if any(n == b"content-encoding" and v == b"deflate" for n, v in scope["headers"]):
            body = await asyncio.to_thread(_inflated, body)
        operations = await _parsed(body)
        if not isinstance(operations, list):
            raise _Answered(400, "not a list of operations")
        if len(operations) > OPERATIONS_MAX_COUNT:
            raise _Answered(413, f"over {OPERATIONS_MAX_COUNT} operations at once")
        answers = await self._service.do(rights, operations)
        await _respond(send, 200, await asyncio.to_thread(_dumped, answers))

    async def _stream(self, rights: Rights, scope: Scope, receive: Receive, send: Send) -> None:
        session = parse_qs(scope["query_string"].decode("ascii", "replace")).get("session", [""])[0]
        if not session or len(session) > 64:
            raise _Answered(400, "a stream needs a session")
        lines = self._service.stream(rights, session)
        first = await anext(lines)

        async def tell() -> None:
            headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for line in lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})

        ends = (tell(), _gone(receive), self._shut_out(scope))
        tasks = [asyncio.create_task(end) for end in ends]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await lines.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _shut_out(self, scope: Scope) -> None:
        """Wait until the credential is no longer valid, because a stream can last for days."""
        while True:
            await asyncio.sleep(SHUT_OUT_LOOK_S)
            try:
                await self._identified(scope)
            except _Answered:
                return
            # The credential cannot be checked now, so the stream continues.
            except ExchangeError:
                continue

    async def _put_raw(
        self, rights: Rights, folder: str, file: str, receive: Receive, send: Send
    ) -> None:
        asked = {"do": "put_raw", "folder": folder, "file": file}
        await self._service.allow(rights, asked)
        async with self._raws:
            packed = await _body(receive, RAW_MAX_BYTES)
            text = await asyncio.to_thread(inflate, packed, f"output {folder}/{file}")
            await self._fabric.raw_store.save(RawName(folder=folder, file=file), text)
        await _respond(send, 200, b"{}")

    async def _get_raw(self, rights: Rights, folder: str, file: str, send: Send) -> None:
        asked = {"do": "get_raw", "folder": folder, "file": file}
        await self._service.allow(rights, asked)
        async with self._raws:
            text = await self._fabric.raw_store.read(RawName(folder=folder, file=file))
            if text is None:
                raise _Answered(404, "there is none")
            packed = await asyncio.to_thread(zlib.compress, text)
        await _respond(send, 200, packed, "application/zlib")


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


async def _fields(receive: Receive) -> Mapping[str, Any]:
    fields = await _parsed(await _body(receive, JOIN_MAX_BYTES))
    if not isinstance(fields, dict):
        raise _Answered(400, "not an object")
    if (field := lone_surrogate(fields)) is not None:
        raise _Answered(400, f"{field}: half a character (a lone surrogate)")
    return fields


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    clock = BodyClock()
    while True:
        try:
            message = await clock.next(receive)
        except TimeoutError as error:
            raise _Answered(408, f"{clock.total_bytes} bytes came in time, and no end") from error
        if message["type"] == "http.disconnect":
            raise ExchangeUnavailable("the asker went away")
        if clock.total_bytes > max_bytes:
            raise _Answered(413, f"over {max_bytes} bytes")
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _inflated(body: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(body, REQUEST_MAX_BYTES)
    except zlib.error as error:
        raise _Answered(400, f"not deflated: {error}") from error
    if not stream.eof:
        raise _Answered(413, f"cut short, or over {REQUEST_MAX_BYTES} bytes inflated")
    return text


def _dumped(answers: list[dict[str, Any]]) -> bytes:
    """Encode results one by one, so that other threads can run between them."""
    return b"[" + b",".join(json.dumps(answer).encode() for answer in answers) + b"]"


async def _parsed(body: bytes) -> Any:
    try:
        return await read_json(body, REQUEST_MAX_BYTES)
    except (ValueError, RecursionError) as error:
        raise _Answered(400, f"not JSON: {error}"[:300]) from error


async def _respond_text(send: Send, status: int, text: str) -> None:
    """Send a text response. Invalid characters are escaped."""
    await _respond(send, status, text.encode(errors="backslashreplace"), "text/plain")


async def _respond(
    send: Send,
    status: int,
    body: bytes,
    content_type: str = "application/json",
    more: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    headers = [
        *more,
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
