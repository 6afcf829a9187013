"""Enrolment of agents on other hosts with join codes and credentials.

A join code is valid for a number of agents of one role, until it expires. Codes and secrets are
stored as SHA-256 hashes. Both are random, so a plain hash is sufficient
(:mod:`broadside.coordinator.auth.static_tokens`).
"""

import asyncio
import hmac
import logging
import re
import secrets
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from broadside.coordinator.agent_gateway.agent_permissions import (
    AgentPermissions,
    ClientPermissions,
    DeliveredJobs,
)
from broadside.coordinator.auth.audit import Audit, AuditRow
from broadside.coordinator.auth.static_tokens import CACHE_S, digest
from broadside.exchange.messages import Identifier, Message, Role, UtcDatetime, plain_text
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import (
    EntityExists,
    EntityNotFound,
    ExchangeError,
    ExchangeRefused,
    Table,
)
from broadside.exchange.records.collection import Collection
from broadside.exchange.records.keys import ENROLLED, JOINS

# Minimum time between two reads of the table for unknown secrets.
REREAD_S: Final = 1.0
# The same rejection of an agent is recorded only once within this time.
REPEAT_S: Final = 60.0
_REPORTED_MAX_COUNT: Final = 10_000
# Maximum length of a rejection message.
_WHY_MAX_CHARS: Final = 1_000

log = logging.getLogger(__name__)


class NotEnrolled(Exception):
    """No agent with this name is enrolled."""


class JoinCode(Message):
    """Stored record of a join code.

    Attributes:
        name: The name of the code.
        role: The agent role.
        sha256: The hash of the code's secret, in hexadecimal.
        count: The number of agents that can join.
        used_count: The number of agents that have joined.
        created_at: The creation time.
        created_by: The user who created the code.
        expires_at: The expiry time.
    """

    name: Identifier
    role: Role
    sha256: str
    count: Annotated[int, Field(ge=1, le=10_000)]
    used_count: Annotated[int, Field(ge=0)] = 0
    created_at: UtcDatetime
    created_by: str
    expires_at: UtcDatetime

    def problem(self, role: str, now: datetime) -> str | None:
        """Return the reason why an agent cannot join with this code.

        Args:
            role: The agent role.
            now: Current time to use.

        Returns:
            The reason as text, or None if the agent can join.
        """
        if self.expires_at <= now:
            return f"the join code {self.name} ended {self.expires_at:%Y-%m-%d %H:%MZ}"
        if self.used_count >= self.count:
            return f"the join code {self.name} has admitted its {self.count} agents"
        if role != self.role:
            return f"the join code {self.name} is for the role {self.role}, not {role}"
        return None

    def is_open(self, now: datetime) -> bool:
        """Return True if an agent can still join with this code."""
        return self.problem(self.role, now) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """Result of a revocation.

    Attributes:
        agents: Keys (``role.id``) of the revoked agents.
        codes: Names of the valid join codes that were ended.
    """

    agents: Sequence[str]
    codes: Sequence[str]


class Enrolled(Message):
    """Enrolled agent on another host.

    Attributes:
        agent_id: The agent id.
        role: The agent role.
        sha256: The hash of the secret, in hexadecimal.
        next_sha256: The hash of the next secret, which becomes valid when it is first used.
        join: The name of the join code that the agent used.
        enrolled_at: The time of the enrolment.
        renewed_at: The time of the last change of the secret.
        revoked_at: The time of the revocation, or None if the agent is not revoked.
    """

    agent_id: Identifier
    role: Role
    sha256: str
    next_sha256: str | None = None
    join: str
    enrolled_at: UtcDatetime
    renewed_at: UtcDatetime | None = None
    revoked_at: UtcDatetime | None = None

    @property
    def key(self) -> str:
        return f"{self.role}.{self.agent_id}"


@dataclass(frozen=True, slots=True)
class JoinTerms:
    """Agents that can join with a code.

    Attributes:
        role: The agent role.
        count: The number of agents that can join.
        expires_at: The expiry time.
    """

    role: Role
    count: int
    expires_at: datetime


