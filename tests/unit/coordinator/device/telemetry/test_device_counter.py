"""Tests to combine counter readings that are from several processes or devices."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pytest

from broadside.coordinator.core.judge.reconciliation.counter_bins import readable
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    Quantity,
    TelemetrySeries,
    merge_readings,
)
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter, open_counter
from broadside.coordinator.device.telemetry.polling import (
    PolledDevice,
    PolledEntry,
    PolledSource,
    PollResult,
)
from broadside.coordinator.device.telemetry.source import ByteCounter, TelemetryError
from broadside.coordinator.device.telemetry.telemetry_storage import dump_telemetry, load_telemetry
from broadside.exchange.messages import Direction
from broadside.exchange.outage_log import utc_now

# Bit/s
RATE: Final = 8.0
START_S: Final = 1_795_000_000.0
DAY: Final = timedelta(days=1)


def series(times_s: Sequence[float], *, device: str = "fw", rate: float = RATE) -> TelemetrySeries:
    """Return readings at the given times. The first is only used to start the count."""
    at_s = START_S + np.array(times_s, dtype=float)
    return TelemetrySeries(
        device=device,
        source="snmp IF-MIB 10.0.0.4",
        quantity=Quantity.RECEIVED,
        instance="port1",
        at_s=at_s[1:],
        over_s=np.diff(at_s),
        bound_s=np.full(len(at_s) - 1, 0.01),
        values=np.full(len(at_s) - 1, rate),
    )


def source(device: str = "fw", **fields: Any) -> PolledSource:
    async def request() -> PollResult:
        raise TelemetryError("down")

    fields = {"byte_counter": ByteCounter(layer="wire"), **fields}
    entry = PolledEntry(type="snmp", device=device, poll_s=1.0, **fields)
    name = "snmp IF-MIB 10.0.0.4"
    return PolledSource(
        entry,
        PolledDevice(request=request, name=name, counter_instances=frozenset({"port1"})),
    )


def counter(*devices: str) -> DeviceCounter:
    return DeviceCounter([source(device) for device in devices])


def telemetry_of(*parts: TelemetrySeries) -> DeviceTelemetry:
    return DeviceTelemetry(
        devices=("fw",), series=parts, read_at=datetime.fromtimestamp(START_S + 100, UTC)
    )


def bins(telemetry: DeviceTelemetry) -> list[tuple[float, float, float | None]]:
    device_counter = counter("fw", "b").bins_of(telemetry)
    columns = (
        device_counter.start_s - START_S,
        device_counter.end_s - START_S,
        device_counter.bytes,
    )
    # No bin should overlap another.
    assert readable(device_counter).rejected_count == 0
    return [
        (round(start, 2), round(end, 2), None if np.isnan(count) else round(count, 2))
        for start, end, count in zip(*(column.tolist() for column in columns), strict=True)
    ]


def round_trip(telemetry: DeviceTelemetry) -> DeviceTelemetry:
    """Store and load telemetry, which can round to the millisecond."""
    return load_telemetry(dump_telemetry(telemetry))


def test_restart_leaves_an_unknown_bin() -> None:
    before, after = telemetry_of(series([0, 1.0004, 2.0011])), telemetry_of(series([7.3, 8.3]))
    assert bins(merge_readings(round_trip(before), after)) == [
        (0, 1, 1),
        (1, 2, 1),
        (2, 7.3, None),
        (7.3, 8.3, 1),
    ]


def test_two_coordinators_of_one_device_count_bytes_once() -> None:
    one, other = (
        telemetry_of(series(range(6))),
        telemetry_of(series([2.5, 3.5, 4.5, 5.5, 6.5, 7.5])),
    )
    result = bins(merge_readings(round_trip(one), other))
    assert [(start, end) for start, end, count in result if count is not None] == [
        *((second, second + 1) for second in range(5)),
        (5.5, 6.5),
        (6.5, 7.5),
    ]
    assert [count for *_, count in result] == [1, 1, 1, 1, 1, None, 1, 1]


def test_gap_of_one_device_is_unknown_for_the_sum() -> None:
    first = series(range(9))
    second = merge_readings(
        telemetry_of(series(range(4), device="b")), telemetry_of(series(range(6, 9), device="b"))
    )
    assert [count for *_, count in bins(telemetry_of(first, *second.series))] == [
        *(2, 2, 2),
        *(None, None, None),
        *(2, 2),
    ]


async def test_counter_without_a_reading_fails() -> None:
    polled = source()
    assert DeviceCounter([polled]).is_polled
    await polled.poll()
    now = utc_now()
    with pytest.raises(TelemetryError, match="no reading yet; fw: down"):
        await DeviceCounter([polled]).read(now - DAY, now + DAY, Direction.FORWARD)


def test_adds_configured_interfaces_of_counting_devices_only() -> None:
    other = replace(series(range(3)), instance="port2")
    device_counter = counter("fw").bins_of(
        telemetry_of(series(range(3)), other, series(range(3), device="b"))
    )
    assert device_counter.bytes.tolist() == [1, 1]
    assert (device_counter.layer, device_counter.source, device_counter.grain_s) == (
        "wire",
        "snmp IF-MIB 10.0.0.4",
        1.0,
    )


def test_source_without_a_byte_counter_is_not_used() -> None:
    assert open_counter([source(byte_counter=None)]) is None
    assert open_counter([source(byte_counter=None), source("b")]) is not None


def test_rejects_counters_with_different_settings() -> None:
    with pytest.raises(TelemetryError, match="must be equal"):
        open_counter([source(), source("b", byte_counter=ByteCounter(layer="ip"))])
