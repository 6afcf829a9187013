"""Overhead of packet headers, computed from segment size and protocol.

Sizes in bytes: IPv4 header 20 (RFC 791, section 3.1), IPv6 40 (RFC 8200, section 3), TCP 20 (RFC
9293, section 3.1) plus 12 for the timestamps option padded to words (RFC 7323, appendix A), UDP 8
(RFC 768), Ethernet 14 (IEEE 802.3, without preamble and checksum), VXLAN outer headers 50 (RFC
7348, section 5, over IPv4).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from broadside.exchange.messages import VXLAN_BYTES

IPV4_BYTES: Final = 20
IPV6_BYTES: Final = 40
TCP_BYTES: Final = 20
TIMESTAMPS_BYTES: Final = 12
UDP_BYTES: Final = 8
ETHERNET_BYTES: Final = 14
# Common header 12 and one DATA chunk header 16 (RFC 9260, sections 3.1 and 3.3.1).
SCTP_BYTES: Final = 28
USUAL_MTUS: Final = (1280, 1350, 1400, 1450, 1500, 3900, 4000, 9000, 9001, 65_535)
MTU_ASSUMED_BYTES: Final = 1500
# 1500 - 20 - 20 - 12, to be used when no segment size was recorded.
MSS_ASSUMED_BYTES: Final = 1448

# Uncertainty for the header overhead, when the segment size was recorded. A TLS 1.3 record with
# 16,384 bytes has 22 more bytes (RFC 8446, section 5.2), which is 0.13 %. A write of 128 KiB ends
# with a packet that is not full, and 66 header bytes are 0.05 %.
OVERHEAD_KNOWN_RATIO: Final = 0.002
# Extremes to be used when no segment size was recorded. The largest packets have 9000 bytes. The
# smallest segments have 536 bytes including options. A sender needs to support this size when there
# is no size option (RFC 9293, section 3.7.1).
_JUMBO_MSS_BYTES: Final = 9000 - IPV4_BYTES - TCP_BYTES - TIMESTAMPS_BYTES
_LEAST_MSS_BYTES: Final = 536 - TIMESTAMPS_BYTES


def _beside_assumed(mss_bytes: int, frame_bytes: int) -> float:
    """Compare the overhead for a segment size to the assumed size, as a ratio minus one."""
    header = IPV4_BYTES + TCP_BYTES + TIMESTAMPS_BYTES + frame_bytes
    return (1 + header / mss_bytes) / (1 + header / MSS_ASSUMED_BYTES) - 1


OVERHEAD_LESS_RATIO: Final = -_beside_assumed(_JUMBO_MSS_BYTES, 0)
OVERHEAD_MORE_RATIO: Final = _beside_assumed(_LEAST_MSS_BYTES, 0)
OVERHEAD_LESS_WIRE_RATIO: Final = -_beside_assumed(_JUMBO_MSS_BYTES, ETHERNET_BYTES)
OVERHEAD_MORE_WIRE_RATIO: Final = _beside_assumed(_LEAST_MSS_BYTES, ETHERNET_BYTES)

# A receiver acknowledges at least every second full segment (RFC 9293, section 3.8.6.3). If a
# segment is out of order, it will be acknowledged immediately (RFC 5681, section 4.2). In this case
# there will be a SACK option with 2 bytes plus 8 bytes per block (RFC 2018, section 3), padded to
# words.
ACKNOWLEDGED_SEGMENTS: Final = 2
SACK_BYTES: Final = 12
# When a segment is lost, 1.22 / sqrt(loss) segments are in flight (Mathis, Semke, Mahdavi and Ott
# 1997).
MATHIS: Final = 1.22
# A receiver can merge segments into an IP packet and acknowledge it once. The packet cannot be
# larger than this.
MERGED_MAX_BYTES: Final = 65_535
ACKNOWLEDGED_LEAST_RATIO: Final = (IPV4_BYTES + TCP_BYTES) / MERGED_MAX_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Headers:
    """Header overhead for full-size packets.

    Attributes:
        ip_ratio: Bytes at the IP layer divided by payload.
        wire_ratio: Ethernet frame bytes divided by payload.
        assumed: True if no segment size was recorded, so that 1500-byte packets or the requested
            size are used.
        how: How it was computed, as text to show in reports.
        mss_bytes: TCP payload in a full packet.
        doubt_ratio: Relative uncertainty for the ratios, to be used when they are not assumed.
    """

    ip_ratio: float
    wire_ratio: float
    assumed: bool
    how: str
    mss_bytes: int = MSS_ASSUMED_BYTES
    doubt_ratio: float = OVERHEAD_KNOWN_RATIO


def tcp_headers(
    mss_bytes: Iterable[int | None],
    *,
    requested_mss_bytes: int | None = None,
    mtu_bytes: int | None = None,
    ipv6: bool = False,
    vxlan: bool = False,
) -> Headers:
    """Return the overhead for full-size TCP packets, using the median reported segment size.

    If a size was requested but no pair reported its real size, the requested size will be used, or
    the size that fits into ``mtu_bytes`` if this is smaller.

    For a live connection, Linux reports the segment size without TCP options. So 1448 is a
    1500-byte packet with timestamps. If the size would make a usual MTU without timestamps, we
    assume that there are no timestamps.

    Args:
        mss_bytes: Segment sizes as reported by pairs. ``None`` will be ignored.
        requested_mss_bytes: Requested segment size. None if none was requested.
        mtu_bytes: The interfaces' MTU. By default, 1500 is used.
        ipv6: Set to true to use IPv6 headers.
        vxlan: Set to true to add VXLAN outer headers.
    """
    ip = IPV6_BYTES if ipv6 else IPV4_BYTES
    # iperf3 also includes the requested size in its report. This does not mean that it was used.
    known = sorted(size for size in mss_bytes if size and size != requested_mss_bytes)
    most = segment_max_bytes(
        mtu_bytes if mtu_bytes and requested_mss_bytes else MTU_ASSUMED_BYTES,
        ipv6=ipv6,
        vxlan=vxlan,
    )
    assumed = min(most, requested_mss_bytes or most) - TIMESTAMPS_BYTES
    mss = known[len(known) // 2] if known else assumed
    bare = bool(known) and mss + ip + TCP_BYTES in USUAL_MTUS
    options = 0 if bare else TIMESTAMPS_BYTES
    outer = VXLAN_BYTES if vxlan else 0
    packet = mss + ip + TCP_BYTES + options + outer
    return Headers(
        ip_ratio=packet / mss,
        wire_ratio=(packet + ETHERNET_BYTES) / mss,
        assumed=not known,
        how=f"{packet} B packets carry {mss} B of payload"
        + (f", {outer} B of them for VXLAN" if outer else ""),
        mss_bytes=mss,
    )


def sctp_headers(*, mtu_bytes: int | None = None, ipv6: bool = False) -> Headers:
    """Return the overhead of full packets with one chunk. iperf3 reports no size of a packet.

    Args:
        mtu_bytes: The interfaces' MTU. By default, 1500 is used.
        ipv6: Set to true to use IPv6 headers.
    """
    packet, ip = mtu_bytes or MTU_ASSUMED_BYTES, IPV6_BYTES if ipv6 else IPV4_BYTES
    payload = packet - ip - SCTP_BYTES
    return Headers(
        ip_ratio=packet / payload,
        wire_ratio=(packet + ETHERNET_BYTES) / payload,
        assumed=True,
        how=f"{packet} B packets carry {payload} B of payload (SCTP)",
        mss_bytes=payload,
    )


def acknowledged_max_ratio(headers: Headers, *, wire: bool, resent_ratio: float) -> float:
    """Return the maximum for TCP acknowledgement bytes divided by payload.

    If a receiver merges segments before it acknowledges them, it will send far fewer bytes.

    Args:
        headers: Header and segment sizes to use.
        wire: Set to true to count frames and not IP packets.
        resent_ratio: Share of segments that were retransmitted.
    """
    packet_bytes = ((headers.wire_ratio if wire else headers.ip_ratio) - 1) * headers.mss_bytes
    alone_ratio = min(1.0, MATHIS * math.sqrt(max(0.0, resent_ratio)))
    answered = alone_ratio + (1 - alone_ratio) / ACKNOWLEDGED_SEGMENTS
    return (packet_bytes * answered + SACK_BYTES * alone_ratio) / headers.mss_bytes


def declared_headers(
    *, mss_bytes: int | None, mtu_bytes: int | None, ipv6: bool = False
) -> Headers | None:
    """Return the overhead for a declared TCP segment size or MTU.

    From an MTU, you cannot see if segments have timestamps. On Linux, they have timestamps by
    default.

    Args:
        mss_bytes: Declared segment size. If it is set, the MTU will not be used. None uses the MTU.
        mtu_bytes: Declared MTU. None if it was not declared.
        ipv6: Set to true to use IPv6 headers.

    Returns:
        The overhead, or ``None`` if no size is given.
    """
    if mss_bytes is not None:
        return tcp_headers([mss_bytes], ipv6=ipv6)
    if mtu_bytes is None:
        return None
    size = segment_max_bytes(mtu_bytes, ipv6=ipv6) - TIMESTAMPS_BYTES
    packet = mtu_bytes
    return Headers(
        ip_ratio=packet / size,
        wire_ratio=(packet + ETHERNET_BYTES) / size,
        assumed=False,
        how=f"{packet} B packets carry {size} B of payload, by the declared MTU",
        mss_bytes=size,
        doubt_ratio=TIMESTAMPS_BYTES / size,
    )


def segment_max_bytes(mtu_bytes: int, *, ipv6: bool = False, vxlan: bool = False) -> int:
    """Return the largest TCP segment, including options, that fits into an MTU.

    Args:
        mtu_bytes: The interface's MTU.
        ipv6: Set to true to use IPv6 headers.
        vxlan: Set to true to add VXLAN outer headers.
    """
    ip = IPV6_BYTES if ipv6 else IPV4_BYTES
    return mtu_bytes - ip - TCP_BYTES - (VXLAN_BYTES if vxlan else 0)


def udp_headers(
    block_bytes: int | None,
    *,
    mtu_bytes: int | None = None,
    ipv6: bool = False,
    vxlan: bool = False,
) -> Headers:
    """Return the overhead for a UDP datagram.

    If a datagram has more than 1500 bytes, the path can fragment it, and there is no record of
    this. So we use the interfaces' MTU and mark the result as assumed.

    Args:
        block_bytes: Payload size, or None if unknown.
        mtu_bytes: The interfaces' MTU. By default, 1500 is used.
        ipv6: Set to true to use IPv6 headers.
        vxlan: Set to true to add VXLAN outer headers.
    """
    ip = IPV6_BYTES if ipv6 else IPV4_BYTES
    outer = VXLAN_BYTES if vxlan else 0
    block = block_bytes or MSS_ASSUMED_BYTES
    complete = block + UDP_BYTES + ip + outer
    fragments = math.ceil((block + UDP_BYTES) / ((mtu_bytes or MTU_ASSUMED_BYTES) - outer - ip))
    packet = block + UDP_BYTES + fragments * (ip + outer)
    return Headers(
        ip_ratio=packet / block,
        wire_ratio=(packet + fragments * ETHERNET_BYTES) / block,
        assumed=block_bytes is None or complete > MTU_ASSUMED_BYTES,
        how=f"{block} B datagrams take {packet} B of IP in {fragments} packet(s)",
    )
