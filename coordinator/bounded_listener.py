"""Limits for idle connections, request headers, request bodies and unread responses.

uvicorn has none of these limits. A header without an end would fill the memory, and a header that
never arrives would occupy its connection. The kernel closes connections to slow readers.
"""

import asyncio
import contextlib
import functools
import resource
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Time limit for a request header, from its first byte or from the connection start.
HEAD_S: Final = 10.0
# Size limit of a header that arrives in pieces. One read returns at most four times this size.
HEAD_MAX_BYTES: Final = 65_536
# Time limit for a request body is ``BODY_S`` plus the time for the received bytes at
# ``BODY_BYTES_PER_S``.
BODY_S: Final = 20.0
BODY_BYTES_PER_S: Final = 16_384
# Time limit for unread response data (TCP_USER_TIMEOUT).
UNREAD_S: Final = 30.0
# Limit for idle connections. Thousands of agents are idle between two requests.
WAITING_MAX_COUNT: Final = 4096
# Limit for connections that wait for ``accept``. A whole fleet can connect at the same time.
BACKLOG_COUNT: Final = 2048

_Message = TypeVar("_Message", bound=Mapping[str, Any])


class Waiting:
    """Idle connections by file descriptor. Above the limit, the longest idle one is closed."""

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self._sockets: dict[int, socket.socket] = {}

    def add(self, taken: socket.socket) -> None:
        number = taken.fileno()
        # We need to remove a closed socket with the same file descriptor, so that the new one will
        # be the newest entry.
        self._sockets.pop(number, None)
        self._sockets[number] = taken
        if len(self._sockets) > self._max_count:
            self._sockets = {
                n: taken_socket
                for n, taken_socket in self._sockets.items()
                if taken_socket.fileno() == n
            }
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
    """Listening socket for uvicorn that registers each accepted connection as idle.

    uvicorn needs to use :attr:`protocol` to serve the connections.
    """

    def __init__(self, host: str, port: int) -> None:
        """Bind the socket to an address.

        Args:
            host: Host name or address to listen on. Use an address with ``:`` for IPv6.
            port: TCP port to listen on. Set it to 0 to get a free port.

        Raises:
            OSError: The address cannot be bound.
            OverflowError: The port is out of range.
        """
        super().__init__(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        files_max_count, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._waiting = Waiting(min(WAITING_MAX_COUNT, files_max_count // 4))
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Send the response body directly after its header. asyncio sets TCP_NODELAY only on
            # sockets that name their protocol. Without it, the body will wait 40 ms for the delayed
            # ACK.
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
        """Factory of the protocol object that uvicorn creates for each connection."""
        return functools.partial(BoundedHttp, self._waiting)

    def accept(self) -> tuple[socket.socket, Any]:
        taken, address = super().accept()
        self._waiting.add(taken)
        return taken, address


class BoundedHttp(HttpToolsProtocol):
    """HTTP protocol of one connection, with limits for the header and for idle time."""

    def __init__(self, waiting: Waiting, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._waiting = waiting
        self._taken: socket.socket | None = None
        self._number = -1
        self._head_due: asyncio.TimerHandle | None = None
        # Bytes received since the last parser event.
        self._unheeded_bytes = 0
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
            self.send_400_response(f"the request head has more than {HEAD_MAX_BYTES} bytes")

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
    """Time limit for one request body."""

    def __init__(self) -> None:
        self._began_s = asyncio.get_running_loop().time()
        self.total_bytes = 0

    async def next(self, receive: Callable[[], Awaitable[_Message]]) -> _Message:
        """Receive the next body part.

        Args:
            receive: ASGI ``receive``.

        Raises:
            TimeoutError: The body is slower than the limit.
        """
        due_s = self._began_s + BODY_S + self.total_bytes / BODY_BYTES_PER_S
        async with asyncio.timeout_at(due_s):
            message = await receive()
        self.total_bytes += len(message.get("body", b""))
        return message
