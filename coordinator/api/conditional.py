"""Conditional reads (RFC 9110, section 13): a body that the caller has is not sent again."""

import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response

from broadside.coordinator.api.json_once import read_once
from broadside.coordinator.api.row_answers import RowsRoute

_KEPT = ("Cache-Control", "ETag", "Link", "Next-Cursor", "Vary")  # of a 304, as section 15.4.5 says


class ConditionalRoute(RowsRoute):
    """A route whose answers to GET carry an ETag of their body, and honour ``If-None-Match``.

    A run that is over never changes, so a caller that keeps its answer pays for it once. The tag is
    a digest of what is sent: nobody has to know when it changes. It is weak, because the same
    answer may go out compressed.
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
    """Weak comparison, as section 13.1.2 asks."""
    tags = {tag.strip().removeprefix("W/") for tag in wanted.split(",")}
    return "*" in tags or etag.removeprefix("W/") in tags
