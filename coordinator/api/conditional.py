"""Conditional requests (RFC 9110, section 13), which avoid sending an unchanged body again."""

import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response

from broadside.coordinator.api.request_body import use_strict_json
from broadside.coordinator.api.tabular_responses import TabularRoute

# Headers of a 304 response (RFC 9110, section 15.4.5).
_NOT_MODIFIED_HEADERS = ("Cache-Control", "ETag", "Link", "Next-Cursor", "Vary")


class ConditionalRoute(TabularRoute):
    """Route whose GET responses have an ETag, and that evaluates ``If-None-Match``.

    The results of a finished run never change, so a client with a cache receives them only once.
    The tag is a digest of the body, so no code has to track changes. The tag is weak, because the
    same response can also be sent compressed.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def conditional(request: Request) -> Response:
            use_strict_json(request)
            response = await handle(request)
            body = getattr(response, "body", None)
            if request.method != "GET" or response.status_code != 200 or body is None:
                return response
            etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
            response.headers["ETag"] = etag
            response.headers.setdefault("Cache-Control", "private, no-cache")
            if matches(request.headers.get("if-none-match", ""), etag):
                headers = {n: v for n in _NOT_MODIFIED_HEADERS if (v := response.headers.get(n))}
                return Response(status_code=304, headers=headers)
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
