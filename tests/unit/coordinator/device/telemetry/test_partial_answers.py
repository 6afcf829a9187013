"""Tests for answers that are not complete, which are not used (M15)."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import numpy as np
import pytest

from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import DeviceTelemetry, IssueKind
from broadside.coordinator.device.telemetry.azure_monitor import AzureEntry, AzureMonitorSource
from broadside.coordinator.device.telemetry.http_client import bounded_client, partial_answer
from broadside.coordinator.device.telemetry.prometheus import PrometheusEntry, PrometheusSource
from broadside.coordinator.device.telemetry.stabilization import is_stable
from broadside.coordinator.device.telemetry.telemetry_storage import dump_counter, load_counter
from broadside.exchange.messages import Direction
from broadside.exchange.outage_log import utc_now

BEGUN = datetime(2026, 11, 20, 12, tzinfo=UTC)
BEGUN_S = BEGUN.timestamp()
WHOLE: dict[str, Any] = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [{"metric": {}, "values": [[BEGUN_S + 15 * n, str(n)] for n in range(9)]}],
    },
}
PARTIAL = [
    # Thanos
    {"warnings": ["partial response: 1 store of 2 did not answer"]},
    # Prometheus
    {"warnings": ["remote storage: context deadline exceeded", "another"]},
    {"warnings": "no store matched the query"},
    # VictoriaMetrics
    {"isPartial": True},
    {"infos": ["results were truncated due to a limit"]},
    {"error": {"code": "PartialError", "message": "one of the workspaces did not answer"}},
]
COMPLETE = [
    {},
    {"warnings": []},
    {"warnings": None, "isPartial": False},
    {"infos": ["PromQL info: metric might not be a counter, name does not end in _total"]},
    {"stats": {"seriesFetched": "1"}},
]


def prometheus(more: dict[str, Any], off_s: float | None = 0.0, status: int = 200) -> Any:
    """Return a server with a clock that is ``off_s`` off, or without ``time()`` if it is None."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/query"):
            if off_s is None:
                return httpx.Response(404, json={"detail": "no"})
            stamp = utc_now().timestamp() + off_s
            data = {"resultType": "scalar", "result": [stamp, str(stamp)]}
            return httpx.Response(200, json={"status": "success", "data": data})
        return httpx.Response(status, json=WHOLE | more)

    return httpx.MockTransport(answer)


def opened(transport: httpx.MockTransport, **fields: Any) -> PrometheusSource:
    entry = {"type": "prometheus", "device": "fw", "url": "http://p", **fields}
    return PrometheusSource(PrometheusEntry.model_validate(entry), transport=transport)


async def bins(transport: httpx.MockTransport) -> CounterRecord:
    source = opened(transport, byte_counter={"query": "x", "unit": "bytes_total"})
    return await source.query_bytes(BEGUN, BEGUN + timedelta(minutes=2), Direction.FORWARD)


async def figures(transport: httpx.MockTransport, **more: Any) -> DeviceTelemetry:
    read = {"read": [{"quantity": "sessions_count", "query": "x"}], **more}
    return await opened(transport, **read).query(BEGUN, BEGUN + timedelta(minutes=2))


@pytest.mark.parametrize(
    ("more", "status"), [*((more, 200) for more in PARTIAL), ({}, 206)], ids=str
)
async def test_marks_an_incomplete_answer(more: dict[str, Any], status: int) -> None:
    device_counter = await bins(prometheus(more, status=status))
    assert device_counter.partial
    assert np.isnan(device_counter.proving().bytes).all()
    assert load_counter(dump_counter(device_counter)).partial == device_counter.partial
    assert not is_stable(device_counter, device_counter, BEGUN_S, BEGUN_S + 60, 0.0)
    reported = await figures(prometheus(more, status=status))
    assert np.isnan(reported.series[0].values).all()
    assert [issue.kind for issue in reported.issues] == [IssueKind.PARTIAL]


@pytest.mark.parametrize("more", COMPLETE, ids=str)
async def test_does_not_mark_a_complete_answer(more: dict[str, Any]) -> None:
    device_counter = await bins(prometheus(more))
    assert device_counter.partial is None
    assert device_counter.proving() is device_counter
    assert "partial" not in dump_counter(device_counter).decode()
    reported = await figures(prometheus(more))
    assert reported.series[0].values.tolist() == list(range(9))
    assert not reported.issues


