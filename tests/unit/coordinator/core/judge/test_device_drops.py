from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from broadside.coordinator.core.judge.bottleneck import find_bottleneck
from broadside.coordinator.core.judge.bottleneck.bottleneck_evidence import BottleneckInput
from broadside.coordinator.core.judge.bottleneck.device_causes import drops_per_second
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.summary import (
    BottleneckName,
    ByteSource,
    FlowSummary,
    PairSummary,
    SecondState,
    Window,
)
from broadside.exchange.messages import Flow, Traffic

LAG_S = 10.0


def at(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)


BURST = (at(1100), at(1130))
WINDOW = Window(start_at=BURST[0], end_at=BURST[1], window_s=30, common_s=30, ramp_s=0, short=True)


def counted(drops: float, idle: float) -> CounterRecord:
    """Build one-second bins whose labels are late by the lag."""
    start_s = np.arange(1000.0, 1200.0)
    loaded = (start_s >= 1100 + LAG_S) & (start_s < 1130 + LAG_S)
    return CounterRecord(
        source="lab",
        start_s=start_s,
        end_s=start_s + 1,
        bytes=np.ones(200),
        drops_count=np.where(loaded, drops, idle),
        grain_s=1.0,
        read_at=at(2000),
    )


def test_reads_drops_from_bins_of_the_window() -> None:
    assert drops_per_second(counted(50, 2), WINDOW, LAG_S, [BURST]) == (50, 2)


def test_no_drop_rate_without_drops_or_bins_of_the_window() -> None:
    counts = counted(50, 2)
    assert drops_per_second(None, WINDOW, 0, [BURST]) is None
    assert drops_per_second(counts, None, 0, [BURST]) is None
    assert drops_per_second(replace(counts, drops_count=None), WINDOW, 0, [BURST]) is None
    assert drops_per_second(counts, WINDOW, 1000.0, [BURST]) is None
    unknown = replace(counts, drops_count=np.full(200, np.nan))
    assert drops_per_second(unknown, WINDOW, 0, [BURST]) is None


def test_idle_drop_rate_is_unknown_if_bursts_fill_the_record() -> None:
    always = (at(900), at(1300))
    assert drops_per_second(counted(50, 2), WINDOW, LAG_S, [always]) == (50, None)


@pytest.mark.parametrize(
    ("drops", "name"),
    [
        ((1000.0, 0.0), BottleneckName.FIREWALL),
        # The device may count 45 segments as one drop.
        ((30.0, 0.0), BottleneckName.FIREWALL),
        # This is only 10 % of the fleet loss.
        ((5.0, 0.0), BottleneckName.UNKNOWN),
        # The device has the same drops when it is idle.
        ((1000.0, 990.0), BottleneckName.UNKNOWN),
        (None, BottleneckName.UNKNOWN),
    ],
)
def test_drops_must_match_fleet_loss_to_locate_the_limit(
    drops: tuple[float, float | None] | None, name: BottleneckName
) -> None:
    pairs = [
        PairSummary(
            pair=f"pair-{index}",
            pair_index=index,
            state=SecondState.MEASURED,
            completeness_ratio=1.0,
            basis=ByteSource.RECEIVER,
            received_bits_per_second=1e9,
            cov_ratio=0.1,
            client_nic_ratio=0.3,
        )
        for index in range(6)
    ]
    flow = FlowSummary(
        flow=Flow.UP,
        share_movement_ratio=0.02,
        retransmits_count=30_000,
        retransmit_ratio=0.002,
        mss_bytes=1448,
    )
    given = BottleneckInput(
        traffic=Traffic(), flows=[flow], pairs=pairs, window_s=30, drops_per_second=drops
    )
    assert find_bottleneck(given).name is name
