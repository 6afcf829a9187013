"""HTTP client of the coordinator API."""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import httpx

from broadside.coordinator.cli.api_errors import REQUEST_TIMEOUT_S, ApiError
from broadside.coordinator.cli.operations import OperationRoute, Operations, StreamEvent, clean_json
from broadside.coordinator.cli.terminal_text import cleaned
from broadside.exchange.http.bounded import ask
from broadside.exchange.messages import Message
from broadside.exchange.strict_json import parse_strict_json

# Limit for lists whose command has no limit option.
ROWS_MAX_COUNT: Final = 100_000
# Size limit of an uncompressed response, twice the largest stored file.
RESPONSE_MAX_BYTES: Final = 512 * 1_048_576
_ERROR_MAX_BYTES: Final = 65_536

# Limit for one event. The trends for 1,000 bursts need a tenth of it.
EVENT_MAX_BYTES: Final = 32 * 1_048_576


class EventTooLong(Exception):
    """An event is longer than the limit."""


class ApiClient(Operations):
    """Client that sends each operation to its route. Every operation can raise ``ApiError``."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def _execute(
        self,
        route: OperationRoute,
        method: str,
        path: str,
        values: Mapping[str, Any],
        work: Callable[[], Awaitable[Any]],
    ) -> Any:
        """Send the values to the route, and return the parsed response. ``work`` is not used."""
        rest = {
            name: value
            for name, value in values.items()
            if value is not None and f"{{{name}}}" not in route.request
        }
        if route.page_count is not None:
            items = await self._pages(path, route.page_count, **rest)
            return [self._parse(route.result, item) for item in items]
        arguments: dict[str, Any] = {"timeout": REQUEST_TIMEOUT_S} if route.is_slow else {}
        message = next((value for value in rest.values() if isinstance(value, Message)), None)
        if message is not None:
            arguments["content"] = message.to_json()
            arguments["headers"] = {"Content-Type": "application/json"}
        else:
            if "accept" in rest:
                arguments["headers"] = {"Accept": rest.pop("accept")}
            arguments["json" if method == "POST" else "params"] = rest or None
        try:
            response = await self._send(method, path, **arguments)
        except ApiError as error:
            if route.absent_at is not None and error.status == route.absent_at:
                return None
            raise
        if route.result is bytes:
            return response.content
        return self._parse(route.result, self._read(response))

    async def events(self, run_id: str, last_id: str | None = None) -> AsyncIterator[StreamEvent]:
        """Yield the run events.

        Args:
            run_id: The run to use.
            last_id: Last received event id. If None, start from the beginning.

        Raises:
            ApiError: The coordinator rejects the request or the connection fails.
        """
        headers = {"Accept-Encoding": "identity"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        path, quiet = f"/v1/runs/{run_id}/events", httpx.Timeout(30.0)
        try:
            async with self._http.stream("GET", path, headers=headers, timeout=quiet) as response:
                if not response.is_success:
                    content = b""
                    async for piece in response.aiter_raw():
                        content = (content + piece)[:_ERROR_MAX_BYTES]
                        if len(content) == _ERROR_MAX_BYTES:
                            break
                    raise self._rejection(httpx.Response(response.status_code, content=content))
                async for event in events_of(lines_of(response.aiter_raw())):
                    yield event._replace(data=clean_json(event.data))
        except (httpx.HTTPError, EventTooLong) as error:
            raise self._no_response(error) from error

    async def is_operator(self) -> bool:
        """Return True if this client is signed in as an operator."""
        me = self._read(await self._send("GET", "/v1/me"))
        return bool(me["signed_in"]) and me["role"] == "operator"

    async def _pages(
        self, path: str, page_count: int, *, limit: int = ROWS_MAX_COUNT, **query: Any
    ) -> list[Any]:
        """Return at most ``limit`` items of a list, page by page."""
        items: list[Any] = []
        while len(items) < limit:
            query["limit"] = min(limit - len(items), page_count)
            response = await self._send("GET", path, params=query)
            page = self._read(response)
            if not isinstance(page, list):
                raise self._unexpected(response.url.path)
            items += page
            query["cursor"] = response.headers.get("Next-Cursor")
            if query["cursor"] is None:
                break
        return items

    def _read(self, response: httpx.Response) -> Any:
        try:
            return cleaned(parse_strict_json(response.content, RESPONSE_MAX_BYTES))
        except ValueError as error:
            raise self._unexpected(response.url.path) from error

    def _parse(self, kind: type | str, value: Any) -> Any:
        """Parse a response. Raise ``ApiError`` if it has another type."""
        if not isinstance(kind, str):
            return kind(value)
        model = pkgutil.resolve_name(f"broadside.{kind}")
        try:
            # Ignore fields that a later version has added.
            return model.parse_answer(value)
        except ValueError as error:
            raise self._unexpected(f"not a {model.__name__}") from error

    async def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = await ask(
                self._http,
                method,
                path,
                RESPONSE_MAX_BYTES,
                total_s=REQUEST_TIMEOUT_S,
                unpacks=True,
                **arguments,
            )
        except httpx.HTTPError as error:
            raise self._no_response(error) from error
        if response.is_success:
            return response
        raise self._rejection(response)

    def _unexpected(self, name: str) -> ApiError:
        return ApiError(
            f"coordinator at {self._http.base_url}: unexpected response ({name}); check that "
            "`broadside serve` of this version runs there"
        )

    def _no_response(self, error: Exception) -> ApiError:
        return ApiError(
            f"coordinator at {self._http.base_url}: no response ({type(error).__name__}: {error}); "
            "check that `broadside serve` runs there"
        )

    def _rejection(self, response: httpx.Response) -> ApiError:
        try:
            detail = cleaned(parse_strict_json(response.content, RESPONSE_MAX_BYTES)["detail"])
        except (ValueError, KeyError, TypeError):
            detail = response.text[:200] or f"HTTP {response.status_code} without a reason"
        match response.status_code:
            case httpx.codes.UNAUTHORIZED:
                detail = (
                    f"{self._http.base_url}: {detail}; set BROADSIDE_TOKEN, or give --token-file"
                )
            case httpx.codes.FORBIDDEN:
                detail = f"{self._http.base_url}: {detail}"
        return ApiError(str(detail), response.status_code)


@contextlib.asynccontextmanager
async def connect(url: str, token: str | None = None) -> AsyncIterator[ApiClient]:
    """Open a client.

    Args:
        url: Base address of the coordinator to connect to.
        token: Bearer token to send. If None, no token will be sent.

    Yields:
        The client. It is closed at the end.
    """
    headers = {"Accept-Encoding": "gzip"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    async with httpx.AsyncClient(base_url=url, timeout=30, headers=headers) as http:
        yield ApiClient(http)


# Server-sent events (WHATWG HTML, 9.2.6, Interpreting an event stream) ----------------------------


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield each complete line of a byte stream.

    Raises:
        EventTooLong: A line is longer than the limit.
    """
    rest = bytearray()
    async for piece in pieces:
        if b"\n" in piece:
            *lines, last = (bytes(rest) + piece).split(b"\n")
            rest = bytearray(last)
            for line in lines:
                yield line.removesuffix(b"\r").decode(errors="replace")
        else:
            rest += piece
        if len(rest) > EVENT_MAX_BYTES:
            raise EventTooLong(f"an event of over {EVENT_MAX_BYTES} bytes")


async def events_of(lines: AsyncIterator[str]) -> AsyncIterator[StreamEvent]:
    """Yield each event. Comments are skipped.

    Raises:
        EventTooLong: An event is longer than the limit.
    """
    name, event_id, chars_count = "message", None, 0
    data: list[str] = []
    async for line in lines:
        if not line:
            if data:
                yield StreamEvent(name, "\n".join(data), event_id)
            name, data, chars_count = "message", [], 0
            continue
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match key:
            case "event":
                name = value
            case "data":
                data.append(value)
                # Memory that each line needs, approximately.
                chars_count += len(value) + 64
                if chars_count > EVENT_MAX_BYTES:
                    raise EventTooLong(f"an event of over {EVENT_MAX_BYTES} bytes")
            case "id":
                event_id = value
