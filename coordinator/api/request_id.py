"""Request ids in responses and in the log, to find the log lines of one request."""

import re
import secrets
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broadside.coordinator.coordinator_log import REQUEST_ID

HEADER: Final = "X-Request-Id"
_VALID: Final = re.compile(r"[A-Za-z0-9._-]{8,64}")


class RequestIdMiddleware:
    """ASGI middleware that gives each request an id.

    A valid ``X-Request-Id`` of the client is used, so that it can be traced through several
    services.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(HEADER, "")
        request_id = sent if _VALID.fullmatch(sent) else secrets.token_hex(8)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        token = REQUEST_ID.set(request_id)
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            REQUEST_ID.reset(token)
