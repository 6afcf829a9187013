"""Tests for the rows an agent is allowed to read and write."""

import ast
import inspect
import secrets
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from broadside.coordinator.agent_gateway import exchange_service
from broadside.coordinator.agent_gateway.agent_permissions import (
    OPERATIONS,
    AgentPermissions,
    DeliveredJobs,
)
from broadside.coordinator.agent_gateway.exchange_service import ExchangeService
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import Role
from broadside.exchange.ports import Delivery, Entity, Value
from broadside.exchange.records.keys import server_tests_partition
from broadside.exchange.records.row_rules import RowKind
from broadside.exchange.row_text import entity_fields
from tests.written_rows import (
    AT,
    BURST,
    CLIENTS,
    SERVERS,
    STORED,
    Case,
    Written,
    cases,
    held_cases,
    job,
    presence,
    written,
)


@dataclass
class World:
    fabric: Fabric
    service: ExchangeService
    refused: list[str]
    agents: dict[str, AgentPermissions]

    async def request(self, agent: str, do: str, **fields: Any) -> str:
        """Return ``ok``, or the name of the error if the request failed."""
        operation = {"id": secrets.token_hex(8), "do": do, **fields}
        [answer] = await self.service.do(self.agents[agent], [operation])
        return str(answer.get("error", "ok"))

    async def put(self, written: Written, agent: str | None = None) -> str:
        """Write a row. If no agent is given, use the writer of the row."""
        row = entity_fields(written.row)
        return await self.request(agent or written.writer, "upsert", table="results", row=row)

    async def write(self, agent: str, partition: str, key: str, **values: Value) -> str:
        row = entity_fields(Entity(partition_key=partition, row_key=key, properties=values))
        return await self.request(agent, "upsert", table="results", row=row)


@pytest.mark.parametrize("do", ["upsert", "batch"])
async def test_late_write_does_not_replace_newer_write(world: World, do: str) -> None:
    """This can happen when bytes of an abandoned connection arrive late."""
    place = ("burst.run-1.00000", "chunk.client.00000.000")

    async def after(number: int, text: str) -> object:
        entity = Entity(partition_key=place[0], row_key=place[1], properties={"text": text})
        row = entity_fields(entity)
        rows = {"row": row} if do == "upsert" else {"rows": [row]}
        operation = {"id": f"asker.{number}", "do": do, "table": "results", **rows}
        [answer] = await world.service.do(world.agents["c1"], [operation])
        assert "error" not in answer
        response = await world.fabric.results.get(*place)
        assert response is not None
        return response.properties["text"]

    assert await after(9, "all of it") == "all of it"
    assert await after(8, "a part") == "all of it"
    assert await after(10, "more than all") == "more than all"


@pytest.fixture
async def world(fabric: Fabric) -> World:
    """Create two clients with claimed pairs, and two servers."""
    refused: list[str] = []
    delivered = DeliveredJobs(fabric.records)
    agents = {
        name: AgentPermissions(agent_id=name, role=role, address="::1", delivered=delivered)
        for role, names in ((Role.CLIENT, CLIENTS), (Role.SERVER, SERVERS))
        for name in names
    }
    service = ExchangeService(fabric, lambda user, do, _: refused.append(f"{user.name} {do}"))
    world = World(fabric, service, refused, agents)
    for number, name in enumerate(CLIENTS):
        delivery = Delivery(
            body=job(number).body,
            message_id="m",
            delivery_count=1,
            locked_until_at=AT,
            token=None,
        )
        await agents[name].record_delivery(delivery)
        row = written(number)[RowKind.CLAIM].row
        done = await world.request(name, "insert", table="results", row=entity_fields(row))
        assert done == "ok"
    for role in Role:
        for number in (1, 0):
            heartbeat = presence(role, number)
            key = f"{role}.{heartbeat.agent_id}"
            assert (
                await world.write(heartbeat.agent_id, "presence", key, json=heartbeat.to_json())
                == "ok"
            )
    return world


@pytest.mark.parametrize("kind", written(), ids=lambda kind: kind.name)
async def test_agent_writes_only_rows_of_its_pairs(world: World, kind: RowKind) -> None:
    local = written()[kind]
    assert await world.put(local) == "ok"
    assert world.refused == []
    for other in {*CLIENTS, *SERVERS} - {local.writer}:
        assert await world.put(local, other) == "EntityRefused", other


_CLAIM, _REPORT, _TEST = (written()[kind] for kind in (RowKind.CLAIM, RowKind.REPORT, RowKind.TEST))
_CHUNK, _TEST_CHUNK = (written()[kind] for kind in (RowKind.CHUNK, RowKind.TEST_CHUNK))
_PLACE = (_TEST.row.partition_key, _TEST.row.row_key)


