"""Examples of the OpenAPI document, taken from answers of a real application.

To write the examples again, use ``python -m tests.api_examples``.
"""

import asyncio
import json
import re
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import jsonschema_rs
from fastapi import FastAPI

from broadside.coordinator.api.app import create_app
from broadside.coordinator.api.examples import FILE, REQUESTS
from broadside.coordinator.core.plan.schedule import Schedule
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.requests import ScheduleRequest
from broadside.coordinator.studies.study import Study
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.records.collection import Collection
from broadside.exchange.version import UNKNOWN, commit
from tests.synthetic_runs import store_run
from tests.unit.coordinator.presences import fleet
from tests.unit.coordinator.studies.samples import SWEPT

RUN: Final = REQUESTS["POST", "/v1/comparisons"]["a"]["run_ids"][0]
OPEN: Final = f"{RUN}-open"
# Fixed value that is used instead of the checkout's commit, because a file in it cannot contain its
# commit.
COMMIT: Final = "3d009671"
_NAMED: Final = {"agent_id": "client-001", "burst": "1", "pair": "1", "study_id": SWEPT.study_id}
_TEXT: Final = ("text/", "application/x-ndjson")
_ITEMS_MAX_COUNT: Final = 2
# Number of agents per role. It must be larger than all launches here need.
_AGENTS_COUNT: Final = 40
_LINES_MAX_COUNT: Final = 4
_TEXT_MAX_CHARS: Final = 600

Answers = Mapping[str, Mapping[str, Any]]


async def collect(fabric: Fabric, app: FastAPI) -> Answers:
    """Return a text answer to each operation (``GET /v1/runs``) by media type."""
    by_name: dict[str, dict[str, Any]] = {}
    document: Any = app.openapi()
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for method, path, operation in sorted(operations, key=lambda item: item[0] != "GET"):
            described = next(v for k, v in operation["responses"].items() if k.startswith("2"))
            fields: dict[str, Any] = {}
            for media_type, content in described["content"].items():
                if not media_type.startswith(("application/json", *_TEXT)):
                    continue
                here = await address(http, fabric, method, path)
                body, accept = REQUESTS.get((method, path)), {"Accept": media_type}
                answer = await http.request(method, here, json=body, headers=accept)
                if answer.status_code == 406:
                    # Raw output of an engine has one of several forms.
                    continue
                assert answer.is_success, (method, path, answer.text)
                fields[media_type] = _shown(answer, content.get("schema", {}), document)
            by_name[f"{method} {path}"] = fields
    return by_name


async def address(http: httpx.AsyncClient, fabric: Fabric, method: str, path: str) -> str:
    """Return the path of an operation after creating all that it needs."""
    number = await _prepare(http, fabric, method, path)
    chart = "sweep" if path.startswith("/v1/studies") else "throughput"
    name = chart if "/charts/" in path else REQUESTS["POST", "/v1/schedules"]["name"]
    if path.startswith("/v1/scenarios"):
        name = "smoke"
    run_id = OPEN if path.endswith(("/abort", "/progress")) or method == "DELETE" else RUN
    places = {**_NAMED, "run_id": run_id, "name": name, "sequence_number": str(number)}
    return re.sub("{([a-z_]+)}", lambda part: places[part[1]], path)


async def _prepare(http: httpx.AsyncClient, fabric: Fabric, method: str, path: str) -> int:
    """Create agents, an ended and an open run, a study, a schedule and a dead letter.

    Return the sequence number of the dead letter.
    """
    now = datetime.now(UTC)
    for item in fleet(_AGENTS_COUNT, beat_at=now):
        await fabric.records.fleet.beat(item)
    if await fabric.records.read_run(RUN) is None:
        await store_run(fabric, RUN, labels={"idps": "on"})
        raw = json.dumps({"start": {"version": "iperf 3.18"}, "intervals": [], "end": {}})
        await fabric.records.bursts.save_raw(RUN, 0, 0, raw.encode())
    if await fabric.records.read_run(OPEN) is None:
        await store_run(fabric, OPEN, bursts_over=1)
    await Collection(fabric.private, "studies", Study).put(SWEPT.study_id, SWEPT)
    shelf = Collection(fabric.private, "schedules", Schedule)
    nightly = ScheduleRequest.model_validate(REQUESTS["POST", "/v1/schedules"])
    if (method, path) == ("POST", "/v1/schedules"):
        await shelf.delete(nightly.name)
    else:
        await shelf.put(nightly.name, nightly.schedule(by="gunner", now=now))
    if "deadletters" not in path:
        return 0
    if not await fabric.queue.dead_letters(1):
        launched = await http.post("/v1/runs", json={"scenario": "smoke"})
        assert launched.is_success, launched.text
        delivery = await fabric.queue.receive(5.0)
        assert delivery is not None
        await fabric.queue.dead_letter(delivery, "StoodDown", "clock gate: 80 ms is over 50 ms")
    (letter,) = await fabric.queue.dead_letters(1)
    return letter.sequence_number


def _shown(answer: httpx.Response, schema: Mapping[str, Any], document: Any) -> Any:
    """Return the answer shortened for an example, or whole if the short one breaks the schema."""
    if not answer.headers["Content-Type"].startswith("application/json"):
        lines = answer.text.splitlines()[:_LINES_MAX_COUNT]
        is_page = answer.headers["Content-Type"].startswith("text/html")
        return "\n".join(line[:_TEXT_MAX_CHARS] if is_page else line for line in lines) + "\n"
    complete = {**schema, "components": document["components"]}
    response = answer.json()
    jsonschema_rs.validate(complete, response)
    short = _short(response)
    return short if jsonschema_rs.is_valid(complete, short) else response


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        members = list(value.items())
        spread = len(members) > 100 or all(isinstance(item, dict) for item in value.values())
        return {k: _short(v) for k, v in (members[:_ITEMS_MAX_COUNT] if spread else members)}
    return [_short(item) for item in value[:_ITEMS_MAX_COUNT]] if isinstance(value, list) else value


async def _collect_examples() -> Answers:
    with tempfile.TemporaryDirectory() as folder:
        fabric = open_fabric(FabricSettings(data_dir=Path(folder)))
        result = await collect(fabric, create_app(Coordinator(fabric), tick_s=None))
        await fabric.close()
    return result


if __name__ == "__main__":
    collected = sorted(asyncio.run(_collect_examples()).items())
    lines = [f"{json.dumps(name)}: {json.dumps(example)}" for name, example in collected]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    FILE.write_text(text.replace(commit() or UNKNOWN, COMMIT), encoding="utf-8")
