"""A session of ``requests`` whose requests end: a total deadline, and no answer's body is read.

The timeouts of ``requests`` are for each read. A server that sends a byte a second would hold the
thread for ever, and the threads are few.
"""

import asyncio
import ssl
from typing import Any, cast

import httpx
import requests

from broadside.exchange.http.bounded import ask


class BoundedSession(requests.Session):
    """Sends by httpx within ``whole_s``; the answer is its status, and no redirect is followed."""

    def __init__(self, whole_s: float) -> None:
        super().__init__()
        self._whole_s = whole_s

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send a prepared request, from a thread without an event loop.

        Raises ``requests.RequestException``.
        """
        timeout = options.get("timeout")
        whole_s = min(timeout, self._whole_s) if isinstance(timeout, int | float) else self._whole_s
        try:
            status = asyncio.run(_status(request, options, whole_s))
        except httpx.TimeoutException as error:
            raise requests.Timeout(f"no answer within {whole_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise requests.ConnectionError(f"no answer ({type(error).__name__})") from error
        answer = requests.Response()
        answer.status_code, answer.reason = status, httpx.codes.get_reason_phrase(status)
        answer.request, answer.url = request, str(request.url)
        answer._content = b""
        if 300 <= status < 400:  # the exporter would take it for success
            raise requests.TooManyRedirects(f"redirected ({status})")
        return answer


async def _status(
    request: requests.PreparedRequest, options: dict[str, Any], whole_s: float
) -> int:
    async with httpx.AsyncClient(timeout=whole_s, verify=_context(options)) as client:
        answer = await ask(
            client,
            str(request.method),
            str(request.url),
            None,
            whole_s=whole_s,
            content=cast(bytes, request.body),  # the exporter's
            headers={name: str(value) for name, value in request.headers.items()},
        )
        return answer.status_code


def _context(options: dict[str, Any]) -> ssl.SSLContext:
    """``verify`` and ``cert`` of ``requests`` as a TLS context."""
    verify, cert = options.get("verify", True), options.get("cert")
    if isinstance(verify, str):
        context = ssl.create_default_context(cafile=verify)
    else:
        context = httpx.create_ssl_context(verify=bool(verify))
    if cert is not None:
        certificate, key = (cert, None) if isinstance(cert, str) else cert
        context.load_cert_chain(certificate, key)
    return context
