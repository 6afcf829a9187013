"""How many bytes the headers add to payload, from segment size and protocol.

Sizes: IPv4 header 20 bytes (RFC 791, section 3.1), IPv6 40 (RFC 8200, section 3), TCP 20 (RFC
9293, section 3.1) plus 12 for the timestamps option padded to words (RFC 7323, appendix A), UDP 8
(RFC 768), Ethernet 14 (IEEE 802.3, without preamble and checksum), VXLAN outer headers 50 (RFC
7348, section 5, over IPv4).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from broadside.exchange.messages import VXLAN_BYTES, Protocol

IPV4_BYTES: Final = 20
IPV6_BYTES: Final = 40
TCP_BYTES: Final = 20
TIMESTAMPS_BYTES: Final = 12
UDP_BYTES: Final = 8
ETHERNET_BYTES: Final = 14
USUAL_MTUS: Final = (1280, 1350, 1400, 1450, 1500, 3900, 4000, 9000, 9001, 65_535)
MTU_ASSUMED_BYTES: Final = 1500
MSS_ASSUMED_BYTES: Final = 1448  # 1500 - 20 - 20 - 12: where nothing was recorded

# Uncertainty of header overhead from a recorded segment size. A TLS 1.3 record of 16,384 bytes has
# 22 more (RFC 8446, section 5.2), which is 0.13 %. A write of 128 KiB ends with one packet that is
# not full: 66 bytes of headers, 0.05 %.
OVERHEAD_KNOWN_RATIO: Final = 0.002
# The extremes where no segment size was recorded: packets of 9000 bytes, and segments of 536 with
# their options, which a sender must accept without a size option (RFC 9293, section 3.7.1).
_JUMBO_MSS_BYTES: Final = 9000 - IPV4_BYTES - TCP_BYTES - TIMESTAMPS_BYTES
_LEAST_MSS_BYTES: Final = 536 - TIMESTAMPS_BYTES


def _beside_assumed(mss_bytes: int, frame_bytes: int) -> float:
    """Return the overhead of a segment size over that of the assumed one, less one."""
    header = IPV4_BYTES + TCP_BYTES + TIMESTAMPS_BYTES + frame_bytes
    return (1 + header / mss_bytes) / (1 + header / MSS_ASSUMED_BYTES) - 1


OVERHEAD_LESS_RATIO: Final = -_beside_assumed(_JUMBO_MSS_BYTES, 0)
OVERHEAD_MORE_RATIO: Final = _beside_assumed(_LEAST_MSS_BYTES, 0)
OVERHEAD_LESS_WIRE_RATIO: Final = -_beside_assumed(_JUMBO_MSS_BYTES, ETHERNET_BYTES)
OVERHEAD_MORE_WIRE_RATIO: Final = _beside_assumed(_LEAST_MSS_BYTES, ETHERNET_BYTES)

# A receiver acknowledges every second full segment at least (RFC 9293, section 3.8.6.3), and each
# one that is out of order at once (RFC 5681, section 4.2) with a selective acknowledgement: 2 bytes
# and 8 a block (RFC 2018, section 3), padded to words.
ACKNOWLEDGED_SEGMENTS: Final = 2
SACK_BYTES: Final = 12
# Segments in flight when one is lost: 1.22 / sqrt(loss) (Mathis, Semke, Mahdavi and Ott 1997)
MATHIS: Final = 1.22
# A receiver that merges segments makes at most one IP packet of them, which it acknowledges.
MERGED_MAX_BYTES: Final = 65_535
ACKNOWLEDGED_LEAST_RATIO: Final = (IPV4_BYTES + TCP_BYTES) / MERGED_MAX_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Headers:
    """Payload x ``ip_ratio`` = bytes at the IP layer; x ``wire_ratio`` = Ethernet frames."""

    ip_ratio: float
    wire_ratio: float
    assumed: bool  # no segment size was recorded: that of 1500-byte packets, or of what was asked
    how: str  # the sum, for people
    mss_bytes: int = MSS_ASSUMED_BYTES  # TCP payload of a full packet
    doubt_ratio: float = OVERHEAD_KNOWN_RATIO  # by which the ratios may be off, unless assumed


def headers(
    protocol: Protocol,
    mss_bytes: Iterable[int | None],
    *,
    asked_mss_bytes: int | None = None,
    mtu_bytes: int | None = None,
    block_bytes: int | None = None,
    ipv6: bool = False,
    vxlan: bool = False,
) -> Headers:
    """Overhead of full-size packets; the median of the segment sizes that pairs reported.

    Where a size was asked and nobody told what came of it, it is that or what ``mtu_bytes`` (of
    the interfaces; 1500 where unknown) leaves, whichever is smaller.

    Linux reports the segment size of a live connection net of TCP options, so 1448 is a 1500-byte
    packet with timestamps. A size that makes a usual MTU without them is taken as having none.
    """
    ip = IPV6_BYTES if ipv6 else IPV4_BYTES
    if protocol is Protocol.UDP:
        return _udp(block_bytes, mtu_bytes, ip, VXLAN_BYTES if vxlan else 0)
    # What iperf3 repeats of the request is no word of what came of it.
    known = sorted(size for size in mss_bytes if size and size != asked_mss_bytes)
    most = segment_max_bytes(
        mtu_bytes if mtu_bytes and asked_mss_bytes else MTU_ASSUMED_BYTES, ipv6=ipv6, vxlan=vxlan
    )
    assumed = min(most, asked_mss_bytes or most) - TIMESTAMPS_BYTES
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


def acknowledged_max_ratio(headers: Headers, *, wire: bool, resent_ratio: float) -> float:
    """Return the most bytes of TCP acknowledgements for a byte of payload.

    Receivers that merge segments before they answer send far fewer.

    Args:
        headers: Header sizes and segment size of the payload.
        wire: Whether frames are counted instead of IP packets.
        resent_ratio: Share of the segments that were sent again.
    """
    packet_bytes = ((headers.wire_ratio if wire else headers.ip_ratio) - 1) * headers.mss_bytes
    alone_ratio = min(1.0, MATHIS * math.sqrt(max(0.0, resent_ratio)))
    answered = alone_ratio + (1 - alone_ratio) / ACKNOWLEDGED_SEGMENTS
    return (packet_bytes * answered + SACK_BYTES * alone_ratio) / headers.mss_bytes


def declared_headers(
    *, mss_bytes: int | None, mtu_bytes: int | None, ipv6: bool = False
) -> Headers | None:
    """Return the overhead of a declared TCP segment size, or of the MTU; None: neither is given.

    An MTU does not say whether segments carry timestamps, as they do by default on Linux.
    """
    if mss_bytes is not None:
        return headers(Protocol.TCP, [mss_bytes], ipv6=ipv6)
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
    """The largest TCP segment, its options included, that an interface's MTU leaves room for."""
    ip = IPV6_BYTES if ipv6 else IPV4_BYTES
    return mtu_bytes - ip - TCP_BYTES - (VXLAN_BYTES if vxlan else 0)


def _udp(block_bytes: int | None, mtu_bytes: int | None, ip: int, outer: int) -> Headers:
    """A datagram over 1500 bytes goes whole or in parts as the path has it, which nobody tells:
    as the interfaces' MTU has it, and marked as assumed."""
    block = block_bytes or MSS_ASSUMED_BYTES
    whole = block + UDP_BYTES + ip + outer
    fragments = math.ceil((block + UDP_BYTES) / ((mtu_bytes or MTU_ASSUMED_BYTES) - outer - ip))
    packet = block + UDP_BYTES + fragments * (ip + outer)
    return Headers(
        ip_ratio=packet / block,
        wire_ratio=(packet + fragments * ETHERNET_BYTES) / block,
        assumed=block_bytes is None or whole > MTU_ASSUMED_BYTES,
        how=f"{block} B datagrams take {packet} B of IP in {fragments} packet(s)",
    )
