"""An agent of another host reads the plans that it is in, and writes rows of its own pairs."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from broadside.coordinator.hosts.agent_rights import AgentRights, Handed
from broadside.coordinator.hosts.exchange_service import ExchangeService
from broadside.coordinator.hosts.row_content import CONTENT_RULES
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import Claim, Endpoint, Job, Phase, Role, Traffic
from broadside.exchange.ports import Delivery, Entity, Value
from broadside.exchange.row_text import entity_fields

AT = datetime(2026, 11, 22, 12, tzinfo=UTC)


@dataclass
class World:
    fabric: Fabric
    service: ExchangeService
    refused: list[str]
    agents: dict[str, AgentRights]

    async def ask(self, agent: str, do: str, **said: Any) -> str:
        """``ok``, or the error's name."""
        operation = {"id": f"{agent}-{do}-{said}", "do": do, **said}
        [answer] = await self.service.do(self.agents[agent], [operation])
        return str(answer.get("error", "ok"))

    async def write(self, agent: str, partition: str, key: str, **values: Value) -> str:
        row = entity_fields(Entity(partition_key=partition, row_key=key, properties=values))
        return await self.ask(agent, "upsert", table="results", row=row)


@pytest.mark.parametrize("do", ["upsert", "batch"])
async def test_a_write_that_arrives_late_replaces_no_later_one(world: World, do: str) -> None:
    """As from a connection that was given up: its bytes may still be on their way."""
    place = ("burst.run-1.00000", "chunk.client.00000.000")

    async def after(number: int, said: str) -> object:
        entity = Entity(partition_key=place[0], row_key=place[1], properties={"said": said})
        row = entity_fields(entity)
        told = {"row": row} if do == "upsert" else {"rows": [row]}
        operation = {"id": f"asker.{number}", "do": do, "table": "results", **told}
        [answer] = await world.service.do(world.agents["c1"], [operation])
        assert "error" not in answer
        kept = await world.fabric.results.get(*place)
        assert kept is not None
        return kept.properties["said"]

    assert await after(9, "all of it") == "all of it"
    assert await after(8, "a part") == "all of it"
    assert await after(10, "more than all") == "more than all"


def job(pair_index: int) -> Job:
    return Job(
        run_id="run-1",
        burst_index=0,
        pair_index=pair_index,
        endpoint=Endpoint(agent_id="s1", address="10.0.0.1", port=5201),
        traffic=Traffic(),
        planned_start_at=AT,
        duration_s=10,
    )


def claim(pair_index: int, agent_id: str) -> dict[str, Value]:
    said = Claim(
        job_id=job(pair_index).job_id, agent_id=agent_id, phase=Phase.CLAIMED, claimed_at=AT
    )
    return {"json": said.model_dump_json()}


def report(pair_index: int, agent_id: str) -> dict[str, Value]:
    said = {
        "job_id": job(pair_index).job_id,
        "run_id": "run-1",
        "burst_index": 0,
        "pair_index": pair_index,
        "agent_id": agent_id,
    }
    return {"json": json.dumps(said)}


TUNNEL = {"json": json.dumps({"vni": 7, "opened_by": job(0).job_id})}
TEST_KEY = f"{AT.timestamp() * 1000:013.0f}.s1.5201"
TEST = {
    "json": json.dumps(
        {
            "agent_id": "s1",
            "endpoint": {"agent_id": "s1", "address": "10.0.0.1", "port": 5201},
            "started_at": "2026-11-22T12:00:00Z",
        }
    )
}


@pytest.fixture
async def world(fabric: Fabric) -> World:
    """Clients c1 and c2, each handed a pair that it claimed, and server s1."""
    refused: list[str] = []
    handed = Handed(fabric.records)
    agents = {
        name: AgentRights(agent_id=name, role=role, address="::1", handed=handed)
        for name, role in (("c1", Role.CLIENT), ("c2", Role.CLIENT), ("s1", Role.SERVER))
    }
    service = ExchangeService(fabric, lambda who, do, _: refused.append(f"{who.name} {do}"))
    world = World(fabric, service, refused, agents)
    for number, name in enumerate(("c1", "c2")):
        delivery = Delivery(
            body=job(number).body,
            message_id="m",
            delivery_count=1,
            locked_until_at=AT,
            token=None,
        )
        await agents[name].hand(delivery)
        row = Entity(
            partition_key="burst.run-1.00000",
            row_key=f"claim.{number:05d}",
            properties=claim(number, name),
        )
        done = await world.ask(name, "insert", table="results", row=entity_fields(row))
        assert done == "ok"
    return world


BURST = "burst.run-1.00000"


