"""Tests for the idle RTT, using real loopback sockets."""

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from broadside.agent import idle_rtt
from broadside.agent.idle_rtt import (
    connection_rtts,
    from_connections,
    from_handshakes,
    parse_tcp_info,
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


def tcp_info(rtt_us: int, min_rtt_us: int | None) -> bytes:
    """Return a struct tcp_info. Set the minimum RTT to None for older kernels."""
    info = bytearray(152 if min_rtt_us is not None else 104)
    struct.pack_into("=I", info, 68, rtt_us)
    if min_rtt_us is not None:
        struct.pack_into("=I", info, 148, min_rtt_us)
    return bytes(info)


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


def test_kernel_error_has_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Iterator[tuple[int, bytes]]:
        raise OSError("not permitted")

    monkeypatch.setattr(idle_rtt, "ask", refuse)
    assert from_connections("127.0.0.1", {5201}) is None


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


async def test_unanswered_handshake_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(asyncio, "open_connection", hang)
    monkeypatch.setattr(idle_rtt, "HANDSHAKE_MAX_S", 0.01)
    assert await from_handshakes("192.0.2.1", 80, None) is None


@pytest.mark.parametrize(
    ("info", "rtt_s"),
    [
        # The minimum RTT is used instead of the smoothed RTT.
        (tcp_info(900, 400), 400e-6),
        # The kernel has not been able to measure it yet.
        (tcp_info(900, 0xFFFF_FFFF), 900e-6),
        # Kernels before Linux 4.6.
        (tcp_info(900, None), 900e-6),
        (tcp_info(0, 0), None),
        (b"", None),
    ],
)
def test_minimum_rtt_is_preferred(info: bytes, rtt_s: float | None) -> None:
    assert parse_tcp_info(info) == (None if rtt_s is None else pytest.approx(rtt_s))
