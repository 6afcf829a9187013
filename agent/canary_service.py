"""Service of a server agent that answers canaries and remembers which ones it has received."""

import asyncio
import json
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from broadside.agent.agent_settings import AgentSettings
from broadside.agent.canary_sender import (
    ALLOWED,
    ANSWER,
    DATAGRAM_ANSWERS,
    FORBIDDEN,
    HEADER,
    QUESTION,
)
from broadside.exchange.messages import peer_address

# Connections at the same time. This is enough for the canaries of 100 pairs without an answer.
CONNECTIONS_MAX_COUNT: Final = 500
# Seconds for a request to arrive.
REQUEST_S: Final = 5.0
# Jobs to remember, and requests of one job.
JOBS_MAX_COUNT: Final = 2048
REQUESTS_MAX_COUNT: Final = 500_000
_HEAD_MAX_BYTES: Final = 8192
_BODY_MAX_BYTES: Final = 4096
_TAG: Final = re.compile(
    rf"\r\n{HEADER}: (([0-9a-f]{{16}})\.([0-9]{{1,7}})\.([{FORBIDDEN}{ALLOWED}{QUESTION}])"
    r"\.([0-9]{1,4}))\r\n"
)
_LENGTH: Final = re.compile(r"\r\nContent-Length: ([0-9]{1,4})\r\n")

log = logging.getLogger(__name__)


class CanaryService:
    """Service for canaries from allowed networks. It answers only requests of this form."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._servers: list[asyncio.Server] = []
        self._datagrams: list[asyncio.DatagramTransport] = []
        self._open_count = 0
        self._has_refused = False
        self._received: OrderedDict[str, Mapping[str, set[int]]] = OrderedDict()

    async def open(self, address: str) -> None:
        """Listen on all ports in the settings. A port that cannot be opened is logged.

        Args:
            address: Address of the agent.
        """
        loop = asyncio.get_running_loop()
        for port in self._settings.canary_ports:
            try:
                self._servers.append(
                    await asyncio.start_server(self._serve, address, port, limit=2**14)
                )
                transport, _ = await loop.create_datagram_endpoint(
                    lambda: _Datagrams(self._answer_datagram), local_addr=(address, port)
                )
            except OSError as error:
                log.warning(
                    "no canaries on port %d: %s; set BROADSIDE_AGENT_CANARY_PORTS",
                    port,
                    error.strerror,
                    extra={"action": "no_canary"},
                )
                continue
            self._datagrams.append(transport)

    @property
    def ports(self) -> tuple[int, ...]:
        """TCP ports that are open."""
        return tuple(
            opened.getsockname()[1] for server in self._servers for opened in server.sockets
        )

    @property
    def udp_ports(self) -> tuple[int, ...]:
        """UDP ports that are open."""
        return tuple(socket.get_extra_info("sockname")[1] for socket in self._datagrams)

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for transport in self._datagrams:
            transport.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open_count += 1
        try:
            peer = writer.get_extra_info("peername")
            if self._open_count <= CONNECTIONS_MAX_COUNT and self._is_allowed(peer):
                await self._answer(reader, writer)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            # The device or the client ended the connection.
            pass
        finally:
            self._open_count -= 1
            writer.close()

    def _is_allowed(self, peer: tuple[str, int] | None) -> bool:
        address = peer_address(str(peer[0])) if peer else None
        if address is not None and self._settings.is_allowed(address):
            return True
        if not self._has_refused:
            self._has_refused = True
            log.warning(
                "no answer to canaries from %s, which is not in the allowed networks; where a "
                "device translates addresses, add its own to BROADSIDE_AGENT_ALLOWED_NETWORKS",
                address,
                extra={"action": "no_canary"},
            )
        return False

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(REQUEST_S):
            head = (await reader.readuntil(b"\r\n\r\n"))[:_HEAD_MAX_BYTES].decode("latin-1")
            if length := _LENGTH.search(head):
                await reader.readexactly(min(int(length[1]), _BODY_MAX_BYTES))
        tag = _TAG.search(head)
        if tag is None:
            return
        token, number, kind, hold_s = tag[2], int(tag[3]), tag[4], int(tag[5]) / 1000
        body = ANSWER
        if kind == QUESTION:
            body = self._describe(token)
        else:
            self._remember(token, kind, number)
        writer.write(
            f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            f"{HEADER}: {tag[1]}\r\nConnection: close\r\n\r\n".encode()
        )
        if kind == QUESTION or not hold_s:
            writer.write(body)
            await writer.drain()
            return
        end_s = time.monotonic() + hold_s
        for place in range(len(body)):
            await asyncio.sleep(max(0.0, end_s - time.monotonic()) / (len(body) - place))
            writer.write(body[place : place + 1])
            await writer.drain()

    def _answer_datagram(
        self, data: bytes, peer: tuple[str, int], transport: asyncio.DatagramTransport
    ) -> None:
        """Answer at once, and again at the end of the time. Both are shorter than a request."""
        tag = _TAG.search(data[:_BODY_MAX_BYTES].decode("latin-1"))
        if tag is None or tag[4] == QUESTION or self._open_count > CONNECTIONS_MAX_COUNT:
            return
        if not self._is_allowed(peer):
            return
        self._remember(tag[2], tag[4], int(tag[3]))
        first, last = (tag[1].encode() + part for part in DATAGRAM_ANSWERS)
        transport.sendto(first, peer)
        self._open_count += 1

        def finish() -> None:
            self._open_count -= 1
            if not transport.is_closing():
                transport.sendto(last, peer)

        asyncio.get_running_loop().call_later(int(tag[5]) / 1000, finish)

    def _remember(self, token: str, kind: str, number: int) -> None:
        job = self._received.setdefault(token, {FORBIDDEN: set(), ALLOWED: set()})
        self._received.move_to_end(token)
        if len(job[kind]) < REQUESTS_MAX_COUNT:
            job[kind].add(number)
        if len(self._received) > JOBS_MAX_COUNT:
            self._received.popitem(last=False)

    def _describe(self, token: str) -> bytes:
        job = self._received.get(token, {FORBIDDEN: (), ALLOWED: ()})
        received = {kind: sorted(numbers) for kind, numbers in job.items()}
        ports = {"tcp": self.ports, "udp": self.udp_ports}
        return json.dumps({"ports": ports, **received}, separators=(",", ":")).encode()


class _Datagrams(asyncio.DatagramProtocol):
    """Socket of the service for datagrams."""

    def __init__(
        self, answer: Callable[[bytes, tuple[str, int], asyncio.DatagramTransport], None]
    ) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.DatagramTransport = transport  # type: ignore[assignment]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._answer(data, addr, self._transport)
