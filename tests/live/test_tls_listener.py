"""Test that a connection leaves no open socket if it is reset during accept."""

import gc
import socket
import struct
import warnings
from pathlib import Path

import pytest

from broadside.lab.tls_listener import by_tls
from tests.live.certificates import make_certificates

pytestmark = pytest.mark.live

# Use SO_LINGER with zero seconds to make close send a reset.
RESET = struct.pack("ii", 1, 0)


def test_reset_during_accept_leaves_no_open_socket(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    with (
        socket.create_server(("127.0.0.1", 0)) as plain,
        by_tls(plain, made.chain, made.key) as listener,
        warnings.catch_warnings(record=True) as seen,
    ):
        warnings.simplefilter("always")
        with socket.create_connection(listener.getsockname()) as peer:
            # This is the first half of the accept, without TLS.
            accepted, _ = socket.socket.accept(listener)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        with pytest.raises(ConnectionResetError):
            listener.context.wrap_socket(accepted, server_side=True)
        gc.collect()
        assert [str(item.message) for item in seen] == []
