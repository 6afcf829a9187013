"""HTTP requests with a limit for the total time and for the response size.

The timeouts of HTTP libraries apply to each read. Without a total limit, a server that sends one
byte per second would block the caller forever. ``tests/unit/test_outward_calls.py`` detects calls
that do not use this module.
"""

import asyncio
import math
import os
import socket
import ssl
import zlib
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

# Time limit for a whole request in seconds, including connection, headers and body.
TOTAL_S: Final = 30.0
# A request body extends the time limit. If an upload is slower than this, it will be rejected.
SENT_BYTES_PER_S: Final = 16_384
# Value of ``wbits`` that selects the gzip format in zlib.
_GZIP_FORM: Final = 16 + zlib.MAX_WBITS
_OF_WIRE: Final = (b"content-encoding", b"content-length", b"transfer-encoding")


async def ask(  # noqa: PLR0913
    client: httpx.AsyncClient,
    method: str,
    url: str | httpx.URL,
    max_bytes: int | None,
    *,
    total_s: float = TOTAL_S,
    unpacks: bool = False,
    **options: Any,
) -> httpx.Response:
    """Send a request and read the complete response, for any status. Redirects are not followed.

    Args:
        client: HTTP client. Its timeouts apply to each read.
        method: HTTP method, such as ``GET``.
        url: The URL to request.
        max_bytes: The maximum body size to read after decompression, in bytes. Use None to read
            only status and headers.
        total_s: The maximum time to wait for the complete response, in seconds. It will be extended
            if the request has a body.
        unpacks: True if the response may be gzipped. Otherwise a compressed response is an error,
            because a kilobyte can expand to a gigabyte.
        options: More arguments for ``client.stream``.

    Returns:
        The response with the inflated body. Its status is not checked.

    Raises:
        httpx.HTTPError: There is no response, or the response is too large, too slow, incomplete,
            or compressed although ``unpacks`` is False.
    """
    total_s += len(options.get("content") or b"") / SENT_BYTES_PER_S
    try:
        async with asyncio.timeout(total_s):
            async with client.stream(method, url, **options) as response:
                body = b"" if max_bytes is None else await _body(response, max_bytes, unpacks)
    except TimeoutError as error:
        raise httpx.ReadTimeout(f"no whole answer within {total_s:g} s") from error
    except httpx.ConnectError as error:
        raise httpx.ConnectError(_reason(error)) from error
    # We need to copy headers as bytes, because a header can contain any byte.
    headers = [header for header in response.headers.raw if header[0].lower() not in _OF_WIRE]
    return httpx.Response(
        response.status_code, headers=headers, content=body, request=response.request
    )


def _reason(error: BaseException) -> str:
    """Return why a connection failed, as the operating system reports it.

    The HTTP libraries only report that all attempts failed.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError | socket.gaierror):
            # These errors have a number that is not an errno.
            return cause.strerror or str(cause)
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return str(error)


def ask_now(url: str, max_bytes: int | None, total_s: float, method: str = "GET") -> httpx.Response:
    """Send a request from a command that does not have an event loop.

    Args:
        url: The URL to request.
        max_bytes: The maximum body size to read, in bytes. Use None to read only status and
            headers.
        total_s: The maximum time to wait for the response, in seconds.
        method: HTTP method, such as ``GET``.

    Returns:
        The response. Its status is not checked.

    Raises:
        httpx.HTTPError: As :func:`ask`.
    """

    async def respond() -> httpx.Response:
        headers = {"Accept-Encoding": "identity"}
        async with httpx.AsyncClient(timeout=total_s, headers=headers) as client:
            return await ask(client, method, url, max_bytes, total_s=total_s)

    return asyncio.run(respond())


def is_loopback(host: str) -> bool:
    """Return True if a socket that listens on ``host`` is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def may_carry_secret(url: str) -> bool:
    """Return True if a token is safe, because the URL uses HTTPS or a loopback address."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def retry_after_s(response: httpx.Response, otherwise_s: float) -> float:
    """Return the ``Retry-After`` header in seconds.

    Args:
        response: HTTP response.
        otherwise_s: Default in seconds if the header is missing, a date or not finite.
    """
    try:
        reported_s = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return otherwise_s
    return max(0.0, reported_s) if math.isfinite(reported_s) else otherwise_s


async def _body(response: httpx.Response, max_bytes: int, unpacks: bool) -> bytes:
    packing = response.headers.get("Content-Encoding", "identity")
    if packing != "identity" and not (unpacks and packing == "gzip"):
        raise httpx.DecodingError(
            "the answer is compressed, which was not requested", request=response.request
        )
    body = bytearray()
    stream = zlib.decompressobj(_GZIP_FORM) if packing == "gzip" else None
    pieces = response.aiter_bytes() if stream is None else response.aiter_raw()
    try:
        async for piece in pieces:
            left_bytes = max_bytes - len(body) + 1
            body += piece if stream is None else stream.decompress(piece, left_bytes)
            if len(body) > max_bytes:
                raise httpx.RemoteProtocolError(f"the answer is over {max_bytes} bytes")
    except zlib.error as error:
        raise httpx.DecodingError(f"the answer is not valid gzip: {error}") from error
    if stream is not None and not stream.eof:
        raise httpx.RemoteProtocolError("the answer is incomplete")
    return bytes(body)
