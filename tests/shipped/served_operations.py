"""Running coordinator for the tests of generated clients, and the data that each operation needs.

The coordinator is started like users do it, with sign-in and one pair of agents.
"""

import asyncio
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from broadside.coordinator.api.examples import REQUESTS
from broadside.coordinator.core.plan.schedule import Schedule
from broadside.coordinator.runs.requests import ScheduleRequest
from broadside.coordinator.studies.study import Study
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.records.collection import Collection
from tests.live.live_site import Site, wait_for_fleet
from tests.live.waiting import wait_for
from tests.synthetic_runs import store_run
from tests.unit.coordinator.presences import fleet
from tests.unit.coordinator.studies.samples import SWEPT

FILE: Final = "application/octet-stream"
# This run has a device counter, and its engine wrote one JSON document.
STORED: Final = "stored"
SHORT: Final = {"bursts_count": 1, "burst_s": 3, "period_s": 10, "labels.device": "fw1"}
LATER: Final = {"bursts_count": 1, "burst_s": 3, "period_s": 10, "lead_s": 60}
BODIES: Final[Mapping[str, Any]] = {
    "create_run": {"scenario": "loopback", "overrides": SHORT},
    "estimate_run": {"scenario": "loopback", "overrides": SHORT},
    "create_study": {
        "scenario": "loopback",
        "overrides": LATER,
        "question": {
            "kind": "sweep",
            "axes": [{"field": "traffic.streams_count", "values": [1, 2]}],
        },
    },
}
"""Request bodies for one pair of agents. Other operations use the examples of the document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Operation of the OpenAPI document."""

    name: str
    method: str
    path: str
    described: Mapping[str, Any]

    @property
    def media_types(self) -> list[str]:
        """Media types of a successful response, the default first."""
        return [
            media_type
            for status, answer in self.described["responses"].items()
            if status.startswith("2")
            for media_type in answer["content"]
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedClient:
    """Running coordinator, and the client generated from its document."""

    site: Site
    operations: list[Operation]
    modules: Mapping[str, Any]
    models: Any
    client: Any
    stranger: Any
    url: str
    token: str
    names: dict[str, Any] = field(default_factory=dict)

    def call(self, operation: str, /, client: Any = None, **arguments: Any) -> Any:
        """Call an operation and return the response with status, content, headers and parsed
        value.
        """
        return self.modules[operation].sync_detailed(client=client or self.client, **arguments)

    def content(self, operation: Operation) -> Any:
        """Return the request body as JSON, or None if there is none."""
        if "requestBody" not in operation.described:
            return None
        if operation.name == "compare_runs":
            return {group: {"run_ids": [self.names["run_id"]]} for group in ("a", "b")}
        example = REQUESTS.get((operation.method, operation.path))
        return BODIES.get(operation.name, example)

    def body(self, operation: Operation) -> dict[str, Any]:
        """Return the request body as a model of the client, or an empty dict if there is none."""
        content = self.content(operation)
        if content is None:
            return {}
        described = operation.described["requestBody"]
        reference = described["content"]["application/json"]["schema"]["$ref"]
        return {"body": getattr(self.models, reference.rpartition("/")[2]).from_dict(content)}

    def place(self, operation: Operation) -> dict[str, Any]:
        """Return the path parameters of the operation."""
        names = {**self.names, "name": "nightly", "agent_id": next(iter(self.site.agents))}
        if operation.path.startswith("/v1/scenarios"):
            names["name"] = "smoke"
        if "/charts/" in operation.path:
            names["name"] = "sweep" if "study_id" in operation.path else "throughput"
        return {name: names[name] for name in re.findall("{([a-z_]+)}", operation.path)}

    def fabric(self) -> Fabric:
        return open_fabric(FabricSettings(data_dir=self.site.folder / "data"))


def generate(document: Path, into: Path) -> None:
    """Generate the client. A warning is an error, so no part of the document is skipped."""
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        [
            bin_folder / "openapi-python-client",
            *("generate", "--path", document, "--output-path", into),
            *("--meta", "none", "--fail-on-warning"),
        ],
        env=os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedClient]:
    folder = tmp_path_factory.mktemp("generated")
    with Site(folder) as site, pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        site.environment["BROADSIDE_SIGN_IN"] = "on"
        # A launch is repeated while the agents are busy.
        site.environment["BROADSIDE_WRITES_PER_MINUTE"] = "10000"
        added = site.run("token", "add", "generated", "--role", "operator")
        token = added.stdout.strip()
        signed = {"Authorization": f"Bearer {token}"}
        site.start_fleet(1)
        _, url = site.start_coordinator()
        wait_for_fleet(url, 2, headers=signed)
        text = httpx.get(f"{url}/openapi.json", headers=signed, timeout=60).text
        (folder / "openapi.json").write_text(text)
        generate(folder / "openapi.json", folder / "made_client")
        patch.syspath_prepend(folder)
        package = importlib.import_module("made_client")
        operations = [
            Operation(
                name=described["operationId"],
                method=method.upper(),
                path=path,
                described=described,
            )
            for path, methods in json.loads(text)["paths"].items()
            for method, described in methods.items()
        ]
        by_name = {path.stem: path for path in (folder / "made_client" / "api").glob("*/*.py")}
        assert {operation.name for operation in operations} <= by_name.keys()
        timeout = httpx.Timeout(60)
        client = stack.enter_context(
            package.AuthenticatedClient(base_url=url, token=token, timeout=timeout)
        )
        stranger = stack.enter_context(package.Client(base_url=url, timeout=timeout))
        made = ServedClient(
            site=site,
            operations=operations,
            modules={
                name: importlib.import_module(f"made_client.api.{path.parent.name}.{name}")
                for name, path in by_name.items()
            },
            models=importlib.import_module("made_client.models"),
            client=client,
            stranger=stranger,
            url=url,
            token=token,
        )
        made.names.update(launched(made))
        asyncio.run(planted(made.fabric()))
        yield made


