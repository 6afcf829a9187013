"""A relay that is stopped is not there for anybody, and comes back where it was."""

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
        """Say nothing."""


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


def ask(connection: http.client.HTTPConnection) -> bytes:
    connection.request("GET", "/")
    return connection.getresponse().read()


def test_a_stopped_relay_refuses_all_and_comes_back_at_its_port(relay: Relay) -> None:
    standing = connect(relay)
    assert ask(standing) == b"hello"
    for _ in range(2):  # stopped or started twice is once
        relay.stop()
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        ask(standing)
    with pytest.raises(ConnectionRefusedError):
        ask(connect(relay))
    for _ in range(2):
        relay.start()
    again = connect(relay)
    assert ask(again) == b"hello"
    again.close()
    standing.close()
