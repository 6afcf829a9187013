"""HTTP transport for the Azure SDK with a response size limit and without decompression."""

from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
from azure.core.pipeline.transport import AioHttpTransport


class BoundedTransport(AioHttpTransport):  # type: ignore[misc]  # the SDK offers it untyped, lazily
    """Transport that raises ``AzureError`` for responses that are too large or compressed.

    The requests do not accept compression, because a kilobyte can expand to a gigabyte when the SDK
    decompresses it. You can open the transport again after it was closed. This is needed because
    all credentials in a chain use the same transport, and each credential will close it.

    Args:
        max_bytes: The maximum response size to read, in bytes.
        connector: Creates the aiohttp connector.
        middlewares: Middlewares for aiohttp.
        options: More arguments for ``AioHttpTransport``.
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
    """Stream reader for aiohttp that enforces the limits."""

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
            raise aiohttp.ClientPayloadError("the answer is compressed, which was not requested")
        self._left_bytes -= len(piece)
        if self._left_bytes < 0:
            raise aiohttp.ClientPayloadError(f"the answer is over {self._max_bytes} bytes")
        return piece
