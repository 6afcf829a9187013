"""Test that data from earlier versions can be read, and that the previous version can read ours."""

import asyncio
import importlib
import json
import lzma
import os
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from pydantic import ValidationError
from pydantic_settings import BaseSettings

from broadside.agent.agent_settings import AgentSettings
from broadside.coordinator import scenarios
from broadside.coordinator.auth.signin_settings import SignInSettings
from broadside.coordinator.cli.api_client import ApiClient
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core.plan.planner import plan as make_plan
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import Contradiction, Rule
from broadside.coordinator.device.telemetry.config import open_telemetry
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.exchange.engines import engines
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.messages import Message, former_names
from tests.compat import older_reader
from tests.compat.read import (
    FIXTURES,
    PREVIOUS,
    VERSIONS,
    laid_out,
    messages_of,
    queued_bodies,
    read_all,
    unpack_source,
)
from tests.compat.write import ROOT, pack_source
from tests.unit.coordinator.presences import NOW, fleet

# Record kinds stored by runs in all versions.
KINDS = {
    *("AuditRow", "Claim", "ClosedBurst", "Control", "Enrolled", "Firing", "JoinCode", "JobReport"),
    *("HostInfo", "Presence", "RunHeader", "Schedule", "ServerTest", "Study", "Token"),
}
every_version = pytest.mark.parametrize("version", VERSIONS)


@cache
def read(version: str) -> dict[str, Any]:
    return asyncio.run(read_all(version))


def expected(version: str) -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = json.loads(
        (FIXTURES / version / "expected.json").read_text(encoding="utf-8")
    )
    return document


@every_version
def test_verdict_and_seal_of_every_run_are_unchanged(version: str) -> None:
    runs = read(version)["runs"]
    summary = {
        run_id: expected_run
        for run_id, expected_run in expected(version).items()
        if "verdict" in expected_run
    }
    assert {expected_run["verdict"] for expected_run in summary.values()} >= {
        *("pass", "fail", "inconclusive", "measured")
    }
    assert sum(expected_run["plan_sha256"] is None for expected_run in summary.values()) == 3, (
        "expected three imports"
    )
    for run_id, expected_run in summary.items():
        result = runs[run_id]
        assert result["verdict"] == expected_run["verdict"], expected_run["name"]
        assert result["again"] == expected_run["verdict"], f"{expected_run['name']}, judged again"
        assert result["plan_sha256"] == expected_run["plan_sha256"], expected_run["name"]
        assert expected_run["seal"] == "verified", expected_run["name"]
        assert result["seal"] == ("verified" if expected_run["plan_sha256"] else "none"), (
            expected_run["name"]
        )
        assert not result["plan_altered"], expected_run["name"]


@every_version
def test_waiting_run_is_sealed_with_the_jobs_of_its_plan(version: str) -> None:
    result = read(version)
    waiting = [
        run_id
        for run_id, expected_run in expected(version).items()
        if "verdict" not in expected_run
    ]
    assert waiting
    assert all(result["runs"][run_id]["seal"] == "verified" for run_id in waiting)
    assert len(result["jobs"]) >= 25
    different = [job_id for job_id, same in result["jobs"].items() if not same]
    assert different == [], "jobs must be sent with unchanged bytes"


@every_version
def test_all_rows_can_be_read(version: str) -> None:
    assert read(version)["rows"].keys() >= KINDS


@cache
def all_former_names() -> Mapping[str, frozenset[str]]:
    """Return the former names of all renamed fields, by current name."""
    result: dict[str, frozenset[str]] = {}
    for _, kind in stored_models():
        for name, former in renames(kind).items():
            result[name] = result.get(name, frozenset()) | former
    return result