@pytest.mark.parametrize(
    ("agent", "partition", "key", "values"),
    [
        ("c1", BURST, "claim.00000", claim(0, "c1")),
        ("c1", BURST, "report.00000", report(0, "c1")),
        ("c1", BURST, "chunk.client.00000.000", {"client_up_0": b"packed"}),
        ("c1", BURST, "probe.00000.000", {}),
        ("c1", "presence", "client.c1", {"json": '{"agent_id": "c1", "role": "client"}'}),
        ("c1", "tunnel.s1", f"ask.00000007.{job(0).job_id}", TUNNEL),
        ("s1", "tunnel.s1", f"answer.00000007.{job(0).job_id}", {}),
        ("s1", "tests.2026-11-22T12", TEST_KEY, TEST),
        ("s1", "tests.2026-11-22T12", f"{TEST_KEY}.chunk.000", {}),
    ],
)
async def test_an_agent_writes_its_own_rows(
    world: World, agent: str, partition: str, key: str, values: dict[str, Value]
) -> None:
    assert await world.write(agent, partition, key, **values) == "ok"
    assert world.refused == []


@pytest.mark.parametrize(
    ("agent", "partition", "key", "values"),
    [
        ("c1", BURST, "claim.00001", claim(1, "c1")),  # another's pair
        ("c1", BURST, "claim.00000", claim(0, "c2")),  # its own, in another's name
        ("c1", BURST, "claim.00002", claim(2, "c1")),  # a job that nobody was handed
        ("c1", BURST, "report.00001", report(1, "c1")),
        ("c1", BURST, "report.00000", report(0, "c2")),
        ("c1", BURST, "chunk.client.00001.000", {}),
        ("c1", "burst.run-2.00000", "chunk.client.00000.000", {}),
        ("c1", BURST, "chunk.client.00000.000.x", {}),
        ("c1", "presence", "client.c2", {"json": '{"agent_id": "c2", "role": "client"}'}),
        ("c1", "presence", "client.c1", {"json": '{"agent_id": "c2", "role": "client"}'}),
        ("c1", "presence", "server.c1", {"json": '{"agent_id": "c1", "role": "server"}'}),
        ("c1", "tunnel.s1", f"ask.00000007.{job(1).job_id}", {}),
        ("c1", "tests.2026-11-22T12", "1700000000000.s1.5201", {}),
        ("c1", "raw.run-1.00000", "client.00000.000", {}),
        ("s1", BURST, "report.00000", report(0, "s1")),
        ("s1", "tests.2026-11-22T12", TEST_KEY.replace("s1", "s2"), TEST),
        ("s1", "tests.2026-11-22T12", TEST_KEY.replace("s1", "s1.7"), TEST),  # agent `s1.7`
        ("s1", "tunnel.s2", f"answer.00000007.{job(0).job_id}", {}),
        ("s1", "anything", "at all", {}),
    ],
)
async def test_another_agents_rows_are_refused_on_record_and_stay(
    world: World, agent: str, partition: str, key: str, values: dict[str, Value]
) -> None:
    before = await world.fabric.results.get(partition, key)
    assert await world.write(agent, partition, key, **values) == "EntityRefused"
    assert await world.fabric.results.get(partition, key) == before
    assert world.refused == [f"{world.agents[agent].name} upsert"]


ROWS: dict[str, tuple[str, str, str, dict[str, Value]]] = {
    "claim.": ("c1", BURST, "claim.00000", claim(0, "c1")),
    "report.": ("c1", BURST, "report.00000", report(0, "c1")),
    "presence": ("c1", "presence", "client.c1", {"json": '{"agent_id": "c1", "role": "client"}'}),
    "test": ("s1", "tests.2026-11-22T12", TEST_KEY, {**TEST}),
    "ask": ("c1", "tunnel.s1", f"ask.00000007.{job(0).job_id}", {**TUNNEL}),
}
FOREIGN: dict[str, list[Any]] = {
    "agent_id": ["s2", "c2", "", None, 1],
    "job_id": [job(1).job_id, "run-2.00000.00000"],
    "run_id": ["run-2"],
    "burst_index": [1, -1, "0"],
    "pair_index": [1, 1.5, None],
    "role": ["server", None],
    "endpoint.agent_id": ["s2"],
    "endpoint.port": [5202, "5201", None],
    "started_at": ["2026-11-22T12:00:01Z", "2026-11-22T13:00:00Z", "2026-11-22T12:00:00", 0, None],
    "vni": [8, "7"],
    "opened_by": [job(1).job_id],
}


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        pytest.param(kind, path, value, id=f"{kind}{path}={value}")
        for kind, rules in CONTENT_RULES.items()
        for path in rules
        for value in FOREIGN[path]
    ],
)
async def test_no_field_may_name_another_than_the_rows_key(
    world: World, kind: str, path: str, value: object
) -> None:
    """Every field of every rule, with values of another agent, job, place or instant."""
    agent, partition, key, values = ROWS[kind]
    content = json.loads(str(values["json"]))
    *outer, name = path.split(".")
    inner = content[outer[0]] if outer else content
    inner[name] = value
    assert await world.write(agent, partition, key, json=json.dumps(content)) == "EntityRefused"
    del inner[name]
    assert await world.write(agent, partition, key, json=json.dumps(content)) == "EntityRefused"
    assert await world.write(agent, partition, key, **values) == "ok"


