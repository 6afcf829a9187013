"""Tests for bounded listener that need processes, sockets or real time."""

import socket

from broadside.coordinator.bounded_listener import Listener


def test_accepted_connections_have_nodelay_and_user_timeout() -> None:
    with Listener("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]), listener.accept()[0] as taken:
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
