"""Requests to a device's HTTP service: answers of bounded size and time, never packed."""

import math
import ssl
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from broadside.coordinator.device.ledgers.source import LedgerError
from broadside.exchange.http.bounded import ask

# Seconds of one request from its first byte to the answer's last. Prometheus ends a query after two
# minutes by default, but 16 MiB in 30 s is 4.5 Mbit/s, and the runs' own reads end after 60 s.
ANSWER_S: Final = 30.0


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
    client: httpx.AsyncClient,
    url: str,
    max_bytes: int,
    where: str,
    *,
    params: Any = None,
    answer_s: float = ANSWER_S,
) -> tuple[httpx.Response, bytes]:
    """Send a GET and read the whole answer, whatever its status. No redirect is followed.

    Args:
        client: Its own timeouts hold for each read; they do not end an answer that drips.
        url: The address.
        max_bytes: Most bytes of the body.
        where: How an error's message begins.
        params: The query.
        answer_s: Most seconds of the whole request: connecting, headers and body.

    Raises:
        LedgerError: No answer, a packed one, or one that is larger or slower.
    """
    try:
        response = await ask(client, "GET", url, max_bytes, whole_s=answer_s, params=params)
    except httpx.HTTPError as error:
        if isinstance(error, httpx.TimeoutException | httpx.DecodingError) and str(error):
            raise LedgerError(f"{where}: {error}") from error
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise LedgerError(f"{where}: no answer ({said})") from error
    return response, response.content


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
