"""Attacks by a hostile metric source in place of Azure Monitor or Prometheus."""

import asyncio
import gzip
import json
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, Final
from unittest import mock

from broadside.coordinator.device.telemetry.azure_monitor import AzureEntry, AzureMonitorSource
from broadside.coordinator.device.telemetry.prometheus import PrometheusEntry, PrometheusSource
from broadside.coordinator.device.telemetry.source import (
    BUSY_MAX_S,
    ArchiveSource,
    TelemetryBusy,
    TelemetryError,
)
from broadside.exchange.messages import Direction
from broadside.exchange.outage_log import utc_now
from tests.attack import Attack, attack_variants, memory_within
from tests.loopback_server import answering

SOURCE: Final = "metric source"
_RESOURCE: Final = "/subscriptions/0/resourceGroups/g/providers/Microsoft.Network/azureFirewalls/fw"
# Limit on the memory for reading any answer.
_MEMORY_MAX_BYTES: Final = 150 * 1_048_576


def _monitor(url: str) -> ArchiveSource:
    fields = {"type": "azure-monitor", "device": "fw", "resource_id": _RESOURCE, "endpoint": url}
    entry = AzureEntry.model_validate({**fields, "token": {"env": "BROADSIDE_TEST_TOKEN"}})
    with mock.patch.dict(os.environ, {"BROADSIDE_TEST_TOKEN": "t"}):
        return AzureMonitorSource(entry)


def _prometheus(url: str) -> ArchiveSource:
    fields = {"type": "prometheus", "device": "fw", "url": url, "byte_counter": {"query": "q"}}
    return PrometheusSource(PrometheusEntry.model_validate(fields))


def _hostile(
    opened: Callable[[str], ArchiveSource],
    made: Callable[[], bytes],
    status: int = 200,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Check that the answer will raise ``TelemetryError`` using bounded memory and time."""
    body, now = made(), utc_now()
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    with answering(lambda: [body], fields, status=status) as url, memory_within(_MEMORY_MAX_BYTES):
        try:
            source = opened(url)
            asyncio.run(source.query_bytes(now - timedelta(minutes=5), now, Direction.FORWARD))
        except TelemetryBusy as error:
            assert 0 <= error.retry_after_s <= BUSY_MAX_S, error.retry_after_s
            return f"come back in {error.retry_after_s:g} s at most"
        except TelemetryError as error:
            return str(error)
    raise AssertionError("it was taken for figures")


def _metric(**changes: Any) -> bytes:
    point = {"timeStamp": "2026-11-22T00:00:00Z", "average": 1.0}
    series = {"data": [point | changes.pop("point", {})]}
    metric = {
        "id": "x",
        "type": "x",
        "name": {"value": "Throughput"},
        "unit": "BitsPerSecond",
        "timeseries": [series],
    }
    answer = {"timespan": "x", "interval": "PT1M", "value": [metric | changes.pop("metric", {})]}
    return json.dumps(answer | changes).encode()


def _packed(times: int) -> bytes:
    body = b" " * 200_000_000
    for _ in range(times):
        body = gzip.compress(body, 9)
    return body


_BODIES: Final[Mapping[str, Callable[[], bytes]]] = {
    "100,000 brackets": lambda: b"[" * 100_000,
    "deep objects": lambda: b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "40 MB": lambda: b" " * 40_000_000,
    "a page": lambda: b"<html>" * 100,
    "no UTF-8": lambda: b"\xff\xfe\xff",
    "nothing": lambda: b"",
    "a number of 5,000 digits": lambda: b'{"value":' + b"9" * 5_000 + b"}",
    "a list": lambda: b"[]",
    "text": lambda: b'"x"',
}
_MONITOR: Final[Mapping[str, Callable[[], bytes]]] = {
    **_BODIES,
    "no metric": lambda: _metric(value=[]),
    "a metric of text": lambda: _metric(value="x"),
    "an unknown unit": lambda: _metric(metric={"unit": "Percent"}),
    "a grain of nonsense": lambda: _metric(interval="PT0S"),
    "a grain without end": lambda: _metric(interval="P" + "9" * 4_000 + "D"),
    "an instant of text": lambda: _metric(point={"timeStamp": "yesterday"}),
    "points without an instant": lambda: _metric(point={"timeStamp": None}),
    "a value of text": lambda: _metric(point={"average": "many"}),
}

_PACKED: Final = {
    f"{name}: packed {times} times": (
        opened,
        partial(_packed, times),
        200,
        {"Content-Encoding": ", ".join(["gzip"] * times)},
    )
    for name, opened in (("Azure Monitor", _monitor), ("Prometheus", _prometheus))
    for times in (1, 2)
}
_COME_BACK: Final = {
    f"{name}: come back in {delay[:12]}": (opened, lambda: b"{}", 429, {"Retry-After": delay})
    for name, opened in (("Azure Monitor", _monitor), ("Prometheus", _prometheus))
    for delay in ("9" * 400, "inf", "nan", "-5", "\xb2", "tomorrow")
}

ATTACKS: Final[tuple[Attack, ...]] = (
    *attack_variants(
        "Azure Monitor: {}", SOURCE, "figures or a crash", partial(_hostile, _monitor), _MONITOR
    ),
    *attack_variants(
        "served Prometheus: {}",
        SOURCE,
        "memory or a crash",
        partial(_hostile, _prometheus),
        _BODIES,
    ),
    *attack_variants("{}", SOURCE, "200 MB in a few bytes", _hostile, _PACKED),
    *attack_variants("{}", SOURCE, "to be waited for without end", _hostile, _COME_BACK),
)
