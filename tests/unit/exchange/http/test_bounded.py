import socket

import httpx
import pytest

from broadside.exchange.http.bounded import ask


async def test_header_with_any_bytes_is_decoded() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(429, headers=[(b"Retry-After", b"\xb2"), (b"Server", b"n")])

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        response = await ask(client, "GET", "http://device/metrics", 10)
    assert response.status_code == 429
    assert response.headers["Retry-After"] == "\xb2"
    assert response.headers["Server"] == "n"


async def test_unknown_name_has_the_resolver_message() -> None:
    def unknown(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("all attempts failed") from socket.gaierror(
            socket.EAI_NONAME, "Name or service not known"
        )

    async with httpx.AsyncClient(transport=httpx.MockTransport(unknown)) as client:
        with pytest.raises(httpx.ConnectError, match=r"^Name or service not known$"):
            await ask(client, "GET", "http://device/metrics", 10)
