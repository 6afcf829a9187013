"""HTTP service on loopback to use instead of an Azure service."""

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Received request.

    Attributes:
        path: Path without the query.
    """

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Message
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Response with a body that is sent unchanged if it is bytes and as JSON otherwise."""

    status: int = 200
    body: object = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def serving(
    answer: Callable[[Asked], Answer],
    address: tuple[str, int] = ("127.0.0.1", 0),
    *,
    tls: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """Start a service and yield its URL.

    Concurrent requests run in separate threads.
    """

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            parts = urlsplit(self.path)
            response = answer(
                Asked(
                    method=self.command,
                    path=parts.path,
                    query=parse_qs(parts.query),
                    headers=self.headers,
                    body=self.rfile.read(int(self.headers.get("Content-Length", 0))),
                )
            )
            content = (
                response.body
                if isinstance(response.body, bytes)
                else json.dumps(response.body).encode()
            )
            # The connection may already be closed by the client.
            with contextlib.suppress(ConnectionError):
                self.send_response(response.status)
                if not isinstance(response.body, bytes):
                    self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                for name, value in response.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_PUT = _serve

        def log_message(self, *_: object) -> None:
            """Suppress log messages on standard error."""

    with ThreadingHTTPServer(address, Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"{scheme}://{address[0]}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
