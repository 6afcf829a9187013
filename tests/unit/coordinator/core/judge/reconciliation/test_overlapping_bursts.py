"""Tests of a device counter that may have the traffic of a run that is not measured yet."""

from datetime import UTC, datetime

import numpy as np

from broadside.coordinator.core.judge.reconciliation.overlapping_bursts import (
    Neighbour,
    OverlappingBursts,
)
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.device.telemetry.telemetry_storage import dump_counter, load_counter
from broadside.exchange.messages import Flow


def test_counter_ends_before_an_unmeasured_run_can_begin() -> None:
    start_s = np.arange(10.0)
    device_counter = CounterRecord(
        source="lab",
        start_s=start_s,
        end_s=start_s + 1,
        bytes=np.ones(10),
        grain_s=1.0,
        read_at=datetime(2026, 11, 20, tzinfo=UTC),
        lag_hint_s=2.0,
        flows=(Flow.UP,),
    )
    cut = OverlappingBursts(unknown_from_s=5.0).trim(device_counter)
    assert np.flatnonzero(np.isnan(cut.bytes)).tolist() == [7, 8, 9]
    assert "another run" in cut.notes[0]
    assert OverlappingBursts(unknown_from_s=8.0).trim(device_counter) is device_counter
    assert load_counter(dump_counter(device_counter)).flows == (Flow.UP,)


def test_stored_bursts_are_read_back() -> None:
    burst = Neighbour(
        run_id="other", burst_index=1, start_s=60, received_bytes=np.array([0.1, 2.0, 0.0])
    )
    stored = OverlappingBursts.load(OverlappingBursts(bursts=(burst,), unknown_from_s=1.5).dump())
    assert stored.unknown_from_s == 1.5
    assert [(one.run_id, one.burst_index, one.span_s) for one in stored.bursts] == [
        ("other", 1, (60.0, 63.0))
    ]
    np.testing.assert_array_equal(stored.bursts[0].received_bytes, burst.received_bytes)
