"""Conditional requests (RFC 9110, section 13), which avoid sending an unchanged body again."""

import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response

from broadside.coordinator.api.json_once import read_once
from broadside.coordinator.api.row_answers import RowsRoute

# Headers of a 304 response (RFC 9110, section 15.4.5).
_KEPT = ("Cache-Control", "ETag", "Link", "Next-Cursor", "Vary")


class ConditionalRoute(RowsRoute):
    """Route whose GET responses have an ETag, and that evaluates ``If-None-Match``.

    The results of a finished run never change, so a client with a cache receives them only once.
    The tag is a digest of the body, so no code has to track changes. The tag is weak, because the
    same response can also be sent compressed.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def conditional(request: Request) -> Response:
            read_once(request)
            response = await handle(request)
            body = getattr(response, "body", None)
            if request.method != "GET" or response.status_code != 200 or body is None:
                return response
            etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
            response.headers["ETag"] = etag
            response.headers.setdefault("Cache-Control", "private, no-cache")
            if matches(request.headers.get("if-none-match", ""), etag):
                kept = {name: value for name in _KEPT if (value := response.headers.get(name))}
                return Response(status_code=304, headers=kept)
            return response

        return conditional


def matches(wanted: str, etag: str) -> bool:
    """Return True if an ``If-None-Match`` header matches, by weak comparison (section 13.1.2).

    Args:
        wanted: Value of the header. It can be empty.
        etag: Current tag of the resource.
    """
    tags = {tag.strip().removeprefix("W/") for tag in wanted.split(",")}
    return "*" in tags or etag.removeprefix("W/") in tags
