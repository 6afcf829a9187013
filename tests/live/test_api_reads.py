"""Test API reads of stored runs with paging, formats, metrics and conditional requests."""

import csv
import io
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from prometheus_client.parser import text_string_to_metric_families

from broadside.coordinator.api.app import create_app
from broadside.coordinator.api.examples import FILE, REQUESTS, answers
from broadside.coordinator.api.page_files import site
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.plan.budget import basis
from broadside.coordinator.core.plan.expected_usage import expect_usage
from broadside.coordinator.runs.budgets import Budgets
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.listing import CostSum, RunFilter, aggregate_runs
from broadside.coordinator.views.prometheus_metrics import METRICS
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import Role
from broadside.exchange.records import Document
from tests.api_examples import COMMIT, address, collect
from tests.fuzz_store import OVER, STUDY, store
from tests.synthetic_runs import SMALL, measured, store_run
from tests.unit.coordinator.presences import presence

pytestmark = pytest.mark.live

RUN = "stored-one"
DAY_AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.fixture
async def fabric(tmp_path: Path) -> AsyncIterator[Fabric]:
    fabric = open_fabric(FabricSettings(data_dir=tmp_path / "data"))
    yield fabric
    await fabric.close()


@pytest.fixture
async def http(fabric: Fabric) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(Coordinator(fabric), tick_s=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


async def get(http: httpx.AsyncClient, path: str, **more: Any) -> httpx.Response:
    answer = await http.get(path, **more)
    assert answer.status_code == 200, answer.text
    return answer


async def pages(http: httpx.AsyncClient, path: str) -> tuple[list[Any], int]:
    """Return the items of all pages of a list, and the number of pages."""
    items: list[Any] = []
    count = 0
    following: str | None = path
    while following is not None:
        answer = await get(http, following)
        items += answer.json()
        count += 1
        following = answer.links["next"]["url"] if "next" in answer.links else None
    return items, count


async def test_run_list_pages_and_filters(fabric: Fabric, http: httpx.AsyncClient) -> None:
    for number in range(7):
        label = {"idps": "on" if number % 2 else "off"}
        at = DAY_AT + timedelta(hours=number)
        await store_run(fabric, f"run-{number}", created_at=at, labels=label)
    await store_run(fabric, "run-open", created_at=DAY_AT + timedelta(hours=9), bursts_over=1)
    items, count = await pages(http, "/v1/runs?limit=3")
    assert [item["run_id"] for item in items] == ["run-open"] + [
        f"run-{n}" for n in (6, 5, 4, 3, 2, 1, 0)
    ]
    assert count == 3
    by = {
        "label=idps=on": {"run-1", "run-3", "run-5"},
        "state=open": {"run-open"},
        "state=finished&label=idps=off": {"run-0", "run-2", "run-4", "run-6"},
        "verdict=pass": set(),
        "by=tests&before_at=2026-11-20T13:30:00Z": {"run-0", "run-1"},
        "from_at=2026-11-20T17:30:00Z": {"run-6", "run-open"},
        "scenario=other": set(),
    }
    for requested, expected in by.items():
        result, _ = await pages(http, f"/v1/runs?limit=2&{requested}")
        assert {item["run_id"] for item in result} == expected, requested
    wrong = ("cursor=%%%", "limit=0", "label=idps", "before_at=2026-11-20T13:30:00", "from_at=0.5")
    for requested in wrong:
        assert (await http.get(f"/v1/runs?{requested}")).status_code == 422, requested


async def test_studies_are_paged_newest_first(http: httpx.AsyncClient) -> None:
    made = []
    for _ in range(3):
        answer = await http.post("/v1/studies", json=REQUESTS["POST", "/v1/studies"])
        assert answer.status_code == 202, answer.text
        made.append(answer.json()["study_id"])
    items, count = await pages(http, "/v1/studies?limit=2")
    assert [item["study_id"] for item in items] == sorted(made, reverse=True)
    assert count == 2
    assert (await http.get("/v1/studies?cursor=%%%")).status_code == 422


async def test_aggregates_runs_by_label_and_time(fabric: Fabric, http: httpx.AsyncClient) -> None:
    for number in range(4):
        at = DAY_AT + timedelta(days=number // 2)
        await store_run(fabric, f"run-{number}", created_at=at, labels={"idps": f"{number % 2}"})
    await store_run(fabric, "run-open", created_at=DAY_AT, bursts_over=0)
    summary = measured(SMALL)[2]
    by_day = (await get(http, "/v1/aggregate?group_by=day")).json()
    assert [(g["group"], g["runs_count"], g["open_count"]) for g in by_day["groups"]] == [
        ("2026-11-20", 3, 1),
        ("2026-11-21", 2, 0),
    ]
    first = by_day["groups"][0]
    assert first["verdicts"] == {summary.verdict.value: 2}
    received = summary.fleet_ip_bits_per_second
    conclusive = summary.verdict.value != "inconclusive"
    assert first["received" if conclusive else "received_inconclusive"] == {
        "layer": "ip",
        "runs_count": 2,
        "half_width_bits_per_second": None,
        **{f"{what}_bits_per_second": received for what in ("mean", "median", "min", "max")},
    }
    by_hour = "/v1/aggregate?group_by=hour&timezone=America/New_York"
    assert (await get(http, by_hour)).json()["groups"][0]["group"].endswith("00-0500")
    for form, group in (("week", "2026-W47"), ("month", "2026-11")):
        answer = (await get(http, f"/v1/aggregate?group_by={form}")).json()
        assert [g["group"] for g in answer["groups"]] == [group]
    assert (await http.get("/v1/aggregate?timezone=Mars")).status_code == 422
    by_label = (await get(http, "/v1/aggregate?group_by=label:idps")).json()
    assert [g["group"] for g in by_label["groups"]] == ["0", "1", None]
    assert (await http.get("/v1/aggregate?group_by=colour")).status_code == 422


async def test_bursts_and_pairs_are_paged(fabric: Fabric, http: httpx.AsyncClient) -> None:
    await store_run(fabric, RUN)
    summary = measured(SMALL)[2]
    bursts, count = await pages(http, f"/v1/runs/{RUN}/bursts?limit=1")
    assert count == 2
    assert [entry["summary"]["verdict"] for entry in bursts] == [
        burst.verdict.value for burst in summary.bursts
    ]
    assert all(entry["summary"]["pairs"] == [] for entry in bursts)
    one = (await get(http, f"/v1/runs/{RUN}/bursts/2")).json()
    assert one == bursts[1]
    pairs, count = await pages(http, f"/v1/runs/{RUN}/pairs?burst=2&limit=3")
    assert (len(pairs), count) == (4, 2)
    assert [entry["summary"]["state"] for entry in pairs] == [
        pair.state.value for pair in summary.bursts[1].pairs
    ]
    for path in ("bursts/3", "pairs?burst=3", "series?burst=3"):
        assert (await http.get(f"/v1/runs/{RUN}/{path}")).status_code == 404, path


def series_of(burst_index: int = 0) -> BurstSeries:
    return measured(SMALL)[1][burst_index].series


async def test_series_equals_measured_seconds_in_every_format(
    fabric: Fabric, http: httpx.AsyncClient
) -> None:
    await store_run(fabric, RUN)
    stored = series_of()
    path = f"/v1/runs/{RUN}/series"
    as_json = (await get(http, path)).json()
    columns = {column["name"]: column for column in as_json["columns"]}
    name = "received_payload_bits_per_second"
    assert (columns[name]["unit"], columns[name]["layer"]) == ("bit/s", "payload")
    values = columns[name]["values"]
    silent = stored.coverage_ratio == 0
    # This needs gaps to be a useful test.
    assert silent.any()
    assert [value is None for value in values] == silent.tolist()
    known = np.array([value for value in values if value is not None])
    assert known == pytest.approx(stored.received_bytes[~silent] * 8, rel=1e-8)

    text = (await get(http, path, headers={"Accept": "text/csv"})).text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row[name] for row in rows] == ["" if v is None else str(v) for v in values]

    arrow = (
        await get(http, path, headers={"Accept": "application/vnd.apache.arrow.stream"})
    ).content
    table = pa.ipc.open_stream(arrow).read_all()
    assert table[name].to_pylist() == values
    assert table.schema.field(name).metadata == {b"unit": b"bit/s", b"layer": b"payload"}
    assert str(table.schema.field("at").type) == "timestamp[ms, tz=UTC]"

    parquet = (
        await get(http, path, headers={"Accept": "application/vnd.apache.parquet, */*;q=0.1"})
    ).content
    read = pyarrow.parquet.read_table(io.BytesIO(parquet))
    assert read[name].to_pylist() == values
    assert read.schema.metadata[b"run_id"] == RUN.encode()

    refused = await http.get(path, headers={"Accept": "image/png"})
    assert refused.status_code == 406


async def test_coarser_resolution_keeps_the_bytes(fabric: Fabric, http: httpx.AsyncClient) -> None:
    await store_run(fabric, RUN)
    stored = series_of()
    answer = (await get(http, f"/v1/runs/{RUN}/series?resolution_s=7")).json()
    columns = {column["name"]: column["values"] for column in answer["columns"]}
    amounts = [
        rate / 8 * known_s
        for rate, known_s in zip(
            columns["received_payload_bits_per_second"], columns["known_s"], strict=True
        )
        if rate is not None
    ]
    assert sum(amounts) == pytest.approx(float(stored.received_bytes.sum()), rel=1e-7)


async def test_series_by_pair(fabric: Fabric, http: httpx.AsyncClient) -> None:
    await store_run(fabric, RUN)
    rates = series_of().flows[0].pairs_bits_per_second
    missing = [p.pair_index for p in measured(SMALL)[2].bursts[0].pairs if p.state != "measured"]
    answer = (await get(http, f"/v1/runs/{RUN}/series?of=pair")).json()
    columns = {column["name"]: column["values"] for column in answer["columns"]}
    assert len(columns["pair"]) == rates.size
    name = "received_payload_bits_per_second"
    lost = [
        v
        for p, v in zip(columns["pair"], columns[name], strict=True)
        if p == f"pair-{missing[0] + 1:03d}"
    ]
    assert set(lost) == {None}
    one = (await get(http, f"/v1/runs/{RUN}/series?of=pair&pair=2")).json()
    values = {column["name"]: column["values"] for column in one["columns"]}
    assert set(values["pair"]) == {"pair-002"}
    unasked = (await get(http, f"/v1/runs/{RUN}/series?pair=2")).json()
    assert unasked == one
    for path in ("series?of=fleet&pair=2", "series?of=pair&pair=99", "series?of=pair&pair=x"):
        assert (await http.get(f"/v1/runs/{RUN}/{path}")).status_code == 404


async def test_reads_verdict_and_reconciliation(fabric: Fabric, http: httpx.AsyncClient) -> None:
    await store_run(fabric, RUN)
    await store_run(fabric, "open-one", bursts_over=1)
    summary = measured(SMALL)[2]
    verdict = (await get(http, f"/v1/runs/{RUN}/verdict")).json()
    assert verdict["verdict"] == summary.verdict.value
    assert sum(verdict["bursts"].values()) == len(summary.bursts)
    answer = (await get(http, f"/v1/runs/{RUN}/reconciliation?limit=1")).json()
    assert summary.reconciliation is not None
    assert answer["reconciliation"]["residual_ratio"] == summary.reconciliation.residual_ratio
    assert len(answer["bursts"]) == 1
    for path in ("verdict", "reconciliation", "summary"):
        assert (await http.get(f"/v1/runs/open-one/{path}")).status_code == 409, path


async def test_etag_matches_every_form_of_if_none_match(
    fabric: Fabric, http: httpx.AsyncClient
) -> None:
    await store_run(fabric, RUN)
    path = f"/v1/runs/{RUN}/summary"
    first = await get(http, path)
    etag = first.headers["etag"]
    assert first.headers["cache-control"] == "private, no-cache"
    for wanted in (etag, f'{etag}, "other"', etag.removeprefix("W/"), "*"):
        again = await http.get(path, headers={"If-None-Match": wanted})
        assert (again.status_code, again.content) == (304, b""), wanted
        assert again.headers["etag"] == etag
    assert (await http.get(path, headers={"If-None-Match": '"other"'})).status_code == 200


async def test_every_get_has_etag_and_returns_304(
    fabric: Fabric,
) -> None:
    app = create_app(Coordinator(fabric), tick_s=None)
    transport = httpx.ASGITransport(app)
    other = ["/", "/report.html", f"/web/{site().version}/words.js", "/openapi.json"]
    read = [path for path, methods in app.openapi()["paths"].items() if "get" in methods]
    assert len(read) > 30
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for path in [*read, *other, "/problems/unknown-run"]:
            here = await address(http, fabric, "GET", path)
            first = await get(http, here)
            if path.endswith("/events"):
                # This is a stream of new events.
                assert "ETag" not in first.headers
                continue
            again = await http.get(here, headers={"If-None-Match": first.headers["ETag"]})
            if path == "/metrics" or path.endswith("/report"):
                # These documents contain their creation time.
                continue
            assert (again.status_code, again.content) == (304, b""), path


async def test_invalid_run_id_returns_404(http: httpx.AsyncClient) -> None:
    for run_id in ("no-such", "A", "a%3Fb", "a%23b", "%00", "x" * 600, "..%5C"):
        assert (await http.get(f"/v1/runs/{run_id}")).status_code == 404, run_id


async def test_metrics_match_the_documentation(fabric: Fabric, http: httpx.AsyncClient) -> None:
    await store_run(fabric, RUN)
    await fabric.records.fleet.beat(presence(Role.CLIENT, 1, beat_at=datetime.now(UTC)))
    await fabric.records.fleet.beat(presence(Role.SERVER, 1))
    answer = await get(http, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {f.name: f for f in text_string_to_metric_families(answer.text)}
    assert families.keys() <= METRICS.keys()
    agents = {
        (s.labels["role"], s.labels["state"]): s.value for s in families["broadside_agents"].samples
    }
    assert agents["client", "idle"] == 1
    assert agents["server", "stale"] == 1
    verdicts = {s.labels["verdict"]: s.value for s in families["broadside_run_verdict"].samples}
    assert verdicts[measured(SMALL)[2].verdict.value] == 1
    assert sum(verdicts.values()) == 1
    # No run is active, so the metric should be absent and not zero.
    assert "broadside_fleet_bytes_per_second" not in families


async def test_is_ready_while_ticks_are_recent(fabric: Fabric) -> None:
    coordinator = Coordinator(fabric)
    app = create_app(coordinator, tick_s=60.0)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        # The coordinator has yet to complete a tick.
        assert (await http.get("/readyz")).status_code == 503
        coordinator.ticked_at = datetime.now(UTC)
        assert (await http.get("/readyz")).status_code == 200
        coordinator.ticked_at -= timedelta(seconds=120)
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"


async def test_next_coordinator_stores_missing_run_outcome(
    fabric: Fabric,
) -> None:
    await store_run(fabric, RUN, told=False)
    coordinator = Coordinator(fabric)
    plan = await coordinator.stored.read_plan(RUN)
    usage = expect_usage(plan.spec, [presence(Role.CLIENT, 1, beat_at=DAY_AT)])
    priced_on = basis(plan.spec, usage).model_dump_json()
    await fabric.records.private.save_document(RUN, Document.PRICE, priced_on.encode())
    await coordinator.tick()
    (reported,) = [header async for _, header in fabric.records.private.scan_runs()]
    assert reported.outcome is not None
    assert reported.outcome.verdict == measured(SMALL)[2].verdict.value
    assert reported.outcome.cost_usd == (await Budgets(coordinator).read(RUN)).spent.total_usd
    [group] = (await aggregate_runs(fabric.records, RunFilter(), "week")).groups
    cost_usd = reported.outcome.cost_usd or 0.0
    assert group.cost == CostSum(runs_count=1, charged_usd=0.0, uncharged_usd=cost_usd)


async def test_example_requests_work_and_responses_match_examples(
    fabric: Fabric,
) -> None:
    app = create_app(Coordinator(fabric), tick_s=None)
    result = await collect(fabric, app)
    document: Any = app.openapi()
    operations = {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    with_body = {name for name, operation in operations.items() if "requestBody" in operation}
    assert with_body == {f"{method} {path}" for method, path in REQUESTS}
    stored = answers()
    renew = "renew the examples: python -m tests.api_examples"
    assert stored.keys() == result.keys() == operations.keys(), renew
    for name, operation in operations.items():
        (success,) = [v for k, v in operation["responses"].items() if k.startswith("2")]
        assert stored[name].keys() == result[name].keys() != set(), (name, renew)
        for media_type, example in stored[name].items():
            content = success["content"][media_type]
            assert content["example"] == example
            complete = {**content.get("schema", {}), "components": document["components"]}
            jsonschema_rs.validate(complete, example)
            # Only existing columns can be compared.
            if media_type == "text/csv":
                assert example.splitlines()[0] == result[name][media_type].splitlines()[0], (
                    name,
                    renew,
                )


def test_examples_contain_no_commit_id() -> None:
    """Test with fields and metrics, because a commit id would change with every commit."""
    text = FILE.read_text(encoding="utf-8")
    of_fields = re.findall(r'"broadside_version": "[^"(]*\(([^)]*)\)"', text)
    of_metrics = re.findall(r'revision=\\"([^"\\]*)\\"', text)
    assert len(of_fields) >= 2
    assert len(of_metrics) == 1
    assert {*of_fields, *of_metrics} == {COMMIT}
    assert "-dirty" not in text


ARROW, PARQUET = "application/vnd.apache.arrow.stream", "application/vnd.apache.parquet"


def rows_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the rows of a response, read with the usual reader for its format."""
    rows: list[dict[str, Any]]
    if answer.headers["Content-Type"] == ARROW:
        rows = pa.ipc.open_stream(answer.content).read_all().to_pylist()
    elif answer.headers["Content-Type"] == PARQUET:
        rows = pa.parquet.read_table(io.BytesIO(answer.content)).to_pylist()
    else:
        assert answer.headers["Content-Type"].startswith("text/csv")
        rows = list(csv.DictReader(io.StringIO(answer.text)))
    return rows


def _rows(document: Any, field: str | None) -> Any:
    """Return the rows of a JSON response that the table format should contain."""
    for name in (field or "").replace(".", " ").split():
        document = document[name]
    return [document] if field == "." else document


async def test_every_list_supports_csv_arrow_and_parquet(
    fabric: Fabric, http: httpx.AsyncClient
) -> None:
    # The fabric contains two runs, a study, a schedule and a dead letter.
    await store(fabric)
    await fabric.records.fleet.beat(presence(Role.CLIENT, 1, beat_at=DAY_AT))
    named = {"{run_id}": OVER, "{study_id}": STUDY, "{burst_index}": "0"}
    document = (await get(http, "/openapi.json")).json()
    requested = set()
    for path, operations in document["paths"].items():
        operation = operations.get("get", {})
        content = operation.get("responses", {}).get("200", {}).get("content", {})
        if PARQUET not in content or path.endswith(("/series", "/export")):
            continue
        for name, value in named.items():
            path = path.replace(name, value)
        if "{" in path:
            continue
        response = (await get(http, path)).json()
        rows = _rows(response, operation.get("x-rows"))
        for media_type in ("text/csv", ARROW, PARQUET):
            answer = await get(http, path, headers={"Accept": media_type})
            assert answer.headers["Content-Type"].startswith(media_type)
            assert len(rows_of(answer)) == len(rows), (path, media_type)
            assert "accept" in answer.headers["Vary"].lower()
        assert (await http.get(path, headers={"Accept": "image/png"})).status_code == 406
        requested.add(path.removeprefix("/v1/"))
    lists = {"runs", "aggregate", "agents", "scenarios", "schedules", "studies", "audit"}
    assert lists | {"deadletters", f"runs/{OVER}/pairs", f"studies/{STUDY}"} <= requested


async def test_file_formats_preserve_times_units_and_text(
    fabric: Fabric, http: httpx.AsyncClient
) -> None:
    await store_run(fabric, RUN, created_at=DAY_AT, labels={"note": "=1+1"})
    answer = await get(http, "/v1/runs", headers={"Accept": PARQUET})
    [row] = rows_of(answer)
    assert row["created_at"] == DAY_AT
    assert row["labels"] == '{"note":"=1+1"}'
    schema = pa.parquet.read_schema(io.BytesIO(answer.content))
    rate = schema.field("outcome_fleet_received_bits_per_second")
    assert rate.metadata[b"unit"] == b"bit/s"
    [cell] = rows_of(await get(http, "/v1/runs", headers={"Accept": "text/csv"}))
    assert cell["labels"] == '{"note":"=1+1"}'