def is_part(written: object, stored: object) -> bool:
    """Return true if ``stored`` has everything in ``written``, at any depth.

    Renamed fields may have a former name in ``stored``.
    """
    if isinstance(written, dict) and isinstance(stored, dict):
        for name, value in written.items():
            names = [name] if name in stored else all_former_names().get(name, frozenset())
            if not any(is_part(value, stored[old]) for old in names if old in stored):
                return False
        return True
    if isinstance(written, list) and isinstance(stored, list) and len(written) == len(stored):
        return all(map(is_part, written, stored))
    return written == stored


@every_version
async def test_records_are_rewritten_unchanged(version: str, tmp_path: Path) -> None:
    """Test that an older version can still read the rewritten records."""
    data_dir = laid_out(version, tmp_path)
    fabric = open_fabric(FabricSettings(data_dir=data_dir))
    try:
        read = [result async for result in messages_of(fabric, data_dir)]
    finally:
        await fabric.close()
    for message, text in read:
        assert is_part(json.loads(message.to_json()), json.loads(text))
        assert type(message).model_validate_json(message.to_json()) == message
    assert len(read) > 100


@every_version
def test_user_files_can_be_read(version: str, tmp_path: Path) -> None:
    files = FIXTURES / version / "files"
    spec = scenarios.load(str(files / "scenario.toml"))
    document = tomllib.loads((files / "scenario.toml").read_text(encoding="utf-8"))
    for part in ("traffic", "objective"):
        answer = json.loads(getattr(spec, part).model_dump_json())
        for name, value in document[part].items():
            assert answer[name] == value or name == "probe", f"{part}.{name}"
    assert spec.traffic.probe is not None
    with pytest.raises(TelemetryError, match=r"write a \[\[source\]\] table"):
        open_telemetry(files / "witnesses.toml")


# Settings for device telemetry that were replaced. They are rejected with the new form (see
# docs/telemetry.md).
REPLACED = (
    "BROADSIDE_LEDGER",
    "BROADSIDE_WITNESSES_FILE",
    "BROADSIDE_PROMETHEUS_",
    "BROADSIDE_CSV_",
    "BROADSIDE_AZURE_MONITOR_",
)


@every_version
def test_all_settings_still_exist(version: str) -> None:
    known = {
        f"{kind.model_config.get('env_prefix', '')}{name}".upper()
        for kind in (FabricSettings, CoordinatorSettings, SignInSettings, AgentSettings)
        for name in kind.model_fields
    }
    assert issubclass(AgentSettings, BaseSettings)
    gone = set(schemas(version)["settings"]) - known
    assert {name for name in gone if not name.startswith(REPLACED)} == set()


# Fields.


@cache
def schemas(version: str) -> dict[str, Any]:
    text = lzma.decompress((FIXTURES / version / "schemas.json.xz").read_bytes())
    document: dict[str, Any] = json.loads(text)
    return document


def stored_models() -> Iterator[tuple[str, type[Message]]]:
    """Yield the models that are stored or sent between processes, by name in first_fields.json."""
    package = importlib.import_module("broadside.exchange").__path__[0]
    for name in json.loads((Path(package) / "first_fields.json").read_text(encoding="utf-8")):
        module, _, kind = name.rpartition(".")
        yield name, getattr(importlib.import_module(f"broadside.{module}"), kind)


