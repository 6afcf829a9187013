"""Session for ``requests`` with a total time limit for each request. Response bodies are not read.

The timeouts in ``requests`` are for a single read. A server that sends one byte per second could
therefore block a thread forever, and there are only a few threads.
"""

import asyncio
import ssl
from typing import Any, cast

import httpx
import requests

from broadside.exchange.http.bounded import ask


class BoundedSession(requests.Session):
    """Session that sends with httpx within a time limit, without redirects.

    A response has only a status, and its body is empty.
    """

    def __init__(self, total_s: float) -> None:
        super().__init__()
        self._whole_s = total_s

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send a prepared request, from a thread that has no event loop.

        Args:
            request: The request to send.
            options: Options of ``requests``. Only ``timeout``, ``verify`` and ``cert`` are used.

        Raises:
            requests.RequestException: There is no response within the time limit, or it is a
                redirect.
        """
        timeout = options.get("timeout")
        total_s = min(timeout, self._whole_s) if isinstance(timeout, int | float) else self._whole_s
        try:
            status = asyncio.run(_status(request, options, total_s))
        except httpx.TimeoutException as error:
            raise requests.Timeout(f"no answer within {total_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise requests.ConnectionError(f"no answer ({type(error).__name__})") from error
        answer = requests.Response()
        answer.status_code, answer.reason = status, httpx.codes.get_reason_phrase(status)
        answer.request, answer.url = request, str(request.url)
        answer._content = b""
        # The exporter would use a redirect as success.
        if 300 <= status < 400:
            raise requests.TooManyRedirects(f"redirected ({status})")
        return answer


async def _status(
    request: requests.PreparedRequest, options: dict[str, Any], total_s: float
) -> int:
    async with httpx.AsyncClient(timeout=total_s, verify=_context(options)) as client:
        answer = await ask(
            client,
            str(request.method),
            str(request.url),
            None,
            total_s=total_s,
            # The exporter always uses bytes.
            content=cast(bytes, request.body),
            headers={name: str(value) for name, value in request.headers.items()},
        )
        return answer.status_code


def _context(options: dict[str, Any]) -> ssl.SSLContext:
    """Return a TLS context for the options ``verify`` and ``cert`` of ``requests``."""
    verify, cert = options.get("verify", True), options.get("cert")
    if isinstance(verify, str):
        context = ssl.create_default_context(cafile=verify)
    else:
        context = httpx.create_ssl_context(verify=bool(verify))
    if cert is not None:
        certificate, key = (cert, None) if isinstance(cert, str) else cert
        context.load_cert_chain(certificate, key)
    return context
