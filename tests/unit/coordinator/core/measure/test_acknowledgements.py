"""Tests for the acknowledgement ratio, using the interface counters of the receivers."""

import math
from datetime import UTC, datetime

import numpy as np
import pytest

from broadside.coordinator.core.measure.acknowledgements import Acknowledgements
from broadside.coordinator.core.measure.formulas.headers import Headers, acknowledged_max_ratio
from broadside.coordinator.core.measure.records.columns import NO_HOST, HostColumns
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.run_spec import Burst
from broadside.exchange.messages import Direction, Flow, Protocol, Side
from tests.unit.coordinator.core.records import seconds

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
AT_S = START.timestamp()
BURST = Burst(index=0, planned_start_at=START, duration_s=3)
HEADERS = Headers(ip_ratio=1.04, wire_ratio=1.05, assumed=False, how="", mss_bytes=1448)


def _host(received: list[float], sent: list[float], first_s: float = AT_S) -> HostColumns:
    """Return the given counters for a host, starting when the burst starts."""
    at = first_s + np.arange(len(received), dtype=np.float64)
    unknown = np.full(len(received), np.nan, np.float32)
    return HostColumns(
        start_at_s=at,
        end_at_s=at + 1,
        nic_rx_bytes=np.array(received),
        nic_tx_bytes=np.array(sent),
        drops_count=unknown,
        cpu_busy_ratio=unknown,
        cpu_busiest_core_ratio=unknown,
    )


def _pair(host: HostColumns, *, flow: Flow = Flow.UP) -> PairEvidence:
    """Return a pair for which the receiver recorded 3 x 1000 bytes of payload."""
    if flow is Flow.UP:
        tracks = (seconds(Side.SERVER, AT_S, [1000, 1000, 1000]),)
        return PairEvidence(pair_index=0, server_tracks=tracks, server_host=host)
    tracks = (seconds(Side.CLIENT, AT_S, [1000, 1000, 1000], flow=flow),)
    return PairEvidence(pair_index=0, client_tracks=tracks, client_host=host)


def _ratio(*pairs: PairEvidence, direction: Direction = Direction.FORWARD) -> float | None:
    counted = Acknowledgements(BURST, Protocol.TCP, direction)
    counted.add(pairs)
    return counted.done(HEADERS)


@pytest.mark.parametrize(
    ("direction", "flow"), [(Direction.FORWARD, Flow.UP), (Direction.REVERSE, Flow.DOWN)]
)
def test_ratio_is_sent_over_received_bytes_of_the_receiver(
    direction: Direction, flow: Flow
) -> None:
    """The ratio is 0.02 if 3 x 22 bytes are sent and 3 x 1100 received."""
    pair = _pair(_host([1100] * 3, [22] * 3), flow=flow)
    assert _ratio(pair, direction=direction) == pytest.approx(0.02)


def test_ignores_seconds_outside_the_burst() -> None:
    """The host sends more before and after the burst. This is not counted."""
    host = _host([1100] * 5, [220, 22, 22, 22, 220], first_s=AT_S - 1)
    assert _ratio(_pair(host)) == pytest.approx(0.02)


def test_unknown_second_is_not_zero() -> None:
    """The ratio is 60 / 3000. It would be 60 / 4500 if a zero were used."""
    host = _host([1500, 1500, 1500], [30, math.nan, 30])
    assert _ratio(_pair(host)) == pytest.approx(0.02)
    host = _host([1500, math.nan, 1500], [30, 30, 30])
    assert _ratio(_pair(host)) == pytest.approx(0.02)


@pytest.mark.parametrize(
    "host",
    [
        pytest.param(NO_HOST, id="no counter"),
        pytest.param(_host([900] * 3, [20] * 3), id="below the payload"),
        pytest.param(_host([1100] * 3, [0.1] * 3), id="below the minimum"),
        pytest.param(_host([math.nan] * 3, [math.nan] * 3), id="unknown"),
    ],
)
def test_ignores_a_counter_of_other_traffic(host: HostColumns) -> None:
    assert _ratio(_pair(host)) is None


def test_uses_a_counter_of_payload_only() -> None:
    assert _ratio(_pair(_host([1000] * 3, [20] * 3))) == pytest.approx(0.02)


def test_pairs_without_counters_count_one_acknowledgement_per_segment() -> None:
    """The measured ratio is used for one half, and the maximum for the other."""
    most = acknowledged_max_ratio(HEADERS, wire=True, resent_ratio=1.0)
    both = _ratio(_pair(_host([1100] * 3, [22] * 3)), _pair(NO_HOST))
    assert both == pytest.approx((0.02 + most) / 2)


@pytest.mark.parametrize(
    ("protocol", "direction"),
    [(Protocol.UDP, Direction.FORWARD), (Protocol.TCP, Direction.BIDIRECTIONAL)],
)
def test_no_ratio_for_udp_and_bidirectional_traffic(
    protocol: Protocol, direction: Direction
) -> None:
    counted = Acknowledgements(BURST, protocol, direction)
    counted.add([_pair(_host([1100] * 3, [22] * 3))])
    assert counted.done(HEADERS) is None
