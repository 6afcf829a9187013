"""Test the Azure Monitor adapter with the real SDK client and the lab's endpoint."""

import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import numpy as np
import pytest

from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import Quantity
from broadside.coordinator.device.telemetry.azure_monitor import AzureEntry, AzureMonitorSource
from broadside.coordinator.device.telemetry.config import open_telemetry
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter
from broadside.coordinator.device.telemetry.run_span import RunSpan
from broadside.coordinator.device.telemetry.source import (
    TelemetryBusy,
    TelemetryError,
    TelemetrySource,
)
from broadside.coordinator.device.telemetry.stabilization import StableReader
from broadside.exchange.messages import Direction, Flow
from broadside.lab.byte_counter import COLUMNS
from broadside.lab.monitor import MonitorServer, MonitorSpec
from tests.live.certificates import make_certificates
from tests.live.http_service import Answer, Asked, serving

pytestmark = pytest.mark.live

FIREWALL = "/subscriptions/s-1/resourceGroups/g/providers/Microsoft.Network/azureFirewalls/fw"
TOKEN = "the lab's own token"  # noqa: S105 - a test's
BEGUN = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ENDED = BEGUN + timedelta(minutes=5)
# The clock should not advance during a read, even on a busy machine.
GLANCE_S = 60.0
# The unit is bytes per second to use for the up direction during the run. Use a hundredth for the
# down direction.
RATE_BYTES = 1_000_000


class Clock:
    """Time of day that a test can change."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def seconds(self) -> float:
        return self.now.timestamp()


@pytest.fixture
def clock() -> Clock:
    return Clock(ENDED + timedelta(hours=1))


@pytest.fixture
def counter_csv(tmp_path: Path) -> Path:
    """Write one reading per second, from 10 minutes before the run to 90 minutes after its end."""
    lines = [",".join(COLUMNS)]
    for second in range(-600, 5700):
        sent = RATE_BYTES * min(max(second, 0), 300)
        lines.append(f"{BEGUN.timestamp() + second},{sent},{sent // 100},0,0,0,0,,")
    path = tmp_path / "counter.csv"
    path.write_text("\n".join([*lines, ""]))
    return path


def monitor_source(
    *, token: str = TOKEN, now: Callable[[], datetime] = lambda: datetime.now(UTC), **fields: Any
) -> AzureMonitorSource:
    """Return a source for the firewall's bytes, using a variable for the token."""
    fixed = {"type": "azure-monitor", "device": "fw", "resource_id": FIREWALL, "byte_counter": {}}
    entry = {**fixed, "token": {"env": "BROADSIDE_TEST_TOKEN"}, **fields}
    with mock.patch.dict(os.environ, {"BROADSIDE_TEST_TOKEN": token}):
        return AzureMonitorSource(AzureEntry.model_validate(entry), now)


class MonitorSite:
    """Monitor and client that use the test's clock."""

    def __init__(self, counter_csv: Path, clock: Clock, **spec: Any) -> None:
        self.clock = clock
        self.spec = MonitorSpec(csv_path=counter_csv, token=TOKEN, **spec)
        self.server = MonitorServer(self.spec, now=clock.seconds)

    def source(self, **fields: Any) -> AzureMonitorSource:
        return monitor_source(**{"endpoint": self.server.endpoint, **fields}, now=self.clock)

    async def read(
        self, from_at: datetime = BEGUN, before_at: datetime = ENDED, **options: Any
    ) -> CounterRecord:
        return await self.source(**options).query_bytes(from_at, before_at, Direction.FORWARD)


@pytest.fixture
def place(counter_csv: Path, clock: Clock) -> Iterator[MonitorSite]:
    place = MonitorSite(counter_csv, clock)
    with place.server:
        yield place


