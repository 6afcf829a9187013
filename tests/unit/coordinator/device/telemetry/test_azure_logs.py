"""Tests for flow logs of an Azure Firewall. The errors have the form of recorded responses."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import pytest

from broadside.coordinator.core.measure.telemetry import IssueKind, Quantity
from broadside.coordinator.device.telemetry.azure_logs import AzureLogsEntry, AzureLogsSource
from broadside.coordinator.device.telemetry.source import TelemetryBusy, TelemetryError
from tests.unit.coordinator.device.telemetry.test_prometheus import Server

START: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)
FIREWALL: Final = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/azureFirewalls/fw"
TOP_FLOWS: Final = {
    "quantity": "in_bits_per_second", "scale": 1e6, "over_s": 180,
    "query": "AZFWFatFlow | summarize value = sum(FlowRate) by at = TimeGenerated",
}  # fmt: skip


def rows(*values: tuple[str, float | None]) -> dict[str, Any]:
    columns = [{"name": "value", "type": "real"}, {"name": "at", "type": "datetime"}]
    table = {"name": "PrimaryResult", "columns": columns, "rows": [[v, at] for at, v in values]}
    return {"tables": [table]}


def refusal(code: str, message: str) -> dict[str, Any]:
    inner = {"code": "SemanticError", "message": message}
    return {"error": {"code": code, "message": "invalid properties", "innererror": inner}}


def source(server: Server, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> AzureLogsSource:
    monkeypatch.setenv("BROADSIDE_TEST_TOKEN", "given")
    entry = {"type": "azure-logs", "device": "fw", "resource_id": FIREWALL,
             "token": {"env": "BROADSIDE_TEST_TOKEN"}, **fields}  # fmt: skip
    transport = httpx.MockTransport(server)
    return AzureLogsSource(AzureLogsEntry.model_validate(entry), transport)


async def test_default_counts_packets_without_a_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(rows(("2026-11-20T12:01:00Z", 2.5), ("2026-11-20T12:00:00Z", 0.5),
                         ("2026-11-20T12:02:00Z", None)))  # fmt: skip
    telemetry = await source(server, monkeypatch).query(START, START + timedelta(minutes=5))
    [series] = telemetry.series
    assert series.quantity is Quantity.DROPS
    assert series.values.tolist() == [0.5, 2.5]
    assert (series.at_s - START.timestamp()).tolist() == [60, 120]
    [request] = server.requests
    assert request.url.path == f"/v1{FIREWALL}/query"
    assert request.url.params["timespan"] == "2026-11-20T12:00:00Z/2026-11-20T12:05:01Z"
    assert "AZFWFlowTrace" in request.url.params["query"]
    assert request.headers["Authorization"] == "Bearer given"


async def test_rate_of_the_top_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(rows(("2026-11-20T12:03:00Z", 812.5)))
    telemetry = await source(server, monkeypatch, read=[TOP_FLOWS]).query(START, START)
    [series] = telemetry.series
    assert series.quantity is Quantity.RECEIVED
    assert series.values.tolist() == [812.5e6]


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (400, refusal("BadArgumentError", "Failed to resolve table AZFWFatFlow"),
         "switch the logs on"),
        (403, {"error": {"code": "InsufficientAccessError", "message": "no"}}, "Monitoring Reader"),
        (404, "<html>", "HTTP 404"),
        (200, {"tables": []}, "columns at and value"),
        (200, "<html>", "columns at and value"),
    ],
)  # fmt: skip
async def test_errors_name_the_fix(
    status: int, answer: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TelemetryError, match=expected) as caught:
        await source(Server(answer, status), monkeypatch).query(START, START)
    assert "\n" not in str(caught.value)
    assert "given" not in str(caught.value)


async def test_throttling_names_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server({}, 429, {"Retry-After": "17"})
    with pytest.raises(TelemetryBusy) as caught:
        await source(server, monkeypatch).query(START, START)
    assert caught.value.retry_after_s == 17


async def test_one_query_that_fails_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Half(Server):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            if "AZFWFatFlow" in request.url.params["query"]:
                return httpx.Response(400, json=refusal("BadArgumentError", "x"))
            return super().__call__(request)

    other = {"quantity": "drops_per_second", "query": "AZFWFlowTrace | take 1"}
    server = Half(rows(("2026-11-20T12:03:00Z", 1.0)))
    telemetry = await source(server, monkeypatch, read=[TOP_FLOWS, other]).query(START, START)
    assert [series.quantity for series in telemetry.series] == [Quantity.DROPS]
    assert [issue.kind for issue in telemetry.issues] == [IssueKind.UNREADABLE]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"endpoint": "http://logs.example"}, "https only"),
        ({"byte_counter": {}}, "flow logs have no bytes"),
    ],
)
def test_invalid_entries_are_rejected(
    fields: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TelemetryError, match=expected):
        source(Server({}), monkeypatch, **fields)
