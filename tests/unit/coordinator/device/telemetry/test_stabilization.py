"""Tests for how device data is read until it is stable, or until a timeout."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter
from broadside.coordinator.device.telemetry.run_span import RunSpan
from broadside.coordinator.device.telemetry.source import (
    DataLatency,
    TelemetryBusy,
    TelemetryError,
)
from broadside.coordinator.device.telemetry.stabilization import StableReader, is_stable
from broadside.exchange.messages import Direction

BEGUN = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ENDED = BEGUN + timedelta(seconds=120)
NAN = float("nan")
POLLED = DataLatency(settle_s=300, lag_s=90, reread_s=30, timeout_s=900)

SPAN = RunSpan(
    run_id="run-1",
    from_at=BEGUN - timedelta(seconds=360),
    before_at=ENDED + timedelta(seconds=360),
    begun_at=BEGUN,
    ended_at=ENDED,
    direction=Direction.FORWARD,
)


def device_counter(*counts: float, read_at: datetime = ENDED) -> CounterRecord:
    """Return bins of one minute, starting when the run starts."""
    start_s = BEGUN.timestamp() + 60 * np.arange(len(counts), dtype=np.float64)
    return CounterRecord(
        source="planted",
        start_s=start_s,
        end_s=start_s + 60,
        bytes=np.array(counts, dtype=float),
        grain_s=60,
        read_at=read_at,
    )


class Source(DeviceCounter):
    """Device counter that will return the ``answers`` in order, and then repeat the last."""

    def __init__(self, latency: DataLatency, *answers: CounterRecord | Exception) -> None:
        self.name = "source"
        self.latency = latency
        self.read_count = 0
        self._answers: Sequence[CounterRecord | Exception] = answers
        self.now = ENDED

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> CounterRecord:
        answer = self._answers[min(self.read_count, len(self._answers) - 1)]
        self.read_count += 1
        if isinstance(answer, Exception):
            raise answer
        return replace(answer, read_at=self.now)


async def outcome(source: Source, span: RunSpan = SPAN) -> tuple[CounterRecord, float]:
    """Return what is stable, and how long it took to get this."""
    reader = StableReader(source, lambda: source.now)
    for second in range(10_000):
        source.now = span.ended_at + timedelta(seconds=second)
        if (settled := await reader.read(span)) is not None:
            return settled, second
    raise AssertionError("the reader never stops")


ONCE = DataLatency(settle_s=3)
WHOLE = device_counter(60, 60, 30, 7)


@pytest.mark.parametrize(
    ("latency", "answers", "after_s", "read_count"),
    [
        # If data is complete when the delay is over, it is read once.
        (ONCE, [device_counter(1, 2)], 3, 1),
        # If all bins are known, two equal reads are enough.
        (
            POLLED,
            [
                device_counter(60),
                device_counter(60, 36),
                device_counter(60, 60, 30, 4),
                WHOLE,
                WHOLE,
            ],
            150,
            5,
        ),
        # The run will end in bin 1. Since a label can be 90 seconds late, use bins 2 and 3 too.
        (
            POLLED,
            [
                device_counter(60, 60),
                device_counter(60, 60),
                device_counter(60, 60, 30),
                device_counter(60, 60, 40),
            ],
            390,
            13,
        ),
        # If a bin is missing, wait for it until it cannot be added any more.
        (POLLED, [device_counter(60, NAN, 30, 0)], 390, 13),
        (POLLED, [TelemetryError("no answer"), TelemetryError("no answer"), WHOLE, WHOLE], 120, 4),
    ],
)
async def test_reads_until_data_is_stable(
    latency: DataLatency,
    answers: Sequence[CounterRecord | Exception],
    after_s: float,
    read_count: int,
) -> None:
    source = Source(latency, *answers)
    settled, settled_after_s = await outcome(source)
    assert (settled_after_s, source.read_count) == (after_s, read_count)
    last = answers[-1]
    assert isinstance(last, CounterRecord)
    np.testing.assert_array_equal(settled.bytes, last.bytes)
    assert settled.notes == ()


async def test_uses_unstable_data_after_the_timeout_with_a_note() -> None:
    source = Source(POLLED, *(device_counter(n, n, n, n) for n in range(1000)))
    settled, after_s = await outcome(source)
    assert after_s == POLLED.timeout_s
    [note] = settled.notes
    assert note.startswith("its values still changed 900 s after the end of the run")


async def test_late_coordinator_still_reads_twice() -> None:
    source = Source(POLLED, device_counter(60, 60, 30, 7))
    reader = StableReader(source, lambda: source.now)
    source.now = ENDED + timedelta(hours=2)
    assert await reader.read(SPAN) is None
    source.now += timedelta(seconds=30)
    settled = await reader.read(SPAN)
    assert settled is not None
    assert settled.notes == ()


async def test_failing_source_is_abandoned_after_the_timeout_with_a_note() -> None:
    settled, after_s = await outcome(Source(POLLED, TelemetryError("wrong role")))
    assert after_s == POLLED.timeout_s
    assert len(settled) == 0
    assert settled.notes == ("it could not be read completely: wrong role",)


async def test_last_answer_of_a_source_that_fails_later_is_used() -> None:
    source = Source(POLLED, device_counter(60, 60), TelemetryError("gone"))
    settled, _ = await outcome(source)
    assert settled.bytes.tolist() == [60, 60]
    assert settled.notes == ("it could not be read completely: gone",)


async def test_waits_for_the_retry_time_of_a_throttling_source() -> None:
    source = Source(POLLED, TelemetryBusy("busy", 120), device_counter(60, 60, 30, 7))
    reader = StableReader(source, lambda: source.now)
    requested_at = []
    for second in range(200):
        source.now = ENDED + timedelta(seconds=second)
        before = source.read_count
        await reader.read(SPAN)
        if source.read_count > before:
            requested_at.append(second)
    assert requested_at[:2] == [30, 150]


async def test_does_not_wait_if_nothing_was_sent() -> None:
    source = Source(POLLED, device_counter())
    _, after_s = await outcome(source, replace(SPAN, ended_at=BEGUN - timedelta(seconds=1)))
    assert (after_s, source.read_count) == (30, 1)


async def test_exception_in_a_source_is_an_unreadable_source() -> None:
    settled, _ = await outcome(Source(ONCE, KeyError("value")))
    [note] = settled.notes
    assert "completely: the answer of the device counter cannot be used: KeyError('value')" in note


async def test_slow_source_does_not_block_its_caller() -> None:
    class Slow(Source):
        async def read(
            self, from_at: datetime, before_at: datetime, direction: Direction
        ) -> CounterRecord:
            await asyncio.Event().wait()
            raise AssertionError

    source = Slow(DataLatency(settle_s=3))
    reader = StableReader(source, lambda: ENDED + timedelta(seconds=5))
    async with asyncio.timeout(5):
        assert await reader.read(SPAN) is None
        assert await reader.read(SPAN) is None
        await reader.close()


@pytest.mark.parametrize(
    ("earlier", "later", "stable"),
    [
        (device_counter(1, 2), device_counter(1, 2), True),
        (device_counter(1, 2), device_counter(1, 3), False),
        (device_counter(1), device_counter(1, 2), False),
        (device_counter(1, NAN), device_counter(1, NAN), False),
        # This is not stable because the end is missing.
        (device_counter(1), device_counter(1), False),
        # This is stable because the span is the same.
        (device_counter(1, 2, 5), device_counter(1, 2, 6), True),
        (
            device_counter(1, NAN),
            device_counter(1, NAN, read_at=ENDED + timedelta(seconds=300)),
            True,
        ),
    ],
)
def test_detects_stable_data(earlier: CounterRecord, later: CounterRecord, stable: bool) -> None:
    span = (BEGUN.timestamp(), ENDED.timestamp())
    assert is_stable(earlier, later, *span, settle_s=300) is stable