@pytest.mark.parametrize(
    ("writer", "row"),
    [
        ("c1", written(1)[RowKind.CLAIM]),
        # This job was not delivered to the agent.
        ("c1", _CLAIM.at(BURST, "claim.00002")),
        ("c1", _CLAIM.at(BURST, "claim.00000.000")),
        ("c1", written(1)[RowKind.REPORT]),
        ("c1", written(1)[RowKind.CHUNK]),
        ("c1", _CHUNK.at("burst.run-2.00000", "chunk.client.00000.000")),
        ("c1", _CHUNK.at(BURST, "chunk.client.00000.000.x")),
        ("c1", _CHUNK.at("raw.run-1.00000", "client.00000.000")),
        ("c1", written(1)[RowKind.ASK]),
        ("c1", written()[RowKind.ASK].at("tunnel.s2", written()[RowKind.ASK].row.row_key)),
        ("c1", _TEST),
        ("s1", written(1)[RowKind.PRESENCE]),
        ("s1", written()[RowKind.PRESENCE].at("presence", "client.s1")),
        ("s1", _REPORT),
        ("s1", _TEST.at(_PLACE[0], _PLACE[1].replace("s1", "s2"))),
        # This key belongs to agent `s1.7`.
        ("s1", _TEST.at(_PLACE[0], _PLACE[1].replace("s1", "s1.7"))),
        # This is another hour.
        ("s1", _TEST.at(_PLACE[0].replace("T11", "T10"), _PLACE[1])),
        # This is another part of the hour.
        ("s1", _TEST.at("tests.2024-05-01T11.5", _PLACE[1])),
        # A test with the key of a chunk.
        ("s1", _TEST.at(_PLACE[0], f"{_PLACE[1]}.chunk.000")),
        ("s1", written()[RowKind.ANSWER].at("tunnel.s2", written()[RowKind.ANSWER].row.row_key)),
        ("s1", _CHUNK.at("anything", "at all")),
    ],
)
async def test_rejects_and_logs_writes_to_rows_of_other_agents(
    world: World, writer: str, row: Written
) -> None:
    place = row.row.partition_key, row.row.row_key
    before = await world.fabric.results.get(*place)
    assert await world.put(row, writer) == "EntityRefused"
    assert await world.fabric.results.get(*place) == before
    assert world.refused == [f"{world.agents[writer].name} upsert"]


@pytest.mark.parametrize("case", cases(), ids=str)
async def test_rejects_fields_that_name_another_agent(world: World, case: Case) -> None:
    """Set all fields to values of another agent, job or time."""
    expected = "ok" if case.field.rule in STORED else "EntityRefused"
    assert await world.put(case.written) == expected
    assert await world.put(written()[case.kind]) == "ok"


async def test_agent_id_cannot_imitate_a_chunk_key(world: World) -> None:
    """A test on port 443 would be written to the key of a chunk from s1."""
    key = f"{_PLACE[1]}.chunk.443"
    rogue = replace(world.agents["s1"], agent_id="s1.5201.chunk")
    world.agents["rogue"] = rogue
    for hour in (_PLACE[0], server_tests_partition(AT - timedelta(seconds=1), rogue.agent_id)):
        assert await world.put(_TEST_CHUNK.at(hour, key), "rogue") == "EntityRefused"


@pytest.mark.parametrize("field", held_cases())
async def test_heartbeat_with_foreign_endpoint_loses_its_endpoints(
    world: World, field: str
) -> None:
    heartbeat = held_cases()[field]
    assert await world.write("s1", "presence", "server.s1", json=heartbeat.to_json()) == "ok"
    stored = {item.agent_id: item for item in await world.fabric.records.fleet.read_presences()}
    current = stored["s1"]
    assert (current.ports, current.busy_ports, current.engines, current.echo_port) == (
        (),
        (),
        (),
        None,
    )
    assert "server.s2 announced first" in str(current.problem)
    assert stored["s2"] == presence(Role.SERVER, 1)


def row_address(table: str, partition: str, key: str) -> dict[str, Any]:
    return {"table": table, "partition": partition, "key": key}


def partition_address(table: str, partition: str) -> dict[str, Any]:
    return {"table": table, "partition": partition}


