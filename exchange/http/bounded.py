"""The one way to ask an HTTP service: bounded in seconds and bytes, from connecting to the end.

The timeouts of the libraries are for each read. A server that sends a byte a second, of headers or
body, would hold its asker for ever. ``tests/unit/test_outward_calls.py`` finds calls that go
another way.
"""

import asyncio
import os
import socket
import ssl
import zlib
from typing import Any, Final

import httpx

WHOLE_S: Final = 30.0  # s of a request: connecting, headers and body
SENT_BYTES_PER_S: Final = 16_384  # a body that is sent adds its time at the least rate accepted
_GZIP_FORM: Final = 16 + zlib.MAX_WBITS  # as zlib takes it
_OF_WIRE: Final = (b"content-encoding", b"content-length", b"transfer-encoding")


async def ask(
    client: httpx.AsyncClient,
    method: str,
    url: str | httpx.URL,
    max_bytes: int | None,
    *,
    whole_s: float = WHOLE_S,
    unpacks: bool = False,
    **options: Any,
) -> httpx.Response:
    """Send a request and read the whole answer, whatever its status. No redirect is followed.

    Args:
        client: Its own timeouts hold for each read.
        method: Of HTTP.
        url: The address.
        max_bytes: Most bytes of the body, unpacked; None: only status and headers are read.
        whole_s: Most seconds from connecting to the answer's last byte, beside those of a body that
            is sent.
        unpacks: gzip was asked for. Else a packed answer is an error: a kilobyte unpacks to a
            gigabyte.
        options: Of the client's ``stream``.

    Raises:
        httpx.HTTPError: No answer, or one that is larger, slower, cut short or packed unasked.
    """
    whole_s += len(options.get("content") or b"") / SENT_BYTES_PER_S
    try:
        async with asyncio.timeout(whole_s):
            async with client.stream(method, url, **options) as response:
                body = b"" if max_bytes is None else await _body(response, max_bytes, unpacks)
    except TimeoutError as error:
        raise httpx.ReadTimeout(f"no whole answer within {whole_s:g} s") from error
    except httpx.ConnectError as error:
        raise httpx.ConnectError(_reason(error)) from error
    # As bytes: a header may hold any of them.
    headers = [each for each in response.headers.raw if each[0].lower() not in _OF_WIRE]
    return httpx.Response(
        response.status_code, headers=headers, content=body, request=response.request
    )


def _reason(error: BaseException) -> str:
    """Return what the system said of a connection; libraries say that all attempts failed."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError | socket.gaierror):
            return cause.strerror or str(cause)  # its number is not the system's
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return str(error)


def ask_now(url: str, max_bytes: int | None, whole_s: float, method: str = "GET") -> httpx.Response:
    """Ask from a command, which has no event loop. Raises as :func:`ask` does."""

    async def asked() -> httpx.Response:
        headers = {"Accept-Encoding": "identity"}
        async with httpx.AsyncClient(timeout=whole_s, headers=headers) as client:
            return await ask(client, method, url, max_bytes, whole_s=whole_s)

    return asyncio.run(asked())


async def _body(response: httpx.Response, max_bytes: int, unpacks: bool) -> bytes:
    packing = response.headers.get("Content-Encoding", "identity")
    if packing != "identity" and not (unpacks and packing == "gzip"):
        raise httpx.DecodingError("an answer that is packed, unasked", request=response.request)
    body = bytearray()
    stream = zlib.decompressobj(_GZIP_FORM) if packing == "gzip" else None
    pieces = response.aiter_bytes() if stream is None else response.aiter_raw()
    try:
        async for piece in pieces:
            left_bytes = max_bytes - len(body) + 1
            body += piece if stream is None else stream.decompress(piece, left_bytes)
            if len(body) > max_bytes:
                raise httpx.RemoteProtocolError(f"an answer of over {max_bytes} bytes")
    except zlib.error as error:
        raise httpx.DecodingError(f"an answer that is no gzip: {error}") from error
    if stream is not None and not stream.eof:
        raise httpx.RemoteProtocolError("an answer that is cut short")
    return bytes(body)
