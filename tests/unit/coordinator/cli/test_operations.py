"""Tests for command line operations, using HTTP or using the fabric directly."""

from typing import Any

import httpx
import pytest

from broadside.coordinator.api.app import create_app
from broadside.coordinator.auth.audit import Audit
from broadside.coordinator.cli.api_client import ApiClient
from broadside.coordinator.cli.api_errors import ApiError
from broadside.coordinator.cli.operations import Operations
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.requests import LaunchRequest
from broadside.exchange.fabric import Fabric
from broadside.exchange.outage_log import utc_now
from tests.unit.coordinator.stored_run import store_run


@pytest.mark.parametrize(
    ("verb", "given"),
    [
        ("status", {}),
        ("trends", {}),
        ("summary", {}),
        ("recomputed", {}),
        ("bursts", {"limit": 1}),
        ("pairs", {"burst": 1, "limit": 600}),
        ("series", {"burst": 1, "pair": "1", "accept": "text/csv"}),
        ("chart", {"name": "throughput", "burst": 1}),
        ("export", {"format": "csv", "table": "bursts"}),
        ("price", {}),
    ],
)
async def test_local_and_http_operations_return_equal_results(
    fabric: Fabric, verb: str, given: dict[str, Any]
) -> None:
    run_id = await store_run(fabric)
    transport = httpx.ASGITransport(create_app(Coordinator(fabric), tick_s=None))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", headers={"Accept-Encoding": "gzip"}
    ) as http:
        local, remote = Operations(fabric), ApiClient(http)
        answers = [
            await getattr(operations, verb)(run_id, **given) for operations in (local, remote)
        ]
        lists = [await operations.runs(5, scenario="synthetic") for operations in (local, remote)]
    assert answers[0] == answers[1]
    assert lists[0] == lists[1] != []


async def test_write_is_audited_with_its_status(fabric: Fabric) -> None:
    run_id = await store_run(fabric)
    local = Operations(fabric, "ann")
    with pytest.raises(ApiError, match="is finished") as refused:
        await local.cancel(run_id, by="ann", reason="too late")
    assert refused.value.status == 409
    with pytest.raises(ApiError) as refused:
        await local.launch(LaunchRequest(scenario="smoke", by="ann"))
    # There are no agents to run it.
    assert refused.value.status == 409
    rows, _ = await Audit(fabric.private).read(utc_now(), limit=10)
    # The clock of unit tests stands still, so the rows have no order.
    found = {(row.by, row.method, row.route, row.run_id, row.status) for row in rows}
    assert found == {
        ("ann", "POST", "/v1/runs", None, 409),
        ("ann", "POST", "/v1/runs/{run_id}/abort", run_id, 409),
    }
    assert len(rows) == 2


async def test_filter_error_has_the_message_of_the_api(fabric: Fabric) -> None:
    local = Operations(fabric)
    for requested, text in (
        ({"from_at": "yesterday"}, r"query\.from_at: .*got 'yesterday'"),
        ({"label": ["idps"]}, "give name=value"),
    ):
        with pytest.raises(ApiError, match=text) as refused:
            await local.runs(5, **requested)
        assert refused.value.status == 422


async def test_terminal_output_has_no_control_characters(fabric: Fabric) -> None:
    run_id = await store_run(fabric)
    await fabric.records.runs.cancel_run(run_id, at=utc_now(), by="mal\x1b[2Jlory", reason="x")
    status = await Operations(fabric).status(run_id)
    assert status.cancelled_by is not None
    assert "\x1b" not in status.cancelled_by
