"""Tests for idle rtt that need processes, sockets or real time."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from broadside.agent.idle_rtt import (
    connection_rtts,
    from_connections,
    from_handshakes,
)

# Loopback is always faster.
SLOW_S = 5.0


@contextmanager
def listening(family: socket.AddressFamily = socket.AF_INET) -> Iterator[tuple[str, int]]:
    """Yield the address and port to connect to. The kernel will answer, without an accept."""
    address = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.socket(family) as server:
        try:
            server.bind((address, 0))
        except OSError:
            pytest.skip("this host has no IPv6 loopback")
        server.listen(16)
        yield address, int(server.getsockname()[1])


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_every_connection_to_the_port_is_measured(family: socket.AddressFamily) -> None:
    with (
        listening(family) as (address, port),
        listening(family) as (_, other),
        ExitStack() as connections,
    ):
        for to in (port, port, port, other):
            connections.enter_context(socket.create_connection((address, to)))
        rtts = connection_rtts(address, {port})
        # The server side and the other port should not be included.
        assert len(rtts) == 3
        assert all(0 < rtt < SLOW_S for rtt in rtts)
        idle = from_connections(address, {port})
        assert idle is not None
        assert (idle.samples_count, idle.how) == (3, "connections")
        assert idle.least_s == min(rtts)
        assert idle.least_s <= idle.median_s


def test_no_connection_has_no_baseline() -> None:
    with listening() as (address, port):
        assert from_connections(address, {port}) is None


async def test_handshakes_measure_a_daemon_port() -> None:
    with listening() as (address, port):
        idle = await from_handshakes(address, port, address)
    assert idle is not None
    assert (idle.samples_count, idle.how) == (3, "handshakes")
    assert 0 < idle.least_s < SLOW_S


async def test_closed_port_has_no_baseline() -> None:
    with listening() as (address, port):
        pass
    assert await from_handshakes(address, port, None) is None
