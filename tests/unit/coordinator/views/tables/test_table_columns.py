"""Tests for the columns, which do not depend on the values in the rows."""

import io
from datetime import UTC, datetime
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from broadside.coordinator.api.app import create_app
from broadside.coordinator.api.tabular_responses import ROWS
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.listing import RunGroup
from broadside.coordinator.studies.study import Study
from broadside.coordinator.views.responses import BurstEntry, PairEntry, ScheduleView
from broadside.coordinator.views.tables import make_tables
from broadside.coordinator.views.tables.formats import ARROW, CSV, PARQUET, render
from broadside.coordinator.views.tables.table_columns import column_specs, columns_of
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import Presence, Role
from broadside.exchange.records import RunHeader
from tests.unit.coordinator.presences import NOW, presence
from tests.unit.coordinator.stored_run import store_run
from tests.unit.coordinator.views.charts.views import FAULTY, ended

AT = datetime(2026, 11, 20, tzinfo=UTC)
FULL = presence(Role.SERVER, 1).model_dump(mode="json")
BARE: dict[str, Any] = {"agent_id": "a"}


def arrow(rows: list[Any], row_type: Any) -> Any:
    body = render(ARROW, {}, columns_of(rows, column_specs(row_type)))
    return pa.ipc.open_stream(body).read_all()


@pytest.mark.parametrize(
    "row_type", [RunHeader, RunGroup, BurstEntry, PairEntry, Presence, ScheduleView, Study]
)
def test_empty_table_has_all_columns(row_type: Any) -> None:
    known = arrow([], row_type).schema
    assert len(known) > 5 and len(set(known.names)) == len(known.names)
    # This row has no values.
    assert arrow([{}], row_type).schema == known


def test_unknown_value_is_null_and_type_is_unchanged() -> None:
    full, both = arrow([FULL], Presence), arrow([BARE, FULL], Presence)
    assert full.schema == both.schema
    assert both.schema.field("clock_bound_s").type == pa.float64()
    assert both.schema.field("beat_at").type == pa.timestamp("ms", "UTC")
    assert both.column("beat_at").to_pylist() == [None, NOW.replace(microsecond=250_000)]
    rows: list[Any] = [{"runs_count": 2**62 + 1}, {}]
    table = arrow(rows, RunGroup)
    assert table.schema.field("runs_count").type == pa.int64()
    # Large integers are exact.
    assert table.column("runs_count").to_pylist() == [2**62 + 1, None]


def test_unknown_cells_are_empty_in_csv() -> None:
    lines = render(CSV, {}, columns_of([{}], column_specs(RunGroup))).decode().splitlines()
    assert set(lines[1]) == {","}


def test_tabular_responses_have_a_row_type(document: Any) -> None:
    with_rows = {
        (path, method)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if ROWS in operation
    }
    wanted = {f"/v1/runs/{{run_id}}/{name}" for name in ("price", "verdict", "summary", "trends")}
    assert {(path, "get") for path in wanted} <= with_rows


async def test_accept_header_selects_format_or_is_rejected(fabric: Fabric, document: Any) -> None:
    app = create_app(Coordinator(fabric, now=lambda: NOW), tick_s=None)
    run_id = await store_run(fabric)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        for path, operations in document["paths"].items():
            if "get" not in operations or not path.startswith("/v1/") or "/events" in path:
                continue
            url = path.replace("{run_id}", run_id).replace("{name}", "throughput")
            url = url.replace("{burst_index}", "0").replace("{pair}", "1")
            if "{" in url or not (await http.get(url)).is_success:
                continue
            refused = await http.get(url, headers={"Accept": "image/png"})
            offered = operations["get"]["responses"]["200"]["content"].keys()
            assert refused.status_code == 406, path
            errors = refused.json()["errors"]
            assert [fault["parameter"] for fault in errors] == ["Accept"]
            if "/raw/" not in path:
                assert all(media_type in errors[0]["message"] for media_type in offered), path
            for media_type in offered:
                answer = await http.get(url, headers={"Accept": media_type})
                assert answer.headers["Content-Type"].split(";")[0] == media_type, path
                assert "accept" in answer.headers["Vary"].lower()
        before = await http.post("/v1/prune", json={}, headers={"Accept": "text/csv"})
        # The request is rejected before the body is read.
        assert before.status_code == 406
        for path in (f"/v1/runs/{run_id}/price", f"/v1/runs/{run_id}/verdict"):
            answer = await http.get(path, headers={"Accept": PARQUET})
            assert len(pyarrow.parquet.read_schema(io.BytesIO(answer.content))) > 5


def test_run_tables_have_the_same_columns_without_bursts() -> None:
    _, measured, summary = ended(FAULTY)
    tables = make_tables(summary, [part.series for part in measured])
    bare = make_tables(summary.model_copy(update={"bursts": ()}), [])
    for name in tables:
        known = [(column.name, column.unit, column.values.dtype.kind) for column in tables[name]]
        assert known == [(c.name, c.unit, c.values.dtype.kind) for c in bare[name]], name
    assert all(np.size(column.values) == 0 for column in bare["seconds"])