def launched(served: ServedClient) -> dict[str, Any]:
    """Launch a run with the client, wait for its verdict, and return values for path parameters."""
    (operation,) = (item for item in served.operations if item.name == "create_run")
    first = served.call("create_run", **served.body(operation), idempotency_key="once")
    assert isinstance(first.parsed, served.models.RunStatus), first.content
    again = served.call("create_run", **served.body(operation), idempotency_key="once")
    run_id = again.parsed.run_id
    assert run_id == first.parsed.run_id

    def is_over() -> bool:
        return bool(served.call("read_run_summary", run_id=run_id).status_code == 200)

    wait_for("a verdict", is_over, 120)
    return {"run_id": run_id, "pair": "1", "burst": 1, "study_id": SWEPT.study_id}


async def planted(fabric: Fabric) -> None:
    """Store a finished study, a schedule, and a run of an iperf3 without JSON streaming."""
    await Collection(fabric.private, "studies", Study).put(SWEPT.study_id, SWEPT)
    nightly = ScheduleRequest.model_validate(REQUESTS["POST", "/v1/schedules"])
    schedule = nightly.schedule(by="tests", now=datetime.now(UTC))
    await Collection(fabric.private, "schedules", Schedule).put(schedule.name, schedule)
    await store_run(fabric, STORED)
    document = b'{"start": {"version": "iperf 3.9"}, "intervals": [], "end": {}}'
    await fabric.records.bursts.save_raw(STORED, 0, 0, document)
    await fabric.close()


def prepare(served: ServedClient, operation: Operation) -> dict[str, Any]:
    """Prepare the data for one operation and return replaced path parameters."""
    if operation.name == "create_schedule":
        served.call("delete_schedule", name="nightly")
    elif operation.path.startswith("/v1/schedules/"):
        (add,) = (item for item in served.operations if item.name == "create_schedule")
        served.call("create_schedule", **served.body(add))
    if operation.name == "read_run_reconciliation":
        return {"run_id": STORED}
    if operation.name in ("abort_run", "cancel_run"):
        body = served.models.LaunchRequest.from_dict({"scenario": "loopback", "overrides": LATER})

        def launch() -> Any:
            answer = served.call("create_run", body=body)
            return answer.parsed if answer.status_code == 202 else None

        return {"run_id": wait_for("a launch", launch).run_id}
    if operation.name in ("abort_study", "cancel_study"):
        (create,) = (item for item in served.operations if item.name == "create_study")
        return {"study_id": served.call("create_study", **served.body(create)).parsed.study_id}
    if "deadletters" in operation.path:
        return {"sequence_number": asyncio.run(dead_letter(served))}
    return {}


async def dead_letter(served: ServedClient) -> int:
    """Return the number of a dead-lettered job."""
    fabric = served.fabric()
    result = await fabric.queue.dead_letters(1)
    if not result:
        # Otherwise the agents would take the job.
        for agent in served.site.agents.values():
            agent.kill()
            agent.wait()
        for item in fleet(40, beat_at=datetime.now(UTC)):
            await fabric.records.fleet.beat(item)
        body = served.models.LaunchRequest.from_dict({"scenario": "smoke"})
        answer = await asyncio.to_thread(served.call, "create_run", body=body)
        assert answer.status_code == 202, answer.content
        delivery = await fabric.queue.receive(10.0)
        assert delivery is not None
        await fabric.queue.dead_letter(delivery, "StoodDown", "clock gate: 80 ms is over 50 ms")
        result = await fabric.queue.dead_letters(1)
    await fabric.close()
    return result[0].sequence_number


def in_order(operations: Iterable[Operation]) -> list[Operation]:
    """Return the operations in an order in which none removes what a later one needs."""

    def order(operation: Operation) -> tuple[bool, bool]:
        return ("deadletters" in operation.path, operation.method != "GET")

    return sorted(operations, key=order)


def places_of(served: ServedClient, operation: Operation) -> dict[str, Any]:
    """Prepare the data for one operation and return its path parameters."""
    needs_letter = "{sequence_number}" in operation.path
    places = {} if needs_letter else served.place(operation)
    places |= prepare(served, operation)
    if not needs_letter:
        places.pop("sequence_number", None)
    return places
