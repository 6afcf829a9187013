"""HTTP client of the coordinator API."""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import httpx

from broadside.coordinator.cli.event_stream import (
    EventTooLong,
    StreamEvent,
    clean_json,
    events_of,
    lines_of,
)
from broadside.coordinator.cli.refused import ApiError
from broadside.coordinator.cli.screen_text import cleaned
from broadside.coordinator.cli.verbs import Route, Verbs
from broadside.exchange.http.bounded import ask
from broadside.exchange.messages import Message

# Limit for lists whose command has no limit option.
ROWS_MAX_COUNT: Final = 100_000
# Timeout for responses that read many rows.
LONG_S: Final = 600.0
# Size limit of an uncompressed response, twice the largest stored file.
ANSWER_MAX_BYTES: Final = 512 * 1_048_576
REFUSAL_MAX_BYTES: Final = 65_536


class Client(Verbs):
    """Client that sends each verb to its route. Every verb can raise ``ApiError``."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def _answer(
        self,
        route: Route,
        method: str,
        path: str,
        given: Mapping[str, Any],
        work: Callable[[], Awaitable[Any]],
    ) -> Any:
        """Send the verb arguments to its route, and return the parsed response.

        ``work``, which does the verb locally, is not used.
        """
        rest = {
            name: value
            for name, value in given.items()
            if value is not None and f"{{{name}}}" not in route.asks
        }
        if route.page_count is not None:
            items = await self._pages(path, route.page_count, **rest)
            return [self._as(route.answer, item) for item in items]
        arguments: dict[str, Any] = {"timeout": LONG_S} if route.is_slow else {}
        message = next((value for value in rest.values() if isinstance(value, Message)), None)
        if message is not None:
            arguments["content"] = message.to_json()
            arguments["headers"] = {"Content-Type": "application/json"}
        else:
            if "accept" in rest:
                arguments["headers"] = {"Accept": rest.pop("accept")}
            arguments["json" if method == "POST" else "params"] = rest or None
        try:
            response = await self._ask(method, path, **arguments)
        except ApiError as error:
            if route.absent_at is not None and error.status == route.absent_at:
                return None
            raise
        if route.answer is bytes:
            return response.content
        return self._as(route.answer, self._read(response))

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
                    told = b""
                    async for piece in response.aiter_raw():
                        told = (told + piece)[:REFUSAL_MAX_BYTES]
                        if len(told) == REFUSAL_MAX_BYTES:
                            break
                    raise self._refusal(httpx.Response(response.status_code, content=told))
                async for event in events_of(lines_of(response.aiter_raw())):
                    yield event._replace(data=clean_json(event.data))
        except (httpx.HTTPError, EventTooLong) as error:
            raise self._silence(error) from error

    async def is_operator(self) -> bool:
        """Return True if this client is signed in as an operator."""
        me = self._read(await self._ask("GET", "/v1/me"))
        return bool(me["signed_in"]) and me["role"] == "operator"

    async def _pages(
        self, path: str, page_count: int, *, limit: int = ROWS_MAX_COUNT, **query: Any
    ) -> list[Any]:
        """Return at most ``limit`` items of a list, page by page."""

        items: list[Any] = []
        while len(items) < limit:
            query["limit"] = min(limit - len(items), page_count)
            response = await self._ask("GET", path, params=query)
            found = self._read(response)
            if not isinstance(found, list):
                raise self._strange(response)
            items += found
            query["cursor"] = response.headers.get("Next-Cursor")
            if query["cursor"] is None:
                break
        return items

    def _read(self, response: httpx.Response) -> Any:
        try:
            return cleaned(response.json())
        except (ValueError, RecursionError) as error:
            raise self._strange(response) from error

    def _as(self, kind: type | str, answer: Any) -> Any:
        """Parse a response. Raise ``ApiError`` when it has another type."""
        if not isinstance(kind, str):
            return kind(answer)
        model = pkgutil.resolve_name(kind)
        try:
            # Ignore fields that a later version has added.
            return model.model_validate(answer, extra="ignore")
        except (ValueError, RecursionError) as error:
            raise ApiError(
                f"coordinator at {self._http.base_url}: it answered no {model.__name__}; is "
                "`broadside serve` there, of this version?"
            ) from error

    def _strange(self, response: httpx.Response) -> ApiError:
        return ApiError(
            f"coordinator at {self._http.base_url}: no answer that can be read at "
            f"{response.url.path}; is `broadside serve` there, of this version?"
        )

    async def _ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = await ask(
                self._http,
                method,
                path,
                ANSWER_MAX_BYTES,
                total_s=LONG_S,
                unpacks=True,
                **arguments,
            )
        except httpx.HTTPError as error:
            raise self._silence(error) from error
        if response.is_success:
            return response
        raise self._refusal(response)

    def _silence(self, error: Exception) -> ApiError:
        where = self._http.base_url
        return ApiError(
            f"coordinator at {where}: no answer ({type(error).__name__}: {error}); "
            "is `broadside serve` running there?"
        )

    def _refusal(self, response: httpx.Response) -> ApiError:
        try:
            detail = cleaned(response.json()["detail"])
        except (ValueError, KeyError, TypeError, RecursionError):
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
async def connect(url: str, token: str | None = None) -> AsyncIterator[Client]:
    """Open a client.

    Args:
        url: Base address of the coordinator to connect to.
        token: Bearer token to send. If None, no token will be sent.
    """
    headers = {"Accept-Encoding": "gzip"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    async with httpx.AsyncClient(base_url=url, timeout=30, headers=headers) as http:
        yield Client(http)