class Enrolments:
    """Join codes and agents in the private table."""

    def __init__(self, table: Table) -> None:
        self._joins = Collection(table, JOINS, JoinCode)
        self._agents = Collection(table, ENROLLED, Enrolled)
        self._turn = asyncio.Lock()

    async def add_code(self, secret: str, terms: JoinTerms, *, by: str, now: datetime) -> JoinCode:
        """Store a new join code.

        Args:
            secret: The secret part of the code. Only its hash is stored.
            terms: The agents that can join.
            by: The user who creates the code.
            now: Current time to use.

        Returns:
            The stored code, without its secret.
        """
        join = JoinCode(
            name=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
            role=terms.role,
            sha256=digest(secret),
            count=terms.count,
            created_at=now,
            created_by=by,
            expires_at=terms.expires_at,
        )
        await self._joins.create(join.name, join)
        return join

    async def codes(self) -> Sequence[JoinCode]:
        return [join async for _, join in self._joins.scan()]

    async def agents(self) -> Sequence[Enrolled]:
        return [agent async for _, agent in self._agents.scan()]

    async def count_trusting(self, now: datetime) -> int:
        """Return the number of enrolled agents and valid codes that depend on the authority."""
        agents_count = sum(agent.revoked_at is None for agent in await self.agents())
        return agents_count + sum(join.is_open(now) for join in await self.codes())

    async def enrol(self, code: str, requested: Enrolled, now: datetime) -> Enrolled:
        """Enrol an agent. A repeated request with the same secret succeeds.

        Args:
            code: The join code.
            requested: The agent to enrol.
            now: Current time to use.

        Returns:
            The agent with its name, as stored.

        Raises:
            ExchangeRefused: The code is not valid, or the agent cannot be enrolled.
        """
        # After a timeout, an agent can send a second request while the first one is running.
        async with self._turn:
            return await self._enrol(code, requested, now)

    async def _enrol(self, code: str, requested: Enrolled, now: datetime) -> Enrolled:
        key = requested.key
        stored = await self._agents.read(key)
        revoked_at = None if stored is None else stored.revoked_at
        is_enrolled = stored is not None and revoked_at is None
        if (
            stored is not None
            and is_enrolled
            and hmac.compare_digest(stored.sha256, requested.sha256)
        ):
            return stored
        hashed = digest(code)
        codes = [join for join in await self.codes() if hmac.compare_digest(join.sha256, hashed)]
        # A client without a code gets no information about enrolled agents.
        if not codes:
            raise ExchangeRefused("the join code is not known here")
        if is_enrolled:
            raise ExchangeRefused(
                f"{key} is enrolled: choose another agent id, or revoke that one first"
            )
        join = codes[0]
        if revoked_at and join.created_at < revoked_at:
            raise ExchangeRefused(
                f"{key} was revoked {revoked_at:%Y-%m-%d %H:%MZ}, after the join code "
                f"{join.name} was made: make a new code with `broadside enroll new`"
            )

        def used(join: JoinCode) -> JoinCode:
            if (problem := join.problem(requested.role, now)) is not None:
                raise ExchangeRefused(problem)
            return join.model_copy(update={"used_count": join.used_count + 1})

        await self._joins.change(join.name, used)
        enrolled = requested.model_copy(update={"join": join.name})
        if stored is not None:
            await self._agents.put(key, enrolled)
            return enrolled
        try:
            await self._agents.create(key, enrolled)
        except EntityExists as error:
            raise ExchangeRefused(f"{key} was enrolled at this moment") from error
        return enrolled

    async def renew(self, key: str, sha256: str) -> None:
        """Store the hash of an agent's next secret.

        Args:
            key: Agent as ``role.id``.
            sha256: The hash of the next secret.
        """
        await self._agents.change(
            key, lambda agent: agent.model_copy(update={"next_sha256": sha256})
        )

    async def promote(self, key: str, sha256: str, now: datetime) -> None:
        """Replace the old secret when an agent first uses the next one.

        Args:
            key: Agent as ``role.id``.
            sha256: The hash of the secret in use.
            now: Current time to use.
        """

        def promoted(agent: Enrolled) -> Enrolled:
            if agent.next_sha256 != sha256:
                return agent
            update = {"sha256": sha256, "next_sha256": None, "renewed_at": now}
            return agent.model_copy(update=update)

        await self._agents.change(key, promoted)

    async def revoke(self, name: str, now: datetime) -> Revoked:
        """Revoke an agent and end its join code, or end a code and revoke all its agents.

        The code of a revoked agent ends too. Its host still knows the code and could join again
        with another agent id.

        Args:
            name: Agent (``id`` or ``role.id``), or name of a join code.
            now: Current time to use.

        Returns:
            Names of the revoked agents, and of the codes that ended.

        Raises:
            NotEnrolled: No agent and no code has this name.
        """
        ended = []
        if is_code := await self._joins.read(name) is not None:
            ended += await self._end_code(name, now)
        agents = [
            agent
            for agent in await self.agents()
            if agent.revoked_at is None
            and (name in (agent.agent_id, agent.key) or (is_code and agent.join == name))
        ]
        if not agents and not is_code:
            raise NotEnrolled(f"{name}: unknown agent or code; see `broadside enroll list`")
        for code in {agent.join for agent in agents} - {name}:
            ended += await self._end_code(code, now)
        for agent in agents:
            await self._agents.change(
                agent.key, lambda one: one.model_copy(update={"revoked_at": now})
            )
        return Revoked(agents=[agent.key for agent in agents], codes=ended)

    async def _end_code(self, name: str, now: datetime) -> list[str]:
        """End a valid join code early and return its name, or an empty list."""
        join = await self._joins.read(name)
        if join is None or not join.is_open(now):
            return []
        await self._joins.change(name, lambda one: one.model_copy(update={"expires_at": now}))
        return [name]