@pytest.mark.parametrize(
    ("agent", "do", "fields", "result"),
    [
        ("c1", "get", row_address("control", "run.run-1", "control"), "ok"),
        ("c1", "get", row_address("results", BURST, "claim.00000"), "ok"),
        ("c1", "scan", partition_address("results", "tunnel.s1"), "ok"),
        ("s1", "scan", partition_address("results", "tunnel.s1"), "ok"),
        ("c1", "ping", {}, "ok"),
        ("c1", "get", row_address("control", "run.run-2", "control"), "EntityRefused"),
        ("s1", "get", row_address("control", "run.run-1", "control"), "EntityRefused"),
        ("c1", "get", row_address("results", BURST, "claim.00001"), "EntityRefused"),
        ("c1", "get", row_address("results", BURST, "report.00000"), "EntityRefused"),
        ("s1", "scan", partition_address("results", "tunnel.s2"), "EntityRefused"),
        ("c1", "scan", partition_address("results", "presence"), "EntityRefused"),
        ("c1", "scan", partition_address("private", "tokens"), "ExchangeRefused"),
        ("c1", "get", row_address("private", "tokens", "admin"), "ExchangeRefused"),
        ("c1", "delete_partition", partition_address("results", BURST), "ExchangeRefused"),
        ("c1", "delete", row_address("results", BURST, "claim.00000"), "EntityRefused"),
        ("c1", "send", {"messages": []}, "ExchangeRefused"),
        ("c1", "purge", {"number": None, "limit": 1}, "ExchangeRefused"),
        ("c1", "dead_letters", {"limit": 1}, "ExchangeRefused"),
        ("s1", "want", {"session": "s", "want": "w", "wait_s": 1}, "ExchangeRefused"),
        ("s1", "complete", {"token": "t"}, "ExchangeRefused"),
        ("c1", "put_raw", {"folder": "raw.run-1.00000", "file": "client.00001"}, "EntityRefused"),
        ("c1", "no such thing", {}, "ExchangeRefused"),
    ],
)
async def test_agent_operations_are_allowed_or_rejected(
    world: World, agent: str, do: str, fields: dict[str, Any], result: str
) -> None:
    assert await world.request(agent, do, **fields) == result
    assert len(world.refused) == (result != "ok")


async def test_delivered_jobs_survive_coordinator_restart(world: World) -> None:
    again = DeliveredJobs(world.fabric.records)
    agent = AgentPermissions(agent_id="c1", role=Role.CLIENT, address="", delivered=again)
    world.agents["c1"] = agent
    assert await world.write("c1", BURST, "chunk.client.00000.000") == "ok"
    assert await world.request("c1", "get", table="control", partition="run.run-1", key="x") == "ok"
    assert await world.write("c1", BURST, "chunk.client.00001.000") == "EntityRefused"


async def test_rejects_batch_with_a_foreign_row(world: World) -> None:
    rows = [
        entity_fields(Entity(partition_key=BURST, row_key=key, properties={}))
        for key in ("chunk.client.00000.000", "chunk.client.00001.000")
    ]
    assert await world.request("c1", "batch", table="results", rows=rows) == "EntityRefused"
    assert await world.fabric.results.get(BURST, "chunk.client.00000.000") is None


async def test_repeated_operation_is_applied_once(world: World) -> None:
    row = entity_fields(Entity(partition_key=BURST, row_key="probe.00000.000", properties={"n": 1}))
    operation = {"id": "same", "do": "upsert", "table": "results", "row": row}
    first = await world.service.do(world.agents["c1"], [operation])
    assert await world.service.do(world.agents["c1"], [operation]) == first
    stored = await world.fabric.results.get(BURST, "probe.00000.000")
    assert stored is not None
    assert first == [{"ok": stored.etag}]


def _operations() -> dict[str, set[str]]:
    """Return the arguments of all operations, as found in the source code."""
    tree = ast.parse(inspect.getsource(exchange_service))
    by_name: dict[str, set[str]] = {}
    for pattern in ast.walk(tree):
        if not isinstance(pattern, ast.MatchMapping):
            continue
        keys = [ast.literal_eval(key) for key in pattern.keys]
        value = dict(zip(keys, pattern.patterns, strict=True)).get("do")
        if isinstance(value, ast.MatchValue):
            name = ast.literal_eval(value.value)
            by_name[name] = by_name.get(name, set()) | set(keys) - {"do"}
    return by_name


# If you add an argument here, see if ``AgentPermissions`` needs to check it.
_CHECKED_ARGUMENTS: dict[str, set[str]] = {
    "ping": set(),
    "want": {"session", "want", "wait_s"},
    "unwant": {"want"},
    "complete": {"token"},
    "abandon": {"token"},
    "renew": {"token"},
    "dead_letter": {"token", "reason", "description"},
    "watch": {"session", "partition"},
    "get": {"table", "partition", "key"},
    "scan": {"table", "partition", "row_from", "row_before", "limit"},
    "insert": {"table", "row"},
    "upsert": {"table", "row"},
    "batch": {"table", "rows"},
    "delete": {"table", "partition", "key"},
}


def test_all_service_operations_have_checked_arguments() -> None:
    served = _operations()
    assert served.keys() == _CHECKED_ARGUMENTS.keys()
    # This operation is available at a separate URL.
    assert OPERATIONS.keys() - served.keys() == {"put_raw"}
    for name, arguments in served.items():
        assert arguments <= _CHECKED_ARGUMENTS[name], name


@pytest.mark.parametrize("name", ["send", "cancel", "purge", "replace", "get_raw", "delete_folder"])
async def test_rejects_coordinator_operations_from_agents(world: World, name: str) -> None:
    for agent in ("c1", "s1"):
        assert await world.request(agent, name) == "ExchangeRefused"
