"""HTTP relay on this host that can simulate network faults on the way to Azure."""

import contextlib
import http.client
import json
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
class InjectedFault:
    """Fault for the next requests.

    Attributes:
        methods: HTTP methods to match.
        count: Number of requests to match, or ``None`` for no limit.
        until_s: Monotonic time when the fault ends, or ``None``.
        status: Status to return without the service, or ``None`` to close the connection.
        headers: Headers to return with the status.
        body: Body to return with the status.
        reaches_service: Whether the service gets the request, but the response is lost.
        delay_s: Seconds to wait before the request is passed on without another fault.
    """

    methods: frozenset[str]
    count: int | None = None
    until_s: float | None = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    reaches_service: bool = False
    delay_s: float | None = None

    def take(self, method: str) -> bool:
        """Return True if the fault applies to this request, and count it."""
        if method not in self.methods or (self.until_s and time.monotonic() > self.until_s):
            return False
        if self.count is not None:
            self.count -= 1
            return self.count >= 0
        return True


class Relay:
    """Relay to a local service, with a new connection for each request.

    Use it in a ``with`` block. It uses threads of this process.

    Attributes:
        refused_at_s: Monotonic times when a fault was applied.
        passed_at_s: Monotonic times of requests without a fault.
        port: Port to connect to.
    """

    def __init__(self, upstream_port: int, host: str = "127.0.0.1") -> None:
        self.refused_at_s: list[float] = []
        self.passed_at_s: list[float] = []
        self._upstream = (host, upstream_port)
        self._faults: list[InjectedFault] = []
        self._lock = threading.Lock()
        relay = self

        class Relayed(Handler):
            def serve(self) -> None:
                relay._serve(self)

        self._handler = Relayed
        # We need to listen now to get the port.
        self._server = _Server((host, 0), Relayed)
        self._thread: threading.Thread | None = None
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start or restart on the same port. It is safe to call this twice."""
        if self._thread is None:
            if self._server.closed:
                self._server = _Server((self._upstream[0], self.port), self._handler)
            self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Refuse new connections and close open ones. It is safe to call this twice."""
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
        code: str | None = None,
    ) -> None:
        """Return a status instead of passing requests to the service.

        Args:
            status: HTTP status.
            *methods: HTTP methods to match, or all.
            count: Number of requests, or ``None`` for no limit.
            for_s: Duration in seconds, or ``None`` for no limit.
            headers: Headers to return. None adds none.
            code: Error code in the body, as Table Storage sends it. ``None`` sends no body, as some
                gateways do.
        """
        body = b""
        if code is not None:
            body = json.dumps({"odata.error": {"code": code}}).encode()
            headers = {**(headers or {}), "Content-Type": "application/json"}
        self._add(methods, count, for_s, status=status, headers=headers or {}, body=body)

    def cut(self, *methods: str, count: int | None = None, for_s: float | None = None) -> None:
        """Close the connection before the service gets the request.

        Args:
            *methods: HTTP methods to match, or all.
            count: Number of requests, or ``None`` for no limit.
            for_s: Duration in seconds, or ``None`` for no limit.
        """
        self._add(methods, count, for_s)

    def lose_answer(self, *methods: str, count: int | None = None) -> None:
        """Pass the request to the service, then close the connection without a response.

        Args:
            *methods: HTTP methods to match, or all.
            count: Number of requests, or ``None`` for no limit.
        """
        self._add(methods, count, None, reaches_service=True)

    def slow(
        self, delay_s: float, *methods: str, count: int | None = None, for_s: float | None = None
    ) -> None:
        """Wait before a request is passed to the service.

        Args:
            delay_s: Time to wait in seconds.
            *methods: HTTP methods to match, or all.
            count: Number of requests, or ``None`` for no limit.
            for_s: Duration in seconds, or ``None`` for no limit.
        """
        self._add(methods, count, for_s, delay_s=delay_s)

    def heal(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    def _add(
        self,
        methods: tuple[str, ...],
        count: int | None,
        for_s: float | None,
        # Other fields of the fault.
        **what: Any,
    ) -> None:
        fault = InjectedFault(
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
            handler.answer(fault.status, fault.headers, fault.body)
        else:
            if fault.reaches_service:
                self._ask(handler)
            # The body has not been read, so this will cause a TCP reset.
            handler.close_connection = True

    def _ask(self, handler: "Handler") -> tuple[int, dict[str, str], bytes]:
        """Return the response from the service."""
        body = handler.read_body()
        connection = http.client.HTTPConnection(*self._upstream, timeout=_UPSTREAM_S)
        try:
            connection.request(handler.command, handler.path, body, dict(handler.headers))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    """HTTP server that closes its open connections when it is closed."""

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
        """Ignore errors from clients that closed their connection."""
        if not isinstance(sys.exception(), (ConnectionError, ssl.SSLError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    """Base class to handle requests on a client's connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def serve(self) -> None:
        """Handle the current request.

        Raises:
            NotImplementedError: The subclass does not define it.
        """
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
        """Do not log requests."""


_METHODS: Final = ("GET", "PUT", "POST", "DELETE")
