"""Tests for bounded that need processes, sockets or real time."""

import asyncio
import socket
import ssl
from pathlib import Path

import httpx
import pytest

from broadside.exchange.http.bounded import ask
from tests.live.certificates import make_certificates


async def test_refused_connection_has_the_system_message() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.ConnectError, match="Connection refused"):
                await ask(client, "GET", url, 10)


async def test_rejected_certificate_has_the_openssl_message(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.chain, certificates.key)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server, httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.ConnectError, match=r"CERTIFICATE_VERIFY_FAILED.*certificate"):
            await ask(client, "GET", f"https://127.0.0.1:{port}/", 10)
