"""Tests for device stamps, which are corrected if their offset can be estimated."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import numpy as np
import pytest

from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    IssueKind,
    Quantity,
    merge_readings,
)
from broadside.coordinator.core.summary import Verdict
from broadside.coordinator.device.telemetry.clock_offset import Response, estimate_offset
from broadside.coordinator.device.telemetry.polling import (
    Clocks,
    PolledDevice,
    PolledEntry,
    PolledSource,
    PolledValue,
    PollResult,
)
from broadside.coordinator.device.telemetry.telemetry_storage import dump_telemetry, load_telemetry
from tests.planted import ids, summarise
from tests.synthetic import Plant, fleet

BEGAN_S = 1_795_000_000.0
FROM, BEFORE = (datetime.fromtimestamp(BEGAN_S + s, UTC) for s in (-60, 3600))


async def polled(
    stamp_of: Callable[[float], float],
    *,
    count: int = 30,
    poll_s: float = 2.0,
    took_s: float = 0.1,
    readings_of: Callable[[float], Sequence[PolledValue]] | None = None,
    before: datetime = BEFORE,
) -> DeviceTelemetry:
    """Poll a device ``count`` times. Use ``stamp_of`` to set the stamp for a true time."""
    now_s = BEGAN_S

    async def request() -> PollResult:
        nonlocal now_s
        now_s += took_s / 2
        made_s = now_s
        now_s += took_s / 2
        readings = [PolledValue(quantity=Quantity.CPU, value=(made_s - BEGAN_S) / 1000)]
        if readings_of is not None:
            readings = list(readings_of(made_s))
        return PollResult(readings=readings, at_s=stamp_of(made_s))

    source = PolledSource(
        PolledEntry(type="rest", device="fw", poll_s=poll_s),
        PolledDevice(request=request, name="rest fw"),
        clocks=Clocks(wall_s=lambda: now_s, steady_s=lambda: now_s),
    )
    for number in range(count):
        now_s = BEGAN_S + number * poll_s
        await source.poll()
    return await source.query(FROM, before)


def true_s(telemetry: DeviceTelemetry) -> np.ndarray:
    """Return the time at which a value was made."""
    [series] = telemetry.of(Quantity.CPU)
    made: np.ndarray = BEGAN_S + series.values * 1000
    return made


@pytest.mark.parametrize("off_s", [-45.0, 45.0, -3600.0, 0.3, 0.0, 86_400.0])
async def test_estimates_and_removes_a_constant_offset(off_s: float) -> None:
    reported = await polled(lambda at_s: at_s + off_s)
    [series] = reported.of(Quantity.CPU)
    assert np.abs(series.at_s - true_s(reported)).max() <= series.bound_s.max() <= 0.051
    kinds = [issue.kind for issue in reported.issues]
    assert kinds == ([IssueKind.CLOCK] if abs(off_s) > 2 else [])
    if kinds:
        assert f"{abs(off_s):.1f} s" in reported.issues[0].text


async def test_stamps_rounded_to_seconds_are_consistent() -> None:
    reported = await polled(lambda at_s: float(int(at_s - 45.0)), poll_s=2.3)
    [series] = reported.of(Quantity.CPU)
    assert (np.abs(series.at_s - true_s(reported)) <= series.bound_s + 0.5).all()
    assert [issue.kind for issue in reported.issues] == [IssueKind.CLOCK]


async def test_places_rarely_refreshed_values_at_their_refresh_time() -> None:
    """Poll more often than values change, using a clock that is 45 seconds slow."""

    def made_s(at_s: float) -> float:
        return BEGAN_S + 1 + (at_s - BEGAN_S - 1) // 10 * 10

    reported = await polled(
        lambda at_s: made_s(at_s) - 45,
        readings_of=lambda at_s: [
            PolledValue(quantity=Quantity.CPU, value=(made_s(at_s) - BEGAN_S) / 1000)
        ],
    )
    [series] = reported.of(Quantity.CPU)
    assert len(series.values) == len(set(series.values.tolist()))
    assert (np.abs(series.at_s - true_s(reported)) <= series.bound_s + 1e-6).all()
    assert series.bound_s.max() < 2


@pytest.mark.parametrize(
    "stamp_of",
    [
        # The clock can be set during the run.
        lambda at_s: at_s - 45 * (at_s > BEGAN_S + 30),
        lambda at_s: at_s + 45 * (at_s > BEGAN_S + 30),
        # The clock can be too fast.
        lambda at_s: at_s * 2 - BEGAN_S,
        # The stamp can be the time when the device was started.
        lambda at_s: BEGAN_S - 1000,
        lambda at_s: at_s + 20 * ((at_s * 7) % 3),
    ],
)
async def test_ignores_inconsistent_stamps(
    stamp_of: Callable[[float], float],
) -> None:
    reported = await polled(stamp_of)
    [series] = reported.of(Quantity.CPU)
    np.testing.assert_allclose(series.at_s, true_s(reported), atol=0.051)
    assert series.bound_s.min() > 10
    [issue] = reported.issues
    assert issue.kind is IssueKind.STAMPS
    assert "not used" in issue.text


async def test_counter_rate_uses_device_stamps() -> None:
    """An answer can be 0.6 seconds late, but this should not change a rate of 100 packets."""

    def counted(at_s: float) -> list[PolledValue]:
        made_s = at_s - (at_s * 3) % 0.6
        total = (made_s - BEGAN_S + 10) * 100
        return [PolledValue(quantity=Quantity.PACKETS, value=total, counts_to=2.0**64)]

    reported = await polled(lambda at_s: at_s - (at_s * 3) % 0.6 - 45, readings_of=counted)
    [series] = reported.of(Quantity.PACKETS)
    np.testing.assert_allclose(series.values, 100, rtol=1e-6)


async def test_better_estimate_does_not_duplicate_stored_readings() -> None:
    early = datetime.fromtimestamp(BEGAN_S + 9, UTC)
    jitter = iter([0.09, 0.01, 0.05, 0.08, 0.02] * 20)
    stamps: dict[float, float] = {}

    def stamp(at_s: float) -> float:
        return stamps.setdefault(at_s, at_s - 45 + 0.4 * next(jitter))

    telemetry = load_telemetry(dump_telemetry(await polled(stamp, count=5, before=early)))
    complete = await polled(stamp)
    both = merge_readings(telemetry, complete)
    assert len(both.series[0].values) == 30
    assert [issue.kind for issue in both.issues] == [IssueKind.CLOCK]


@pytest.mark.parametrize("off_s", [-45.0, 45.0, 0.0])
async def test_busy_device_with_a_wrong_clock_fails_its_threshold(off_s: float) -> None:
    """During the burst CPU is at 97 %, which should fail the limit of 80 % (M13)."""
    made = fleet(Plant(pairs=2, bursts=1, burst_s=60)).aiming(device_cpu_p95_max_ratio=0.8)
    [burst] = made.plan.bursts
    from_s, to_s = burst.planned_start_at.timestamp(), burst.planned_end_at.timestamp()
    now_s = from_s - 60

    async def request() -> PollResult:
        cpu = 0.97 if from_s <= now_s < to_s else 0.04
        return PollResult(
            readings=[PolledValue(quantity=Quantity.CPU, value=cpu)], at_s=now_s + off_s
        )

    source = PolledSource(
        PolledEntry(type="rest", device="fw", poll_s=2),
        PolledDevice(request=request, name="rest fw"),
        clocks=Clocks(wall_s=lambda: now_s, steady_s=lambda: now_s),
    )
    while now_s < to_s + 60:
        await source.poll()
        now_s += 2
    reported = await source.query(
        datetime.fromtimestamp(from_s - 60, UTC), datetime.fromtimestamp(to_s + 60, UTC)
    )
    result = summarise(made, telemetry=load_telemetry(dump_telemetry(reported)))
    assert result.verdict is Verdict.FAIL
    assert "device-cpu-limit" in ids(result)
    assert ("telemetry-clock" in ids(result)) is bool(off_s)


def test_offset_lies_in_the_intervals_of_all_answers() -> None:
    responses = [Response(100.0, 54.0, 56.0), Response(110.0, 64.9, 67.0, 54.0)]
    offset = estimate_offset(responses)
    assert offset is not None
    # The intervals are [44, 46] and [43, 45.1].
    assert (offset.offset_s, offset.bound_s) == pytest.approx((44.55, 0.55))
    assert estimate_offset([]) is None


async def test_incomplete_answer_gives_no_value() -> None:
    async def request() -> PollResult:
        return PollResult(
            readings=[PolledValue(quantity=Quantity.CPU, value=0.04)], partial="'nextLink' is set"
        )

    source = PolledSource(
        PolledEntry(type="rest", device="fw"), PolledDevice(request=request, name="rest")
    )
    await source.poll()
    reported = await source.query(
        datetime.fromtimestamp(0, UTC), datetime.fromtimestamp(4_000_000_000, UTC)
    )
    assert np.isnan(reported.series[0].values).all()
    assert [issue.kind for issue in reported.issues] == [IssueKind.PARTIAL]
