"""An answer of bounded size: read as it comes, nothing unpacked."""

import asyncio
from typing import Any, Final

import httpx

BODY_S: Final = 30.0  # s that an answer's body may take


async def ask(
    client: httpx.AsyncClient, method: str, url: str, max_bytes: int, **options: Any
) -> httpx.Response:
    """The whole answer. Raises ``httpx.HTTPError``, also for one that is larger, slower, or packed
    in spite of what was asked: a kilobyte unpacks to a gigabyte."""
    async with client.stream(method, url, **options) as response:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise httpx.DecodingError("an answer that is packed, unasked", request=response.request)
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > max_bytes:
                        raise httpx.RemoteProtocolError(f"an answer of over {max_bytes} bytes")
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"no end of the answer in {BODY_S:g} s") from error
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        content=bytes(body),
        request=response.request,
    )
