"""Tests for relay that need processes, sockets or real time."""

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from broadside.lab.relay import Relay


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        """Disable the request log."""


@pytest.fixture
def relay() -> Iterator[Relay]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hello) as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        with Relay(service.server_address[1]) as relay:
            yield relay
        service.shutdown()
        thread.join()


def connect(relay: Relay) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", relay.port, timeout=10)


def request_text(connection: http.client.HTTPConnection) -> bytes:
    connection.request("GET", "/")
    return connection.getresponse().read()


def test_stopped_relay_refuses_connections_until_restart(relay: Relay) -> None:
    open_connection = connect(relay)
    assert request_text(open_connection) == b"hello"
    # The second call has no effect.
    for _ in range(2):
        relay.stop()
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        request_text(open_connection)
    with pytest.raises(ConnectionRefusedError):
        request_text(connect(relay))
    for _ in range(2):
        relay.start()
    again = connect(relay)
    assert request_text(again) == b"hello"
    again.close()
    open_connection.close()
