"""What agents read of a run and the coordinator writes: plan, jobs' digests, control row, moves."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, TypeVar

from broadside.exchange.documents import document_rows, read_document
from broadside.exchange.messages import (
    Control,
    Job,
    Message,
    Passport,
    Presence,
    Role,
    Tunnel,
    plain_text,
)
from broadside.exchange.pacing import control_copy
from broadside.exchange.ports import Entity, EntityExists, EntityNotFound, Table
from broadside.exchange.records.job_digests import PlannedJobs, jobs_rows, parse_jobs
from broadside.exchange.records.keys import (
    ANSWER,
    ASK,
    CONTROL,
    JOBS_PAIRS_COUNT,
    MOVED,
    PASSPORT,
    PLAN,
    PRESENCE,
    control_partition,
    jobs_key,
    run_partition,
    tunnel_key,
    tunnels_partition,
)
from broadside.exchange.records.row_rules import keeps_rules
from broadside.exchange.records.shelf import change_row
from broadside.exchange.rows import make_row, message_row, parse_row, try_row

_M = TypeVar("_M", bound=Message)
PASSPORT_AGAIN_S: Final = 300.0  # s after which one that did not change is told once more
_CANCEL: Final = ("cancelled_at", "cancelled_by", "cancel_reason")


class RunRecords:
    """Rows of the table *control*."""

    def __init__(self, table: Table) -> None:
        self._table = table

    async def create(self, run_id: str, plan: bytes, control: Control) -> None:
        """Store control row, its copies and plan. Raises EntityExists when the run id is taken."""
        partition = run_partition(run_id)
        await self._table.insert(message_row(partition, CONTROL, control))
        for copy in range(1, control.copies_count):
            row = message_row(control_partition(run_id, copy), CONTROL, control)
            await self._table.upsert(row)
        await self._table.batch(await document_rows(partition, PLAN, plan))

    async def read_plan(self, run_id: str) -> bytes | None:
        """The plan as it was stored, or None."""
        return await read_document(self._table, run_partition(run_id), PLAN)

    async def delete(self, run_id: str) -> int:
        """Remove all of it; return how many rows it was."""
        control = await self.read_control(run_id)
        copies = range(1, control.copies_count if control else 1)
        gone = [
            await self._table.delete(control_partition(run_id, copy), CONTROL) for copy in copies
        ]
        return sum(gone) + await self._table.delete_partition(run_partition(run_id))

    async def read_control(self, run_id: str, pair_index: int = 0) -> Control | None:
        """The run's control row, or None: the copy that this pair reads."""
        place = control_partition(run_id, control_copy(pair_index))
        row = await self._table.get(place, CONTROL)
        return None if row is None else parse_row(Control, row)

    async def renew_lease(self, run_id: str, until_at: datetime) -> Control:
        """Move the lease forward (never back) and return the row; keeps a concurrent cancel.

        Raises ``EntityNotFound`` for an unknown run.
        """
        return await self._change_control(
            run_id, lambda control: {"lease_until_at": max(control.lease_until_at, until_at)}
        )

    async def cancel_run(self, run_id: str, *, at: datetime, by: str, reason: str) -> Control:
        """Mark cancelled; the first cancel wins and later ones return it unchanged.

        Raises ``EntityNotFound`` for an unknown run.
        """
        mark = {"cancelled_at": at, "cancelled_by": by, "cancel_reason": reason}
        return await self._change_control(
            run_id, lambda control: mark if control.cancelled_at is None else {}
        )

    async def _change_control(
        self, run_id: str, change: Callable[[Control], Mapping[str, object]]
    ) -> Control:
        """Apply what ``change`` says of the row's newest state; when nothing, write nothing.

        The copies follow, each in its own partition: what one of them missed, for the coordinator
        died or the table was away, the next change of the lease brings.
        """
        control = await self._change_copy(run_id, 0, change)
        if control is None:
            raise EntityNotFound(f"run {run_id}: there is none")
        told = {name: getattr(control, name) for name in _CANCEL}

        def followed(copy: Control) -> Mapping[str, object]:
            until_at = max(copy.lease_until_at, control.lease_until_at)
            return {"lease_until_at": until_at} | (told if copy.cancelled_at is None else {})

        copies = range(1, control.copies_count)
        await asyncio.gather(*(self._change_copy(run_id, copy, followed) for copy in copies))
        return control

    async def _change_copy(
        self, run_id: str, copy: int, change: Callable[[Control], Mapping[str, object]]
    ) -> Control | None:
        def changed(row: Entity) -> Entity:
            control = parse_row(Control, row)
            new = Control.model_validate(dict(control) | dict(change(control)))
            return row if new == control else message_row(row.partition_key, row.row_key, new)

        row = await change_row(self._table, control_partition(run_id, copy), CONTROL, changed)
        return None if row is None else parse_row(Control, row)

    async def save_jobs(
        self, run_id: str, burst_index: int, jobs: Iterable[Job], superseded: Iterable[Job] = ()
    ) -> None:
        """Say which messages are a burst's jobs, all of them, before they are sent.

        Of ``superseded`` ones a message may still be about: agents drop it without a word.
        """
        await self._table.batch(jobs_rows(run_id, burst_index, jobs, superseded))

    async def read_jobs(self, run_id: str, burst_index: int, pair_index: int) -> PlannedJobs | None:
        """What :meth:`save_jobs` said of a pair and its neighbours; None: no such pair."""
        part = pair_index // JOBS_PAIRS_COUNT
        row = await self._table.get(run_partition(run_id), jobs_key(burst_index, part))
        return None if row is None else parse_jobs(part, row)

    async def save_move(
        self, run_id: str, burst_index: int, pair_index: int, move: Message
    ) -> bool:
        """Note that a pair has another server from a burst on; False when somebody has."""
        key = f"{MOVED}{burst_index:05d}.{pair_index:05d}"
        try:
            await self._table.insert(message_row(run_partition(run_id), key, move))
        except EntityExists:
            return False
        return True

    async def read_moves(self, run_id: str, model: type[_M]) -> Sequence[_M]:
        """What :meth:`save_move` noted, by burst and pair."""
        rows = self._table.scan(run_partition(run_id), row_from=MOVED, row_before=f"{MOVED}:")
        return [parse_row(model, row) async for row in rows]


