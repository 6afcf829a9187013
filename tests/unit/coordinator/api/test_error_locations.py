"""Tests for the error locations in the response to an invalid request."""

import itertools
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from broadside.coordinator.api.app import create_app
from broadside.coordinator.api.auth_middleware import AuthConfig
from broadside.coordinator.api.examples import REQUESTS
from broadside.coordinator.auth.signin import SignIn
from broadside.coordinator.auth.static_tokens import Tokens
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import Role
from tests.unit.coordinator.presences import NOW, presence
from tests.unit.coordinator.stored_run import store_run

LAUNCH, SCHEDULE, STUDY = "/v1/runs", "/v1/schedules", "/v1/studies"
RUN = "synthetic"
module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """Share an API with a stored run between all read-only tests."""
    fabric = open_fabric(FabricSettings(data_dir=tmp_path_factory.mktemp("shared_api")))
    assert await store_run(fabric) == RUN
    transport = httpx.ASGITransport(create_app(Coordinator(fabric, now=lambda: NOW), tick_s=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield http
    await fabric.close()


def error_locations(answer: httpx.Response) -> list[str]:
    """Return the error locations if the request was rejected."""
    assert 400 <= answer.status_code < 500, answer.text
    faults = answer.json().get("errors", [])
    assert all(len(fault["message"]) > 3 and fault["field"] for fault in faults), faults
    return [fault.get("pointer", fault.get("parameter")) for fault in faults]


def launch(**overrides: object) -> dict[str, Any]:
    return {"scenario": "smoke", "overrides": overrides}


def study(**question: object) -> dict[str, Any]:
    return {"scenario": "smoke", "question": question}


NO_TEST: dict[str, Any] = {
    "recordings": [
        {**REQUESTS["POST", "/v1/imports/iperf3"]["recordings"][0], "state": "unreadable"}
    ]
}
NIGHTLY: dict[str, Any] = {"name": "nightly", "scenario": "smoke", "cron": "0 2 * * *"}


@pytest.mark.parametrize(
    ("path", "body", "locations"),
    [
        (LAUNCH, {"scenario": "smok"}, ["/scenario"]),
        (LAUNCH, {}, ["/scenario", "/spec"]),
        (LAUNCH, {"scenario": "smoke", "spec": {}}, ["/scenario", "/spec"]),
        (LAUNCH, launch(pairs_count=0), ["/overrides/pairs_count"]),
        (LAUNCH, launch(pairs=0), ["/overrides/pairs"]),
        (LAUNCH, launch(**{"traffic.streams_count": 0, "burst_s": 0}), None),
        (LAUNCH, launch(traffic={"streams_count": 0}), ["/overrides/traffic/streams_count"]),
        (LAUNCH, launch(**{"a/b~c": 1}), ["/overrides/a~1b~0c"]),
        (LAUNCH, launch(**{"objective.rtt_mean_max_s": 1, "traffic.protocol": "udp"}), None),
        (LAUNCH, launch(pairs_count=7), ["/overrides/pairs_count"] * 2),
        (LAUNCH, {"scenario": "scale-180g"}, ["/scenario"] * 2),
        (LAUNCH, {"spec": {"scenario": "x", "pairs_count": 0}}, ["/spec/pairs_count"]),
        (LAUNCH, {"spec": {"scenario": "x", "traffic": {"windw": 1}}}, ["/spec/traffic/windw"]),
        (LAUNCH, {"spec": {"pairs_count": 1}}, ["/spec"]),
        (LAUNCH, launch(**{"Ø\U000def48 é": 1}), ["/overrides"]),
        (LAUNCH, launch(**{"Ø\U000def48": 1}), ["/overrides/Ø\U000def48"]),
        (LAUNCH, launch(Host=2), ["/overrides/Host"]),
        (LAUNCH, {"spec": {"UWC\U00011ce9\x84K": [-6.4], "": [], "h": [[None]]}}, None),
        ("/v1/estimate", launch(burst_s="x"), ["/overrides/burst_s"]),
        ("/v1/estimate", {"scenario": "smoke", "prices": {"peering": {"usd": "x"}}}, None),
        (SCHEDULE, {**NIGHTLY, "cron": "0 2 * *"}, ["/cron"]),
        (SCHEDULE, {**NIGHTLY, "cron": "0 25 * * *"}, ["/cron"]),
        (SCHEDULE, {**NIGHTLY, "at": "2099-01-01T00:00:00Z"}, ["/cron", "/at"]),
        (SCHEDULE, {"name": "a", "scenario": "smoke"}, ["/cron", "/at"]),
        (SCHEDULE, {**NIGHTLY, "timezone": "Mars"}, ["/timezone"]),
        (SCHEDULE, {**NIGHTLY, "until_at": "2001-01-01T00:00:00"}, ["/until_at"]),
        (SCHEDULE, {**NIGHTLY, "overrides": {"burst_s": 0}}, ["/overrides/burst_s"]),
        (STUDY, study(kind="sweep", axes=[{"field": "burst_x", "values": [1]}]), None),
        (STUDY, study(kind="search", min_bits_per_second=2, max_bits_per_second=1), None),
        (STUDY, study(kind="drill"), ["/question/switch"]),
        (STUDY, study(kind="ab", a={"name": "a"}, b={"name": "a"}), ["/question/b/name"]),
        (
            STUDY,
            study(kind="ab", a={"name": "a", "overrides": {"burst_s": 0}}, b={"name": "b"}),
            ["/question/a/overrides/burst_s"],
        ),
        ("/v1/comparisons", {"a": {"run_ids": ["x"]}, "b": {"run_ids": ["y"]}}, ["/a/run_ids/0"]),
        ("/v1/prune", {}, ["/older_than_days"]),
        ("/v1/imports/iperf3", NO_TEST, ["/recordings"]),
        (
            "/v1/imports/original",
            {**REQUESTS["POST", "/v1/imports/original"], "overrides": {"burst_s": 3}},
            ["/overrides/burst_s"],
        ),
    ],
)  # fmt: skip
@module_loop
async def test_rejected_body_has_json_pointers(
    shared_api: httpx.AsyncClient, path: str, body: dict[str, Any], locations: list[str] | None
) -> None:
    result = error_locations(await shared_api.post(path, json=body))
    assert result if locations is None else result == locations
    assert all(resolves(pointer, body) for pointer in result), result


def resolves(pointer: str, sent: object) -> bool:
    """Return True if a pointer can be resolved, or if it names a missing member."""
    body: Any = sent
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(body, dict | list):
            return False
        if isinstance(body, dict) and key not in body:
            body = 0
        else:
            body = body[int(key)] if isinstance(body, list) else body[key]
    return True


@module_loop
async def test_invalid_values_are_located_for_all_parameters_and_members(
    shared_api: httpx.AsyncClient,
) -> None:
    document = (await shared_api.get("/openapi.json")).json()
    checked = set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            url = re.sub("{[a-z_]+}", "1", path.replace("{run_id}", RUN))
            for parameter in operation.get("parameters", []):
                if parameter["in"] != "query" or not (wrong := _wrong(parameter["schema"])):
                    continue
                name = parameter["name"]
                answer = await shared_api.request(method, url, params={name: wrong})
                assert name in [place.split(".")[0] for place in error_locations(answer)], (
                    url,
                    name,
                )
                checked.add((method.upper(), path))
            if "requestBody" not in operation:
                continue
            no_form: list[Any] = [[], 1, "x", {"no_such": 1}]
            for body in no_form:
                assert error_locations(await shared_api.request(method, url, json=body)), (
                    url,
                    body,
                )
            example = REQUESTS[method.upper(), path]
            for name in example:
                answer = await shared_api.request(
                    method, url, json={**example, name: {"?": [None]}}
                )
                result = error_locations(answer)
                assert result and all(place.startswith(f"/{name}") for place in result), (
                    url,
                    result,
                )
            for content in (b"{", b"\xff", b'{"a": 1} x'):
                answer = await shared_api.request(
                    method, url, content=content, headers={"Content-Type": "application/json"}
                )
                assert error_locations(answer) == [""], (url, content)
            checked.add((method.upper(), path))
    assert checked >= REQUESTS.keys() and len(checked) > 25


def _wrong(schema: Mapping[str, Any]) -> str | None:
    """Return an invalid value for a parameter, or None if the schema accepts any text."""
    inner = schema["anyOf"][0] if "anyOf" in schema else schema
    if most := inner.get("maxLength"):
        return "x" * (int(most) + 1)
    plain_text = inner.get("type") == "string" and inner.keys().isdisjoint({"pattern", "enum"})
    return None if plain_text else "%%%"


@pytest.mark.parametrize(
    ("path", "locations"),
    [
        ("/v1/aggregate?group_by=colour", "group_by"),
        ("/v1/runs?label=none", "label"),
        ("/openapi.json?x=1", "x"),
        ("/problems?x=1", "x"),
        ("/v1/aggregate?group_by=label:", "group_by"),
        ("/v1/aggregate?timezone=Mars", "timezone"),
        ("/v1/runs/RUN/series?burst=99", "burst"),
        ("/v1/runs/RUN/series?pair=99", "pair"),
        ("/v1/runs/RUN/pairs?burst=99", "burst"),
        ("/v1/runs/RUN/charts/band?burst=99", "burst"),
        ("/v1/runs/RUN/charts/residuals?burst=1", "burst"),
        ("/v1/runs/RUN/events?burst=99", "burst"),
        ("/v1/runs/RUN/raw/1?burst=99", "burst"),
        ("/v1/runs/RUN/series?x=1", "x"),
    ],
)
@module_loop
async def test_rejected_parameter_is_named(
    shared_api: httpx.AsyncClient, path: str, locations: str
) -> None:
    assert error_locations(await shared_api.get(path.replace("RUN", RUN))) == [locations]


async def test_rejected_header_is_named(api: httpx.AsyncClient, fabric: Fabric) -> None:
    for index, role in itertools.product((1, 2), Role):
        await fabric.records.fleet.beat(presence(role, index))
    key = {"Idempotency-Key": "k"}
    assert (await api.post(LAUNCH, json=launch(pairs_count=1), headers=key)).status_code == 202
    again = await api.post(LAUNCH, json=launch(pairs_count=2), headers=key)
    assert (again.status_code, error_locations(again)) == (409, ["Idempotency-Key"])
    assert error_locations(await api.get(LAUNCH, headers={"Accept": "image/png"})) == ["Accept"]
    long = await api.post(LAUNCH, json=launch(), headers={"Idempotency-Key": "k" * 500})
    assert error_locations(long) == ["Idempotency-Key"]
    plain = await api.post(LAUNCH, content="{}", headers={"Content-Type": "text/plain"})
    assert error_locations(plain) == ["Content-Type"]
    guard = AuthConfig(sign_in=SignIn(Tokens(fabric.private), None))
    for guarded, headers, name in (
        (guard, {"Authorization": "Bearer no"}, "Authorization"),
        (guard, {}, "Authorization"),
        (AuthConfig(loopback_only=True), {"Host": "elsewhere"}, "Host"),
        (AuthConfig(loopback_only=True), {"Origin": "http://elsewhere"}, "Origin"),
    ):
        transport = httpx.ASGITransport(create_app(Coordinator(fabric), tick_s=None, guard=guarded))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            assert error_locations(await http.get(LAUNCH, headers=headers)) == [name]


async def test_duplicate_or_conflicting_schedule_name_is_located(
    api: httpx.AsyncClient,
) -> None:
    # The name of the scenario.
    body = {**NIGHTLY, "name": "smoke"}
    assert (await api.post(SCHEDULE, json=body)).status_code == 201
    assert error_locations(await api.post(SCHEDULE, json=body)) == ["/name"]
    assert error_locations(await api.put(f"{SCHEDULE}/other", json=body)) == ["/name"]


@module_loop
async def test_launch_does_not_read_files_of_the_coordinator_host(
    shared_api: httpx.AsyncClient, tmp_path: Path
) -> None:
    (tmp_path / "local.toml").write_text("pairs_count = 'secret'")
    for path in (LAUNCH, "/v1/estimate"):
        answer = await shared_api.post(path, json={"scenario": str(tmp_path / "local.toml")})
        assert error_locations(answer) == ["/scenario"]
        assert "secret" not in answer.text and "no such scenario" in answer.text


@pytest.mark.parametrize(
    ("method", "path", "locations"),
    [
        ("GET", "/v1/runs/none", "run_id"),
        ("POST", "/v1/runs/none/abort", "run_id"),
        ("GET", "/v1/runs/RUN/charts/none", "name"),
        ("GET", "/v1/runs/RUN/bursts/99", "burst"),
        ("GET", "/v1/runs/RUN/raw/99", "pair"),
        ("GET", "/v1/studies/none", "study_id"),
        ("GET", "/v1/schedules/none", "name"),
        ("GET", "/v1/deadletters/7", "sequence_number"),
        # The run exists but it has already ended.
        ("POST", "/v1/runs/RUN/abort", None),
    ],
)
@module_loop
async def test_unknown_path_parameter_is_named(
    shared_api: httpx.AsyncClient, method: str, path: str, locations: str | None
) -> None:
    answer = await shared_api.request(method, path.replace("RUN", RUN))
    assert error_locations(answer) == ([] if locations is None else [locations])


@pytest.mark.parametrize(
    ("body", "locations"),
    [
        ('{"scenario": "smoke", "scenario": "soak"}', ["/scenario"]),
        (
            '{"scenario": "smoke", "overrides": {"burst_s": 1, "burst_s": 2}}',
            ["/overrides/burst_s"],
        ),
        ('{"scenario": "smoke", "overrides": {"labels": {"a": 1, "a": 1}, "pairs": 1}}', None),
        ('{"scenario": "smoke", "overrides": {"scale": NaN}}', [""]),
        ('{"scenario": "smoke", "overrides": {"scale": -Infinity}}', [""]),
    ],
)
@module_loop
async def test_rejects_duplicate_json_member(
    shared_api: httpx.AsyncClient, body: str, locations: list[str] | None
) -> None:
    json_type = {"Content-Type": "application/json"}
    for path in (LAUNCH, "/v1/estimate"):
        answer = await shared_api.post(path, content=body, headers=json_type)
        assert answer.status_code == 422
        assert error_locations(answer) == (locations or ["/overrides/labels/a"])


@module_loop
async def test_all_operations_reject_duplicate_parameters_and_members(
    shared_api: httpx.AsyncClient,
) -> None:
    document = (await shared_api.get("/openapi.json")).json()
    checked_count = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            url = re.sub("{[a-z_]+}", "1", path)
            for parameter in operation.get("parameters", []):
                many = "array" in str(parameter["schema"])
                if parameter["in"] != "query" or many:
                    continue
                name = parameter["name"]
                answer = await shared_api.request(method, f"{url}?{name}=1&{name}=1")
                assert (
                    error_locations(answer).count(name) >= 1 and "more than once" in answer.text
                ), url
                checked_count += 1
            if "requestBody" in operation:
                twice = '{"by": "a", "by": "a"}'
                json_type = {"Content-Type": "application/json"}
                answer = await shared_api.request(method, url, content=twice, headers=json_type)
                assert "/by" in error_locations(answer) and "more than once" in answer.text, url
                checked_count += 1
    assert checked_count > 50
    assert (await shared_api.get("/v1/runs?label=a=b&label=c=d")).is_success
