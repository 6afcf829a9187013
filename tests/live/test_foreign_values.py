"""Test foreign values in all fields of agent records through the coordinator's HTTPS port.

The coordinator has a certificate of the test. Agents join by code and use TLS and tokens.
"""

import asyncio
import os
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from broadside.coordinator.agent_gateway.agent_permissions import OPERATIONS
from broadside.coordinator.agent_gateway.enrolment import Enrolments, JoinTerms
from broadside.coordinator.agent_gateway.gateway_server import (
    open_gateway_server,
    server_certificate,
)
from broadside.coordinator.auth.audit import Audit
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.http.coordinator_client import CoordinatorClient, open_client
from broadside.exchange.http.credential import AgentCredential
from broadside.exchange.http.http_ports import HttpQueue, HttpTable
from broadside.exchange.http.joining import join, new_code
from broadside.exchange.messages import Role
from broadside.exchange.ports import (
    Entity,
    EntityRefused,
    ExchangeError,
    ExchangeRefused,
    Outgoing,
)
from broadside.exchange.records import FleetRecords
from broadside.exchange.records.row_rules import FieldCondition, RowKind
from tests.written_rows import (
    CLIENTS,
    OUTPUTS,
    SERVERS,
    STORED,
    Case,
    cases,
    held_cases,
    job,
    presence,
    written,
)

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


@dataclass(frozen=True, kw_only=True)
class Port:
    """Listener of the coordinator and the connections of the four agents."""

    fabric: Fabric
    links: Mapping[str, CoordinatorClient]
    credentials: Mapping[str, AgentCredential]

    def table(self, agent: str) -> HttpTable:
        return HttpTable(self.links[agent], "results")

    async def put(self, row: Entity, agent: str) -> str:
        """Write a row and return ``ok`` or the name of the error."""
        try:
            await self.table(agent).upsert(row)
        except ExchangeError as error:
            return type(error).__name__
        return "ok"

    async def call(self, agent: str, do: str, **arguments: Any) -> str:
        try:
            await self.links[agent].call(do, **arguments)
        except ExchangeError as error:
            return type(error).__name__
        return "ok"


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Port]:
    data_dir = tmp_path / "data"
    fabric = open_fabric(FabricSettings(fabric="embedded", data_dir=data_dir))
    settings = CoordinatorSettings(hosts_listen="127.0.0.1:0")
    server = open_gateway_server(settings, fabric, data_dir, Audit(fabric.private))
    assert server is not None
    serving = asyncio.create_task(server.run_beside())
    authority = server_certificate(settings, data_dir).authority
    credentials = {}
    now = datetime.now(UTC)
    for role, names in ((Role.CLIENT, CLIENTS), (Role.SERVER, SERVERS)):
        code, secret = new_code(authority)
        await Enrolments(fabric.private).add_code(
            secret, JoinTerms(role, len(names), now + timedelta(hours=1)), by="test", now=now
        )
        for name in names:
            path = tmp_path / f"{name}.json"
            credentials[name] = await join(code, (server.url,), name, role, path)
    links = {
        name: CoordinatorClient(replace(item, path=None)) for name, item in credentials.items()
    }
    port = Port(fabric=fabric, links=links, credentials=credentials)
    await _prepare(port)
    yield port
    for link in links.values():
        await link.close()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await fabric.close()


async def _prepare(port: Port) -> None:
    """Write four heartbeats, and queue two jobs for the two clients to claim."""
    for role, names in ((Role.CLIENT, CLIENTS), (Role.SERVER, SERVERS)):
        for index, name in enumerate(names):
            table = HttpTable(port.links[name], "results")
            await FleetRecords(table).beat(presence(role, index))
    for index, name in enumerate(CLIENTS):
        queue = HttpQueue(port.links[name])
        expires_at = datetime.now(UTC) + timedelta(minutes=5)
        await port.fabric.queue.send(
            [Outgoing(body=job(index).body, message_id=job(index).job_id, expires_at=expires_at)]
        )
        delivery = await queue.receive(20)
        assert delivery is not None
        await queue.complete(delivery)
        await port.table(name).insert(written(index)[RowKind.CLAIM].row)
    for index in (1, 0):
        for local in written(index).values():
            assert await port.put(local.row, local.writer) == "ok", local.kind


async def test_rejects_foreign_values_in_every_field(port: Port) -> None:
    """Test all values that belong to other agents.

    Rows of other agents should not change.
    """
    others = {kind: item.row for kind, item in written(1).items()}

    async def put_case(case: Case) -> tuple[Case, str]:
        return case, await port.put(case.written.row, case.written.writer)

    for case in cases():
        # The agent s2 is alive and owns its endpoints.
        if case.field.rule is FieldCondition.HELD:
            assert await port.put(written(1)[RowKind.PRESENCE].row, "s2") == "ok"
        answer = (await put_case(case))[1]
        wanted = "ok" if case.field.rule in STORED else "EntityRefused"
        assert answer == wanted, str(case)
        assert await port.put(written()[case.kind].row, written()[case.kind].writer) == "ok"
    for kind, row in others.items():
        response = await port.fabric.results.get(row.partition_key, row.row_key)
        assert response is not None, kind
        assert response.properties == row.properties, kind