class Enrolment:
    """Authentication and enrolment of agents, with an audit log of rejected requests."""

    def __init__(
        self, table: Table, delivered: DeliveredJobs, audit: Audit, authority: str | None
    ) -> None:
        self._enrolments = Enrolments(table)
        self._delivered = delivered
        self._audit = audit
        self.authority = authority
        # Agents by the hash of their current or next secret.
        self._known: Mapping[str, Enrolled] = {}
        # Monotonic time of the last read. None before the first one.
        self._read_s: float | None = None
        self._reading = asyncio.Lock()
        self._reported: dict[tuple[str, str], float] = {}
        self._rows: set[asyncio.Task[None]] = set()

    async def identify(self, secret: str, address: str) -> ClientPermissions | None:
        hashed = digest(secret)
        agent = await self._find(hashed, CACHE_S) or await self._find(hashed, REREAD_S)
        if agent is None:
            return None
        if hashed == agent.next_sha256:
            await self._enrolments.promote(agent.key, hashed, utc_now())
            self._read_s = None
        return AgentPermissions(
            agent_id=agent.agent_id,
            role=agent.role,
            address=address,
            delivered=self._delivered,
        )

    async def _find(self, hashed: str, age_max_s: float) -> Enrolled | None:
        # Most requests use the cache, up to a thousand per second.
        if self._is_newer(age_max_s):
            return self._known.get(hashed)
        async with self._reading:
            if not self._is_newer(age_max_s):
                known: dict[str, Enrolled] = {}
                for agent in await self._enrolments.agents():
                    if agent.revoked_at is None:
                        known |= {agent.sha256: agent}
                        known |= {agent.next_sha256: agent} if agent.next_sha256 else {}
                self._known, self._read_s = known, time.monotonic()
        return self._known.get(hashed)

    def _is_newer(self, age_max_s: float) -> bool:
        return self._read_s is not None and time.monotonic() - self._read_s < age_max_s

    async def join(self, fields: Mapping[str, Any], address: str) -> Mapping[str, Any]:
        now = utc_now()
        try:
            requested = Enrolled(
                agent_id=fields["agent_id"],
                role=fields["role"],
                sha256=_hash(fields["sha256"]),
                join="",
                enrolled_at=now,
            )
            code = str(fields["code"])
        except (KeyError, ValueError, ValidationError) as error:
            raise ExchangeRefused(f"invalid join request: {error}"[:300]) from error
        try:
            enrolled = await self._enrolments.enrol(code, requested, now)
        except ExchangeRefused as error:
            log.warning("%s: %s", address, error, extra={"action": "join_refused"})
            raise
        self._read_s = None
        self._record(enrolled.key, address, "join", 200)
        return {"agent_id": enrolled.agent_id, "role": enrolled.role, "join": enrolled.join}

    async def renew(self, rights: ClientPermissions, fields: Mapping[str, Any]) -> None:
        try:
            sha256 = _hash(fields["sha256"])
        except (KeyError, ValueError) as error:
            raise ExchangeRefused(f"invalid hash: {error}") from error
        try:
            await self._enrolments.renew(rights.name, sha256)
        except EntityNotFound as error:
            raise ExchangeRefused(f"{rights.name} is not enrolled") from error
        self._read_s = None

    def refused(self, rights: ClientPermissions, do: str, why: str) -> None:
        """Record a rejected request of a known agent, once a minute for each reason.

        Args:
            rights: The agent's rights.
            do: Name of the rejected operation.
            why: Reason of the rejection.
        """
        why, now_s = plain_text(why, _WHY_MAX_CHARS), time.monotonic()
        if now_s - self._reported.get((rights.name, why), -REPEAT_S) < REPEAT_S:
            return
        if len(self._reported) >= _REPORTED_MAX_COUNT:
            self._reported.clear()
        self._reported[rights.name, why] = now_s
        log.warning("refused: %s", why, extra={"action": "refuse"})
        self._record(rights.name, rights.address, f"{do}?{urllib.parse.quote(why)[:200]}", 403)

    def _record(self, by: str, address: str, what: str, status: int) -> None:
        row = AuditRow(
            at=utc_now(),
            by=by,
            role="agent",
            from_address=address or None,
            method="POST",
            path=f"/v1/exchange/{what}",
            status=status,
        )
        task = asyncio.create_task(self._store(row))
        self._rows.add(task)
        task.add_done_callback(self._rows.discard)

    async def _store(self, row: AuditRow) -> None:
        try:
            await self._audit.begin(row)
        except ExchangeError as error:
            log.warning("audit row lost: %s", error, extra={"action": "audit"})


def _hash(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError("sha256: 64 hexadecimal digits")
    return value