async def test_reads_unit_and_aggregation_from_the_response(place: MonitorSite) -> None:
    """Test that bit/s averages and byte totals lead to the same bytes per direction."""
    for metric in ("Throughput", "DataProcessed"):
        device_counter = await place.read(byte_counter={"metric": metric})
        assert device_counter.source == f"azure-monitor {metric}"
        assert (device_counter.grain_s, device_counter.lag_hint_s) == (60, 75)
        assert device_counter.start_s.tolist() == [BEGUN.timestamp() + 60 * n for n in range(5)]
        np.testing.assert_allclose(device_counter.bytes, 60 * RATE_BYTES * 1.01)
    assert device_counter.snat_utilization_ratio == pytest.approx(0.015)


@pytest.mark.parametrize(("grain_s", "grain"), [(5, "PT5S"), (60, "PT1M"), (300, "PT5M")])
async def test_every_grain_gives_the_same_bytes(
    counter_csv: Path, clock: Clock, grain_s: int, grain: str
) -> None:
    place = MonitorSite(counter_csv, clock, grain_s=grain_s, flows=(Flow.UP,))
    with place.server:
        margin = timedelta(minutes=5)
        device_counter = await place.read(BEGUN - margin, ENDED + margin, grain=grain)
    assert device_counter.grain_s == grain_s
    assert len(device_counter) == 900 // grain_s
    assert np.nansum(device_counter.bytes) == pytest.approx(300 * RATE_BYTES)


async def test_reports_service_message_for_unsupported_grain(place: MonitorSite) -> None:
    with pytest.raises(TelemetryError, match=r"Azure Monitor \(fw\) .*supported ones are: PT1M"):
        await place.read(grain="PT5S")


async def test_lag_shifts_bytes_to_later_labels(counter_csv: Path, clock: Clock) -> None:
    place = MonitorSite(counter_csv, clock, lag_s=75, flows=(Flow.UP,))
    with place.server:
        device_counter = await place.read(BEGUN, ENDED + timedelta(minutes=2))
    minute = 60 * RATE_BYTES
    np.testing.assert_allclose(
        device_counter.bytes, [0, 0.75 * minute, *[minute] * 4, 0.25 * minute]
    )


async def test_recent_zeros_and_nulls_are_unknown_and_old_zeros_are_zero(
    counter_csv: Path, clock: Clock
) -> None:
    clock.now = ENDED + timedelta(seconds=30)
    place = MonitorSite(counter_csv, clock, late_s=100, flows=(Flow.UP,))
    minute = 60 * RATE_BYTES
    with place.server:
        device_counter = await place.read(
            BEGUN - timedelta(minutes=5), ENDED + timedelta(minutes=5)
        )
        expected = [*[0] * 5, minute, minute, 0.5 * minute, np.nan, np.nan, np.nan]
        np.testing.assert_allclose(device_counter.bytes, expected)
        clock.now = ENDED + timedelta(minutes=20)
        device_counter = await place.read(
            BEGUN - timedelta(minutes=5), ENDED + timedelta(minutes=5)
        )
        np.testing.assert_allclose(device_counter.bytes, [*[0] * 5, *[minute] * 5, *[0] * 5])


async def test_waits_until_newest_points_are_stable(counter_csv: Path, clock: Clock) -> None:
    """Test that late zeros and partial sums are ignored and the settled value is correct."""
    place = MonitorSite(counter_csv, clock, late_s=100, lag_s=75, flows=(Flow.UP,))
    with place.server:
        settled, after_s = await settle(place, clock)
    assert np.nansum(settled.bytes) == pytest.approx(300 * RATE_BYTES)
    assert not any("rest" in note for note in settled.notes)
    assert 200 < after_s <= 90 + 300 + 60


async def test_accepts_missing_points_after_the_waiting_time(
    counter_csv: Path, clock: Clock
) -> None:
    place = MonitorSite(counter_csv, clock, late_s=2000, flows=(Flow.UP,))
    with place.server:
        settled, after_s = await settle(place, clock)
    assert after_s >= 390, "zeros count as values only if they are older than the window"
    assert np.nansum(settled.bytes) == 0


