"""An answer of bounded size and time: read as it comes."""

import asyncio
import zlib
from typing import Any, Final

import httpx

BODY_S: Final = 30.0  # s that an answer's body may take
_GZIP_FORM: Final = 16 + zlib.MAX_WBITS  # as zlib takes it
_OF_WIRE: Final = ("content-encoding", "content-length", "transfer-encoding")


async def ask(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    max_bytes: int,
    *,
    body_s: float = BODY_S,
    unpacks: bool = False,
    **options: Any,
) -> httpx.Response:
    """The whole answer. Raises ``httpx.HTTPError``, also for one that is larger, slower, or packed
    in spite of what was asked: a kilobyte unpacks to a gigabyte. With ``unpacks`` gzip is one that
    was asked for, and ``max_bytes`` are those of what it unpacks to."""
    async with client.stream(method, url, **options) as response:
        packing = response.headers.get("Content-Encoding", "identity")
        if packing != "identity" and not (unpacks and packing == "gzip"):
            raise httpx.DecodingError("an answer that is packed, unasked", request=response.request)
        body = bytearray()
        stream = zlib.decompressobj(_GZIP_FORM) if packing == "gzip" else None
        try:
            async with asyncio.timeout(body_s):
                async for piece in response.aiter_raw():
                    left_bytes = max_bytes - len(body) + 1
                    body += piece if stream is None else stream.decompress(piece, left_bytes)
                    if len(body) > max_bytes:
                        raise httpx.RemoteProtocolError(f"an answer of over {max_bytes} bytes")
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"no end of the answer in {body_s:g} s") from error
        except zlib.error as error:
            raise httpx.DecodingError(f"an answer that is no gzip: {error}") from error
        if stream is not None and not stream.eof:
            raise httpx.RemoteProtocolError("an answer that is cut short")
    headers = [(name, value) for name, value in response.headers.items() if name not in _OF_WIRE]
    return httpx.Response(
        response.status_code, headers=headers, content=bytes(body), request=response.request
    )
