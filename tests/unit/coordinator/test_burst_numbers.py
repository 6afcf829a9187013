"""Test that parameters, options, answers, events and exports count bursts from 1."""

import contextlib
import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import pytest

from broadside.coordinator.api.app import create_app
from broadside.coordinator.cli import load
from broadside.coordinator.cli.command_list import GROUPS, SERVICE_COMMANDS
from broadside.coordinator.cli.document_output import print_document
from broadside.coordinator.cli.run_event_state import RunEventState
from broadside.coordinator.core.summary import RunSummary, canonical, parse_run
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.views.feeds import Feeds
from broadside.exchange.fabric import Fabric
from tests.unit.coordinator.stored_run import store_run
from tests.unit.coordinator.views.charts.views import FAULTY, ended

# Time between the starts of the stored bursts.
SPACING: Final = timedelta(minutes=1)
BURSTS_COUNT: Final = 4


def parameters_of(document: Any) -> Iterator[tuple[str, Any]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                yield f"{path} {parameter['name']}", parameter


def minimum_of(schema: Any) -> object:
    """Return the minimum of a number, which may be nullable."""
    return next(part["minimum"] for part in (schema, *schema.get("anyOf", ())) if "minimum" in part)


async def test_burst_parameters_count_from_1(fabric: Fabric) -> None:
    document = create_app(Coordinator(fabric), tick_s=None).openapi()
    bursts = {
        name: minimum_of(parameter["schema"])
        for name, parameter in parameters_of(document)
        if name.endswith(" burst")
    }
    assert len(bursts) == 6
    assert set(bursts.values()) == {1}
    assert not [name for name, _ in parameters_of(document) if "index" in name]


def test_burst_options_count_from_1() -> None:
    commands = [load(name) for names in (*GROUPS.values(), SERVICE_COMMANDS) for name in names]
    options = [
        parameter
        for command in commands
        for parameter in command.params
        if parameter.name == "burst" and "--burst" in parameter.opts
    ]
    assert len(options) == 4
    assert {getattr(option.type, "min", None) for option in options} == {1}
    assert {option.default for option in options} == {1}


@pytest.mark.parametrize("number", [1, 2])
async def test_parameter_and_column_have_the_same_number(fabric: Fabric, number: int) -> None:
    run_id = await store_run(fabric)
    transport = httpx.ASGITransport(create_app(Coordinator(fabric), tick_s=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        run = f"/v1/runs/{run_id}"
        burst = (await http.get(f"{run}/bursts/{number}")).json()
        rows = await http.get(f"{run}/export", params={"format": "csv", "table": "bursts"})
        series = await http.get(
            f"{run}/series", params={"burst": number}, headers={"Accept": "text/csv"}
        )
        chart = (await http.get(f"{run}/charts/throughput", params={"burst": number})).json()
    exported = {row["burst"]: row for row in csv.DictReader(io.StringIO(rows.text))}
    assert {"0"}.isdisjoint(exported) and exported.keys() >= {"1", "2"}
    assert (
        exported[str(number)]["planned_start_at"][:19] == burst["summary"]["planned_start_at"][:19]
    )
    first = next(csv.DictReader(io.StringIO(series.text)))
    start_at = datetime.fromisoformat(burst["summary"]["planned_start_at"])
    # The first row may be the second before the start.
    assert abs(datetime.fromisoformat(first["at"]).replace(tzinfo=UTC) - start_at) < SPACING / 2
    assert f"burst {number}" in chart["figure"]["title"]
    assert burst["summary"]["burst"] == burst["status"]["burst"] == chart["burst"] == number


async def test_fields_have_one_name_and_count_from_1(fabric: Fabric) -> None:
    schemas = create_app(Coordinator(fabric), tick_s=None).openapi()["components"]["schemas"]
    fields = [(model, name) for model in schemas for name in schemas[model].get("properties", ())]
    assert not [field for field in fields if field[1] == "burst_index"]
    # Positions in a list that is not of bursts.
    assert {model for model, name in fields if name == "index"} <= {"Pair", "TrialResult"}
    numbered = [model for model, name in fields if name == "burst"]
    assert len(numbered) >= 14
    for model in numbered:
        assert minimum_of(schemas[model]["properties"]["burst"]) == 1, model


ANSWERS: Final = (
    "bursts",
    "trends",
    "charts/throughput",
    "progress",
    "reconciliation",
    "report?format=json",
    "series",
    "summary",
)


def names_of(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name, inner
            yield from names_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names_of(inner)


@pytest.mark.parametrize("path", ANSWERS)
async def test_answers_count_bursts_from_1(fabric: Fabric, path: str) -> None:
    run_id = await store_run(fabric)
    transport = httpx.ASGITransport(create_app(Coordinator(fabric), tick_s=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        answer = await http.get(f"/v1/runs/{run_id}/{path}")
    assert answer.is_success, answer.text
    matches = list(names_of(answer.json()))
    assert not [name for name, _ in matches if name == "burst_index"]
    numbers = [value for name, value in matches if name == "burst" and isinstance(value, int)]
    # The answer "progress" is about the newest burst.
    assert min(numbers) == (BURSTS_COUNT if path == "progress" else 1)


async def test_tables_of_answers_count_from_1(fabric: Fabric) -> None:
    run_id = await store_run(fabric)
    transport = httpx.ASGITransport(create_app(Coordinator(fabric), tick_s=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for path, column in (("summary", "burst"), ("bursts", "summary_burst")):
            answer = await http.get(f"/v1/runs/{run_id}/{path}", headers={"Accept": "text/csv"})
            rows = list(csv.DictReader(io.StringIO(answer.text)))
            assert [row[column] for row in rows[:2]] == ["1", "2"]


async def test_events_count_from_1(fabric: Fabric) -> None:
    run_id = await store_run(fabric)
    feed = await Feeds(Coordinator(fabric)).open(run_id, 1)
    shown: dict[str, Any] = {}
    async with contextlib.aclosing(feed.follow(None)) as events:
        async for event in events:
            if event.name is not None:
                shown[event.name] = json.loads(event.data)
            if event.name == "summary":
                break
    assert shown["status"]["burst"]["burst"] == 2
    assert {shown[name]["burst"] for name in ("figures", "seconds", "counter")} == {2}
    assert [burst["burst"] for burst in shown["summary"]["bursts"]][:2] == [1, 2]
    assert not [name for name, _ in names_of(shown) if name == "burst_index"]
    state = RunEventState()
    for name in ("status", "figures", "seconds", "counter"):
        state.process(name, json.dumps(shown[name]))
    assert state.burst_index == 1


def test_commands_count_from_1(capsys: pytest.CaptureFixture[str]) -> None:
    summary = ended(FAULTY)[2]
    print_document(summary)
    printed = json.loads(capsys.readouterr().out)
    assert [burst["burst"] for burst in printed["bursts"]][:2] == [1, 2]
    assert "index" not in printed["bursts"][0]
    assert RunSummary.parse_answer(printed) == summary


def test_stored_summary_counts_from_0() -> None:
    summary = ended(FAULTY)[2]
    stored = json.loads(canonical(summary))
    assert [burst["index"] for burst in stored["bursts"]][:2] == [0, 1]
    assert "burst" not in stored["bursts"][0]
    assert parse_run(canonical(summary)) == summary
