"""Tests for the OpenAPI document, request validation, compression and idempotency keys."""

import gzip
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import brotli
import httpx
import openapi_spec_validator
import pytest
import pytest_asyncio
import zstandard

from broadside.coordinator.api.app import create_app
from broadside.coordinator.api.auth_middleware import AuthConfig
from broadside.coordinator.api.expected_errors import EXPECTED
from broadside.coordinator.api.page_files import site
from broadside.coordinator.api.problems import KINDS, _request_errors, type_of
from broadside.coordinator.auth.signin import SignIn
from broadside.coordinator.auth.static_tokens import Tokens
from broadside.coordinator.coordinator_log import add_request_id
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from tests import synthetic_runs
from tests.unit.coordinator.presences import fleet
from tests.unit.coordinator.stored_run import store_run


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """Share an API between tests because the OpenAPI document is slow to build."""
    fabric = open_fabric(FabricSettings(data_dir=tmp_path_factory.mktemp("shared_api")))
    transport = httpx.ASGITransport(create_app(Coordinator(fabric), tick_s=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield http
    await fabric.close()


def test_document_is_valid_openapi_3_1(document: Any) -> None:
    assert document["openapi"].startswith("3.1")
    openapi_spec_validator.validate(document)
    schemas = document["components"]["schemas"]
    refs = re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(document))
    assert set(refs) <= schemas.keys()
    operations = [o for methods in document["paths"].values() for o in methods.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z_]+", name) for name in names), names
    described = {tag["name"] for tag in document["tags"]}
    assert {tag for operation in operations for tag in operation["tags"]} == described


def test_document_has_examples_for_parameters_and_responses(document: Any) -> None:
    for path, method, operation in [
        (p, m, o) for p, methods in document["paths"].items() for m, o in methods.items()
    ]:
        for parameter in operation.get("parameters", []):
            assert parameter["description"], (method, path, parameter)
            assert "example" in parameter or parameter["name"] == "cursor", (method, path)
        for status, answer in operation["responses"].items():
            for media_type, content in answer["content"].items():
                is_text = "json" in media_type or media_type.startswith("text/")
                assert "example" in content or not is_text, (method, path, status, media_type)
                if status >= "4":
                    problem = content["example"]
                    assert media_type == "application/problem+json"
                    assert problem["type"] == type_of(problem["title"])
                    assert KINDS[problem["title"]][0] == problem["status"] == int(status)


@pytest.mark.parametrize("sign_in", [True, False])
def test_document_security_matches_the_sign_in_setting(fabric: Fabric, sign_in: bool) -> None:
    guard = AuthConfig(sign_in=SignIn(Tokens(fabric.private), None) if sign_in else None)
    document: Any = create_app(Coordinator(fabric), tick_s=None, guard=guard).openapi()
    assert document["security"] == ([{"bearer": []}] if sign_in else [])
    assert document["paths"]["/healthz"]["get"]["security"] == []


@pytest.mark.parametrize(
    ("address", "name", "hint"),
    [
        ("/v1/runs?form_at=2026-11-01T00:00:00Z", "form_at", "did you mean from_at?"),
        ("/v1/scenarios?verbose=1", "verbose", "takes none"),
        ("/v1/aggregate?by_=x&group_by=day&grup=1", "by_", "did you mean by?"),
    ],
)
async def test_rejects_unknown_parameter_with_suggestion(
    api: httpx.AsyncClient, address: str, name: str, hint: str
) -> None:
    answer = await api.get(address)
    assert answer.status_code == 422
    fault = answer.json()["errors"][0]
    assert (fault["parameter"], "pointer" in fault) == (name, False)
    assert hint in fault["message"]


async def test_problem_has_pointer_and_explained_type(
    api: httpx.AsyncClient,
) -> None:
    answer = await api.post("/v1/prune", json={"older_than_days": 1, "dry_run": 0})
    problem = answer.json()
    assert (answer.status_code, answer.headers["Content-Type"]) == (422, "application/problem+json")
    assert [fault["pointer"] for fault in problem["errors"]] == ["/dry_run"]
    response = await api.get(problem["type"])
    assert response.is_success and KINDS["Invalid request"][1] in response.text
    not_found = (await api.get("/nowhere")).json()
    assert not_found["type"] == type_of("Not found") and "errors" not in not_found


def test_problem_types_are_unique() -> None:
    titles = [
        *(error.title for error in _request_errors() if "title" in vars(error)),
        *{title for _, title, _ in EXPECTED.values()},
    ]
    types = [type_of(title) for title in titles]
    assert sorted(set(types)) == sorted(types)
    assert set(types) <= {type_of(title) for title in KINDS}
    assert len({type_of(title) for title in KINDS}) == len(KINDS)


async def test_all_problem_types_are_documented(api: httpx.AsyncClient) -> None:
    for title, (status, meaning) in KINDS.items():
        assert len(meaning) > 15 and 400 <= status < 600, title
        assert meaning in (await api.get(type_of(title))).text
    assert (await api.get("/problems/none")).status_code == 404
    for index in ("/problems", "/problems/"):
        lines = (await api.get(index)).text.splitlines()
        assert {line.split()[0] for line in lines} == {type_of(title) for title in KINDS}


def test_field_by_always_names_a_person(document: Any) -> None:
    """It must not be used to group or to select data."""
    parameters = [
        parameter
        for operations in document["paths"].values()
        for operation in operations.values()
        for parameter in operation.get("parameters", [])
        if parameter["name"] == "by"
    ]
    schemas = document["components"]["schemas"].values()
    fields = [
        schema["properties"]["by"] for schema in schemas if "by" in schema.get("properties", {})
    ]
    assert len(parameters) >= 2 and len(fields) >= 5
    assert all("who" in parameter["description"] for parameter in parameters)
    texts = [*fields, *(parameter["schema"] for parameter in parameters)]
    assert all("string" in str(schema) and "enum" not in str(schema) for schema in texts)


async def test_head_returns_the_headers_of_get(api: httpx.AsyncClient) -> None:
    for path in ("/v1/scenarios", "/v1/runs", "/healthz", "/v1/runs/none"):
        head, get = await api.head(path), await api.get(path)
        assert (head.status_code, head.content) == (get.status_code, b"")
        assert head.headers["Content-Length"] == get.headers["Content-Length"]


async def test_allow_header_lists_supported_methods(api: httpx.AsyncClient) -> None:
    for path, allowed in (
        ("/v1/runs", "GET, HEAD, POST"),
        ("/v1/runs/some-run", "GET, HEAD, PATCH"),
        ("/v1/deadletters/1", "DELETE, GET, HEAD"),
        ("/v1/prune", "POST"),
    ):
        answer = await api.put(path)
        assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
    assert (await api.head("/v1/prune")).status_code == 405


@pytest.mark.parametrize(
    ("accepted", "encoding", "unpack"),
    [
        ("gzip", "gzip", gzip.decompress),
        ("br, gzip", "br", brotli.decompress),
        ("gzip, br, zstd", "zstd", lambda packed: zstandard.decompress(packed)),
        ("br;q=0, gzip", "gzip", gzip.decompress),
        ("identity", None, bytes),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_response_is_compressed_as_requested(
    shared_api: httpx.AsyncClient,
    accepted: str,
    encoding: str | None,
    unpack: Callable[[bytes], bytes],
) -> None:
    async with shared_api.stream(
        "GET", "/openapi.json", headers={"Accept-Encoding": accepted}
    ) as answer:
        packed = b"".join([part async for part in answer.aiter_raw()])
    assert answer.headers.get("Content-Encoding") == encoding
    assert "Accept-Encoding" in answer.headers["Vary"]
    assert json.loads(unpack(packed))["info"]["title"] == "Broadside"


@pytest.mark.parametrize("name", ["app.css", "app.js"])
async def test_page_files_are_compressed(api: httpx.AsyncClient, name: str) -> None:
    path = f"/web/{site().version}/{name}"
    plain = await api.get(path, headers={"Accept-Encoding": "identity"})
    for encoding in ("gzip", "br", "zstd"):
        packed = await api.get(path, headers={"Accept-Encoding": encoding})
        assert packed.headers["content-encoding"] == encoding
        assert packed.content == plain.content
        assert int(packed.headers["content-length"]) < len(plain.content) / 2


async def test_event_stream_is_not_compressed(api: httpx.AsyncClient, fabric: Fabric) -> None:
    path = f"/v1/runs/{await store_run(fabric)}/events"
    answer = await api.get(path, headers={"Accept-Encoding": "gzip, br, zstd"})
    assert "event: summary" in answer.text
    assert "content-encoding" not in answer.headers


async def test_unchanged_response_returns_304(api: httpx.AsyncClient) -> None:
    first = await api.get("/v1/runs")
    again = await api.get("/v1/runs", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_rejected_launch_releases_its_idempotency_key(
    api: httpx.AsyncClient, fabric: Fabric
) -> None:
    headers = {"Idempotency-Key": "nightly"}
    body = {"scenario": "smoke", "overrides": {"pairs_count": 3}}
    assert (await api.post("/v1/runs", json=body, headers=headers)).status_code == 409
    for presence in fleet(3):
        await fabric.records.fleet.beat(presence)
    answer = await api.post("/v1/runs", json={"scenario": "smoke"}, headers=headers)
    assert answer.status_code == 202, answer.text
    again = await api.post("/v1/runs", json={"scenario": "smoke"}, headers=headers)
    assert again.json()["run_id"] == answer.json()["run_id"]
    other = await api.post("/v1/runs", json=body, headers=headers)
    assert (other.status_code, other.json()["title"]) == (409, "Idempotency key reused")


async def test_labels_of_a_finished_run_can_be_changed(
    api: httpx.AsyncClient, fabric: Fabric
) -> None:
    run_id = await synthetic_runs.store_run(fabric, "ended", labels={"idps": "on"})
    before = (await api.get(f"/v1/runs/{run_id}")).json()
    assert before["outcome"]["verdict"] in ("pass", "fail", "inconclusive")
    assert before["created_by"]
    summary = (await api.get(f"/v1/runs/{run_id}/summary")).json()
    change = {"labels": {"baseline": "accepted", "device": "fw1"}}
    changed = await api.patch(f"/v1/runs/{run_id}", json=change)
    assert changed.json() == before | {"labels": before["labels"] | change["labels"]}
    removed = await api.patch(f"/v1/runs/{run_id}", json={"labels": {"device": None}})
    assert removed.json()["labels"] == before["labels"] | {"baseline": "accepted"}
    matches = (await api.get("/v1/runs?label=baseline=accepted")).json()
    assert [run["run_id"] for run in matches] == [run_id]
    assert (await api.get("/v1/runs?label=device=fw1")).json() == []
    # The sealed plan and the verdict are not changed.
    assert (await api.get(f"/v1/runs/{run_id}/summary")).json() == summary
    unknown = await api.patch("/v1/runs/unknown", json=change)
    assert unknown.status_code == 404
    for wrong in ({}, {"labels": {"": "x"}}, {"labels": {"a": 1}}, {"scenario": "smoke"}):
        assert (await api.patch(f"/v1/runs/{run_id}", json=wrong)).status_code == 422, wrong


async def test_agents_and_scenarios_are_resources(api: httpx.AsyncClient, fabric: Fabric) -> None:
    for agent in fleet(2):
        await fabric.records.fleet.beat(agent)
    listed = (await api.get("/v1/agents")).json()
    clients = (await api.get("/v1/agents?role=client")).json()
    assert [agent for agent in listed if agent["role"] == "client"] == clients != listed
    assert (await api.get(f"/v1/agents/{clients[0]['agent_id']}")).json() == clients[0]
    scenarios = (await api.get("/v1/scenarios")).json()
    assert (await api.get("/v1/scenarios/smoke")).json() == scenarios["smoke"]
    for path in ("/v1/agents/nobody", "/v1/scenarios/nothing"):
        answer = await api.get(path)
        assert answer.status_code == 404
        assert path.rpartition("/")[0] in answer.json()["detail"]


async def test_filters_of_audit_log(api: httpx.AsyncClient, fabric: Fabric) -> None:
    run_id = await store_run(fabric)
    for number in range(3):
        await api.patch(f"/v1/runs/{run_id}", json={"labels": {"number": str(number)}})
    await api.post("/v1/prune", json={})
    page = await api.get(f"/v1/audit?run_id={run_id}&limit=2")
    assert [row["run_id"] for row in page.json()] == [run_id] * 2
    cursor = page.headers["Next-Cursor"]
    rest = await api.get(f"/v1/audit?run_id={run_id}&limit=2&cursor={cursor}")
    assert len(rest.json()) == 1 and "Next-Cursor" not in rest.headers
    assert (await api.get("/v1/audit?by=nobody")).json() == []


async def test_response_has_the_request_id_of_the_log(
    api: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.addFilter(add_request_id)
    given = await api.get("/v1/runs/none", headers={"X-Request-Id": "order-4711"})
    assert given.headers["X-Request-Id"] == "order-4711"
    unusable = await api.get("/v1/runs/none", headers={"X-Request-Id": "a b"})
    generated = await api.get("/v1/runs/none")
    ids = [answer.headers["X-Request-Id"] for answer in (unusable, generated)]
    assert all(re.fullmatch("[0-9a-f]{16}", request_id) for request_id in ids)
    assert len(set(ids)) == 2
    with caplog.at_level("INFO"):
        response = await api.post("/v1/runs", json={"scenario": "smoke"})
    stated = {getattr(record, "request_id", None) for record in caplog.records}
    assert stated <= {response.headers["X-Request-Id"], None}


def test_titles_of_operations_are_sentences(document: Any) -> None:
    for methods in document["paths"].values():
        for operation in methods.values():
            title = operation["summary"]
            assert " " in title and title != title.title(), title
            assert len(title) <= 120, title
