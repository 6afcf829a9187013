"""HTTP servers on loopback for the duration of a test."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from broadside.lab.tls_listener import by_tls

# Limit on the bytes of an endless answer.
SENT_MAX_BYTES: Final = 256 * 1_048_576


class Quiet(BaseHTTPRequestHandler):
    """Base class of handlers without a log."""

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def served(handler: type[Quiet], tls: tuple[Path, Path] | None = None) -> Iterator[str]:
    """Serve a handler and yield its URL. ``tls`` holds the paths of a certificate and its key."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = by_tls(server.socket, *tls)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http{'s' * (tls is not None)}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def answering(
    pieces: Callable[[], Iterable[bytes]],
    headers: Mapping[str, str],
    *,
    status: int = 200,
    tls: tuple[Path, Path] | None = None,
) -> Iterator[str]:
    """Answer every request with pieces, possibly without end, and yield the URL.

    The answer is chunked unless a header states its length.
    """

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            chunked = {} if "Content-Length" in headers else {"Transfer-Encoding": "chunked"}
            for name, value in {**headers, **chunked}.items():
                self.send_header(name, value)
            self.end_headers()
            sent_bytes = 0
            self.close_connection = True
            # The client may close the connection.
            with contextlib.suppress(OSError):
                for piece in pieces():
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                    sent_bytes += len(piece)
                    if sent_bytes > SENT_MAX_BYTES:
                        return
                if chunked:
                    self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = do_PUT = do_DELETE = _answer

    with served(Handler, tls) as url:
        yield url
