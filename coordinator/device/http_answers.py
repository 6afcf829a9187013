"""Reads what a device's HTTP service answers, of bounded size."""

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
