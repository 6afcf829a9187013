"""Reads what a device's HTTP service answers, of bounded size."""

from collections.abc import Callable, Iterator

import httpx

from coordinator.device.ledgers.source import LedgerError


async def read_bounded(response: httpx.Response, max_bytes: int, where: str, over: str) -> bytes:
    """The whole body. Raises ``LedgerError``: ``where``, and ``over`` of one that is larger.

    One that is packed in spite of what was asked is none: a kilobyte unpacks to a gigabyte.
    """
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise LedgerError(f"{where}: an answer that is packed, unasked")
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
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise httpx.ReadError("an answer that is packed, unasked")
        if isinstance(response.stream, httpx.SyncByteStream):
            response.stream = _Bounded(response.stream, max_bytes)

    return bound


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
