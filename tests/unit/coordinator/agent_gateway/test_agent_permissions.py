"""An agent of another host reads the plans that it is in, and writes rows of its own pairs."""

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
from broadside.exchange.records.row_rules import Kind
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

    async def ask(self, agent: str, do: str, **said: Any) -> str:
        """``ok``, or the error's name."""
        operation = {"id": secrets.token_hex(8), "do": do, **said}
        [answer] = await self.service.do(self.agents[agent], [operation])
        return str(answer.get("error", "ok"))

    async def put(self, written: Written, agent: str | None = None) -> str:
        """Write a row as its writer, or as another agent."""
        row = entity_fields(written.row)
        return await self.ask(agent or written.writer, "upsert", table="results", row=row)

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
        reported = {"row": row} if do == "upsert" else {"rows": [row]}
        operation = {"id": f"asker.{number}", "do": do, "table": "results", **reported}
        [answer] = await world.service.do(world.agents["c1"], [operation])
        assert "error" not in answer
        response = await world.fabric.results.get(*place)
        assert response is not None
        return response.properties["said"]

    assert await after(9, "all of it") == "all of it"
    assert await after(8, "a part") == "all of it"
    assert await after(10, "more than all") == "more than all"


@pytest.fixture
async def world(fabric: Fabric) -> World:
    """Clients c1 and c2, each handed a pair that it claimed, and their servers s1 and s2."""
    refused: list[str] = []
    handed = DeliveredJobs(fabric.records)
    agents = {
        name: AgentPermissions(agent_id=name, role=role, address="::1", delivered=handed)
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
        row = written(number)[Kind.CLAIM].row
        done = await world.ask(name, "insert", table="results", row=entity_fields(row))
        assert done == "ok"
    for role in Role:
        for number in (1, 0):
            reported = presence(role, number)
            key = f"{role}.{reported.agent_id}"
            assert (
                await world.write(reported.agent_id, "presence", key, json=reported.to_json())
                == "ok"
            )
    return world


@pytest.mark.parametrize("kind", written(), ids=lambda kind: kind.name)
async def test_an_agent_writes_its_own_rows(world: World, kind: Kind) -> None:
    local = written()[kind]
    assert await world.put(local) == "ok"
    assert world.refused == []
    for other in {*CLIENTS, *SERVERS} - {local.writer}:
        assert await world.put(local, other) == "EntityRefused", other


_CLAIM, _REPORT, _TEST = (written()[kind] for kind in (Kind.CLAIM, Kind.REPORT, Kind.TEST))
_CHUNK, _TEST_CHUNK = (written()[kind] for kind in (Kind.CHUNK, Kind.TEST_CHUNK))
_PLACE = (_TEST.row.partition_key, _TEST.row.row_key)


@pytest.mark.parametrize(
    ("writer", "row"),
    [
        ("c1", written(1)[Kind.CLAIM]),
        ("c1", _CLAIM.at(BURST, "claim.00002")),  # a job that nobody was handed
        ("c1", _CLAIM.at(BURST, "claim.00000.000")),
        ("c1", written(1)[Kind.REPORT]),
        ("c1", written(1)[Kind.CHUNK]),
        ("c1", _CHUNK.at("burst.run-2.00000", "chunk.client.00000.000")),
        ("c1", _CHUNK.at(BURST, "chunk.client.00000.000.x")),
        ("c1", _CHUNK.at("raw.run-1.00000", "client.00000.000")),
        ("c1", written(1)[Kind.ASK]),
        ("c1", written()[Kind.ASK].at("tunnel.s2", written()[Kind.ASK].row.row_key)),
        ("c1", _TEST),
        ("s1", written(1)[Kind.PRESENCE]),
        ("s1", written()[Kind.PRESENCE].at("presence", "client.s1")),
        ("s1", _REPORT),
        ("s1", _TEST.at(_PLACE[0], _PLACE[1].replace("s1", "s2"))),
        ("s1", _TEST.at(_PLACE[0], _PLACE[1].replace("s1", "s1.7"))),  # agent `s1.7`
        ("s1", _TEST.at(_PLACE[0].replace("T11", "T10"), _PLACE[1])),  # another hour's
        ("s1", _TEST.at("tests.2024-05-01T11.5", _PLACE[1])),  # another share of the hour
        ("s1", _TEST.at(_PLACE[0], f"{_PLACE[1]}.chunk.000")),  # a test in the place of seconds
        ("s1", written()[Kind.ANSWER].at("tunnel.s2", written()[Kind.ANSWER].row.row_key)),
        ("s1", _CHUNK.at("anything", "at all")),
    ],
)
async def test_another_agents_rows_are_refused_on_record_and_stay(
    world: World, writer: str, row: Written
) -> None:
    place = row.row.partition_key, row.row.row_key
    before = await world.fabric.results.get(*place)
    assert await world.put(row, writer) == "EntityRefused"
    assert await world.fabric.results.get(*place) == before
    assert world.refused == [f"{world.agents[writer].name} upsert"]


@pytest.mark.parametrize("case", cases(), ids=str)
async def test_no_field_names_another_than_the_writers_own(world: World, case: Case) -> None:
    """Every field of every rule, with values of another agent, job, place or instant."""
    wanted = "ok" if case.field.rule in STORED else "EntityRefused"
    assert await world.put(case.written) == wanted
    assert await world.put(written()[case.kind]) == "ok"


async def test_a_name_that_ends_as_a_chunks_key_writes_no_seconds_of_another(world: World) -> None:
    """Agent `s1.5201.chunk` on port 443: its test would lie where seconds of s1's test lie."""
    key = f"{_PLACE[1]}.chunk.443"
    rogue = replace(world.agents["s1"], agent_id="s1.5201.chunk")
    world.agents["rogue"] = rogue
    for hour in (_PLACE[0], server_tests_partition(AT - timedelta(seconds=1), rogue.agent_id)):
        assert await world.put(_TEST_CHUNK.at(hour, key), "rogue") == "EntityRefused"


@pytest.mark.parametrize("field", held_cases())
async def test_a_heartbeat_with_anothers_endpoint_is_held_back(world: World, field: str) -> None:
    reported = held_cases()[field]
    assert await world.write("s1", "presence", "server.s1", json=reported.to_json()) == "ok"
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
    again = DeliveredJobs(world.fabric.records)
    agent = AgentPermissions(agent_id="c1", role=Role.CLIENT, address="", delivered=again)
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


def _operations() -> dict[str, set[str]]:
    """The arguments of every operation that the service's patterns name."""
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


# Arguments of each operation, which were compared with the checks in ``AgentPermissions``.
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


def test_every_operation_of_the_service_has_a_role_and_checked_arguments() -> None:
    served = _operations()
    assert served.keys() == _CHECKED_ARGUMENTS.keys()
    assert OPERATIONS.keys() - served.keys() == {"put_raw"}  # a path of its own
    for name, arguments in served.items():
        assert arguments <= _CHECKED_ARGUMENTS[name], name


@pytest.mark.parametrize("name", ["send", "cancel", "purge", "replace", "get_raw", "delete_folder"])
async def test_an_operation_of_coordinators_is_refused(world: World, name: str) -> None:
    for agent in ("c1", "s1"):
        assert await world.ask(agent, name) == "ExchangeRefused"
