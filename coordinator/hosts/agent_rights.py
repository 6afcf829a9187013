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

from pydantic import ValidationError

from broadside.coordinator.hosts.held_endpoints import HeldEndpoints
from broadside.exchange.messages import Claim, Job, Presence, Role, ServerTest
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
    Kind,
    Place,
    place_of,
    raw_place,
    wrong_field,
)
from broadside.exchange.row_text import entity_fields, entity_of
from broadside.exchange.rows import parse_row, row_name

_RUNS_KEPT_COUNT: Final = 64
_CLAIMERS_KEPT_COUNT: Final = 100_000
# Partition of a run, or of one of the copies of its control row.
_RUN: Final = re.compile(r"run\.([a-z0-9-]+)(?:\.control\.[0-9]{3})?")
_PAIR_KINDS: Final = frozenset(
    {Kind.CLAIM, Kind.REPORT, Kind.CHUNK, Kind.PROBE, Kind.ASK, Kind.RAW}
)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRule:
    """Rule for one operation of agents.

    Attributes:
        role: The role that may use the operation. None for both roles.
        fields: Rule for each argument by name, except ``id`` and ``do``.
    """

    role: Role | None
    fields: Mapping[str, str]


_OWN_TOKEN: Final = {"token": "of a message that this agent received, else refused"}
_OWN_RUN: Final = "a run of which this agent was handed a job, else refused"
_READABLE: Final = (
    "of the claim of a job that it was handed; tunnels: a server's own, a client's any; else "
    "refused"
)
_WRITTEN: Final = "table, key, properties and content by the rules for rows"
_SESSION: Final = "a stream of this credential: another agent's has another name"

# Operations without an entry are rejected for agents. A new operation is available only to the
# coordinator by default.
OPERATIONS: Final[Mapping[str, OperationRule]] = {
    "ping": OperationRule(role=None, fields={}),
    "want": OperationRule(
        role=Role.CLIENT,
        fields={
            "session": _SESSION,
            "want": "a name among this agent's own requests",
            "wait_s": "bounded: 0 to 120 s",
        },
    ),
    "unwant": OperationRule(
        role=Role.CLIENT, fields={"want": "a name among this agent's own requests"}
    ),
    "complete": OperationRule(role=Role.CLIENT, fields=_OWN_TOKEN),
    "abandon": OperationRule(role=Role.CLIENT, fields=_OWN_TOKEN),
    "renew": OperationRule(role=Role.CLIENT, fields=_OWN_TOKEN),
    "dead_letter": OperationRule(
        role=Role.CLIENT, fields={**_OWN_TOKEN, "reason": "text", "description": "text"}
    ),
    "watch": OperationRule(role=None, fields={"session": _SESSION, "partition": _OWN_RUN}),
    "get": OperationRule(
        role=None,
        fields={
            "table": "control or results, else refused",
            "partition": f"control: {_OWN_RUN}; results: {_READABLE}",
            "key": f"results: {_READABLE}",
        },
    ),
    "scan": OperationRule(
        role=None,
        fields={
            "table": "results, else refused",
            "partition": "tunnels: a server's own, a client's any; else refused",
            "row_from": "within that partition",
            "row_before": "within that partition",
            "limit": "bounded: 256 rows",
        },
    ),
    "insert": OperationRule(role=None, fields={"table": "results, else refused", "row": _WRITTEN}),
    "upsert": OperationRule(role=None, fields={"table": "results, else refused", "row": _WRITTEN}),
    "batch": OperationRule(role=None, fields={"table": "results, else refused", "rows": _WRITTEN}),
    "delete": OperationRule(
        role=None,
        fields={
            "table": "results, else refused",
            "partition": "its own heartbeat, passport, or tunnel rows, else refused",
            "key": "its own heartbeat, passport, or tunnel rows, else refused",
        },
    ),
    "put_raw": OperationRule(
        role=None,
        fields={
            "folder": "by the rules for rows",
            "file": "by the rules for rows",
        },
    ),
}


class Rights(Protocol):
    """Access rights of a client of the service."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str:
        """Source address, for the audit log."""

    async def allow(self, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check an operation and return it, possibly changed.

        The heartbeat of an agent that is held back is changed.

        Raises:
            ExchangeRefused: Agents may not use this operation.
            EntityRefused: The row belongs to another agent.
        """

    async def hand(self, delivery: Delivery) -> None:
        """Record that a message will be delivered to this client."""


