"""Tests for raw output and for removing stored runs."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from broadside.coordinator import scenarios
from broadside.coordinator.api.app import create_app
from broadside.coordinator.cli import app
from broadside.coordinator.core.plan.planner import plan as make_plan
from broadside.coordinator.core.run_spec import Plan, due_at
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.retention import PruneRequest, prune
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import Control, Endpoint, EngineReport, ServerTest
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Entity
from broadside.exchange.records import Records, RunHeader
from tests.one_table import records_in
from tests.synthetic_runs import create_run
from tests.unit.coordinator.presences import NOW, fleet

DAY = timedelta(days=1)
RAW = b'{"event":"start","data":{}}\n{"event":"end","data":{}}'


def planned(run_id: str, begun_at: datetime, *, bursts_count: int = 2, period_s: int = 60) -> Plan:
    spec = scenarios.load(
        "smoke",
        {"pairs_count": 2, "burst_s": 10, "bursts_count": bursts_count, "period_s": period_s},
    )
    plan = make_plan(spec, fleet(2), NOW, run_id)
    moved = begun_at - plan.bursts[0].planned_start_at
    bursts = [
        burst.model_copy(update={"planned_start_at": burst.planned_start_at + moved})
        for burst in plan.bursts
    ]
    return plan.model_copy(update={"created_at": begun_at, "bursts": tuple(bursts)})


async def store(records: Records, plan: Plan) -> None:
    """Store a run. Each burst has raw output for the first pair, and there is a server test."""
    await create_run(records, plan)
    for burst in plan.bursts:
        await records.bursts.save_raw(plan.run_id, burst.index, 0, RAW)
    test = ServerTest(
        agent_id="server-001",
        endpoint=Endpoint(agent_id="server-001", address="10.2.1.1", port=5201),
        started_at=plan.bursts[0].planned_start_at,
        engine=EngineReport(engine="iperf3"),
    )
    await records.bursts.save_test(test, (), ())


@pytest.fixture
async def table(tmp_path: Path) -> AsyncIterator[EmbeddedTable]:
    table = EmbeddedTable(tmp_path, "results")
    yield table
    await table.close()


@pytest.fixture
def records(table: EmbeddedTable) -> Records:
    return records_in(table)


async def names(records: Records) -> Sequence[str]:
    return [header.run_id async for header in records.private.list_runs()]


async def test_prune_lists_old_runs_and_removes_on_request(records: Records) -> None:
    for age_days in (1, 29, 31, 34):
        await store(records, planned(f"run-{age_days}", NOW - age_days * DAY))
    shown = await prune(records, PruneRequest(older_than_days=30), NOW)
    assert [run.run_id for run in shown.runs] == ["run-34", "run-31"]
    assert [(NOW - at) // DAY for at in shown.tests_hours] == [34, 31]
    assert (shown.dry_run, shown.rows_count) == (True, 0)
    assert len(await names(records)) == 4

    done = await prune(records, PruneRequest(older_than_days=30, dry_run=False), NOW)
    assert (done.runs, done.tests_hours) == (shown.runs, shown.tests_hours)
    assert await names(records) == ["run-1", "run-29"]
    assert await records.bursts.read_raw("run-31", 1, 0) is None
    assert await records.bursts.read_raw("run-29", 1, 0) == RAW
    tests = await records.bursts.read_tests(NOW - 40 * DAY, NOW)
    assert [(NOW - test.test.started_at) // DAY for test in tests] == [29, 1]
    again = await prune(records, PruneRequest(older_than_days=30, dry_run=False), NOW)
    assert (again.runs, again.tests_hours, again.rows_count) == ((), (), 0)


async def test_prune_age_counts_from_the_end_of_a_run(records: Records) -> None:
    """If the run ended 20 days ago, neither the run nor its tests may be removed."""
    soak = planned("soak", NOW - 40 * DAY, bursts_count=481, period_s=3600)
    await store(records, soak)
    await store(records, planned("short", NOW - 39 * DAY))
    await store(records, planned("older", NOW - 50 * DAY))
    shown = await prune(records, PruneRequest(older_than_days=30), NOW)
    assert [run.run_id for run in shown.runs] == ["older", "short"]
    assert [(NOW - at) // DAY for at in shown.tests_hours] == [50]
    assert NOW - 20 * DAY < due_at(soak.bursts[-1]) < NOW - 19 * DAY
    shown = await prune(records, PruneRequest(older_than_days=19), NOW)
    assert {run.run_id for run in shown.runs} == {"older", "soak", "short"}


async def test_prune_completes_an_interrupted_removal(
    records: Records, table: EmbeddedTable
) -> None:
    await store(records, planned("run-1", NOW - 40 * DAY))
    await table.delete_partition("burst.run-1.00000")
    await table.delete("run.run-1", "header")
    done = await prune(records, PruneRequest(older_than_days=30, dry_run=False), NOW)
    assert [run.run_id for run in done.runs] == ["run-1"]
    assert await names(records) == []
    assert [row async for row in table.scan("run.run-1")] == []


async def test_prune_skips_and_names_unreadable_plan(
    records: Records, table: EmbeddedTable
) -> None:
    plan = planned("run-1", NOW - 40 * DAY)
    await store(records, plan)
    newer = RunHeader(run_id="newer", scenario="x", created_at=NOW - 35 * DAY, created_by="newer")
    control = Control(run_id="newer", lease_until_at=NOW)
    await records.create_run(newer, b'{"version": 99}', control)
    done = await prune(records, PruneRequest(older_than_days=30, dry_run=False), NOW)
    assert done.unreadable == ("newer",)
    assert await names(records) == ["newer"]
    assert await table.get("run.newer", "plan.000") is not None


async def test_prune_skips_hours_without_tests(
    records: Records, table: EmbeddedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store(records, planned("old", NOW - 400 * DAY))
    await store(records, planned("new", NOW - DAY))
    invalid = Entity(partition_key="tests.0000someday", row_key="a", properties={})
    await table.insert(invalid)
    keys: list[str] = []
    find = table.next_partition

    async def counted(key_from: str, key_before: str) -> str | None:
        keys.append(key_from)
        return await find(key_from, key_before)

    monkeypatch.setattr(table, "next_partition", counted)
    shown = await prune(records, PruneRequest(older_than_days=30), NOW)
    assert [(NOW - at) // DAY for at in shown.tests_hours] == [400]
    # These are an invalid partition, a valid partition and the end.
    assert len(keys) == 3


async def test_prune_without_runs_removes_nothing(records: Records) -> None:
    done = await prune(records, PruneRequest(older_than_days=0, dry_run=False), NOW)
    assert (done.runs, done.tests_hours, done.rows_count) == ((), (), 0)


@pytest.fixture
async def fabric(tmp_path: Path) -> AsyncIterator[Fabric]:
    fabric = open_fabric(FabricSettings(data_dir=tmp_path / "data"))
    yield fabric
    await fabric.close()


async def request(fabric: Fabric, method: str, path: str, **arguments: object) -> httpx.Response:
    api = create_app(Coordinator(fabric), tick_s=None)
    transport = httpx.ASGITransport(app=api)
    async with httpx.AsyncClient(transport=transport, base_url="http://in-process") as client:
        return await client.request(method, path, **arguments)  # type: ignore[arg-type]


async def test_raw_output_is_returned_unchanged(fabric: Fabric) -> None:
    await store(fabric.records, planned("run-1", NOW))
    output = b'{\n\t"start":\t{}\n}'
    await fabric.records.bursts.save_raw("run-1", 1, 1, output)
    for pair in ("pair-001", "1"):
        answer = await request(fabric, "GET", f"/v1/runs/run-1/raw/{pair}")
        assert (answer.status_code, answer.content) == (200, RAW)
        assert answer.headers["content-type"] == "application/x-ndjson"
    answer = await request(fabric, "GET", "/v1/runs/run-1/raw/2", params={"burst": 2})
    assert answer.content == output
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/runs/none/raw/1", "run none: no such run"),
        (
            "/v1/runs/run-1/raw/pair-003",
            "pair pair-003: not in run run-1, which has pair-001 to pair-002",
        ),
        ("/v1/runs/run-1/raw/1?burst=3", "burst 3: not in run run-1, which has 2"),
        ("/v1/runs/run-1/raw/2", "burst 1, pair-002: no client output: raw = failed stores"),
        ("/v1/runs/run-1/raw/2?side=server", "no server output: only outputs of failed tests"),
    ],
)
async def test_missing_raw_output_error_gives_the_reason(
    fabric: Fabric, path: str, message: str
) -> None:
    await store(fabric.records, planned("run-1", NOW))
    answer = await request(fabric, "GET", path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert message in answer.json()["detail"]


async def test_pruned_run_does_not_stop_the_coordinator_loop(fabric: Fabric) -> None:
    """Rows can be removed by another coordinator after the run was listed."""
    await store(fabric.records, planned("run-1", NOW))
    await fabric.private.delete_partition("run.run-1")
    await Coordinator(fabric).tick()


def test_prune_command_lists_by_default_and_deletes_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROADSIDE_DATA_DIR", str(tmp_path))
    runner = CliRunner()

    def call(*arguments: str) -> str:
        result = runner.invoke(app, list(arguments))
        assert result.exit_code == 0, result.output
        return result.stdout

    async def store_run() -> None:
        fabric = open_fabric(FabricSettings(data_dir=tmp_path))
        await store(fabric.records, planned("run-1", utc_now() - 367 * DAY))
        await fabric.close()

    asyncio.run(store_run())
    assert call("raw", "last", "1", "--burst", "2") == RAW.decode()
    assert "would be deleted: 1 runs" in call("prune", "--older-than", "364")
    assert json.loads(call("prune", "-o", "json"))["runs"][0]["run_id"] == "run-1"
    assert "deleted: 1 runs" in call("prune", "--older-than", "364", "--delete")
    assert "would be deleted: 0 runs" in call("prune", "--older-than", "364")
    result = runner.invoke(app, ["prune", "--older-than", "-1"])
    assert result.exit_code == 3
    assert "--older-than -1: " in result.stderr
