"""Access rights of agents to plans, jobs and rows.

The coordinator knows which agent received and claimed each job. It can therefore distinguish the
rows of different agents, which a table service cannot do. An attacker who controls an agent can
damage only the results of that agent's pairs.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from broadside.coordinator.agent_gateway.endpoint_owners import EndpointOwners
from broadside.exchange.messages import JOB_MAX_BYTES, Claim, Job, Presence, Role, ServerTest
from broadside.exchange.ports import (
    Delivery,
    Entity,
    EntityRefused,
    ExchangeRefused,
    RecordUnreadable,
)
from broadside.exchange.records import Records
from broadside.exchange.records.row_rules import (
    ROW_RULES,
    RowKey,
    RowKind,
    place_of,
    raw_place,
    wrong_field,
)
from broadside.exchange.row_text import entity_fields, entity_of
from broadside.exchange.rows import parse_row, row_name
from broadside.exchange.strict_json import parse_strict_model

_RUNS_CACHED_COUNT: Final = 64
_CLAIMERS_CACHED_COUNT: Final = 100_000
# Partition of a run, or of one of the copies of its control row.
_RUN: Final = re.compile(r"run\.([a-z0-9-]+)(?:\.control\.[0-9]{3})?")
_PAIR_KINDS: Final = frozenset(
    {
        RowKind.CLAIM,
        RowKind.REPORT,
        RowKind.CHUNK,
        RowKind.PROBE,
        RowKind.CANARY,
        RowKind.ASK,
        RowKind.RAW,
    }
)


log = logging.getLogger(__name__)


# Role that may use each operation, None for both roles. A new operation needs an entry here and a
# check in ``_check``.
OPERATIONS: Final[Mapping[str, Role | None]] = {
    **dict.fromkeys(("want", "unwant"), Role.CLIENT),
    **dict.fromkeys(("complete", "abandon", "renew", "dead_letter"), Role.CLIENT),
    **dict.fromkeys(("ping", "watch", "get", "scan"), None),
    **dict.fromkeys(("insert", "upsert", "batch", "delete", "put_raw"), None),
}
# Operations without a row. For those with a token, the service checks that the token belongs to its
# receiver.
_NO_ROW: Final = frozenset(
    {"ping", "want", "unwant", "complete", "abandon", "renew", "dead_letter"}
)


class ClientPermissions(Protocol):
    """Access rights of a client of the service."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str:
        """Source address, for the audit log."""

    async def allow(self, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check an operation and return it, possibly changed.

        The heartbeat of an agent whose endpoints belong to another agent is changed.

        Raises:
            ExchangeRefused: Agents may not use this operation.
            EntityRefused: The row belongs to another agent.
        """

    async def record_delivery(self, delivery: Delivery) -> None:
        """Record that a message will be delivered to this client."""


class DeliveredJobs:
    """Cache of the jobs that agents have received and claimed, loaded from the tables."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.endpoints = EndpointOwners(records.fleet)
        self._delivered: OrderedDict[str, set[tuple[int, int, str]]] = OrderedDict()
        self._claimers: OrderedDict[tuple[str, int, int], str] = OrderedDict()

    async def of_run(self, run_id: str) -> set[tuple[int, int, str]]:
        jobs = self._delivered.get(run_id)
        if jobs is None:
            read = await self._records.private.read_given(run_id)
            jobs = self._delivered.setdefault(run_id, read)
            while len(self._delivered) > _RUNS_CACHED_COUNT:
                self._delivered.popitem(last=False)
        self._delivered.move_to_end(run_id)
        return jobs

    async def record_delivery(self, job: Job, agent_id: str) -> None:
        """Store that a job will be delivered to an agent.

        Args:
            job: Job to deliver.
            agent_id: The agent's id that receives it.
        """
        delivered = await self.of_run(job.run_id)
        await self._records.private.save_given(job, agent_id)
        delivered.add((job.burst_index, job.pair_index, agent_id))

    async def job_facts(
        self, run_id: str, burst_index: int, pair_index: int, agent_id: str
    ) -> Mapping[str, Any]:
        """Return the values of a job that an agent received.

        Args:
            run_id: The run's id.
            burst_index: Burst index, starting at 0.
            pair_index: Pair index, starting at 0.
            agent_id: The agent's id.

        Returns:
            Values by field name. Empty if they are unknown.
        """
        return await self._records.private.read_job_facts(run_id, burst_index, pair_index, agent_id)

    async def claimer(self, run_id: str, burst_index: int, pair_index: int) -> str | None:
        """Return the agent that claimed a job. A claim never changes, so it can be cached.

        Args:
            run_id: The run's id.
            burst_index: Burst index, starting at 0.
            pair_index: Pair index, starting at 0.

        Returns:
            Id of the agent. Empty if the claim is unreadable, None if there is no claim.
        """
        place = (run_id, burst_index, pair_index)
        if (known := self._claimers.get(place)) is not None:
            return known
        row = await self._records.bursts.read_claim_row(run_id, burst_index, pair_index)
        if row is None:
            return None
        try:
            claimer = parse_row(Claim, row).agent_id
        except RecordUnreadable:
            # An unreadable claim belongs to an unknown agent.
            return ""
        self._claimers[place] = claimer
        while len(self._claimers) > _CLAIMERS_CACHED_COUNT:
            self._claimers.popitem(last=False)
        return claimer


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPermissions:
    """Access rights of one enrolled agent."""

    agent_id: str
    role: Role
    address: str
    delivered: DeliveredJobs = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.role}.{self.agent_id}"

    async def record_delivery(self, delivery: Delivery) -> None:
        try:
            job = parse_strict_model(Job, delivery.body, JOB_MAX_BYTES)
        # The agent will move an invalid job to the dead letters. It may not write a row for it.
        except ValueError:
            return
        await self.delivered.record_delivery(job, self.agent_id)

    async def allow(self, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        do = operation.get("do")
        is_known = isinstance(do, str) and do in OPERATIONS
        if not is_known or OPERATIONS[str(do)] not in (None, self.role):
            raise self._forbidden(operation)
        if do in _NO_ROW:
            return operation
        match operation:
            case {"do": "insert" | "upsert" as do, "table": "results", "row": row}:
                return {**operation, "row": entity_fields(await self._write(do, entity_of(row)))}
            case {"do": "batch", "table": "results", "rows": list(rows)}:
                written = [await self._write("upsert", entity_of(row)) for row in rows]
                return {**operation, "rows": [entity_fields(row) for row in written]}
        await self._check(operation)
        return operation

    async def _check(self, operation: Mapping[str, Any]) -> None:
        match operation:
            case {"do": "watch", "partition": str(partition)}:
                await self._read_run(partition)
            case {"do": "get", "table": "control", "partition": str(partition)}:
                await self._read_run(partition)
            case {"do": "get", "table": "results", "partition": str(partition), "key": str(key)}:
                await self._read_result(partition, key)
            case {"do": "scan", "table": "results", "partition": str(partition)}:
                self._read_tunnels(partition)
            case {"do": "delete", "table": "results", "partition": str(partition), "key": str(key)}:
                await self._delete(partition, key)
            case {"do": "put_raw", "folder": str(folder), "file": str(file)}:
                await self._put_raw(folder, file)
            case _:
                raise self._forbidden(operation)

    def _forbidden(self, operation: Mapping[str, Any]) -> ExchangeRefused:
        what = " ".join(str(operation.get(name, ""))[:40] for name in ("do", "table"))
        return ExchangeRefused(f"{self.name}: agents are not allowed to {what.strip()}")

    def _not_owner(self, partition: str, key: str = "") -> EntityRefused:
        return EntityRefused(f"{self.name}: {partition}|{key} belongs to another agent")

    async def _read_run(self, partition: str) -> None:
        run = _RUN.fullmatch(partition)
        if run is None or not any(
            agent_id == self.agent_id for _, _, agent_id in await self.delivered.of_run(run[1])
        ):
            raise self._not_owner(partition)

    async def _read_result(self, partition: str, key: str) -> None:
        place = place_of(partition, key)
        if place is not None and place.kind is RowKind.CLAIM:
            job = (place.facts["burst"], place.facts["pair"], self.agent_id)
            if job in await self.delivered.of_run(place.facts["run"]):
                return
            raise self._not_owner(partition, key)
        self._read_tunnels(partition)

    def _read_tunnels(self, partition: str) -> None:
        """Allow access to tunnel rows. A server reads its own rows, a client reads all rows."""
        is_of_agent = partition == f"tunnel.{self.agent_id}"
        if not partition.startswith("tunnel.") or not (is_of_agent or self.role is Role.CLIENT):
            raise self._not_owner(partition)

    async def _write(self, do: str, row: Entity) -> Entity:
        """Return the row to write. Raises ``EntityRefused`` if the row violates a rule."""
        place = place_of(row.partition_key, row.row_key)
        if place is None or row.partition_key != place.facts.get("partition", row.partition_key):
            raise self._not_owner(row.partition_key, row.row_key)
        facts = {**await self._facts(do, place, row_name(row)), "agent": self.agent_id}
        rule = ROW_RULES[place.kind]
        if (wrong := rule.foreign_property(row.properties)) is not None:
            raise self._wrong_field(row, wrong)
        if rule.model is None:
            return row
        try:
            message = parse_row(rule.model, row)
        except RecordUnreadable as error:
            raise EntityRefused(f"{self.name}: {error}") from error
        wrong = wrong_field(place.kind, message, facts)
        if wrong is not None:
            raise self._wrong_field(row, wrong)
        if isinstance(message, Presence):
            return await self._without_taken_endpoints(row, message)
        if isinstance(message, ServerTest):
            await self._check_endpoint(row, message)
        return row

    async def _facts(self, do: str, place: RowKey, name: str) -> Mapping[str, Any]:
        """Return the values that a row or output needs to have, from its key, credential and job.

        Raises:
            EntityRefused: The row or output belongs to another agent.
        """
        facts = place.facts
        not_owner = EntityRefused(f"{self.name}: {name} belongs to another agent")
        is_of_role = ROW_RULES[place.kind].role in (None, self.role)
        if not is_of_role or facts.get("agent", self.agent_id) != self.agent_id:
            raise not_owner
        if facts.get("role", self.role) != self.role:
            raise not_owner
        if place.kind is RowKind.ANSWER and facts["server"] != self.agent_id:
            raise not_owner
        if place.kind not in _PAIR_KINDS:
            return facts
        job = facts["run"], facts["burst"], facts["pair"]
        # An existing claim is not replaced by an insert.
        if do == "insert" and place.kind is RowKind.CLAIM:
            is_of_agent = (*job[1:], self.agent_id) in await self.delivered.of_run(job[0])
        else:
            is_of_agent = await self.delivered.claimer(*job) == self.agent_id
        if not is_of_agent:
            raise not_owner
        if place.kind not in (RowKind.REPORT, RowKind.ASK):
            return facts
        job_facts = await self.delivered.job_facts(*job, self.agent_id)
        if any(facts[fact] != job_facts[fact] for fact in facts.keys() & job_facts.keys()):
            raise EntityRefused(f"{self.name}: {name} is not the tunnel of job {facts['job']}")
        if place.kind is RowKind.REPORT:
            return {**job_facts, **facts}
        address = await self.delivered.endpoints.address_of(self.role, self.agent_id)
        return {**job_facts, **facts, "announced_address": address}

    def _wrong_field(self, row: Entity, field: str) -> EntityRefused:
        return EntityRefused(
            f"{self.name}: {row.partition_key}|{row.row_key}: {field} differs from the row's "
            "key or from this agent's credential"
        )

    async def _without_taken_endpoints(self, row: Entity, presence: Presence) -> Entity:
        """Return the row of a heartbeat, without endpoints if another agent owns one of them."""
        problem = await self.delivered.endpoints.claim(presence, self.address)
        if problem is None:
            return row
        log.warning("%s %s", self.name, problem, extra={"action": "held_back"})
        none: dict[str, Any] = {
            **dict.fromkeys(("ports", "busy_ports", "engines", "canary_ports"), ()),
            "echo_port": None,
            "problem": problem,
        }
        without = presence.model_copy(update=none)
        return replace(row, properties={**row.properties, "json": without.to_json()})

    async def _check_endpoint(self, row: Entity, test: ServerTest) -> None:
        """Reject a test on an endpoint that another agent owns."""
        owner = await self.delivered.endpoints.owner(test.endpoint.address, test.endpoint.port)
        if owner not in (None, self.name):
            raise EntityRefused(
                f"{self.name}: {row.partition_key}|{row.row_key}: endpoint.address: "
                f"{test.endpoint.address} port {test.endpoint.port} belongs to {owner}"
            )

    async def _delete(self, partition: str, key: str) -> None:
        place = place_of(partition, key)
        if place is None or not await self._may_delete(place):
            raise self._not_owner(partition, key)
        if place.kind is RowKind.PRESENCE:
            self.delivered.endpoints.release(self.name)

    async def _may_delete(self, place: RowKey) -> bool:
        """Return True for the agent's own heartbeat, and for tunnel rows of both ends."""
        facts = place.facts
        match place.kind:
            case RowKind.PRESENCE | RowKind.PASSPORT:
                return (facts["role"], facts["agent"]) == (self.role, self.agent_id)
            case RowKind.ASK | RowKind.ANSWER if self.role is Role.SERVER:
                return bool(facts["server"] == self.agent_id)
            case RowKind.ASK | RowKind.ANSWER:
                job = facts["run"], facts["burst"], facts["pair"]
                return await self.delivered.claimer(*job) == self.agent_id
        return False

    async def _put_raw(self, folder: str, file: str) -> None:
        place = raw_place(folder, file)
        if place is None:
            raise self._not_owner(folder, file)
        await self._facts("put_raw", place, f"{folder}/{file}")
