"""Tests for the header bytes that have to be added to a byte of payload."""

import math
from typing import Any

import pytest

from broadside.coordinator.core.measure.formulas.headers import (
    OVERHEAD_LESS_RATIO,
    OVERHEAD_LESS_WIRE_RATIO,
    OVERHEAD_MORE_RATIO,
    OVERHEAD_MORE_WIRE_RATIO,
    Headers,
    _beside_assumed,
    acknowledged_max_ratio,
    declared_headers,
    segment_max_bytes,
    tcp_headers,
    udp_headers,
)


@pytest.mark.parametrize(
    ("sizes", "options", "packet", "mss", "assumed"),
    [
        pytest.param([1448], {}, 1500, 1448, False, id="1500 with timestamps"),
        pytest.param([1460], {}, 1500, 1460, False, id="1500 without"),
        pytest.param([1448], {"ipv6": True}, 1520, 1448, False, id="IPv6"),
        pytest.param([1440], {"ipv6": True}, 1500, 1440, False, id="IPv6 without timestamps"),
        pytest.param([8948, 1448, 1448], {}, 1500, 1448, False, id="median"),
        pytest.param([1448, 8948], {}, 9000, 8948, False, id="upper of two"),
        pytest.param([None, 0], {}, 1500, 1448, True, id="not recorded"),
        pytest.param([], {"ipv6": True}, 1500, 1428, True, id="IPv6, not recorded"),
        pytest.param([], {"requested_mss_bytes": 1000}, 1040, 988, True, id="requested MSS"),
        pytest.param(
            [1000], {"requested_mss_bytes": 1000}, 1040, 988, True, id="equal to the requested MSS"
        ),
        pytest.param([], {"requested_mss_bytes": 8000}, 1500, 1448, True, id="limited by the path"),
        pytest.param(
            [], {"requested_mss_bytes": 8000, "mtu_bytes": 9000}, 8040, 7988, True, id="9000"
        ),
        pytest.param([], {"mtu_bytes": 9000}, 1500, 1448, True, id="MTU without a requested MSS"),
        pytest.param([1398], {"vxlan": True}, 1500, 1398, False, id="VXLAN"),
        pytest.param([], {"vxlan": True}, 1500, 1398, True, id="VXLAN, not recorded"),
    ],
)
def test_headers_of_tcp_packets(
    sizes: list[int | None], options: dict[str, Any], packet: int, mss: int, assumed: bool
) -> None:
    result = tcp_headers(sizes, **options)
    assert result.ip_ratio == packet / mss
    assert result.wire_ratio == (packet + 14) / mss
    assert (result.mss_bytes, result.assumed) == (mss, assumed)
    outer = ", 50 B of them for VXLAN" if "vxlan" in options else ""
    assert result.how == f"{packet} B packets carry {mss} B of payload{outer}"


@pytest.mark.parametrize(
    ("block", "options", "ip_bytes", "fragments", "assumed"),
    [
        pytest.param(1400, {}, 1428, 1, False, id="one packet"),
        pytest.param(1472, {}, 1500, 1, False, id="largest packet"),
        pytest.param(1473, {}, 1521, 2, True, id="one byte more"),
        pytest.param(1473, {"mtu_bytes": 9000}, 1501, 1, True, id="9000"),
        pytest.param(None, {}, 1476, 1, True, id="not recorded"),
        pytest.param(1400, {"ipv6": True}, 1448, 1, False, id="IPv6"),
        pytest.param(1400, {"vxlan": True}, 1478, 1, False, id="VXLAN"),
        pytest.param(4000, {}, 4008 + 3 * 20, 3, True, id="three fragments"),
    ],
)
def test_headers_of_udp_datagrams(
    block: int | None, options: dict[str, Any], ip_bytes: int, fragments: int, assumed: bool
) -> None:
    result = udp_headers(block, **options)
    payload = block or 1448
    assert result.ip_ratio == ip_bytes / payload
    assert result.wire_ratio == (ip_bytes + 14 * fragments) / payload
    assert result.assumed is assumed
    assert result.how == (f"{payload} B datagrams take {ip_bytes} B of IP in {fragments} packet(s)")


def test_headers_of_declared_segments_and_mtus() -> None:
    assert declared_headers(mss_bytes=None, mtu_bytes=None) is None
    size = declared_headers(mss_bytes=1460, mtu_bytes=9000)
    assert size is not None
    assert size.ip_ratio == 1500 / 1460
    path = declared_headers(mss_bytes=None, mtu_bytes=1500)
    assert path is not None
    assert (path.ip_ratio, path.wire_ratio) == (1500 / 1448, 1514 / 1448)
    assert (path.mss_bytes, path.assumed, path.doubt_ratio) == (1448, False, 12 / 1448)
    assert path.how == "1500 B packets carry 1448 B of payload, by the declared MTU"
    ipv6 = declared_headers(mss_bytes=None, mtu_bytes=1500, ipv6=True)
    assert ipv6 is not None
    assert ipv6.mss_bytes == 1428
    declared = declared_headers(mss_bytes=1428, mtu_bytes=None, ipv6=True)
    assert declared is not None
    assert declared.ip_ratio == 1500 / 1428


def test_largest_segment_of_an_mtu() -> None:
    assert segment_max_bytes(1500) == 1460
    assert segment_max_bytes(1500, ipv6=True) == 1440
    assert segment_max_bytes(1500, vxlan=True) == 1410


def test_uncertainty_of_an_assumed_size_covers_the_extremes() -> None:
    """The IP ratio is 1.00581 for 8948 bytes, 1.09924 for 524 and 1.03591 for 1448.

    For frames, add 14 bytes.
    """
    assert pytest.approx((9000 / 8948) / (1500 / 1448) - 1) == -OVERHEAD_LESS_RATIO
    assert pytest.approx((576 / 524) / (1500 / 1448) - 1) == OVERHEAD_MORE_RATIO
    assert pytest.approx((9014 / 8948) / (1514 / 1448) - 1) == -OVERHEAD_LESS_WIRE_RATIO
    assert pytest.approx((590 / 524) / (1514 / 1448) - 1) == OVERHEAD_MORE_WIRE_RATIO
    assert _beside_assumed(524, 14) == pytest.approx((590 / 524) / (1514 / 1448) - 1)
    assert _beside_assumed(1448, 0) == 0.0


@pytest.mark.parametrize(
    ("resent", "alone"), [(0.0, 0.0), (-1.0, 0.0), (0.01, 0.122), (0.64, 0.976), (1.0, 1.0)]
)
@pytest.mark.parametrize(("wire", "bytes_"), [(False, 52), (True, 66)])
def test_delayed_acknowledgements_and_one_per_segment_after_a_loss(
    resent: float, alone: float, wire: bool, bytes_: int
) -> None:
    """If 1 % is lost, 12.2 % of the segments will get a separate acknowledgement.

    This is 1.22 / 0.1 segments in flight. Add 12 bytes to the size of these.
    """
    of = Headers(ip_ratio=1500 / 1448, wire_ratio=1514 / 1448, assumed=False, how="")
    result = acknowledged_max_ratio(of, wire=wire, resent_ratio=resent)
    assert result * 1448 == pytest.approx(bytes_ * (alone + (1 - alone) / 2) + 12 * alone)
    assert math.isfinite(result)
