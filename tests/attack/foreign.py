"""Attacks by agents with another's identity in any field, and by hostile rows in Azure."""

import asyncio
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from broadside.coordinator.agent_gateway.agent_permissions import AgentPermissions, DeliveredJobs
from broadside.coordinator.agent_gateway.exchange_service import ExchangeService
from broadside.coordinator.runs.evidence_loader import read_evidence
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import Presence, Role
from broadside.exchange.ports import Entity
from broadside.exchange.records.row_rules import RowKind
from broadside.exchange.row_text import entity_fields
from tests.attack import Attack, attack_variants, lasting
from tests.contract.test_foreign_rows import PLAN, hostile_rows, told
from tests.written_rows import (
    CLIENTS,
    SERVERS,
    STORED,
    Case,
    cases,
    held_cases,
    job,
    presence,
    written,
)

FIELD: Final = "agent's row to coordinator"
READER: Final = "Azure's table to reader"


class World:
    """Clients c1 and c2 with one claimed job each, their servers s1 and s2, and all rows."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._service = ExchangeService(fabric)
        self._handed = DeliveredJobs(fabric.records)
        self._count = 0

    async def do(self, agent: str, do: str, row: Entity) -> dict[str, Any]:
        self._count += 1
        role = Role.CLIENT if agent in CLIENTS else Role.SERVER
        rights = AgentPermissions(agent_id=agent, role=role, address="", delivered=self._handed)
        fields = {"table": "results", "row": entity_fields(row)}
        [answer] = await self._service.do(rights, [{"id": f"a.{self._count}", "do": do, **fields}])
        return answer

    async def prepare(self) -> None:
        for index, name in enumerate(CLIENTS):
            await self._handed.record_delivery(job(index), name)
            await self.do(name, "insert", written(index)[RowKind.CLAIM].row)
        for role in Role:
            for index in (0, 1):
                announced = presence(role, index)
                await self.beat(announced.agent_id, announced)
        for index in (0, 1):
            for item in written(index).values():
                answer = await self.do(item.writer, "upsert", item.row)
                assert "ok" in answer, answer

    async def beat(self, agent: str, announced: Presence) -> None:
        key, content = f"{announced.role}.{announced.agent_id}", {"json": announced.to_json()}
        row = Entity(partition_key="presence", row_key=key, properties=content)
        answer = await self.do(agent, "upsert", row)
        assert "ok" in answer, answer


@cache
def world() -> World:
    folder = Path(lasting(tempfile.TemporaryDirectory()))
    made = World(open_fabric(FabricSettings(data_dir=folder / "data")))
    asyncio.run(made.prepare())
    return made


def _case(case: Case) -> str:
    return asyncio.run(_try_case(world(), case))


async def _try_case(made: World, case: Case) -> str:
    item = written()[case.kind]
    # A live server owns its endpoints.
    await made.beat("s2", presence(Role.SERVER, 1))
    before = await made.fabric.results.get(item.row.partition_key, item.row.row_key)
    answer = await made.do(item.writer, "upsert", case.written.row)
    assert answer.get("error") == "EntityRefused", answer
    after = await made.fabric.results.get(item.row.partition_key, item.row.row_key)
    assert before == after, "the row changed"
    return str(answer["said"])


async def _try_other(made: World, kind: RowKind, other: str) -> str:
    answer = await made.do(other, "upsert", written()[kind].row)
    assert answer.get("error") == "EntityRefused", answer
    return str(answer["said"])


async def _try_endpoint(made: World, field: str) -> str:
    await made.beat("s2", presence(Role.SERVER, 1))
    await made.beat("s1", held_cases()[field])
    stored = {item.agent_id: item for item in await made.fabric.records.fleet.read_presences()}
    await made.beat("s1", presence(Role.SERVER, 0))
    assert stored["s1"].ports == () and stored["s2"].ports == (5201,), stored
    return str(stored["s1"].problem)


async def _try_reader(made: World, name: str) -> str:
    row = hostile_rows()[name]
    burst = PLAN.bursts[0]
    before = told(await read_evidence(made.fabric.records, PLAN, burst), 0)
    await made.fabric.results.upsert(row)
    try:
        evidence = await read_evidence(made.fabric.records, PLAN, burst)
    finally:
        await made.fabric.results.delete(row.partition_key, row.row_key)
        for item in written(1).values():
            await made.fabric.results.upsert(item.row)
    assert told(evidence, 0) == before, "it is evidence"
    assert evidence.foreign_rows, "it is not reported"
    return evidence.foreign_rows[0].problem


def _in_world(attack: Any, *given: Any) -> str:
    return str(asyncio.run(attack(world(), *given)))


ATTACKS: Final[tuple[Attack, ...]] = (
    *attack_variants(
        "{}",
        FIELD,
        "a row in another's name",
        _case,
        {str(case)[:90]: case for case in cases() if case.field.rule not in STORED},
    ),
    *(
        Attack(
            f"{kind} by {other}",
            FIELD,
            "another's row",
            partial(_in_world, _try_other, kind, other),
        )
        for kind, item in written().items()
        for other in sorted({*CLIENTS, *SERVERS} - {item.writer})
    ),
    *attack_variants(
        "heartbeat: {}",
        FIELD,
        "an endpoint that another holds",
        partial(_in_world, _try_endpoint),
        held_cases().keys(),
    ),
    *attack_variants(
        "{}",
        READER,
        "evidence of an honest pair, made or taken",
        partial(_in_world, _try_reader),
        hostile_rows().keys(),
    ),
)
