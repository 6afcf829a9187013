"""A run's figures are waited for until they rest, and not for ever."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from broadside.coordinator.core.measure.records.evidence import FirewallLedger
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter
from broadside.coordinator.device.telemetry.source import DataLatency, TelemetryBusy, TelemetryError
from broadside.coordinator.device.telemetry.stabilization import RunSpan, StableReader, is_stable
from broadside.exchange.messages import Direction

BEGUN = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ENDED = BEGUN + timedelta(seconds=120)
NAN = float("nan")
POLLED = DataLatency(settle_s=300, lag_s=90, poll_s=30, timeout_s=900)

SPAN = RunSpan(
    run_id="run-1",
    from_at=BEGUN - timedelta(seconds=360),
    before_at=ENDED + timedelta(seconds=360),
    begun_at=BEGUN,
    ended_at=ENDED,
    direction=Direction.FORWARD,
)


def ledger(*counts: float, read_at: datetime = ENDED) -> FirewallLedger:
    """One-minute bins from the run's beginning on."""
    start_s = BEGUN.timestamp() + 60 * np.arange(len(counts), dtype=np.float64)
    return FirewallLedger(
        source="planted",
        start_s=start_s,
        end_s=start_s + 60,
        bytes=np.array(counts, dtype=float),
        grain_s=60,
        read_at=read_at,
    )


class Source(DeviceCounter):
    """Says the next of ``answers`` at each read, the last one for ever; counts the reads."""

    def __init__(self, latency: DataLatency, *answers: FirewallLedger | Exception) -> None:
        self.name = "source"
        self.latency = latency
        self.read_count = 0
        self._answers: Sequence[FirewallLedger | Exception] = answers
        self.now = ENDED

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> FirewallLedger:
        answer = self._answers[min(self.read_count, len(self._answers) - 1)]
        self.read_count += 1
        if isinstance(answer, Exception):
            raise answer
        return replace(answer, read_at=self.now)


async def outcome(source: Source, span: RunSpan = SPAN) -> tuple[FirewallLedger, float]:
    """What settles, and how many seconds after the run's end, looked at once a second."""
    settling = StableReader(source, lambda: source.now)
    for second in range(10_000):
        source.now = span.ended_at + timedelta(seconds=second)
        if (settled := await settling.read(span)) is not None:
            return settled, second
    raise AssertionError("it waits for ever")


ONCE = DataLatency(settle_s=3)
WHOLE = ledger(60, 60, 30, 7)


@pytest.mark.parametrize(
    ("latency", "answers", "after_s", "read_count"),
    [
        (ONCE, [ledger(1, 2)], 3, 1),  # one read, when it has settled
        # Two reads that agree are enough where all is known.
        (POLLED, [ledger(60), ledger(60, 36), ledger(60, 60, 30, 4), WHOLE, WHOLE], 150, 5),
        # The run ends with bin 1, but its label may run 90 s behind: bins 2 and 3 count too.
        (POLLED, [ledger(60, 60), ledger(60, 60), ledger(60, 60, 30), ledger(60, 60, 40)], 390, 13),
        # An unknown bin is waited for until it can no longer come.
        (POLLED, [ledger(60, NAN, 30, 0)], 390, 13),
        (POLLED, [TelemetryError("no answer"), TelemetryError("no answer"), WHOLE, WHOLE], 120, 4),
    ],
)
async def test_figures_are_read_until_they_rest(
    latency: DataLatency,
    answers: Sequence[FirewallLedger | Exception],
    after_s: float,
    read_count: int,
) -> None:
    source = Source(latency, *answers)
    settled, settled_after_s = await outcome(source)
    assert (settled_after_s, source.read_count) == (after_s, read_count)
    last = answers[-1]
    assert isinstance(last, FirewallLedger)
    np.testing.assert_array_equal(settled.bytes, last.bytes)
    assert settled.notes == ()


