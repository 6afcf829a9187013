import socket

import httpx
import pytest

from broadside.exchange.http.bounded import ask


async def test_a_header_of_any_bytes_is_part_of_the_answer() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(429, headers=[(b"Retry-After", b"\xb2"), (b"Server", b"n")])

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        response = await ask(client, "GET", "http://device/metrics", 10)
    assert response.status_code == 429
    assert response.headers["Retry-After"] == "\xb2"
    assert response.headers["Server"] == "n"


async def test_a_refused_connection_is_reported_in_the_systems_words() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.ConnectError, match="Connection refused"):
                await ask(client, "GET", url, 10)
