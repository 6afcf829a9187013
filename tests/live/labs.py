"""Labs with unique prefixes for the live tests, to be removed when a test ends or fails."""

import contextlib
import os
import shutil
import socket
import time
from itertools import count

import pytest

from broadside.lab.namespaces import inside
from broadside.lab.topology import LabHost

needs_snmpd = pytest.mark.skipif(
    shutil.which("snmpd", path="/usr/sbin:/usr/bin") is None, reason="snmpd is not installed"
)
_numbers = count()


def new_prefix() -> str:
    """Return a prefix that no other test process will use at the same time."""
    return f"t{os.getpid() % 100_000:05d}{chr(ord('a') + next(_numbers) % 26)}"


def send(client: LabHost, server: LabHost, payload_bytes: int, timeout_s: float = 30.0) -> None:
    """Send payload from one host to another over TCP, and verify that it arrives.

    A socket will remain in the namespace in which it was created.
    """
    with contextlib.ExitStack() as stack:
        with inside(server.namespace):
            listener = stack.enter_context(socket.create_server((server.address, 7000)))
        listener.settimeout(timeout_s)
        with inside(client.namespace):
            sender = stack.enter_context(
                socket.create_connection((server.address, 7000), timeout_s)
            )
        receiver, (address, _) = listener.accept()
        stack.enter_context(receiver)
        assert address == client.address
        sender.setblocking(False)
        receiver.setblocking(False)
        left_bytes, got_bytes = payload_bytes, 0
        end_s = time.monotonic() + timeout_s
        while got_bytes < payload_bytes:
            assert time.monotonic() < end_s, f"{got_bytes} of {payload_bytes} bytes arrived"
            with contextlib.suppress(BlockingIOError):
                left_bytes -= sender.send(b"x" * min(left_bytes, 65_536)) if left_bytes else 0
            with contextlib.suppress(BlockingIOError):
                got_bytes += len(receiver.recv(1 << 20))