async def test_rejects_records_in_the_name_of_another_agent(port: Port) -> None:
    for kind, local in written().items():
        for other in {*CLIENTS, *SERVERS} - {local.writer}:
            assert await port.put(local.row, other) == "EntityRefused", (kind, other)
        rows = [local.row, written(1)[kind].row]
        if rows[0].partition_key == rows[1].partition_key:
            # The batch contains a row of another agent.
            with pytest.raises(EntityRefused):
                await port.table(local.writer).batch(rows)


async def test_first_owner_keeps_its_endpoints(port: Port) -> None:
    for field, reported in held_cases().items():
        # The agent s2 is alive.
        assert await port.put(written(1)[RowKind.PRESENCE].row, "s2") == "ok"
        row = Entity(
            partition_key="presence", row_key="server.s1", properties={"json": reported.to_json()}
        )
        assert await port.put(row, "s1") == "ok"
        stored = {item.agent_id: item for item in await port.fabric.records.fleet.read_presences()}
        assert "server.s2 announced first" in str(stored["s1"].problem), field
        assert (stored["s1"].ports, stored["s1"].engines) == ((), ()), field
        assert stored["s2"].problem is None, field
        assert stored["s2"].ports == (5201,), field
        local = written()[RowKind.PRESENCE]
        assert await port.put(local.row, "s1") == "ok"


async def test_server_cannot_record_a_test_on_a_foreign_endpoint(port: Port) -> None:
    assert await port.put(written(1)[RowKind.PRESENCE].row, "s2") == "ok"
    case = written()[RowKind.TEST].changed("endpoint.address", "10.0.0.2")
    assert await port.put(case.row, "s1") == "EntityRefused"
    free = written()[RowKind.TEST].changed("endpoint.address", "10.0.0.77")
    assert await port.put(free.row, "s1") == "ok", "the reader compares it with the plan"


async def test_agent_can_upload_only_output_of_its_jobs(port: Port) -> None:
    for kind, (folder, file, writer) in OUTPUTS.items():
        for agent, credential in port.credentials.items():
            async with open_client(credential.authority) as client:
                answer = await client.put(
                    f"{credential.coordinators[0]}/v1/exchange/raw/{folder}/{file}",
                    content=zlib.compress(b"text"),
                    headers={"Authorization": f"Bearer {credential.secret}"},
                )
            assert (answer.status_code == 200) is (agent == writer), (kind, agent, answer.text)


# Foreign operations by name and argument.
_FOREIGN_OPERATIONS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "want": {"session": {"session": "s", "want": "w", "wait_s": 1}},
    "complete": {"token": {"token": "0" * 32}},
    "abandon": {"token": {"token": "0" * 32}},
    "renew": {"token": {"token": "0" * 32}},
    "dead_letter": {"token": {"token": "0" * 32, "reason": "r", "description": "d"}},
    "watch": {"partition": {"session": "s", "partition": "run.run-2"}},
    "get": {
        "table": {"table": "private", "partition": "tokens", "key": "admin"},
        "partition": {"table": "control", "partition": "run.run-2", "key": "control"},
        "key": {"table": "results", "partition": "burst.run-1.00000", "key": "report.00000"},
    },
    "scan": {
        "table": {"table": "private", "partition": "tokens"},
        "partition": {"table": "results", "partition": "presence"},
    },
    "insert": {"table": {"table": "control", "row": ["run.run-1", "plan.000", {}]}},
    "upsert": {"table": {"table": "private", "row": ["tokens", "rogue", {}]}},
    "batch": {"table": {"table": "control", "rows": [["run.run-1", "plan.000", {}]]}},
    "delete": {
        "table": {"table": "private", "partition": "tokens", "key": "admin"},
        "partition": {
            "table": "results",
            "partition": "burst.run-1.00000",
            "key": "claim.00000",
        },
        "key": {"table": "results", "partition": "presence", "key": "server.s2"},
    },
}


async def test_rejects_foreign_arguments_of_every_operation(port: Port) -> None:
    for do, arguments in _FOREIGN_OPERATIONS.items():
        assert do in OPERATIONS
        for name, text in arguments.items():
            assert await port.call("c1", do, **text) != "ok", (do, name)
    for do in ("send", "cancel", "resend", "purge", "dead_letters", "counts", "replace"):
        with pytest.raises(ExchangeRefused):
            await port.links["c1"].call(do)
    for do in ("want", "complete", "renew"):
        with pytest.raises(ExchangeRefused):
            await port.links["s1"].call(do, want="w")


async def test_rejects_other_tokens_and_untrusted_clients(port: Port) -> None:
    credential = port.credentials["c1"]
    url = f"{credential.coordinators[0]}/v1/exchange/operations"
    for secret in ("x", os.urandom(16).hex(), credential.secret[::-1]):
        async with open_client(credential.authority) as client:
            answer = await client.post(
                url, json=[{"do": "ping"}], headers={"Authorization": f"Bearer {secret}"}
            )
        assert answer.status_code == 401
    # A client should not be able to connect if it trusts only the system's authorities.
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient() as stranger:
            await stranger.get(url)
