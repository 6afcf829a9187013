"""Round-trip time of the idle path, between arming and the planned instant.

A queue is a round trip that is longer under load than this one. Where the start gate holds an
engine, its connections stand, and the kernel has measured each one's handshake: ``TCP_INFO`` is
read by sock_diag(7), and no packet is sent. An engine without a start gate connects at the
instant; its server is a daemon, to whose port a few handshakes are made. Neither needs ICMP, a
port of its own, or a path without address translation.
"""

import asyncio
import socket
import statistics
import struct
from collections.abc import Collection, Sequence
from typing import Final

from broadside.agent.netlink import REQUEST_DUMP, ask, attributes
from broadside.exchange.messages import IdleRtt

HANDSHAKES_COUNT: Final = 3  # a lost SYN or a late wake-up spoils one
HANDSHAKE_MAX_S: Final = 1.0  # the first retransmission of a SYN (RFC 6298): later it is no RTT
MARGIN_S: Final = 0.1  # s before the instant from which on nothing is measured: others may send
_SOCK_DIAG: Final = getattr(socket, "NETLINK_SOCK_DIAG", 4)  # linux/netlink.h
_SOCK_DIAG_BY_FAMILY: Final = 20  # linux/sock_diag.h
_ESTABLISHED: Final = 1  # net/tcp_states.h
_INET_DIAG_INFO: Final = 2  # linux/inet_diag.h: struct tcp_info
# struct inet_diag_req_v2: family, protocol, extensions, states, and a socket id that matches all.
_REQUEST: Final = struct.Struct("=BBBxI48x")
# The head of struct inet_diag_msg: family, state, and of its socket id the two ports (in network
# order) and addresses.
_MESSAGE: Final = struct.Struct("=BBxx2s2s16s16s")
_MESSAGE_BYTES: Final = 72
_RTT_AT: Final = 68  # struct tcp_info: tcpi_rtt, us
_MIN_RTT_AT: Final = 148  # tcpi_min_rtt, us; since Linux 4.6
_UNMEASURED: Final = 0xFFFF_FFFF


def parse_tcp_info(info: bytes) -> float | None:
    """Return the smallest RTT of a connection so far, s; None where none was measured.

    Args:
        info: The kernel's ``struct tcp_info``; an older kernel's is shorter.
    """
    for at in (_MIN_RTT_AT, _RTT_AT):
        if len(info) >= at + 4:
            (rtt_us,) = struct.unpack_from("=I", info, at)
            if 0 < rtt_us < _UNMEASURED:
                return float(rtt_us) / 1e6
    return None


def connection_rtts(address: str, ports: Collection[int]) -> list[float]:
    """Return the smallest RTT of each connection of this host to some ports of an address, s.

    Raises:
        OSError: The kernel did not answer.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    wanted = socket.inet_pton(family, address)
    request = _REQUEST.pack(
        family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 1 << _ESTABLISHED
    )
    found: list[float] = []
    for kind, content in ask(_SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, request, _SOCK_DIAG):
        if kind != _SOCK_DIAG_BY_FAMILY or len(content) < _MESSAGE_BYTES:
            continue
        _, state, _, port, _, target = _MESSAGE.unpack_from(content)
        if state != _ESTABLISHED or int.from_bytes(port, "big") not in ports:
            continue
        if target[: len(wanted)] == wanted:
            info = dict(attributes(content[_MESSAGE_BYTES:])).get(_INET_DIAG_INFO, b"")
            rtt_s = parse_tcp_info(info)
            found += [] if rtt_s is None else [rtt_s]
    return found


async def handshake_rtts(address: str, port: int, bind: str | None) -> list[float]:
    """Return the RTT of a few handshakes with a port, s; fewer, or none, where they fail."""
    found: list[float] = []
    for _ in range(HANDSHAKES_COUNT):
        local = None if bind is None else (bind, 0)
        try:
            async with asyncio.timeout(HANDSHAKE_MAX_S):
                _, writer = await asyncio.open_connection(address, port, local_addr=local)
        except (OSError, TimeoutError):
            return found
        opened = writer.get_extra_info("socket")
        rtt_s = parse_tcp_info(opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256))
        writer.transport.abort()
        found += [] if rtt_s is None else [rtt_s]
    return found


def from_connections(address: str, ports: Collection[int]) -> IdleRtt | None:
    """Return the idle RTT by the connections that the start gate holds; None: unknown."""
    try:
        return _summary(connection_rtts(address, ports), held=True)
    except OSError:
        return None


async def from_handshakes(address: str, port: int, bind: str | None) -> IdleRtt | None:
    """Return the idle RTT by handshakes with the engine's port; None: unknown."""
    return _summary(await handshake_rtts(address, port, bind), held=False)


def _summary(rtts_s: Sequence[float], *, held: bool) -> IdleRtt | None:
    if not rtts_s:
        return None
    return IdleRtt(
        least_s=min(rtts_s),
        median_s=statistics.median(rtts_s),
        samples_count=len(rtts_s),
        how="connections" if held else "handshakes",
    )
