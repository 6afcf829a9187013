"""HEAD method for all routes with GET (RFC 9110, section 9.3.2)."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadMethodMiddleware:
    """ASGI middleware that answers HEAD as GET without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        over = False

        async def send_head(message: Message) -> None:
            nonlocal over
            if message["type"] != "http.response.body":
                await send(message)
            elif not over:
                # We need to end the response here, because an event stream will not end by itself.
                over = True
                await send({"type": "http.response.body", "body": b""})

        async def receive_until_sent() -> Message:
            return {"type": "http.disconnect"} if over else await receive()

        await self._app({**scope, "method": "GET"}, receive_until_sent, send_head)
