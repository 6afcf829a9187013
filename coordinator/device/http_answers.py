"""Asks a device's HTTP service: answers of bounded size, that nobody has packed."""

import math
import ssl
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from broadside.coordinator.core import words
from broadside.coordinator.device.ledgers.source import LedgerError

_PACKED: Final = "an answer that is packed, unasked"


def may_carry_secret(url: str) -> bool:
    """Whether a token may travel there: over https, or within this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def bounded_client(
    headers: Mapping[str, str],
    ca_file: Path | None,
    attempt_s: float,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """A client for :func:`get_bounded`; ``attempt_s``: to connect, and without a byte (s).

    Raises ``LedgerError`` for a header that cannot travel, which the library would quote.
    """
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise LedgerError(f"{name}: a secret of other than printable ASCII; give it alone")
    return httpx.AsyncClient(
        headers={"Accept-Encoding": "identity", **headers},
        verify=ssl.create_default_context(cafile=ca_file),
        timeout=attempt_s,
        transport=transport,
    )


async def get_bounded(
    client: httpx.AsyncClient, url: str, max_bytes: int, where: str, *, params: Any = None
) -> tuple[httpx.Response, bytes]:
    """What is answered, whatever its status, and the whole body. No redirect is followed.

    Raises ``LedgerError``, which begins with ``where``: for no answer, a packed one, and one that
    is larger.
    """
    body = bytearray()
    try:
        async with client.stream("GET", url, params=params) as response:
            if _is_packed(response):
                raise LedgerError(f"{where}: {_PACKED}")
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > max_bytes:
                    raise LedgerError(f"{where}: an answer of over {words.size(max_bytes)}")
    except httpx.HTTPError as error:
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise LedgerError(f"{where}: no answer ({said})") from error
    return response, bytes(body)


def retry_after_s(response: httpx.Response, otherwise_s: float) -> float:
    """The seconds of a ``Retry-After``; ``otherwise_s`` where there is none, or a date."""
    try:
        told_s = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return otherwise_s
    return max(0.0, told_s) if math.isfinite(told_s) else otherwise_s


# Names, in lower case without separators, by which answers say that there is more: Microsoft's REST
# guidelines (nextLink), OData, AWS (IsTruncated, NextToken), Kubernetes (continue), VictoriaMetrics
# (isPartial), Elasticsearch (timed_out).
_MORE: Final = frozenset(
    [
        "nextlink",
        "odatanextlink",
        "nextpage",
        "nextpagetoken",
        "nextpageuri",
        "nexttoken",
        "nextcursor",
        "next",
        "continue",
        "hasmore",
        "hasnext",
        "hasnextpage",
        "istruncated",
        "truncated",
        "ispartial",
        "partial",
        "partialresponse",
        "incomplete",
        "timedout",
    ]
)
_ENVELOPES: Final = ("meta", "metadata", "paging", "pagination", "links", "_links", "page", "data")


def partial_answer(response: httpx.Response, document: Any) -> str | None:
    """Return why an answer is known to be incomplete; None where nothing says so.

    Args:
        response: The answer: its status and its ``Link`` header.
        document: Its JSON: keys at the top and in the usual envelopes that announce more pages, a
            cut or a partial result, and an error beside the result.
    """
    if response.status_code == httpx.codes.PARTIAL_CONTENT:
        return "HTTP 206 (partial content)"
    if "next" in response.links:
        return "its header Link names a next page"
    if not isinstance(document, dict):
        return None
    for place in (document, *(document.get(name) for name in _ENVELOPES)):
        for name, value in place.items() if isinstance(place, dict) else ():
            if _plain_name(name) in _MORE and _announces(value):
                return f"{name!r} is set"
    error = document.get("error")
    if isinstance(error, dict) and "partial" in str(error.get("code", "")).lower():
        return f"error {error.get('code')}"
    return None


def _plain_name(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _announces(value: Any) -> bool:
    """Return whether a value says yes: true, or the address or token of a next page."""
    if isinstance(value, str):
        return value.strip().lower() not in ("", "false", "null", "none", "0")
    return value is True or (isinstance(value, dict) and bool(value.get("href")))


def read_within(answer: httpx.Response, max_bytes: int) -> httpx.Response:
    """A streamed answer with its whole body. Raises ``httpx.ReadError`` for one that is packed, and
    one that is larger."""
    if _is_packed(answer):
        raise httpx.ReadError(_PACKED)
    body = bytearray()
    for piece in answer.iter_bytes():
        body += piece
        if len(body) > max_bytes:
            raise httpx.ReadError(f"an answer of over {words.size(max_bytes)}")
    return httpx.Response(
        answer.status_code, headers=answer.headers, content=bytes(body), request=answer.request
    )


def _is_packed(response: httpx.Response) -> bool:
    """In spite of what was asked: a kilobyte unpacks to a gigabyte."""
    return bool(response.headers.get("Content-Encoding", "identity") != "identity")
