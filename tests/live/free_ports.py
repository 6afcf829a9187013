"""Ports for servers of the tests: no two test processes are given the same one."""

import itertools
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cache
from typing import Final

BLOCK: Final = 200  # ports of one process


@cache
def _block() -> tuple[socket.socket, Iterator[int]]:
    """A block of ports, below the usual ephemeral range, and the socket that holds it.

    Whoever has bound a block's first port has the block, for as long as it lives.
    """
    for first in range(11_000, 32_000, BLOCK):
        holder = socket.socket()
        with suppress(OSError):
            holder.bind(("127.0.0.1", first))
            return holder, itertools.cycle(range(first + 1, first + BLOCK))
        holder.close()
    raise AssertionError("every block of ports is taken")


def free_port() -> int:
    """A port that nobody listens on, for either protocol; another at every call."""
    ports = itertools.islice(_block()[1], BLOCK)
    return next(port for port in ports if _is_free(port))


def _is_free(port: int) -> bool:
    with ExitStack() as stack, suppress(OSError):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            stack.enter_context(socket.socket(type=kind)).bind(("127.0.0.1", port))
        return True
    return False