def span_of_run(margin_s: float) -> RunSpan:
    """Return the time range to request, with ``margin_s`` before and after the run."""
    return RunSpan(
        run_id="run-1",
        from_at=BEGUN - timedelta(seconds=margin_s),
        before_at=ENDED + timedelta(seconds=margin_s),
        begun_at=BEGUN,
        ended_at=ENDED,
        direction=Direction.FORWARD,
    )


async def settle(place: MonitorSite, clock: Clock) -> tuple[CounterRecord, int]:
    """Poll every 10 s until the device counter is stable.

    Return the device counter and the seconds since the run's end.
    """
    span = span_of_run(360)
    settling = StableReader(DeviceCounter([place.source()]), clock, GLANCE_S)
    for after_s in range(0, 2000, 10):
        clock.now = ENDED + timedelta(seconds=after_s)
        if (settled := await settling.read(span)) is not None:
            return settled, after_s
    raise AssertionError("the counter did not become stable")


async def test_waits_as_long_as_throttling_requires(place: MonitorSite, clock: Clock) -> None:
    """Test that no request is sent for the 90 s that a 429 response requires."""
    place.server.throttle(2, retry_after_s=90)
    with pytest.raises(TelemetryBusy, match="throttles requests; try again in 90 s") as caught:
        await place.read()
    assert caught.value.retry_after_s == 90
    assert len(place.server.asked) == 2, "metrics must be requested only once"

    place.server.throttle(2, retry_after_s=90)
    place.server.asked.clear()
    clock.now = ENDED + timedelta(minutes=5)
    settling = StableReader(DeviceCounter([place.source()]), clock, GLANCE_S)
    span = span_of_run(0)
    assert await settling.read(span) is None
    requested_at: list[int] = []
    for second in range(1, 100):
        clock.now += timedelta(seconds=1)
        before = len(place.server.asked)
        await settling.read(span)
        if len(place.server.asked) > before:
            requested_at.append(second)
    assert requested_at[:1] == [90]


def telemetry_of(place: MonitorSite, folder: Path) -> TelemetrySource:
    return telemetry_at(place.server.endpoint, FIREWALL, folder)


def telemetry_at(endpoint: str, resource_id: str, folder: Path) -> TelemetrySource:
    (folder / "token").write_text(TOKEN)
    path = folder / "telemetry.toml"
    path.write_text(
        f'[[source]]\ndevice = "fw"\ntype = "azure-monitor"\nresource_id = "{resource_id}"\n'
        f'endpoint = "{endpoint}"\ntoken = {{ file = "token" }}\n'
    )
    [source] = open_telemetry(path)
    return source


async def test_reads_health_ports_units_and_throughput(place: MonitorSite, tmp_path: Path) -> None:
    reported = await telemetry_of(place, tmp_path).query(BEGUN, ENDED)
    means = {series.quantity: float(np.nanmean(series.values)) for series in reported.series}
    assert means == {
        Quantity.RECEIVED: pytest.approx(8 * RATE_BYTES * 1.01),
        Quantity.HEALTH: 1.0,
        Quantity.SNAT: pytest.approx(0.015),
        Quantity.LATENCY: pytest.approx(0.002),
        Quantity.UNITS: 2.0,
    }
    [units] = reported.of(Quantity.UNITS)
    assert units.over_s.tolist() == [60] * 5
    # A label T covers the time from T - 75 s to T - 15 s.
    assert units.at_s[0] == BEGUN.timestamp() + 60 - 75
    assert set(units.bound_s) == {30.0}
    assert reported.devices == ("fw",)


BALANCER = FIREWALL.replace("azureFirewalls/fw", "loadBalancers/lb")