@pytest.mark.parametrize("off_s", [0.0, 45.0, -45.0, -3600.0])
async def test_corrects_values_by_the_clock_of_the_server(
    off_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    reported = await figures(prometheus({}, off_s))
    [series] = reported.series
    np.testing.assert_allclose(series.at_s, BEGUN_S + 15 * np.arange(9) - off_s, atol=0.5)
    assert series.bound_s.max() < 0.5
    assert [issue.kind for issue in reported.issues] == ([IssueKind.CLOCK] if off_s else [])


@pytest.mark.parametrize(("stated", "bound_s"), [({}, np.nan), ({"clock_bound_s": 3}, 3.0)])
async def test_server_without_a_clock_uses_the_stated_bound(
    stated: dict[str, Any], bound_s: float
) -> None:
    reported = await figures(prometheus({}, None), **stated)
    np.testing.assert_array_equal(reported.series[0].bound_s, np.full(9, bound_s))


@pytest.mark.parametrize(
    ("document", "headers", "expected"),
    [
        # Azure, Microsoft Graph.
        ({"cpu": [1, 2], "nextLink": "https://x/2"}, {}, True),
        ({"cpu": 1, "@odata.nextLink": "https://x/2"}, {}, True),
        # Kubernetes
        ({"cpu": 1, "metadata": {"continue": "abc"}}, {}, True),
        # AWS
        ({"cpu": 1, "IsTruncated": True}, {}, True),
        ({"cpu": 1, "links": {"next": {"href": "/2"}}}, {}, True),
        ({"cpu": 1, "has_more": True}, {}, True),
        ([1, 2], {"Link": '<https://x/2>; rel="next"'}, True),
        ({"cpu": 1, "nextLink": None, "has_more": False, "next": ""}, {}, False),
        ({"cpu": 1, "links": {"next": None}}, {}, False),
        ({"cpu": 1}, {"Link": '<https://x/1>; rel="prev"'}, False),
        ([1, 2], {}, False),
    ],
)
def test_answer_with_more_pages_is_incomplete(
    document: Any, headers: dict[str, str], expected: bool
) -> None:
    response = httpx.Response(200, json=document, headers=headers)
    assert (partial_answer(response, document) is not None) is expected


@pytest.mark.parametrize(
    ("more", "status", "expected"),
    [
        ({}, 200, False),
        ({"nextLink": "https://management.azure.com/x"}, 200, True),
        ({"error": {"code": "PartialError"}}, 200, True),
        ({}, 206, True),
    ],
)
async def test_azure_monitor_marks_incomplete_answers(
    more: dict[str, Any], status: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [{"timeStamp": f"2026-11-20T12:0{n}:00Z", "average": 8e6} for n in range(3)]
    metric = {"unit": "BitsPerSecond", "timeseries": [{"data": points}], "errorCode": "Success"}
    answer = {"interval": "PT1M", "value": [metric], **more}
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json=answer))
    monkeypatch.setattr(
        "broadside.coordinator.device.telemetry.azure_monitor.bounded_client",
        lambda headers, ca_file, attempt_s: bounded_client(headers, ca_file, attempt_s, transport),
    )
    monkeypatch.setenv("BROADSIDE_TEST_TOKEN", "t")
    path = "providers/Microsoft.Network/azureFirewalls/fw"
    entry = {
        "type": "azure-monitor",
        "device": "fw",
        "resource_id": f"/subscriptions/s/resourceGroups/g/{path}",
        "token": {"env": "BROADSIDE_TEST_TOKEN"},
        "byte_counter": {},
    }
    source = AzureMonitorSource(AzureEntry.model_validate(entry))
    device_counter = await source.query_bytes(
        BEGUN, BEGUN + timedelta(minutes=3), Direction.FORWARD
    )
    assert (device_counter.partial is not None) is expected


@pytest.mark.parametrize(
    ("query", "moved"), [('cpu{job="fw"}', True), ("cpu", True), ("avg(cpu)", False)]
)
async def test_sample_has_the_time_of_its_scrape(query: str, moved: bool) -> None:
    """The device is scraped every minute, but the query will use steps of 15 seconds."""

    def answer(request: httpx.Request) -> httpx.Response:
        requested = request.url.params["query"]
        if requested == "time()":
            return httpx.Response(404)
        steps = [BEGUN_S + 15 * n for n in range(9)]
        scrapes = [BEGUN_S + 7 + (at - BEGUN_S - 7) // 60 * 60 for at in steps]
        values = (
            scrapes if requested.startswith("timestamp(") else [at - BEGUN_S + 60 for at in scrapes]
        )
        labels = (
            {"job": "fw"}
            if requested.startswith("timestamp(")
            else {"__name__": "cpu", "job": "fw"}
        )
        rows = [[at, str(value)] for at, value in zip(steps, values, strict=True)]
        data = {"resultType": "matrix", "result": [{"metric": labels, "values": rows}]}
        return httpx.Response(200, json={"status": "success", "data": data})

    read = {"quantity": "sessions_count", "query": query}
    reported = await figures(httpx.MockTransport(answer), read=[read], clock_bound_s=0.1)
    [series] = reported.series
    if moved:
        assert (series.at_s - BEGUN_S).tolist() == [-53, 7, 67]
        assert series.values.tolist() == [7, 67, 127]
    else:
        assert len(series.values) == 9