async def test_figures_that_never_rest_are_taken_at_last_and_it_is_said() -> None:
    source = Source(POLLED, *(ledger(n, n, n, n) for n in range(1000)))
    settled, after_s = await outcome(source)
    assert after_s == POLLED.timeout_s
    [note] = settled.notes
    assert note.startswith("the firewall's figures had not come to rest 900 s after the run's end")


async def test_a_coordinator_that_comes_late_still_reads_twice() -> None:
    source = Source(POLLED, ledger(60, 60, 30, 7))
    settling = StableReader(source, lambda: source.now)
    source.now = ENDED + timedelta(hours=2)
    assert await settling.read(SPAN) is None
    source.now += timedelta(seconds=30)
    settled = await settling.read(SPAN)
    assert settled is not None
    assert settled.notes == ()


async def test_a_failing_source_is_given_up_at_last_with_the_reason() -> None:
    settled, after_s = await outcome(Source(POLLED, TelemetryError("wrong role")))
    assert after_s == POLLED.timeout_s
    assert len(settled) == 0
    assert settled.notes == ("the firewall's figures could not be read to their end: wrong role",)


async def test_a_source_that_fails_at_last_leaves_its_last_answer() -> None:
    source = Source(POLLED, ledger(60, 60), TelemetryError("gone"))
    settled, _ = await outcome(source)
    assert settled.bytes.tolist() == [60, 60]
    assert settled.notes == ("the firewall's figures could not be read to their end: gone",)


async def test_a_throttling_source_is_left_alone_as_long_as_it_says() -> None:
    source = Source(POLLED, TelemetryBusy("busy", 120), ledger(60, 60, 30, 7))
    settling = StableReader(source, lambda: source.now)
    requested_at = []
    for second in range(200):
        source.now = ENDED + timedelta(seconds=second)
        before = source.read_count
        await settling.read(SPAN)
        if source.read_count > before:
            requested_at.append(second)
    assert requested_at[:2] == [30, 150]


async def test_nothing_is_waited_for_when_nothing_was_sent() -> None:
    source = Source(POLLED, ledger())
    _, after_s = await outcome(source, replace(SPAN, ended_at=BEGUN - timedelta(seconds=1)))
    assert (after_s, source.read_count) == (30, 1)


async def test_a_fault_of_the_source_is_a_source_that_cannot_be_read() -> None:
    settled, _ = await outcome(Source(ONCE, KeyError("value")))
    [note] = settled.notes
    assert "to their end: the device counter's answer makes no sense: KeyError('value')" in note


async def test_a_slow_source_does_not_hold_up_its_caller() -> None:
    class Slow(Source):
        async def read(
            self, from_at: datetime, before_at: datetime, direction: Direction
        ) -> FirewallLedger:
            await asyncio.Event().wait()
            raise AssertionError

    source = Slow(DataLatency(settle_s=3))
    settling = StableReader(source, lambda: ENDED + timedelta(seconds=5))
    async with asyncio.timeout(5):
        assert await settling.read(SPAN) is None
        assert await settling.read(SPAN) is None
        await settling.close()


@pytest.mark.parametrize(
    ("earlier", "later", "rests"),
    [
        (ledger(1, 2), ledger(1, 2), True),
        (ledger(1, 2), ledger(1, 3), False),
        (ledger(1), ledger(1, 2), False),
        (ledger(1, NAN), ledger(1, NAN), False),
        (ledger(1), ledger(1), False),  # does not reach the end
        (ledger(1, 2, 5), ledger(1, 2, 6), True),  # differs beyond the span
        (ledger(1, NAN), ledger(1, NAN, read_at=ENDED + timedelta(seconds=300)), True),
    ],
)
def test_at_rest(earlier: FirewallLedger, later: FirewallLedger, rests: bool) -> None:
    span = (BEGUN.timestamp(), ENDED.timestamp())
    assert is_stable(earlier, later, *span, settle_s=300) is rests
