"""The SDK's transport, whose answers are bounded: read as they come, never unpacked."""

from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
from azure.core.pipeline.transport import AioHttpTransport


class BoundedTransport(AioHttpTransport):  # type: ignore[misc]  # the SDK offers it untyped, lazily
    """An answer of over ``max_bytes``, or packed in spite of what was asked, is an ``AzureError``.

    A kilobyte unpacks to a gigabyte, and the SDK would unpack it. Once closed it opens again: a
    chain of credentials shares it, and each closes it.
    """

    session: aiohttp.ClientSession | None

    def __init__(
        self,
        max_bytes: int,
        connector: Callable[[], aiohttp.BaseConnector] | None = None,
        middlewares: Sequence[aiohttp.ClientMiddlewareType] = (),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._response_class = _bounded(max_bytes)
        self._connector = connector
        self._middlewares = middlewares

    async def open(self) -> None:
        if self.session is None:
            self.session = aiohttp.ClientSession(
                connector=self._connector and self._connector(),
                response_class=self._response_class,
                headers={"Accept-Encoding": "identity"},
                trust_env=True,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                middlewares=self._middlewares,
            )
        await super().open()


def _bounded(max_bytes: int) -> type[aiohttp.ClientResponse]:
    class Bounded(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            packed = self.headers.get("Content-Encoding", "identity") != "identity"
            self.content: Any = _Content(self.content, max_bytes, packed)
            return self

    return Bounded


class _Content:
    """What aiohttp reads an answer's body from."""

    def __init__(self, content: aiohttp.StreamReader, max_bytes: int, packed: bool) -> None:
        self._content = content
        self._left_bytes = self._max_bytes = max_bytes
        self._packed = packed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def read(self, count: int = -1) -> bytes:
        if count >= 0:
            return self._counted(await self._content.read(count))
        body = bytearray()
        while piece := self._counted(await self._content.readany()):
            body += piece
        return bytes(body)

    def _counted(self, piece: bytes) -> bytes:
        if piece and self._packed:
            raise aiohttp.ClientPayloadError("an answer that is packed, unasked")
        self._left_bytes -= len(piece)
        if self._left_bytes < 0:
            raise aiohttp.ClientPayloadError(f"an answer of over {self._max_bytes} bytes")
        return piece
