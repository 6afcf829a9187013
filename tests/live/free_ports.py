"""Free ports for test servers. Two test processes will never use the same port."""

import itertools
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cache
from typing import Final

# The number of ports to reserve for a process.
BLOCK: Final = 200


@cache
def _block() -> tuple[socket.socket, Iterator[int]]:
    """Reserve a block of ports below the usual ephemeral range and return its socket and ports.

    To own a block, a process needs to bind the first port of the block.
    """
    for first in range(11_000, 32_000, BLOCK):
        holder = socket.socket()
        with suppress(OSError):
            holder.bind(("127.0.0.1", first))
            return holder, itertools.cycle(range(first + 1, first + BLOCK))
        holder.close()
    raise AssertionError("every block of ports is taken")


def free_port() -> int:
    """Return a port without a TCP or UDP listener, different from the previous ones."""
    ports = itertools.islice(_block()[1], BLOCK)
    return next(port for port in ports if _is_free(port))


def _is_free(port: int) -> bool:
    with ExitStack() as stack, suppress(OSError):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            stack.enter_context(socket.socket(type=kind)).bind(("127.0.0.1", port))
        return True
    return False