async def test_reads_load_balancer_health_of_all_backends(tmp_path: Path) -> None:
    """Test with twelve backends, because a split metric returns ten series by default."""
    healths = {f"10.0.0.{number}": 100.0 for number in range(4, 16)} | {"10.0.0.9": 25.0}
    requested: list[Mapping[str, list[str]]] = []

    def answer(request: Asked) -> Answer:
        requested.append(request.query)
        [metric] = copy.deepcopy(PUBLISHED["value"])
        metric["name"]["value"] = "DipAvailability"
        metric["timeseries"] = [
            {
                "metadatavalues": [{"name": {"value": "backendipaddress"}, "value": backend}],
                "data": [{"timeStamp": f"{BEGUN:%Y-%m-%dT%H:%M:%SZ}", "average": health}],
            }
            for backend, health in list(healths.items())[: int(request.query.get("top", ["10"])[0])]
        ]
        return Answer(body={**PUBLISHED, "value": [metric]})

    with serving(answer) as endpoint:
        reported = await telemetry_at(endpoint, BALANCER, tmp_path).query(BEGUN, ENDED)
    assert requested[0]["$filter"] == ["BackendIPAddress eq '*'"]
    by_name = {item.instance: float(item.values[0]) for item in reported.of(Quantity.HEALTH)}
    assert by_name == {backend: health / 100 for backend, health in healths.items()}


# A response as published by Microsoft: "Retrieve metrics with the REST API" for ByteCount of a load
# balancer (2018-06), with errorCode as in API 2023-10-01.
PUBLISHED: dict[str, Any] = {
    "cost": 0,
    "timespan": "2018-06-05T03:00:00Z/2018-06-07T03:00:00Z",
    "interval": "PT1M",
    "value": [
        {
            "id": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb"
            "/providers/Microsoft.Insights/metrics/ByteCount",
            "type": "Microsoft.Insights/metrics",
            "name": {"value": "ByteCount", "localizedValue": "Byte Count"},
            "unit": "Count",
            "timeseries": [
                {
                    "metadatavalues": [],
                    "data": [{"timeStamp": "2018-06-06T17:24:00Z", "total": 1067921034.0}],
                }
            ],
            "errorCode": "Success",
        }
    ],
    "namespace": "Microsoft.Network/loadBalancers",
    "resourceregion": "eastus",
}


def shape(value: Any) -> Any:
    """Return the names and types of a value.

    A list is represented by its first member.
    """
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, str):
        return re.sub(r"\d", "0", value) if re.match(r"\d{4}-", value) else "text"
    return "number" if isinstance(value, (int, float)) else value


def test_stub_response_has_the_published_format(place: MonitorSite) -> None:
    fields = {
        "timespan": f"{BEGUN:%Y-%m-%dT%H:%M:%SZ}/{ENDED:%Y-%m-%dT%H:%M:%SZ}",
        "interval": "PT1M",
        "metricnames": "DataProcessed",
        "aggregation": "Total",
        "api-version": "2023-10-01",
    }
    answer = httpx.get(
        f"{place.server.endpoint}{FIREWALL}/providers/Microsoft.Insights/metrics",
        params=fields,
        headers={"Authorization": f"Bearer {TOKEN}"},
        timeout=10,
    )
    assert shape(answer.json()) == shape(PUBLISHED)


async def test_rejected_token_error_names_the_role(place: MonitorSite) -> None:
    with pytest.raises(
        TelemetryError, match=r"rejects the given token.*'Monitoring Reader' on the"
    ):
        await place.read(token="another")  # noqa: S106 - a test's


async def test_unreachable_service_is_a_one_line_error() -> None:
    source = monitor_source(endpoint="http://127.0.0.1:1")
    with pytest.raises(TelemetryError, match=r"Azure Monitor \(fw\) cannot be read: ") as caught:
        await source.query_bytes(BEGUN, ENDED, Direction.FORWARD)
    assert "\n" not in str(caught.value)


async def test_verifies_tls_against_the_configured_authority(
    place: MonitorSite, clock: Clock, tmp_path: Path
) -> None:
    certificates = make_certificates(tmp_path)
    secured = MonitorServer(
        place.spec, tls=(certificates.chain, certificates.key), now=clock.seconds
    )
    with secured:
        device_counter = await place.read(endpoint=secured.endpoint, ca_file=certificates.authority)
        assert len(device_counter) == 5
        with pytest.raises(TelemetryError, match="certificate"):
            await place.read(endpoint=secured.endpoint)
