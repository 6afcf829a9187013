"""Tests for stored device counters."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.device.telemetry.config import open_entry
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter
from broadside.coordinator.device.telemetry.telemetry_storage import dump_counter, load_counter
from broadside.exchange.messages import Direction, Flow
from tests.unit.coordinator.device.telemetry.test_stabilization import NAN, device_counter


def test_stores_and_loads_a_counter_with_unknown_bins_and_notes() -> None:
    stored: CounterRecord = device_counter(1, NAN, 3)
    back = load_counter(dump_counter(stored))
    np.testing.assert_array_equal(back.bytes, stored.bytes)
    np.testing.assert_array_equal(back.start_s, stored.start_s)
    assert (back.source, back.read_at, back.notes) == (stored.source, stored.read_at, stored.notes)
    assert back.drops_count is None


def test_stores_and_loads_drops() -> None:
    stored = replace(device_counter(1, 2, 3), drops_count=np.array([7, NAN, 0.0]))
    back = load_counter(dump_counter(stored))
    assert back.drops_count is not None
    np.testing.assert_array_equal(back.drops_count, [7, NAN, 0.0])


CSV = """time,bytes
2026-11-20T12:00:00Z,8
2026-11-20T12:01:00Z,16
"""


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({}, {"flows": tuple(Flow), "mss_bytes": None, "lag_hint_s": None, "extreme": None}),
        ({"direction": "in"}, {"flows": (Flow.UP,)}),
        ({"direction": "out"}, {"flows": (Flow.DOWN,)}),
        ({"mss_bytes": 1448, "layer": "payload"}, {"mss_bytes": 1448}),
        ({"lag_s": 75.0}, {"lag_hint_s": 75.0}),
        ({"counts_lost": False}, {"counts_lost": False}),
        ({"counts_lost": True}, {"counts_lost": True}),
        ({}, {"counts_lost": None}),
        ({"aggregation": "max"}, {"extreme": "maximum"}),
        ({"aggregation": "minimum"}, {"extreme": "minimum"}),
    ],
)
def test_counter_has_the_declared_properties_of_its_counter(
    tmp_path: Path, declared: dict[str, Any], expected: dict[str, Any]
) -> None:
    path = tmp_path / "counter.csv"
    path.write_text(CSV)
    counter = {"unit": "bits", **declared}
    entry = {"type": "csv", "device": "fw", "file": path, "byte_counter": counter}
    source = DeviceCounter([open_entry(entry)])
    assert source.name == "csv counter.csv"
    assert not source.is_polled
    span = (datetime(2026, 11, 20, tzinfo=UTC), datetime(2026, 11, 21, tzinfo=UTC))
    read = asyncio.run(source.read(*span, Direction.FORWARD))
    assert read.bytes.tolist() == [1, 2]
    assert {name: getattr(read, name) for name in expected} == expected
    stored = load_counter(dump_counter(read))
    for name in ("extreme", "mss_bytes", "counts_lost"):
        assert getattr(stored, name) == getattr(read, name)
