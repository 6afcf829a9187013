from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from broadside.coordinator.core.judge.reconciliation.counter_bins import (
    counter_factor,
    extra_bytes,
    resent_ratio,
)
from broadside.coordinator.core.measure.formulas.headers import (
    OVERHEAD_KNOWN_RATIO,
    OVERHEAD_LESS_RATIO,
    OVERHEAD_LESS_WIRE_RATIO,
    OVERHEAD_MORE_RATIO,
    OVERHEAD_MORE_WIRE_RATIO,
    Headers,
)
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.evidence import CounterLayer, CounterRecord
from broadside.exchange.messages import Protocol
from tests.unit.coordinator.core.records import burst_series

HEADERS = Headers(ip_ratio=1.03, wire_ratio=1.06, assumed=False, how="recorded", mss_bytes=1448)


def device_counter(layer: CounterLayer, counts_lost: bool | None = None) -> CounterRecord:
    at_s = np.arange(3.0)
    return CounterRecord(
        source="lab",
        layer=layer,
        start_s=at_s,
        end_s=at_s + 1,
        bytes=np.ones(3),
        grain_s=1.0,
        read_at=datetime(2026, 11, 26, tzinfo=UTC),
        counts_lost=counts_lost,
    )


def burst(received: float, sent: float, segments: float = np.nan) -> BurstSeries:
    complete = burst_series(
        0, 0.0, np.array([received]), np.array([[received * 8]]), retransmits_count=np.ones(1)
    )
    flow = replace(
        complete.flows[0], sent_bytes=np.array([sent]), retransmits_count=np.array([segments])
    )
    return replace(complete, flows=(flow,))


@pytest.mark.parametrize(
    ("layer", "ratio", "less", "more"),
    [
        ("ip", 1.03, OVERHEAD_LESS_RATIO, OVERHEAD_MORE_RATIO),
        ("wire", 1.06, OVERHEAD_LESS_WIRE_RATIO, OVERHEAD_MORE_WIRE_RATIO),
        ("payload", 1.0, OVERHEAD_KNOWN_RATIO, OVERHEAD_KNOWN_RATIO),
    ],
)
def test_assumed_segment_size_has_uncertainty_of_the_layer(
    layer: CounterLayer, ratio: float, less: float, more: float
) -> None:
    result = counter_factor(device_counter(layer), replace(HEADERS, assumed=True), ())
    assert (result.ratio, result.less_ratio, result.more_ratio) == (ratio, less, more)


def test_recorded_segment_size_has_recorded_uncertainty() -> None:
    result = counter_factor(device_counter("ip"), replace(HEADERS, doubt_ratio=0.002), ())
    assert (result.less_ratio, result.more_ratio, result.how) == (0.002, 0.002, "recorded")


def test_lost_datagrams_are_sent_minus_received() -> None:
    assert resent_ratio(burst(1e9, 1.1e9), HEADERS, Protocol.UDP) == pytest.approx(0.1)
    assert resent_ratio(burst(1e9, 0.9e9), HEADERS, Protocol.UDP) == 0.0


def test_retransmitted_bytes_come_from_retransmission_count() -> None:
    again = resent_ratio(burst(1e9, 1.1e9, 1000.0), HEADERS, Protocol.TCP)
    assert again == pytest.approx(1000 * 1448 / 1.1e9)


@pytest.mark.parametrize(
    ("counts_lost", "low", "high"), [(True, 0.1, 0.1), (None, 0.0, 0.1), (False, 0.0, 0.0)]
)
def test_lost_bytes_are_extra_if_counter_may_count_them(
    counts_lost: bool | None, low: float, high: float
) -> None:
    extra = extra_bytes(burst(1e9, 1.1e9), device_counter("ip", counts_lost), HEADERS, Protocol.UDP)
    assert (extra.low_ratio, extra.high_ratio) == pytest.approx((low, high))
