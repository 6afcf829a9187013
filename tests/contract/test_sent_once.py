"""Test that a storage request is sent once and not repeated when a connection is broken."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from azure.core.exceptions import ServiceRequestError
from azure.core.rest import HttpRequest

from broadside.exchange.azure.table_storage import TableAddress
from broadside.exchange.azure.wire import Transport
from broadside.exchange.messages import OutageKind
from broadside.exchange.outage_log import OutageLog

# With what the service always sends.
ANSWER = (
    b"HTTP/1.1 200 OK\r\nx-ms-request-id: 1\r\nContent-Type: application/json\r\n"
    b"Content-Length: 0\r\n\r\n"
)


class ClosingServer:
    """Server to answer the first request on a connection and close it on the second."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (ANSWER, b""):
            head = await reader.readuntil(b"\r\n\r\n")
            self.lines.append(head.decode().partition("\r\n")[0])
            writer.write(answer)
            await writer.drain()
        writer.transport.abort()


@pytest.fixture
async def closing_server() -> AsyncIterator[tuple[ClosingServer, str]]:
    """Yield the server and its address."""
    server = ClosingServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with listening:
        host, port = listening.sockets[0].getsockname()
        yield server, f"http://{host}:{port}"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_broken_connection_ends_the_attempt(
    method: str, closing_server: tuple[ClosingServer, str]
) -> None:
    server, url = closing_server
    troubles = OutageLog()
    address = TableAddress(endpoint=url, table="t")
    async with Transport(address, 5.0, troubles, OutageKind.TABLE_AWAY) as transport:
        first = await transport.send(HttpRequest("GET", f"{url}/first"))
        assert first.status_code == 200
        with pytest.raises(ServiceRequestError):
            await transport.send(HttpRequest(method, f"{url}/second"))
    assert server.lines == ["GET /first HTTP/1.1", f"{method} /second HTTP/1.1"]
