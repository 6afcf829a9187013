"""An HTTP relay on this host that misbehaves when asked to: what may lie between us and Azure."""

import contextlib
import http.client
import socket
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

_UPSTREAM_S: Final = 30.0
_HOP_HEADERS: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


@dataclass(slots=True, kw_only=True)
class Fault:
    """What happens to the next ``count`` requests of ``methods``, or to all until ``until_s``."""

    methods: frozenset[str]
    count: int | None = None
    until_s: float | None = None  # monotonic
    status: int | None = None  # answered without asking the service; None: the connection is cut
    headers: Mapping[str, str] = field(default_factory=dict)
    reaches_service: bool = False  # it is carried out, and its answer lost
    delay_s: float | None = None  # it is carried out this much later, and that is all

    def take(self, method: str) -> bool:
        """Whether this request is one of them."""
        if method not in self.methods or (self.until_s and time.monotonic() > self.until_s):
            return False
        if self.count is not None:
            self.count -= 1
            return self.count >= 0
        return True


class Relay:
    """Passes requests on to ``upstream_port`` of ``host``, each by a connection of its own.

    A context manager; it works in threads of this process. ``refused_at_s`` are the monotonic
    instants at which a fault struck, ``passed_at_s`` those of requests that went through.
    """

    def __init__(self, upstream_port: int, host: str = "127.0.0.1") -> None:
        self.refused_at_s: list[float] = []
        self.passed_at_s: list[float] = []
        self._upstream = (host, upstream_port)
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        relay = self

        class Relayed(Handler):
            def serve(self) -> None:
                relay._serve(self)

        self._handler = Relayed
        self._server = _Server((host, 0), Relayed)  # listening, so that the port is known
        self._thread: threading.Thread | None = None
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serve, at the same port as before where it was stopped; idempotent."""
        if self._thread is None:
            if self._server.closed:
                self._server = _Server((self._upstream[0], self.port), self._handler)
            self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Refuse every connection, and break those that stand; idempotent."""
        if self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._thread = None

    # Faults ---------------------------------------------------------------------------------

    def refuse(
        self,
        status: int,
        *methods: str,
        count: int | None = None,
        for_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer with ``status`` in the service's place."""
        self._add(methods, count, for_s, status=status, headers=headers or {})

    def cut(self, *methods: str, count: int | None = None, for_s: float | None = None) -> None:
        """Break the connection before the service sees the request."""
        self._add(methods, count, for_s)

    def lose_answer(self, *methods: str, count: int | None = None) -> None:
        """Let the service carry the request out, then break the connection."""
        self._add(methods, count, None, reaches_service=True)

    def slow(
        self, delay_s: float, *methods: str, count: int | None = None, for_s: float | None = None
    ) -> None:
        """Keep every request waiting before the service sees it."""
        self._add(methods, count, for_s, delay_s=delay_s)

    def heal(self) -> None:
        """End every fault."""
        with self._lock:
            self._faults.clear()

    def _add(
        self,
        methods: tuple[str, ...],
        count: int | None,
        for_s: float | None,
        **what: Any,  # the fault's other fields
    ) -> None:
        fault = Fault(
            methods=frozenset(methods or _METHODS),
            count=count,
            until_s=None if for_s is None else time.monotonic() + for_s,
            **what,
        )
        with self._lock:
            self._faults.append(fault)

    # Requests -------------------------------------------------------------------------------

    def _serve(self, handler: "Handler") -> None:
        with self._lock:
            fault = next((f for f in self._faults if f.take(handler.command)), None)
            (self.refused_at_s if fault else self.passed_at_s).append(time.monotonic())
        if fault is None or fault.delay_s is not None:
            if fault is not None and fault.delay_s is not None:
                time.sleep(fault.delay_s)
            handler.answer(*self._ask(handler))
        elif fault.status is not None:
            handler.read_body()
            handler.answer(fault.status, fault.headers, b"")
        else:
            if fault.reaches_service:
                self._ask(handler)
            handler.close_connection = True  # with its body unread: that is a reset

    def _ask(self, handler: "Handler") -> tuple[int, dict[str, str], bytes]:
        """The service's own answer."""
        body = handler.read_body()
        connection = http.client.HTTPConnection(*self._upstream, timeout=_UPSTREAM_S)
        try:
            connection.request(handler.command, handler.path, body, dict(handler.headers))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    """Breaks its connections when it is closed."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.closed = False
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        self.closed = True
        super().server_close()
        with self._lock:
            for request in self._open:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of those who asked and have gone meanwhile."""
        if not isinstance(sys.exception(), (ConnectionError, ssl.SSLError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def serve(self) -> None:
        """Answer the request that was read."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self.serve()

    do_PUT = do_POST = do_DELETE = do_GET

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in _HOP_HEADERS:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


_METHODS: Final = ("GET", "PUT", "POST", "DELETE")