class FleetRecords:
    """Rows of the table *results*."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._told: dict[str, tuple[str, float]] = {}  # passport's digest, and when, by key
        self._passports: dict[str, tuple[str, Passport]] = {}  # as they were read, by key

    async def beat(self, presence: Presence) -> None:
        """Create or replace an agent's row.

        Its passport is three quarters of it and hardly changes: the row has a digest, and the
        passport a row of its own, written before it where it changed, after a beat that failed,
        and every :data:`PASSPORT_AGAIN_S`, for the rows may have been restored from older ones.
        """
        key = f"{presence.role}.{presence.agent_id}"
        row = message_row(PRESENCE, key, presence.model_copy(update={"passport": None}))
        told = self._told.pop(key, None)
        if presence.passport is not None:
            own = message_row(PASSPORT, key, presence.passport)
            digest, now_s = _digest(own), time.monotonic()
            if told is None or told[0] != digest or now_s - told[1] > PASSPORT_AGAIN_S:
                await self._table.upsert(own)
                told = (digest, now_s)
            row = replace(row, properties={**row.properties, PASSPORT: digest})
        await self._table.upsert(row)
        if told is not None:
            self._told[key] = told

    async def leave(self, role: Role, agent_id: str) -> None:
        """Remove an agent's rows: it said goodbye."""
        for partition in (PRESENCE, PASSPORT):
            await self._table.delete(partition, f"{role}.{agent_id}")

    async def read_presences(self) -> Sequence[Presence]:
        """Every row, also stale ones: judge by ``beat_at``.

        A row that cannot be read, as an agent of another version may write, is logged and left
        out: one such agent must not stop the rest of the fleet. So is one under another agent's
        name.
        """
        rows = [row async for row in self._table.scan(PRESENCE)]
        told = {row.row_key: row.properties[PASSPORT] for row in rows if PASSPORT in row.properties}
        if any(self._passports.get(key, ("",))[0] != digest for key, digest in told.items()):
            self._passports = {
                row.row_key: (_digest(row), passport)
                async for row in self._table.scan(PASSPORT)
                if (passport := try_row(Passport, row)) is not None
            }
        found = []
        for row in rows:
            presence = try_row(Presence, row)
            if presence is None or not keeps_rules(row, presence):
                continue
            if row.row_key in told and row.row_key in self._passports:
                _, passport = self._passports[row.row_key]
                presence = presence.model_copy(update={PASSPORT: passport})
            found.append(presence)
        return found

    async def save_tunnel(self, server_id: str, tunnel: Tunnel) -> None:
        """Ask a server's agent for the other end of a tunnel, or say that it is still wanted."""
        await self._table.upsert(
            message_row(tunnels_partition(server_id), tunnel_key(ASK, tunnel), tunnel)
        )

    async def read_tunnels(self, server_id: str) -> Sequence[Tunnel]:
        """What is asked of a server's agent; several jobs may ask for one id."""
        rows = self._table.scan(
            tunnels_partition(server_id), row_from=f"{ASK}.", row_before=f"{ASK}.:"
        )
        found = [(row, try_row(Tunnel, row)) async for row in rows]
        return [tunnel for row, tunnel in found if tunnel is not None and keeps_rules(row, tunnel)]

    async def answer_tunnel(self, server_id: str, tunnel: Tunnel, problem: str) -> None:
        """Say that the other end stands (an empty problem), or why it does not."""
        key = tunnel_key(ANSWER, tunnel)
        await self._table.upsert(make_row(tunnels_partition(server_id), key, {"problem": problem}))

    async def read_tunnel_answer(self, server_id: str, tunnel: Tunnel) -> str | None:
        """The problem, empty where there is none; None: no answer to this job yet."""
        row = await self._table.get(tunnels_partition(server_id), tunnel_key(ANSWER, tunnel))
        return None if row is None else plain_text(str(row.properties.get("problem")), 300)

    async def drop_tunnel(self, server_id: str, tunnel: Tunnel) -> None:
        """This job wants it no more; what another asked for under the same id stays."""
        for kind in (ASK, ANSWER):
            await self._table.delete(tunnels_partition(server_id), tunnel_key(kind, tunnel))


def _digest(row: Entity) -> str:
    return hashlib.sha256(str(row.properties.get("json")).encode()).hexdigest()[:16]
