"""Tests to read Prometheus answers. If this is not possible, an error is shown in one line."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest

from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter
from broadside.coordinator.device.telemetry.prometheus import PrometheusEntry, PrometheusSource
from broadside.coordinator.device.telemetry.source import TelemetryBusy, TelemetryError
from broadside.exchange.messages import Direction

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
START_S = START.timestamp()


def matrix(*series: list[tuple[float, str]]) -> dict[str, Any]:
    result = [{"metric": {}, "values": values} for values in series]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


class Server:
    """Transport that will give the same answer to all queries, and record the requests."""

    def __init__(self, answer: Any, status: int = 200, headers: dict[str, str] | None = None):
        self.requests: list[httpx.Request] = []
        self._response = (status, answer, headers or {})

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        status, answer, headers = self._response
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return httpx.Response(status, text=answer, headers=headers)
        return httpx.Response(status, json=answer, headers=headers)


async def read(
    server: Server, unit: str = "bits_per_second", *, span_s: float = 45, **fields: Any
) -> CounterRecord:
    entry = PrometheusEntry.model_validate(
        {
            "type": "prometheus",
            "device": "fw",
            "url": "http://prometheus:9090/",
            "byte_counter": {"query": "sum(rate(bytes[15s]))", "unit": unit},
            **fields,
        }
    )
    source = PrometheusSource(entry, transport=httpx.MockTransport(server))
    span = (START, START + timedelta(seconds=span_s))
    return await DeviceCounter([source]).read(*span, Direction.FORWARD)


async def test_rate_covers_the_previous_step() -> None:
    server = Server(matrix([(START_S, "800"), (START_S + 15, "NaN"), (START_S + 45, "1600")]))
    device_counter = await read(server)
    assert (device_counter.start_s - START_S).tolist() == [-15, 0, 30]
    assert (device_counter.end_s - START_S).tolist() == [0, 15, 45]
    np.testing.assert_array_equal(device_counter.bytes, [1500, np.nan, 3000])
    device_counter = await read(server, "bytes_per_second")
    assert device_counter.bytes[0] == 12_000


async def test_counter_gives_differences_and_a_reset_is_unknown() -> None:
    samples = [(0, "100"), (15, "400"), (30, "50"), (60, "80")]
    server = Server(matrix([(START_S + at, value) for at, value in samples]))
    device_counter = await read(server, "bytes_total")
    assert (device_counter.start_s - START_S).tolist() == [0, 15, 30]
    assert (device_counter.end_s - START_S).tolist() == [15, 30, 60]
    np.testing.assert_array_equal(device_counter.bytes, [300, np.nan, 30])


async def test_splits_a_long_span_into_parts_without_overlap() -> None:
    server = Server(matrix([]))
    await read(server, span_s=15 * 25_000)
    spans = [
        (float(request.url.params["start"]), float(request.url.params["end"]))
        for request in server.requests
    ]
    assert [round((end - start) / 15) + 1 for start, end in spans] == [10_000, 10_000, 5_001]
    assert all(after[0] - before[1] == 15 for before, after in pairwise(spans))


TOKEN = {"env": "BROADSIDE_TEST_TOKEN"}


async def test_sends_query_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN["env"], "secret")
    server = Server(matrix([]))
    await read(server, token=TOKEN)
    [request] = server.requests
    assert request.url.path == "/api/v1/query_range"
    assert request.url.params["query"] == "sum(rate(bytes[15s]))"
    assert request.url.params["step"] == "15.0"
    assert request.headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("token", ["s3cret\nX: y", "s3cr\u00e9t"])
async def test_invalid_token_is_not_shown_in_the_error(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN["env"], token)
    with pytest.raises(TelemetryError, match="printable ASCII") as caught:
        await read(Server(matrix([])), token=TOKEN)
    assert "s3cr" not in str(caught.value)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (Server({"status": "error", "error": "parse error: x"}, 400), "query .*parse"),
        (Server("<html>", 502), "HTTP 502, which is not an answer of Prometheus"),
        (Server({"detail": "no"}, 404), "HTTP 404, which is not an answer of Prometheus"),
        (
            Server(httpx.ConnectError("refused")),
            r"url http://prometheus:9090: no answer \(ConnectError",
        ),
        (Server(matrix([(0, "1")], [(0, "1")])), r"2 series; add them up with sum\(...\)"),
    ],
)
async def test_unreadable_input_is_a_one_line_error(server: Server, expected: str) -> None:
    with pytest.raises(TelemetryError, match=expected) as caught:
        await read(server)
    assert "\n" not in str(caught.value)


async def test_throttling_error_has_the_retry_time() -> None:
    with pytest.raises(TelemetryBusy, match="try again in 7 s") as caught:
        await read(Server("", 429, {"Retry-After": "7"}))
    assert caught.value.retry_after_s == 7
