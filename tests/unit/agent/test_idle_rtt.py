"""Tests for the idle RTT, using real loopback sockets."""

import asyncio
import struct
from collections.abc import Iterator

import pytest

from broadside.agent import idle_rtt
from broadside.agent.idle_rtt import (
    from_connections,
    from_handshakes,
    parse_tcp_info,
)


def tcp_info(rtt_us: int, min_rtt_us: int | None) -> bytes:
    """Return a struct tcp_info. Set the minimum RTT to None for older kernels."""
    info = bytearray(152 if min_rtt_us is not None else 104)
    struct.pack_into("=I", info, 68, rtt_us)
    if min_rtt_us is not None:
        struct.pack_into("=I", info, 148, min_rtt_us)
    return bytes(info)


def test_kernel_error_has_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Iterator[tuple[int, bytes]]:
        raise OSError("not permitted")

    monkeypatch.setattr(idle_rtt, "ask", refuse)
    assert from_connections("127.0.0.1", {5201}) is None


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
