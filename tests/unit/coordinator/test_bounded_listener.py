"""What the listeners pass on to the connections that they take."""

import socket

from broadside.coordinator.bounded_listener import Listener


def test_a_body_does_not_wait_for_the_heads_acknowledgement() -> None:
    with Listener("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]), listener.accept()[0] as taken:
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