def model_schema(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the schema part for the model. For a recursive model, use the definitions."""
    result: Mapping[str, Any] = schema
    return result if "properties" in result else result["$defs"][name.rpartition(".")[2]]


# Former class names of stored models, by today's class name.
FORMER_NAMES: Final = {
    "BurstDistribution": "Spread",
    "CounterRequirement": "LedgerPromise",
    "DrillResult": "Drilled",
    "ExecutedEvent": "EventRan",
    "Failover": "Move",
    "ForeignTest": "Stray",
    "HostInfo": "Passport",
    "JoinCode": "Join",
    "LaunchRecord": "Launched",
    "PriceBasis": "Basis",
    "RateCurve": "RateCourse",
    "ReceiverStart": "PlaceSet",
    "ResidualCause": "Cause",
    "ServiceOutage": "exchange.messages.Trouble",
    "SwitchLock": "Turn",
}


def former_name(name: str, version: str) -> str | None:
    """Return the name that a version used for a stored model, or None if it did not have it."""
    messages = schemas(version)["messages"]
    kind = name.rpartition(".")[2]
    former = FORMER_NAMES.get(kind, kind)
    named = [old for old in messages if f".{old}".endswith(f".{former}")]
    assert len(named) <= 1 or name in named, (name, named)
    return name if name in messages else named[0] if named else None


def renames(kind: type[Message]) -> Mapping[str, frozenset[str]]:
    """Return the former names of the renamed fields in a model."""
    return {
        name: names - {name}
        for name, field in kind.model_fields.items()
        if (names := former_names(field))
    }


def test_renamed_fields_are_written_with_their_new_names() -> None:
    stored = {"rule": "rows", "said": 2.0, "bound": 1.0}
    result = Contradiction.model_validate(stored)
    assert result == Contradiction(rule=Rule.ROWS, observed=2, limit=1)
    written = json.loads(result.to_json())
    assert written["observed"] == 2.0 and not written.keys() & {"said", "bound"}
    assert Contradiction.model_validate_json(result.to_json()) == result
    with pytest.raises(ValidationError, match="told"):
        Contradiction.model_validate(stored | {"told": 1})


def is_same_default(before: Any, after: Any) -> bool:
    """Compare two defaults. A message can have additional members, which are tested themselves."""
    if isinstance(before, dict) and isinstance(after, dict):
        return after | before == after
    return bool(before == after)


@every_version
def test_stored_fields_are_compatible(version: str) -> None:
    problems = []
    compared_count = 0
    for name, kind in stored_models():
        former = former_name(name, version)
        if former is None:
            continue
        compared_count += 1
        former_schema = schemas(version)["messages"][former]
        old = model_schema(former_schema, former)
        today = kind.model_json_schema()
        new = model_schema(today, name)
        current = {old: now for now, olds in renames(kind).items() for old in olds}
        for field, before in old.get("properties", {}).items():
            after = new.get("properties", {}).get(current.get(field, field))
            if after is None:
                problems.append(f"{name}.{field}: it was removed; keep it readable")
            elif not is_same_default(before.get("default"), after.get("default")):
                problems.append(f"{name}.{field}: its default was {before.get('default')!r}")
        problems += [
            f"{name}.{field}: it is required; give it a default"
            for field in set(new.get("required", ()))
            - {current.get(field, field) for field in old.get("required", ())}
        ]
        for definition, before in former_schema.get("$defs", {}).items():
            after = today.get("$defs", {}).get(definition, {})
            problems += [
                f"{name}: {definition}: the value {part!r} was removed"
                for part in set(before.get("enum", ()))
                - set(after.get("enum", before.get("enum", ())))
            ]
    assert problems == []
    assert compared_count >= 100


def test_next_release_can_write_its_fixtures(tmp_path: Path) -> None:
    """Test that schemas and source can be generated as in tests/compat/write.py."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "compat" / "schemas.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    written = json.loads(done.stdout)
    assert {name for name, _ in stored_models()} - written["messages"].keys() == set()
    assert "BROADSIDE_DATA_DIR" in written["settings"]
    pack_source(ROOT, tmp_path / "source.tar.xz", preset=0)
    unpack_source(tmp_path / "source.tar.xz", tmp_path)
    plan = planned()
    texts = [("Plan", plan.document.decode())]
    texts += [("Job", job.body.decode()) for job in plan.jobs(plan.bursts[0])]
    assert read_by(tmp_path, texts) == [""] * 3


# Command line and a coordinator in another version.


def test_launch_omits_fields_unknown_to_older_coordinators() -> None:
    spec = scenarios.load("smoke", {"raw": "all"})
    assert spec.to_fields()["raw"] == "all"
    assert "raw" not in scenarios.load("smoke").to_fields()


async def test_response_of_a_later_coordinator_is_read() -> None:
    """Test that unknown fields will be ignored, also in nested objects."""
    bursts: list[dict[str, object]] = [
        {
            "index": 0,
            "planned_start_at": "2026-11-26T12:00:00Z",
            "planned_end_at": "2026-11-26T12:00:30Z",
            "phase": "over",
            "pairs_planned": 2,
            "claimed_count": 2,
            "armed_count": 2,
            "reported_count": 2,
            "outcomes": {"measured": 2},
            "colour": "red",
        }
    ]
    answer = {
        "run_id": "run-1",
        "scenario": "smoke",
        "state": "finished",
        "created_at": "2026-11-26T12:00:00Z",
        "ends_at": "2026-11-26T12:01:00Z",
        "bursts": bursts,
        "shade": {"deep": 1},
    }

    async def body() -> AsyncIterator[bytes]:
        yield json.dumps(answer).encode()

    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body()))
    async with httpx.AsyncClient(transport=transport, base_url="http://later") as http:
        status = await ApiClient(http).status("run-1")
    assert (status.run_id, status.bursts[0].reported_count) == ("run-1", 2)


