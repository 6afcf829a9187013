"""Counters become rates where they can be believed; what befell the telling is said, once."""

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
    Answer,
    PolledEntry,
    PolledSource,
    Reading,
)
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.coordinator.device.telemetry.telemetry_storage import dump_telemetry, load_telemetry

BEGAN_S = 1_795_000_000.0
FROM, BEFORE = (datetime.fromtimestamp(BEGAN_S + s, UTC) for s in (-3600, 3600))
CPU = Reading(quantity=Quantity.CPU, value=0.4)
DOWN = None  # no answer


def counted(total: float, bits: int = 32, most: float | None = None) -> Reading:
    return Reading(
        quantity=Quantity.PACKETS,
        value=total,
        instance="eth0",
        counts_to=2.0**bits,
        most_per_second=most,
    )


async def told(
    rounds: Sequence[Answer | None], step_s: float = 5.0, *, wall_off_s: float = 0.0
) -> DeviceTelemetry:
    """What a source says that was asked every ``step_s``; the wall clock is set right between
    the first answer and the second."""
    left = iter(rounds)
    clock = iter(range(1, 1000))
    now_s, steady_s = BEGAN_S, 0.0

    async def ask() -> Answer:
        nonlocal now_s, steady_s
        steady_s = step_s * next(clock)
        now_s = BEGAN_S + steady_s + wall_off_s * (steady_s > step_s)
        answer = next(left)
        if answer is None:
            raise TelemetryError("no answer")
        return replace(answer, at_s=now_s)

    entry = PolledEntry(type="planted", device="fw", poll_s=step_s, cores_count=4)
    source = PolledSource(
        ask, name="planted", entry=entry, wall_s=lambda: now_s, steady_s=lambda: steady_s
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
        ([counted(500), counted(100, 64)], [10, 15], [math.nan], ["went-back"]),
        ([counted(500, 64), counted(100, 64)], [10, 15], [math.nan], ["went-back"]),
        ([counted(500), counted(100)], [10, 15], [math.nan], ["went-back"]),
        # sysUpTime went back: what was counted is gone, even where the total is larger.
        ([counted(500), counted(900)], [1000, 3], [math.nan], ["restarted"]),
        ([counted(2**32 - 100), counted(400)], [1000, 3], [math.nan], ["restarted"]),
        # RFC 3418: sysUpTime is in hundredths, and comes round after 497 days.
        ([counted(0), counted(500)], [2**32 / 100 - 2, 3], [100], []),
        # RFC 2863, 3.1.6: ifInOctets of 10 Mbit/s wraps in 57 minutes, of 1 Gbit/s in 34 s.
        ([counted(0, most=1e9), counted(500, most=1e9)], [10, 15], [math.nan], ["too-slow"]),
        ([counted(2**32 - 5e3, most=2e3), counted(0, most=2e3)], [10, 15], [1000], ["wrapped"]),
        ([counted(9e8, most=2e3), counted(0, most=2e3)], [10, 15], [math.nan], ["went-back"]),
    ],
)  # fmt: skip
async def test_a_counter_is_read_through_its_wrap_and_no_further(
    readings: list[Reading], ups_s: list[float], expected: list[float], kinds: list[str]
) -> None:
    received = await told(
        [Answer(readings=[r], up_s=up) for r, up in zip(readings, ups_s, strict=True)]
    )
    np.testing.assert_array_equal(rates(received), expected)
    assert [issue.kind for issue in received.issues] == kinds


@pytest.mark.parametrize(
    ("totals", "expected"),
    [
        ([0, 0, 0, 300, 400], [20, 20]),  # refreshed every 15 s, and then in 5
        ([0, 0, 0, 0, 100], [0, 20]),  # nothing for 15 s: it is idle
    ],
)
async def test_counters_that_are_told_once_more_are_no_idle_second(
    totals: list[float], expected: list[float]
) -> None:
    received = await told([Answer(readings=[CPU, counted(total)], up_s=None) for total in totals])
    assert rates(received) == expected
    [series] = received.of(Quantity.PACKETS)
    assert series.over_s.tolist() == [15, 5]
    [cpu] = received.of(Quantity.CPU)
    assert len(cpu.values) == 5


async def test_one_counter_that_moves_says_that_the_others_stand_still() -> None:
    other = replace(counted(0), instance="eth1")
    rounds = [[counted(100 * n), other] for n in range(3)]
    received = await told([Answer(readings=readings) for readings in rounds])
    by_name = {item.instance: item.values.tolist() for item in received.of(Quantity.PACKETS)}
    assert by_name == {"eth0": [20, 20], "eth1": [0, 0]}


async def test_a_dead_agent_is_one_spell_and_no_figure() -> None:
    up = Answer(readings=[CPU, counted(0)], up_s=10)
    later = Answer(readings=[CPU, counted(2000)], up_s=30)
    received = await told([up, DOWN, DOWN, DOWN, later, DOWN])
    first, second = received.issues
    assert (first.kind, first.count, first.to_s - first.from_s) == (IssueKind.SILENT, 3, 10)
    assert second.count == 1
    [cpu] = received.of(Quantity.CPU)
    assert len(cpu.values) == 2
    assert rates(received) == [100]  # over the silence: the counter went on


@pytest.mark.parametrize(
    ("silent_count", "ups_s", "restarts"),
    [
        (5, (10, 25), True),  # it started 25 s ago; it answered 30 s ago
        (5, (1000, 28), True),
        (0, (1, 4), False),  # its own count is read a second late
        (5, (10, 36), False),  # it stood still for 4 s, as a machine that moves house does
    ],
)
@pytest.mark.parametrize("wall_off_s", [0.0, 60.0])
async def test_a_restart_shows_by_how_young_a_device_is_and_not_by_our_clock(
    silent_count: int, ups_s: tuple[int, int], restarts: bool, wall_off_s: float
) -> None:
    first, last = (Answer(readings=[CPU], up_s=up) for up in ups_s)
    received = await told([first, *[DOWN] * silent_count, last], wall_off_s=wall_off_s)
    assert (IssueKind.RESTARTED in [issue.kind for issue in received.issues]) is restarts


async def test_what_is_kept_comes_back_and_joins_what_came_later() -> None:
    received = await told([Answer(readings=[CPU, counted(n)], up_s=9 + n) for n in range(4)])
    telemetry = load_telemetry(dump_telemetry(received))
    assert dump_telemetry(telemetry) == dump_telemetry(received)
    assert telemetry.cores_count == {"fw": 4}
    assert dump_telemetry(merge_readings(telemetry, received)) == dump_telemetry(received)


async def test_a_spell_that_went_on_after_it_was_kept_is_one() -> None:
    up = Answer(readings=[CPU], missing=["drops: none"], up_s=9)
    complete = await told([up, DOWN, DOWN, DOWN])
    stored = await told([up, DOWN])
    assert (
        merge_readings(load_telemetry(dump_telemetry(stored)), complete).issues == complete.issues
    )


async def test_unknown_comes_back_as_unknown() -> None:
    received = await told([Answer(readings=[counted(n)], up_s=up) for n, up in ((5, 99), (9, 1))])
    telemetry = load_telemetry(dump_telemetry(received))
    np.testing.assert_array_equal(rates(telemetry), [math.nan])
    assert telemetry.issues == received.issues
