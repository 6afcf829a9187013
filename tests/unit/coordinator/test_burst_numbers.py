"""Test that API parameters, CLI options and exports count bursts from 1."""

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import pytest

from broadside.coordinator.api.app import create_app
from broadside.coordinator.cli import load
from broadside.coordinator.cli.command_list import GROUPS, SERVICE_COMMANDS
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import Fabric
from tests.unit.coordinator.stored_run import store_run

# Time between the starts of the stored bursts.
SPACING: Final = timedelta(minutes=1)


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
    # Stored fields named index count from 0.
    assert burst["summary"]["index"] == number - 1
