"""HTTP requests to a device with limits on size and time and without compression."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.exchange.http.bounded import ask

# Time limit of a request in seconds, from its first byte to the last byte of the response.
# Prometheus ends a query after two minutes by default. 16 MiB in 30 s is 4.5 Mbit/s, and the
# coordinator stops a read after 60 s.
ANSWER_S: Final = 30.0


def bounded_client(
    headers: Mapping[str, str],
    ca_file: Path | None,
    attempt_s: float,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """Return an HTTP client for :func:`get_bounded`.

    Args:
        headers: Headers of every request.
        ca_file: Path to the CA certificates (PEM). ``None`` uses the system's.
        attempt_s: Timeout in seconds to connect, and between two reads.
        transport: Transport for tests. None uses the network.

    Raises:
        TelemetryError: A header value is not printable ASCII. httpx would quote the secret in its
            error.
    """
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise TelemetryError(f"{name}: the secret is not printable ASCII; give only the secret")
    return httpx.AsyncClient(
        headers={"Accept-Encoding": "identity", **headers},
        verify=ssl.create_default_context(cafile=ca_file),
        timeout=attempt_s,
        transport=transport,
    )


async def get_bounded(
    client: httpx.AsyncClient,
    url: str | httpx.URL,
    max_bytes: int,
    error_prefix: str,
    *,
    answer_s: float = ANSWER_S,
) -> tuple[httpx.Response, bytes]:
    """Send a GET request and read the whole response, for every status.

    Redirects are not followed.

    Args:
        client: Client for the request. Its timeouts apply to each read, so they do not end a slow
            response.
        url: URL of the request.
        max_bytes: Maximum number of bytes to read.
        error_prefix: Prefix of error messages.
        answer_s: Time limit of the whole request in seconds (connect, headers and body).

    Returns:
        The response and its body.

    Raises:
        TelemetryError: There is no response, or it is compressed, too large or too slow.
    """
    try:
        response = await ask(client, "GET", url, max_bytes, total_s=answer_s)
    except httpx.HTTPError as error:
        if isinstance(error, httpx.TimeoutException | httpx.DecodingError) and str(error):
            raise TelemetryError(f"{error_prefix}: {error}") from error
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise TelemetryError(f"{error_prefix}: no answer ({text})") from error
    return response, response.content


# Keys that mark an incomplete response, in lower case without separators: Microsoft's REST
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
    """Return the reason if a response is marked as incomplete.

    Keys at the top level and in the usual envelopes are checked. They can announce more pages, a
    truncated or partial result, or an error beside the result.

    Args:
        response: HTTP response with its status and its ``Link`` header.
        document: Parsed JSON body.

    Returns:
        The reason for messages. None if the response is complete.
    """
    if response.status_code == httpx.codes.PARTIAL_CONTENT:
        return "HTTP 206 (partial content)"
    if "next" in response.links:
        return "its header Link refers to a next page"
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
    """Return True if a value is true, or is the address or token of a next page."""
    if isinstance(value, str):
        return value.strip().lower() not in ("", "false", "null", "none", "0")
    return value is True or (isinstance(value, dict) and bool(value.get("href")))