def one(table: str, partition: str, key: str) -> dict[str, Any]:
    return {"table": table, "partition": partition, "key": key}


def of(table: str, partition: str) -> dict[str, Any]:
    return {"table": table, "partition": partition}


@pytest.mark.parametrize(
    ("agent", "do", "said", "answer"),
    [
        ("c1", "get", one("control", "run.run-1", "control"), "ok"),
        ("c1", "get", one("results", BURST, "claim.00000"), "ok"),
        ("c1", "scan", of("results", "tunnel.s1"), "ok"),
        ("s1", "scan", of("results", "tunnel.s1"), "ok"),
        ("c1", "ping", {}, "ok"),
        ("c1", "get", one("control", "run.run-2", "control"), "EntityRefused"),
        ("s1", "get", one("control", "run.run-1", "control"), "EntityRefused"),
        ("c1", "get", one("results", BURST, "claim.00001"), "EntityRefused"),
        ("c1", "get", one("results", BURST, "report.00000"), "EntityRefused"),
        ("s1", "scan", of("results", "tunnel.s2"), "EntityRefused"),
        ("c1", "scan", of("results", "presence"), "EntityRefused"),
        ("c1", "scan", of("private", "tokens"), "ExchangeRefused"),
        ("c1", "get", one("private", "tokens", "admin"), "ExchangeRefused"),
        ("c1", "delete_partition", of("results", BURST), "ExchangeRefused"),
        ("c1", "delete", one("results", BURST, "claim.00000"), "EntityRefused"),
        ("c1", "send", {"messages": []}, "ExchangeRefused"),
        ("c1", "purge", {"number": None, "limit": 1}, "ExchangeRefused"),
        ("c1", "dead_letters", {"limit": 1}, "ExchangeRefused"),
        ("s1", "want", {"session": "s", "want": "w", "wait_s": 1}, "ExchangeRefused"),
        ("s1", "complete", {"token": "t"}, "ExchangeRefused"),
        ("c1", "put_raw", {"folder": "raw.run-1.00000", "file": "client.00001"}, "EntityRefused"),
        ("c1", "no such thing", {}, "ExchangeRefused"),
    ],
)
async def test_what_else_an_agent_may_ask(
    world: World, agent: str, do: str, said: dict[str, Any], answer: str
) -> None:
    assert await world.ask(agent, do, **said) == answer
    assert len(world.refused) == (answer != "ok")


async def test_who_was_handed_what_outlives_the_coordinator(world: World) -> None:
    again = Handed(world.fabric.records)
    agent = AgentRights(agent_id="c1", role=Role.CLIENT, address="", handed=again)
    world.agents["c1"] = agent
    assert await world.write("c1", BURST, "chunk.client.00000.000") == "ok"
    assert await world.ask("c1", "get", table="control", partition="run.run-1", key="x") == "ok"
    assert await world.write("c1", BURST, "chunk.client.00001.000") == "EntityRefused"


async def test_a_row_of_every_batch_is_looked_at(world: World) -> None:
    rows = [
        entity_fields(Entity(partition_key=BURST, row_key=key, properties={}))
        for key in ("chunk.client.00000.000", "chunk.client.00001.000")
    ]
    assert await world.ask("c1", "batch", table="results", rows=rows) == "EntityRefused"
    assert await world.fabric.results.get(BURST, "chunk.client.00000.000") is None


async def test_one_operation_is_done_once_however_often_it_is_asked(world: World) -> None:
    row = entity_fields(Entity(partition_key=BURST, row_key="probe.00000.000", properties={"n": 1}))
    operation = {"id": "same", "do": "upsert", "table": "results", "row": row}
    first = await world.service.do(world.agents["c1"], [operation])
    assert await world.service.do(world.agents["c1"], [operation]) == first
    stored = await world.fabric.results.get(BURST, "probe.00000.000")
    assert stored is not None
    assert first == [{"ok": stored.etag}]