class Handed:
    """Cache of the jobs that agents have received and claimed, loaded from the tables."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.endpoints = HeldEndpoints(records.fleet)
        self._given: OrderedDict[str, set[tuple[int, int, str]]] = OrderedDict()
        self._claimers: OrderedDict[tuple[str, int, int], str] = OrderedDict()

    async def given(self, run_id: str) -> set[tuple[int, int, str]]:
        found = self._given.get(run_id)
        if found is None:
            read = await self._records.private.read_given(run_id)
            found = self._given.setdefault(run_id, read)
            while len(self._given) > _RUNS_KEPT_COUNT:
                self._given.popitem(last=False)
        self._given.move_to_end(run_id)
        return found

    async def hand(self, job: Job, agent_id: str) -> None:
        """Store that a job will be delivered to an agent.

        Args:
            job: Job to deliver.
            agent_id: The agent's id that receives it.
        """
        given = await self.given(job.run_id)
        await self._records.private.save_given(job, agent_id)
        given.add((job.burst_index, job.pair_index, agent_id))

    async def job_facts(
        self, run_id: str, burst_index: int, pair_index: int, agent_id: str
    ) -> Mapping[str, Any]:
        """Return the values of a job that an agent received, or nothing if unknown.

        Args:
            run_id: The run's id.
            burst_index: Burst index, starting at 0.
            pair_index: Pair index, starting at 0.
            agent_id: The agent's id.
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
        while len(self._claimers) > _CLAIMERS_KEPT_COUNT:
            self._claimers.popitem(last=False)
        return claimer


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRights:
    """Access rights of one enrolled agent."""

    agent_id: str
    role: Role
    address: str
    handed: Handed = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.role}.{self.agent_id}"

    async def hand(self, delivery: Delivery) -> None:
        try:
            job = Job.model_validate_json(delivery.body)
        # The agent will move an invalid job to the dead letters. It may not write a row for it.
        except ValidationError:
            return
        await self.handed.hand(job, self.agent_id)

    async def allow(self, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        do = operation.get("do")
        rule = OPERATIONS.get(do) if isinstance(do, str) else None
        if rule is None or (rule.role is not None and rule.role is not self.role):
            what = " ".join(str(operation.get(name, ""))[:40] for name in ("do", "table"))
            raise ExchangeRefused(f"{self.name}: no agent may {what.strip()}")
        return await self._allow(operation)

    async def _allow(self, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        match operation:
            case {"do": "ping" | "want" | "unwant"}:
                return operation
            case {"do": "complete" | "abandon" | "renew" | "dead_letter"}:
                # The service checks that the token belongs to its receiver.
                return operation
            case {"do": "watch", "partition": str(partition)}:
                await self._read_run(partition)
            case {"do": "get", "table": "control", "partition": str(partition)}:
                await self._read_run(partition)
            case {"do": "get", "table": "results", "partition": str(partition), "key": str(key)}:
                await self._read_result(partition, key)
            case {"do": "scan", "table": "results", "partition": str(partition)}:
                self._tunnels_of(partition)
            case {"do": "insert" | "upsert" as do, "table": "results", "row": row}:
                return {**operation, "row": entity_fields(await self._write(do, entity_of(row)))}
            case {"do": "batch", "table": "results", "rows": list(rows)}:
                written = [await self._write("upsert", entity_of(row)) for row in rows]
                return {**operation, "rows": [entity_fields(row) for row in written]}
            case {"do": "delete", "table": "results", "partition": str(partition), "key": str(key)}:
                await self._delete(partition, key)
            case {"do": "put_raw", "folder": str(folder), "file": str(file)}:
                await self._put_raw(folder, file)
            case _:
                what = " ".join(str(operation.get(name, ""))[:40] for name in ("do", "table"))
                raise ExchangeRefused(f"{self.name}: no agent may {what.strip()}")
        return operation

    def _no(self, partition: str, key: str = "") -> EntityRefused:
        return EntityRefused(f"{self.name}: {partition}|{key} is not this agent's")

    async def _read_run(self, partition: str) -> None:
        run = _RUN.fullmatch(partition)
        if run is None or not any(
            who == self.agent_id for _, _, who in await self.handed.given(run[1])
        ):
            raise self._no(partition)

    async def _read_result(self, partition: str, key: str) -> None:
        place = place_of(partition, key)
        if place is not None and place.kind is Kind.CLAIM:
            handed = (place.facts["burst"], place.facts["pair"], self.agent_id)
            if handed in await self.handed.given(place.facts["run"]):
                return
            raise self._no(partition, key)
        self._tunnels_of(partition)

    def _tunnels_of(self, partition: str) -> None:
        """Allow access to tunnel rows. A server reads its own rows, a client reads all rows."""
        own = partition == f"tunnel.{self.agent_id}"
        if not partition.startswith("tunnel.") or not (own or self.role is Role.CLIENT):
            raise self._no(partition)

    async def _write(self, do: str, row: Entity) -> Entity:
        """Return the row to write. Raises ``EntityRefused`` if the row violates a rule."""
        place = place_of(row.partition_key, row.row_key)
        if place is None or row.partition_key != place.facts.get("partition", row.partition_key):
            raise self._no(row.partition_key, row.row_key)
        facts = {**await self._facts(do, place, row_name(row)), "agent": self.agent_id}
        rule = ROW_RULES[place.kind]
        if (wrong := rule.foreign_property(row.properties)) is not None:
            raise self._broken(row, wrong)
        if rule.model is None:
            return row
        try:
            message = parse_row(rule.model, row)
        except RecordUnreadable as error:
            raise EntityRefused(f"{self.name}: {error}") from error
        wrong = wrong_field(place.kind, message, facts)
        if wrong is not None:
            raise self._broken(row, wrong)
        if isinstance(message, Presence):
            return await self._held_back(row, message)
        if isinstance(message, ServerTest):
            await self._check_endpoint(row, message)
        return row

    async def _facts(self, do: str, place: Place, name: str) -> Mapping[str, Any]:
        """Return the values that a row or output must have, from its key, credential and job.

        Raises:
            EntityRefused: The row or output belongs to another agent.
        """
        facts = place.facts
        others = EntityRefused(f"{self.name}: {name} is not this agent's")
        is_own_role = ROW_RULES[place.kind].role in (None, self.role)
        if not is_own_role or facts.get("agent", self.agent_id) != self.agent_id:
            raise others
        if facts.get("role", self.role) != self.role:
            raise others
        if place.kind is Kind.ANSWER and facts["server"] != self.agent_id:
            raise others
        if place.kind not in _PAIR_KINDS:
            return facts
        job = facts["run"], facts["burst"], facts["pair"]
        # An existing claim is not replaced by an insert.
        if do == "insert" and place.kind is Kind.CLAIM:
            is_own = (*job[1:], self.agent_id) in await self.handed.given(job[0])
        else:
            is_own = await self.handed.claimer(*job) == self.agent_id
        if not is_own:
            raise others
        if place.kind not in (Kind.REPORT, Kind.ASK):
            return facts
        said = await self.handed.job_facts(*job, self.agent_id)
        if any(facts[fact] != said[fact] for fact in facts.keys() & said.keys()):
            raise EntityRefused(f"{self.name}: {name} is not the tunnel of job {facts['job']}")
        if place.kind is Kind.REPORT:
            return {**said, **facts}
        address = await self.handed.endpoints.address_of(self.role, self.agent_id)
        return {**said, **facts, "announced_address": address}

    def _broken(self, row: Entity, field: str) -> EntityRefused:
        return EntityRefused(
            f"{self.name}: {row.partition_key}|{row.row_key}: {field} is not what the row's "
            "key and this agent's credential say"
        )

    async def _held_back(self, row: Entity, presence: Presence) -> Entity:
        """Return the row of a heartbeat, without endpoints if another agent owns one of them."""
        problem = await self.handed.endpoints.hold(presence, self.address)
        if problem is None:
            return row
        log.warning("%s %s", self.name, problem, extra={"action": "held_back"})
        none: dict[str, Any] = {"ports": (), "busy_ports": (), "engines": (), "echo_port": None}
        held = presence.model_copy(update={**none, "problem": problem})
        return replace(row, properties={**row.properties, "json": held.to_json()})

    async def _check_endpoint(self, row: Entity, test: ServerTest) -> None:
        """Reject a test on an endpoint that another agent owns."""
        holder = await self.handed.endpoints.holder(test.endpoint.address, test.endpoint.port)
        if holder not in (None, self.name):
            raise EntityRefused(
                f"{self.name}: {row.partition_key}|{row.row_key}: endpoint.address: "
                f"{test.endpoint.address} port {test.endpoint.port} is held by {holder}"
            )

    async def _delete(self, partition: str, key: str) -> None:
        place = place_of(partition, key)
        if place is None or not await self._may_delete(place):
            raise self._no(partition, key)
        if place.kind is Kind.PRESENCE:
            self.handed.endpoints.end(self.name)

    async def _may_delete(self, place: Place) -> bool:
        """Return True for the agent's own heartbeat, and for tunnel rows of both ends."""
        facts = place.facts
        match place.kind:
            case Kind.PRESENCE | Kind.PASSPORT:
                return (facts["role"], facts["agent"]) == (self.role, self.agent_id)
            case Kind.ASK | Kind.ANSWER if self.role is Role.SERVER:
                return bool(facts["server"] == self.agent_id)
            case Kind.ASK | Kind.ANSWER:
                job = facts["run"], facts["burst"], facts["pair"]
                return await self.handed.claimer(*job) == self.agent_id
        return False

    async def _put_raw(self, folder: str, file: str) -> None:
        place = raw_place(folder, file)
        if place is None:
            raise self._no(folder, file)
        await self._facts("put_raw", place, f"{folder}/{file}")