# Previous version.


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the packages from the previous version and return their folder."""
    return unpack_source(PREVIOUS, tmp_path_factory.mktemp("previous"))


def read_by(source: Path, texts: list[tuple[str, str]]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-P", str(older_reader.__file__)],
        input=json.dumps(texts),
        env=os.environ | {"PYTHONPATH": str(source)},
        cwd=source,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    document: list[str] = json.loads(done.stdout)
    return document


def planned(**overrides: object) -> Plan:
    spec = scenarios.load("smoke", overrides)
    return make_plan(spec, fleet(2), NOW, run_id="run-1")


def test_previous_version_reads_current_plans_and_jobs(source: Path) -> None:
    """Test plans with defaults and with all fields supported by the previous version."""
    document = tomllib.loads(
        (PREVIOUS.parent / "files" / "scenario.toml").read_text(encoding="utf-8")
    )
    traffic = {f"traffic.{name}": value for name, value in document["traffic"].items()}
    # The test fleet has no probes.
    del traffic["traffic.probe"]
    traffic["traffic.processes_count"] = 1
    texts = []
    for overrides in ({}, traffic, {"raw": "all", "labels.a": "ü"}):
        plan = planned(**overrides)
        assert plan.is_intact
        texts += [("Plan", plan.document.decode())]
        texts += [("Job", job.body.decode()) for job in plan.jobs(plan.bursts[0])]
    assert len(texts) == 9
    assert read_by(source, texts) == [""] * len(texts)


def test_previous_version_reads_jobs_for_all_engines(source: Path) -> None:
    (job, *_) = planned().jobs(planned().bursts[0])
    texts = []
    for name in engines():
        # Every engine supports one stream.
        overrides = {"traffic.engine": name, "traffic.streams_count": 1}
        traffic = scenarios.load("smoke", overrides).traffic
        texts.append(("Job", job.model_copy(update={"traffic": traffic}).body.decode()))
    assert len(texts) >= 4
    assert read_by(source, texts) == [""] * len(texts)


@every_version
async def test_previous_version_reads_records_of_current_agents(
    version: str, source: Path, tmp_path: Path
) -> None:
    data_dir = laid_out(version, tmp_path)
    fabric = open_fabric(FabricSettings(data_dir=data_dir))
    agents = {"Claim", "JobReport", "ServerTest", "Presence", "HostInfo", "Control", "Tunnel"}
    try:
        texts = [
            (type(message).__name__, message.to_json())
            async for message, _ in messages_of(fabric, data_dir)
            if type(message).__name__ in agents
        ]
    finally:
        await fabric.close()
    texts += [("Job", body.decode()) for body in queued_bodies(data_dir)]
    assert {name for name, _ in texts} >= agents - {"Tunnel"} | {"Job"}
    assert [text for text in read_by(source, texts) if text] == []
