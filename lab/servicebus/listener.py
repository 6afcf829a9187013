"""Sockets of the broker, with AMQP over TCP or TLS and a Unix socket for faults in tests."""

import asyncio
import json
import ssl
import time
from pathlib import Path
from typing import Any

from broadside.lab.servicebus.journal import Journal
from broadside.lab.servicebus.protocol import Broker, Connection
from broadside.lab.servicebus.queues import Queue, QueueSettings

BEAT_S = 5.0


class Server:
    """Server for a broker in the running event loop.

    Attributes:
        broker: The broker.
        port: Port to connect to, 0 before the start.
    """

    def __init__(
        self, broker: Broker, *, journal: Journal | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.broker = broker
        self.port = 0
        self._journal = journal
        self._tls = tls
        self._transports: dict[Connection, asyncio.Transport] = {}
        self._listeners: list[asyncio.AbstractServer] = []
        self._turn: asyncio.TimerHandle | None = None
        self._turn_at_s = 0.0
        self._beat: asyncio.Task[None] | None = None

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, admin: Path | None = None
    ) -> None:
        """Start to listen.

        Args:
            host: Address to listen on.
            port: Port to listen on. 0 uses a free one.
            admin: Path to the Unix socket, or ``None`` for no socket.
        """
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: _Peer(self), host, port, ssl=self._tls, backlog=512
        )
        self.port = listener.sockets[0].getsockname()[1]
        self._listeners.append(listener)
        if admin is not None:
            self._listeners.append(await asyncio.start_unix_server(self._answer_admin, admin))
        self._beat = asyncio.create_task(self._beat_on())
        self.turn_soon()

    async def stop(self) -> None:
        for listener in self._listeners:
            listener.close()
        self.drop_connections()
        for task in (self._beat, self._turn):
            if task is not None:
                task.cancel()
        if self._journal:
            self._journal.close()

    def drop_connections(self) -> None:
        """Simulate a fault that aborts every connection."""
        for transport in self._transports.values():
            transport.abort()

    def create_queue(self, path: str, settings: QueueSettings) -> None:
        make = self._journal.queue if self._journal else Queue
        self.broker.add(make(path.lower(), settings))

    def turn_soon(self, at_s: float = 0.0) -> None:
        """Schedule the next call of the broker for ``at_s`` (epoch seconds) or earlier."""
        if self._turn is not None:
            if self._turn_at_s <= at_s:
                return
            self._turn.cancel()
        self._turn_at_s = at_s
        delay_s = max(0.0, at_s - time.time())
        self._turn = asyncio.get_running_loop().call_later(delay_s, self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        self.broker.advance(time.time())
        if self._journal:
            # We need to write the journal before any command is acknowledged.
            self._journal.flush()
        for connection in self.broker.take_touched():
            transport = self._transports.get(connection)
            if transport is not None and not transport.is_closing():
                transport.write(connection.take_output())
                if connection.closed:
                    transport.close()
        due = self.broker.next_due()
        if due is not None:
            self.turn_soon(due)

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for connection in list(self._transports):
                connection.beat(time.time())
            self.turn_soon()

    # Faults and queries, such as ``{"do": "busy", "for_s": 5}`` -----------------------------

    async def _answer_admin(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read a JSON object from each line and respond with a JSON object in a line."""
        while line := await reader.readline():
            try:
                request = json.loads(line)
                answer = getattr(self, f"_do_{request.pop('do')}")(**request) or {}
            except (ValueError, LookupError, TypeError, AttributeError) as refusal:
                answer = {"error": repr(refusal)}
            self.turn_soon()
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    def _do_create(self, queue: str, **settings: Any) -> None:
        self.create_queue(queue, QueueSettings(**settings))

    def _do_counts(self, queue: str) -> dict[str, int]:
        self.broker.advance(time.time())
        return self.broker.queues[queue.lower()].counts()

    def _do_busy(self, for_s: float, wait_s: float = 2.0) -> dict[str, int]:
        """Throttle requests, and return how many were throttled since the last call."""
        refused, self.broker.refused_count = self.broker.refused_count, 0
        self.broker.busy_until_s, self.broker.busy_wait_s = time.time() + for_s, wait_s
        return {"refused": refused}

    def _do_detach(self, node: str, condition: str, text: str) -> dict[str, int]:
        item = [peer.detach(node, condition, text) for peer in self.broker.connections]
        return {"detached": sum(item)}

    def _do_close(self, condition: str, text: str) -> dict[str, int]:
        connections = list(self.broker.connections)
        for connection in connections:
            connection.hang_up(condition, text)
        return {"closed": len(connections)}

    def _do_move(self, condition: str, for_s: float) -> None:
        """Redirect all current and new connections."""
        self.broker.moved = (time.time() + for_s, condition)

    def _do_lose(self, queue: str) -> None:
        self.broker.queues[queue.lower()].lose(time.time())

    def _do_asked(self) -> dict[str, int]:
        return dict(self.broker.asked)

    def _do_twice(self, queue: str, on: bool) -> None:
        self.broker.queues[queue.lower()].double(on, time.time())

    def _do_drop(self) -> dict[str, int]:
        self.drop_connections()
        return {"dropped": len(self._transports)}


class _Peer(asyncio.Protocol):
    """Transfers bytes between a socket and its connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection = Connection(server.broker, time.time())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - narrows the type
        self._server._transports[self._connection] = transport

    def data_received(self, data: bytes) -> None:
        self._connection.receive(data, time.time())
        self._server.turn_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.lost()
        self._server._transports.pop(self._connection, None)
