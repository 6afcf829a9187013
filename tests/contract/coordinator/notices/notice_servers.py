"""Servers that receive notices, and servers whose responses are slow or never end."""

import contextlib
import http.server
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)

Request = tuple[str, dict[str, str], bytes]


@contextlib.contextmanager
def receiver(*statuses: int) -> Iterator[tuple[str, list[Request]]]:
    """Start a server to return the given statuses. Yield the URL and the list of requests."""
    requests: list[Request] = []
    remaining = list(statuses)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            answer = ExportMetricsServiceResponse().SerializeToString()
            self.send_response(remaining.pop(0) if len(remaining) > 1 else remaining[0])
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Disable the request log."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


# This is larger than TOTAL_S but less than the read timeouts.
ENDS_WITHIN_S = 4.0
# Must be less than the read timeout.
PAUSE_S = 0.1

_STATUS = b"HTTP/1.1 200 OK\r\n"
# Each value has the first bytes and the bytes to repeat.
DRIPS: Mapping[str, tuple[bytes, bytes]] = {
    "silence": (b"", b""),
    "status": (b"HTTP/1.1 2", b"0"),
    "header": (_STATUS + b"X-A: ", b"a"),
    "headers": (_STATUS, b"A: b\r\n"),
    "continue": (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "body": (_STATUS + b"Content-Length: 100000\r\n\r\n", b"a"),
    "chunks": (_STATUS + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    "chunk size": (_STATUS + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
}


@contextlib.contextmanager
def dripping(name: str, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Start a server to send a slow response without an end. Yield the URL."""
    first, piece = DRIPS[name]
    over = threading.Event()

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(connection)
            if tls is not None:
                connection = stack.enter_context(tls.wrap_socket(connection, server_side=True))
            connection.recv(65_536)
            connection.sendall(first)
            while not over.wait(PAUSE_S):
                connection.sendall(piece)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http{'s' * (tls is not None)}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def ends_soon() -> Iterator[None]:
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < ENDS_WITHIN_S
