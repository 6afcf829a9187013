"""Test the newest values for guards, from polled sources, a URL and systems with history."""

import asyncio
import time
from datetime import datetime

import httpx
import pytest

from broadside.coordinator.core.guards import ARMED_POLL_S, BLIND_MIN_S, Guard
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    Quantity,
    TelemetrySeries,
    column,
)
from broadside.coordinator.device.telemetry.live_readings import LiveReadings
from broadside.coordinator.device.telemetry.polling import (
    PolledDevice,
    PolledEntry,
    PolledSource,
    PolledValue,
    PollResult,
)
from broadside.coordinator.device.telemetry.source import DataLatency, SourceEntry, TelemetryError
from broadside.coordinator.device.telemetry.url_check import UrlCheck, UrlEntry


def polled(device: str, *rounds: PollResult | None) -> PolledSource:
    left = iter(rounds)

    async def request() -> PollResult:
        answer = next(left)
        if answer is None:
            raise TelemetryError("no answer")
        return answer

    entry = PolledEntry(type="planted", device=device, poll_s=5)
    quantities = {reading.quantity for answer in rounds if answer for reading in answer.readings}
    return PolledSource(entry, PolledDevice(request=request, name="planted", quantities=quantities))


def cpu(*cores: float) -> PollResult:
    return PollResult(
        readings=[
            PolledValue(quantity=Quantity.CPU, value=value, instance=str(number))
            for number, value in enumerate(cores)
        ]
    )


async def test_a_device_is_aggregated_and_every_device_has_its_value() -> None:
    live = LiveReadings([polled("fw-a", cpu(0.2, 0.6)), polled("fw-b", cpu(0.9))])
    await live.poll_once({"cpu_ratio"})
    values = {v.source: v.value for v in live.values_of(Guard.model_validate("cpu_ratio > 1"))}
    assert values == pytest.approx({"fw-a": 0.4, "fw-b": 0.9})
    [only] = live.values_of(Guard.model_validate("cpu_ratio > 1 on fw-b"))
    assert only.value == 0.9


async def test_a_counter_is_polled_twice_for_its_first_rate() -> None:
    drops = [
        PollResult(readings=[PolledValue(quantity=Quantity.DROPS, value=value, counts_to=2.0**64)])
        for value in (100, 500)
    ]
    live = LiveReadings([polled("fw", *drops)])
    await live.poll_once({"drops_per_second"})
    [value] = live.values_of(Guard.model_validate("drops_per_second > 1"))
    assert value.value > 0


async def test_a_silent_device_has_no_value() -> None:
    live = LiveReadings([polled("fw", cpu(0.1), None, None)])
    assert live.values_of(Guard.model_validate("cpu_ratio > 1")) == []
    await live.poll_once({"cpu_ratio"})
    [before] = live.values_of(Guard.model_validate("cpu_ratio > 1"))
    await live.poll_once({"cpu_ratio"})
    [after] = live.values_of(Guard.model_validate("cpu_ratio > 1"))
    assert after == before


class Archive:
    """Source with history, in which the newest value is a minute old."""

    name = counter_name = "archive"
    entry = SourceEntry(type="planted", device="fw")
    quantities = frozenset({Quantity.CPU})
    latency = DataLatency(settle_s=60)

    async def poll_forever(self) -> None:
        """Return at once."""

    async def query(self, from_at: datetime, before_at: datetime) -> DeviceTelemetry:
        at_s = time.time() - 60
        series = TelemetrySeries(
            device="fw",
            source=self.name,
            quantity=Quantity.CPU,
            at_s=column([at_s - 60, at_s, at_s + 60]),
            over_s=column([60, 60, 60]),
            bound_s=column([0, 0, 0]),
            values=column([0.1, 0.7, float("nan")]),
        )
        return DeviceTelemetry(devices=("fw",), series=(series,), read_at=before_at)


async def test_a_system_with_history_gives_its_newest_known_value_and_its_delay() -> None:
    live = LiveReadings([Archive()])
    await live.poll_once({"cpu_ratio"})
    [value] = live.values_of(Guard.model_validate("cpu_ratio > 1"))
    assert value.value == 0.7
    assert time.time() - value.at_s >= 60
    assert live.intervals_s["cpu_ratio"] >= 60
    assert LiveReadings([polled("fw", cpu(0.1))]).intervals_s["cpu_ratio"] == ARMED_POLL_S


@pytest.mark.parametrize(("status", "failed"), [(200, 0.0), (503, 1.0), (302, 1.0), (None, 1.0)])
async def test_a_url_check_fails_without_the_expected_status(
    status: int | None, failed: float
) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        if status is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(status, text="ok")

    entry = UrlEntry(type="url", device="fw", url="http://shop/health")
    answer = await UrlCheck(entry, httpx.MockTransport(respond)).poll()
    values = {reading.quantity: reading.value for reading in answer.readings}
    assert values[Quantity.URL_FAILED] == failed
    assert (Quantity.URL_TIME in values) is (failed == 0)


async def test_one_lost_answer_does_not_make_an_armed_guard_blind() -> None:
    """An answer that never comes is given up early while guards are armed."""
    count = 0

    async def request() -> PollResult:
        nonlocal count
        count += 1
        if count == 2:
            await asyncio.Event().wait()
        return cpu(0.3)

    entry = PolledEntry(type="planted", device="fw", poll_s=5)
    device = PolledDevice(request=request, name="planted", quantities={Quantity.CPU})
    live = LiveReadings([PolledSource(entry, device)])
    armed = asyncio.create_task(live.poll_forever({"cpu_ratio"}))
    began_s = time.time()
    ages_s = []
    while time.time() - began_s < 20:
        await asyncio.sleep(0.1)
        values = live.values_of(Guard.model_validate("cpu_ratio > 1"))
        ages_s += [time.time() - value.at_s for value in values]
    armed.cancel()
    await asyncio.gather(armed, return_exceptions=True)
    assert count > 10
    assert 2 < max(ages_s) < BLIND_MIN_S
