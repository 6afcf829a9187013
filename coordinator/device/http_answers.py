"""Reads what a device's HTTP service answers, of bounded size."""

from collections.abc import Callable, Iterator
from typing import Final

import httpx

from coordinator.device.ledgers.source import LedgerError

_PACKED: Final = "an answer that is packed, unasked"


async def read_bounded(response: httpx.Response, max_bytes: int, where: str, over: str) -> bytes:
    """The whole body. Raises ``LedgerError``: ``where``, and ``over`` of one that is larger.

    One that is packed is none.
    """
    if _is_packed(response):
        raise LedgerError(f"{where}: {_PACKED}")
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > max_bytes:
            raise LedgerError(f"{where}: {over}")
    return bytes(body)


def refuse_over(max_bytes: int) -> Callable[[httpx.Response], None]:
    """A hook for a client's responses: a packed one, and one that is larger, end as
    ``httpx.ReadError``."""

    def bound(response: httpx.Response) -> None:
        if _is_packed(response):
            raise httpx.ReadError(_PACKED)
        if isinstance(response.stream, httpx.SyncByteStream):
            response.stream = _Bounded(response.stream, max_bytes)

    return bound


def _is_packed(response: httpx.Response) -> bool:
    """In spite of what was asked: a kilobyte unpacks to a gigabyte."""
    return bool(response.headers.get("Content-Encoding", "identity") != "identity")


class _Bounded(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    def __iter__(self) -> Iterator[bytes]:
        seen_bytes = 0
        for piece in self._stream:
            seen_bytes += len(piece)
            if seen_bytes > self._max_bytes:
                raise httpx.ReadError(f"an answer of over {self._max_bytes} bytes")
            yield piece

    def close(self) -> None:
        self._stream.close()
