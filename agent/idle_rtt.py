"""Round-trip time of the path between arming and the planned start, when there is no load.

If the RTT under load is longer than this one, there is a queue in the path. An engine at the start
gate has open connections, and the kernel has measured each handshake. We get ``TCP_INFO`` using
sock_diag(7), so no packet is sent. An engine without a start gate will connect at the planned
start. Its server is a daemon, so we make some handshakes with its port. Both ways work without
ICMP, without another port, and with address translation.
"""

import asyncio
import socket
import statistics
import struct
from collections.abc import Collection, Sequence
from typing import Final

from broadside.agent.netlink import REQUEST_DUMP, ask, attributes
from broadside.exchange.messages import IdleRtt

# A lost SYN or a delay in the scheduler can affect one of them.
HANDSHAKES_COUNT: Final = 3
# A SYN is sent again after this time (RFC 6298), so a longer time would not be the RTT.
HANDSHAKE_MAX_S: Final = 1.0
# Seconds before the planned start at which to stop, because other clients might send.
MARGIN_S: Final = 0.1
# linux/netlink.h.
_SOCK_DIAG: Final = getattr(socket, "NETLINK_SOCK_DIAG", 4)
# linux/sock_diag.h.
_SOCK_DIAG_BY_FAMILY: Final = 20
# net/tcp_states.h.
_ESTABLISHED: Final = 1
# linux/inet_diag.h: ``struct tcp_info``.
_INET_DIAG_INFO: Final = 2
# ``struct inet_diag_req_v2``: family, protocol, extensions, states, and a socket id that matches
# all.
_REQUEST: Final = struct.Struct("=BBBxI48x")
# Start of ``struct inet_diag_msg``: family, state, and from its socket id both ports (in network
# order) and both addresses.
_MESSAGE: Final = struct.Struct("=BBxx2s2s16s16s")
_MESSAGE_BYTES: Final = 72
# ``tcpi_rtt`` in ``struct tcp_info``, in us.
_RTT_AT: Final = 68
# ``tcpi_min_rtt``, in us. Available since Linux 4.6.
_MIN_RTT_AT: Final = 148
_UNMEASURED: Final = 0xFFFF_FFFF


def parse_tcp_info(info: bytes) -> float | None:
    """Return the smallest RTT of a connection in seconds, or None if it was not measured.

    Args:
        info: ``struct tcp_info`` from the kernel. It is shorter in an older kernel.
    """
    for at in (_MIN_RTT_AT, _RTT_AT):
        if len(info) >= at + 4:
            (rtt_us,) = struct.unpack_from("=I", info, at)
            if 0 < rtt_us < _UNMEASURED:
                return float(rtt_us) / 1e6
    return None


def connection_rtts(address: str, ports: Collection[int]) -> list[float]:
    """Return the smallest RTT in seconds for each connection from this host to an address.

    Args:
        address: Target address.
        ports: Target ports to use.

    Raises:
        OSError: The kernel did not respond.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    wanted = socket.inet_pton(family, address)
    request = _REQUEST.pack(
        family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 1 << _ESTABLISHED
    )
    samples_s: list[float] = []
    for kind, content in ask(_SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, request, _SOCK_DIAG):
        if kind != _SOCK_DIAG_BY_FAMILY or len(content) < _MESSAGE_BYTES:
            continue
        _, state, _, port, _, target = _MESSAGE.unpack_from(content)
        if state != _ESTABLISHED or int.from_bytes(port, "big") not in ports:
            continue
        if target[: len(wanted)] == wanted:
            info = dict(attributes(content[_MESSAGE_BYTES:])).get(_INET_DIAG_INFO, b"")
            rtt_s = parse_tcp_info(info)
            samples_s += [] if rtt_s is None else [rtt_s]
    return samples_s


async def handshake_rtts(address: str, port: int, bind: str | None) -> list[float]:
    """Return the RTT in seconds for some handshakes with a port, up to the first failure.

    Args:
        address: Target address.
        port: Target port.
        bind: Source address, or None to use the default.
    """
    samples_s: list[float] = []
    for _ in range(HANDSHAKES_COUNT):
        local = None if bind is None else (bind, 0)
        try:
            async with asyncio.timeout(HANDSHAKE_MAX_S):
                _, writer = await asyncio.open_connection(address, port, local_addr=local)
        except (OSError, TimeoutError):
            return samples_s
        opened = writer.get_extra_info("socket")
        rtt_s = parse_tcp_info(opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256))
        writer.transport.abort()
        samples_s += [] if rtt_s is None else [rtt_s]
    return samples_s


def from_connections(address: str, ports: Collection[int]) -> IdleRtt | None:
    """Return the RTT of the connections at the start gate.

    Args:
        address: Target address.
        ports: Target ports to use.

    Returns:
        RTT in seconds, with the number of connections. None if the kernel has no RTT of them.
    """
    try:
        return _summary(connection_rtts(address, ports), gate_connections=True)
    except OSError:
        return None


async def from_handshakes(address: str, port: int, bind: str | None) -> IdleRtt | None:
    """Return the RTT of handshakes with the port of the engine.

    Args:
        address: Target address.
        port: Target port.
        bind: Source address, or None to use the default.

    Returns:
        RTT in seconds, with the number of handshakes. None if no handshake succeeded.
    """
    return _summary(await handshake_rtts(address, port, bind), gate_connections=False)


def _summary(rtts_s: Sequence[float], *, gate_connections: bool) -> IdleRtt | None:
    if not rtts_s:
        return None
    return IdleRtt(
        least_s=min(rtts_s),
        median_s=statistics.median(rtts_s),
        samples_count=len(rtts_s),
        how="connections" if gate_connections else "handshakes",
    )
