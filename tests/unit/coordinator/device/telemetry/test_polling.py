"""Tests for polled counters, to get a rate only if this is safe."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    IssueKind,
    Quantity,
    merge_readings,
)
from broadside.coordinator.device.telemetry.polling import (
    Clocks,
    PolledDevice,
    PolledEntry,
    PolledSource,
    PolledValue,
    PollResult,
)
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.coordinator.device.telemetry.telemetry_storage import dump_telemetry, load_telemetry

BEGAN_S = 1_795_000_000.0
FROM, BEFORE = (datetime.fromtimestamp(BEGAN_S + s, UTC) for s in (-3600, 3600))
CPU = PolledValue(quantity=Quantity.CPU, value=0.4)
# Use this when the device does not answer.
DOWN = None


def counted(total: float, bits: int = 32, most: float | None = None) -> PolledValue:
    return PolledValue(
        quantity=Quantity.PACKETS,
        value=total,
        instance="eth0",
        counts_to=2.0**bits,
        most_per_second=most,
    )


async def poll_all(
    rounds: Sequence[PollResult | None], step_s: float = 5.0, *, wall_off_s: float = 0.0
) -> DeviceTelemetry:
    """Return the telemetry if a source is polled every ``step_s``.

    Use ``wall_off_s`` to set the wall clock after the first answer.
    """
    left = iter(rounds)
    clock = iter(range(1, 1000))
    now_s, steady_s = BEGAN_S, 0.0

    async def request() -> PollResult:
        nonlocal now_s, steady_s
        steady_s = step_s * next(clock)
        now_s = BEGAN_S + steady_s + wall_off_s * (steady_s > step_s)
        answer = next(left)
        if answer is None:
            raise TelemetryError("no answer")
        return replace(answer, at_s=now_s)

    entry = PolledEntry(type="planted", device="fw", poll_s=step_s, cores_count=4)
    source = PolledSource(
        entry,
        PolledDevice(request=request, name="planted"),
        clocks=Clocks(wall_s=lambda: now_s, steady_s=lambda: steady_s),
    )
    for _ in rounds:
        await source.poll()
    return await source.query(FROM, BEFORE)


def rates(telemetry: DeviceTelemetry) -> list[float]:
    [series] = telemetry.of(Quantity.PACKETS)
    return [round(value, 3) for value in series.values.tolist()]


@pytest.mark.parametrize(
    ("readings", "ups_s", "expected", "kinds"),
    [
        ([counted(0), counted(500)], [10, 15], [100], []),
        # RFC 2578, 7.1.6: a Counter32 wraps at 2^32 - 1 and starts again from zero.
        ([counted(2**32 - 100), counted(400)], [10, 15], [100], ["wrapped"]),
        ([counted(500), counted(100, 64)], [10, 15], [math.nan], ["decreased"]),
        ([counted(500, 64), counted(100, 64)], [10, 15], [math.nan], ["decreased"]),
        ([counted(500), counted(100)], [10, 15], [math.nan], ["decreased"]),
        # sysUpTime is lower, so the count must be lost, even if the total is larger.
        ([counted(500), counted(900)], [1000, 3], [math.nan], ["restarted"]),
        ([counted(2**32 - 100), counted(400)], [1000, 3], [math.nan], ["restarted"]),
        # RFC 3418: sysUpTime is in hundredths of a second and wraps after 497 days.
        ([counted(0), counted(500)], [2**32 / 100 - 2, 3], [100], []),
        # RFC 2863, 3.1.6: ifInOctets of 10 Mbit/s wraps in 57 minutes, of 1 Gbit/s in 34 s.
        ([counted(0, most=1e9), counted(500, most=1e9)], [10, 15], [math.nan], ["too-slow"]),
        ([counted(2**32 - 5e3, most=2e3), counted(0, most=2e3)], [10, 15], [1000], ["wrapped"]),
        ([counted(9e8, most=2e3), counted(0, most=2e3)], [10, 15], [math.nan], ["decreased"]),
    ],
)  # fmt: skip
async def test_distinguishes_wraps_and_resets_of_a_counter(
    readings: list[PolledValue], ups_s: list[float], expected: list[float], kinds: list[str]
) -> None:
    received = await poll_all(
        [PollResult(readings=[r], up_s=up) for r, up in zip(readings, ups_s, strict=True)]
    )
    np.testing.assert_array_equal(rates(received), expected)
    assert [issue.kind for issue in received.issues] == kinds


@pytest.mark.parametrize(
    ("totals", "expected"),
    [
        # It is refreshed after 15 seconds, and then after 5.
        ([0, 0, 0, 300, 400], [20, 20]),
        # Without packets for 15 seconds, it is idle.
        ([0, 0, 0, 0, 100], [0, 20]),
    ],
)
async def test_repeated_counter_value_is_not_an_idle_second(
    totals: list[float], expected: list[float]
) -> None:
    received = await poll_all(
        [PollResult(readings=[CPU, counted(total)], up_s=None) for total in totals]
    )
    assert rates(received) == expected
    [series] = received.of(Quantity.PACKETS)
    assert series.over_s.tolist() == [15, 5]
    [cpu] = received.of(Quantity.CPU)
    assert len(cpu.values) == 5


async def test_unchanged_counter_beside_a_changed_one_is_idle() -> None:
    other = replace(counted(0), instance="eth1")
    rounds = [[counted(100 * n), other] for n in range(3)]
    received = await poll_all([PollResult(readings=readings) for readings in rounds])
    by_name = {item.instance: item.values.tolist() for item in received.of(Quantity.PACKETS)}
    assert by_name == {"eth0": [20, 20], "eth1": [0, 0]}


async def test_silent_agent_is_one_issue_without_values() -> None:
    up = PollResult(readings=[CPU, counted(0)], up_s=10)
    later = PollResult(readings=[CPU, counted(2000)], up_s=30)
    received = await poll_all([up, DOWN, DOWN, DOWN, later, DOWN])
    first, second = received.issues
    assert (first.kind, first.count, first.to_s - first.from_s) == (IssueKind.SILENT, 3, 10)
    assert second.count == 1
    [cpu] = received.of(Quantity.CPU)
    assert len(cpu.values) == 2
    # The rate should include the silence because the counter will continue.
    assert rates(received) == [100]


@pytest.mark.parametrize(
    ("silent_count", "ups_s", "restarts"),
    [
        # It should have answered 5 seconds before it was started, so this must be a restart.
        (5, (10, 25), True),
        (5, (1000, 28), True),
        # The uptime can be read late.
        (0, (1, 4), False),
        # It can pause for 4 seconds when it is moved to another host.
        (5, (10, 36), False),
    ],
)
@pytest.mark.parametrize("wall_off_s", [0.0, 60.0])
async def test_detects_a_restart_by_uptime_and_not_by_the_wall_clock(
    silent_count: int, ups_s: tuple[int, int], restarts: bool, wall_off_s: float
) -> None:
    first, last = (PollResult(readings=[CPU], up_s=up) for up in ups_s)
    received = await poll_all([first, *[DOWN] * silent_count, last], wall_off_s=wall_off_s)
    assert (IssueKind.RESTARTED in [issue.kind for issue in received.issues]) is restarts


async def test_stored_telemetry_is_merged_with_later_readings() -> None:
    received = await poll_all(
        [PollResult(readings=[CPU, counted(n)], up_s=9 + n) for n in range(4)]
    )
    telemetry = load_telemetry(dump_telemetry(received))
    assert dump_telemetry(telemetry) == dump_telemetry(received)
    assert telemetry.cores_count == {"fw": 4}
    assert dump_telemetry(merge_readings(telemetry, received)) == dump_telemetry(received)


async def test_issue_that_continues_after_storage_counts_once() -> None:
    up = PollResult(readings=[CPU], missing=["drops: none"], up_s=9)
    complete = await poll_all([up, DOWN, DOWN, DOWN])
    stored = await poll_all([up, DOWN])
    assert (
        merge_readings(load_telemetry(dump_telemetry(stored)), complete).issues == complete.issues
    )


async def test_unknown_values_are_stored_as_unknown() -> None:
    received = await poll_all(
        [PollResult(readings=[counted(n)], up_s=up) for n, up in ((5, 99), (9, 1))]
    )
    telemetry = load_telemetry(dump_telemetry(received))
    np.testing.assert_array_equal(rates(telemetry), [math.nan])
    assert telemetry.issues == received.issues


async def test_polls_do_not_overlap() -> None:
    active, largest = 0, 0

    async def request() -> PollResult:
        nonlocal active, largest
        active += 1
        largest = max(largest, active)
        await asyncio.sleep(0)
        active -= 1
        return PollResult(readings=[CPU])

    source = PolledSource(
        PolledEntry(type="planted", device="fw", cores_count=4),
        PolledDevice(request=request, name="planted"),
    )
    assert all(await asyncio.gather(source.poll(), source.poll()))
    assert largest == 1
