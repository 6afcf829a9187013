"""Bounds on who is connected: how many ask nothing, how long and large a request's head may be.

uvicorn bounds neither: a head without an end fills the memory, one that never comes holds its
connection. Who is slow to *read* is given up by the kernel.
"""

import asyncio
import contextlib
import functools
import resource
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S: Final = 10.0  # s for a request's head, from its first byte or a connection's start
HEAD_MAX_BYTES: Final = 65_536  # of a head that comes in pieces; one read is at most four of these
BODY_S: Final = 20.0  # s that a body has to come, and more for what came of it:
BODY_BYTES_PER_S: Final = 16_384
UNREAD_S: Final = 30.0  # s for which an answer may lie unread
WAITING_MAX_COUNT: Final = 4096  # connections without a request: thousands of agents between two
BACKLOG_COUNT: Final = 2048  # connections that wait to be taken: a whole fleet at once

_Message = TypeVar("_Message", bound=Mapping[str, Any])


class Waiting:
    """Connections that ask nothing, by descriptor. Of too many, who waits longest is closed."""

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self._sockets: dict[int, socket.socket] = {}

    def add(self, taken: socket.socket) -> None:
        number = taken.fileno()
        self._sockets.pop(number, None)  # a closed one's, whose number is used again
        self._sockets[number] = taken
        if len(self._sockets) > self._max_count:
            self._sockets = {n: each for n, each in self._sockets.items() if each.fileno() == n}
        while len(self._sockets) > self._max_count:
            longest = self._sockets.pop(next(iter(self._sockets)))
            with contextlib.suppress(OSError):
                longest.shutdown(socket.SHUT_RDWR)

    def find(self, number: int) -> socket.socket | None:
        return self._sockets.get(number)

    def discard(self, taken: socket.socket, number: int) -> None:
        if self._sockets.get(number) is taken:
            del self._sockets[number]


class Listener(socket.socket):
    """Bound to an address; uvicorn, told :attr:`protocol`, serves what it takes."""

    def __init__(self, host: str, port: int) -> None:
        """Raises ``OSError``, ``OverflowError``."""
        super().__init__(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        files_max_count, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._waiting = Waiting(min(WAITING_MAX_COUNT, files_max_count // 4))
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # An answer's body goes right after its head: asyncio asks for that only on sockets that
            # name their protocol. Else it waits 40 ms, until the asker's kernel has the head.
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(UNREAD_S * 1000))
            if self.family == socket.AF_INET6:
                self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
            self.bind((host, port))
        except BaseException:
            self.close()
            raise

    @property
    def protocol(self) -> Any:
        """What uvicorn makes for each connection."""
        return functools.partial(BoundedHttp, self._waiting)

    def accept(self) -> tuple[socket.socket, Any]:
        taken, address = super().accept()
        self._waiting.add(taken)
        return taken, address


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    def __init__(self, waiting: Waiting, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._waiting = waiting
        self._taken: socket.socket | None = None
        self._number = -1
        self._head_due: asyncio.TimerHandle | None = None
        self._unheeded_bytes = 0  # that came since the parser last told of anything
        self._told = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's
        super().connection_made(transport)
        self._number = transport.get_extra_info("socket").fileno()
        self._taken = self._waiting.find(self._number)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()
        self._told = False
        super().data_received(data)
        self._unheeded_bytes = 0 if self._told else self._unheeded_bytes + len(data)
        if self._unheeded_bytes > HEAD_MAX_BYTES:
            self.send_400_response(f"over {HEAD_MAX_BYTES} bytes, and no end of the head")

    def on_headers_complete(self) -> None:
        self._told = True
        self._head_came()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._told = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._told = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._taken is not None and self.cycle.response_complete and self._taken.fileno() >= 0:
            self._waiting.add(self._taken)

    def _expect_head(self) -> None:
        if self._head_due is None:
            self._head_due = self.loop.call_later(HEAD_S, self.transport.abort)

    def _head_came(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None
        if self._taken is not None:
            self._waiting.discard(self._taken, self._number)


class BodyClock:
    """How long a request's body may take to come."""

    def __init__(self) -> None:
        self._began_s = asyncio.get_running_loop().time()
        self.total_bytes = 0

    async def next(self, receive: Callable[[], Awaitable[_Message]]) -> _Message:
        """The next part. Raises ``TimeoutError``."""
        due_s = self._began_s + BODY_S + self.total_bytes / BODY_BYTES_PER_S
        async with asyncio.timeout_at(due_s):
            message = await receive()
        self.total_bytes += len(message.get("body", b""))
        return message
