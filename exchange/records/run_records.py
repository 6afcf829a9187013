"""Records that the coordinator writes for agents, and records of the fleet.

The records of a run are the plan, the digests of its jobs, the control row and the failovers. The
records of the fleet are presences, passports and tunnels.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, TypeVar

from broadside.exchange.documents import document_rows, read_document
from broadside.exchange.messages import (
    BurstEnd,
    Control,
    HostInfo,
    Job,
    Message,
    Presence,
    Role,
    Tunnel,
    plain_text,
)
from broadside.exchange.pacing import control_copy
from broadside.exchange.ports import Entity, EntityExists, EntityNotFound, Table
from broadside.exchange.records.collection import change_row
from broadside.exchange.records.job_digests import PlannedJobs, jobs_rows, parse_jobs
from broadside.exchange.records.keys import (
    ANSWER,
    ASK,
    CONTROL,
    ENDED,
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
from broadside.exchange.rows import make_row, message_row, parse_row, try_row

_M = TypeVar("_M", bound=Message)
# After this time, we write a passport again even if it has not been changed.
PASSPORT_AGAIN_S: Final = 300.0
_CANCEL: Final = ("cancelled_at", "cancelled_by", "cancel_reason")


class RunRecords:
    """Rows of the table *control*."""

    def __init__(self, table: Table) -> None:
        self._table = table

    async def create(self, run_id: str, plan: bytes, control: Control) -> None:
        """Store the control row, its copies, and the plan.

        Args:
            run_id: The run id.
            plan: The plan to store, as JSON text.
            control: Control row to create.

        Raises:
            EntityExists: The run id is already used.
        """
        partition = run_partition(run_id)
        await self._table.insert(message_row(partition, CONTROL, control))
        for copy in range(1, control.copies_count):
            row = message_row(control_partition(run_id, copy), CONTROL, control)
            await self._table.upsert(row)
        await self._table.batch(await document_rows(partition, PLAN, plan))

    async def read_plan(self, run_id: str) -> bytes | None:
        """Return the stored plan, or None if it does not exist."""
        return await read_document(self._table, run_partition(run_id), PLAN)

    async def delete(self, run_id: str) -> int:
        """Delete all rows of a run and return their number."""
        control = await self.read_control(run_id)
        copies = range(1, control.copies_count if control else 1)
        gone = [
            await self._table.delete(control_partition(run_id, copy), CONTROL) for copy in copies
        ]
        return sum(gone) + await self._table.delete_partition(run_partition(run_id))

    async def read_control(self, run_id: str, pair_index: int = 0) -> Control | None:
        """Return the control row of a run.

        Args:
            run_id: The run id.
            pair_index: The pair that reads the row. It determines which copy is read.

        Returns:
            Control row, or None if it does not exist.
        """
        place = control_partition(run_id, control_copy(pair_index))
        row = await self._table.get(place, CONTROL)
        return None if row is None else parse_row(Control, row)

    async def renew_lease(self, run_id: str, until_at: datetime) -> Control:
        """Extend the lease of a run. A cancellation at the same time is not lost.

        Args:
            run_id: The run id.
            until_at: New end of the lease. It has no effect if the current end is later.

        Returns:
            Control row after the change.

        Raises:
            EntityNotFound: The run does not exist.
        """
        return await self._change_control(
            run_id, lambda control: {"lease_until_at": max(control.lease_until_at, until_at)}
        )

    async def cancel_run(self, run_id: str, *, at: datetime, by: str, reason: str) -> Control:
        """Mark a run as cancelled. This has no effect if the run is already cancelled.

        Args:
            run_id: The run id.
            at: The time of the cancellation.
            by: The user who cancels the run.
            reason: The reason.

        Returns:
            Control row after the change.

        Raises:
            EntityNotFound: The run does not exist.
        """
        mark = {"cancelled_at": at, "cancelled_by": by, "cancel_reason": reason}
        return await self._change_control(
            run_id, lambda control: mark if control.cancelled_at is None else {}
        )

    async def end_burst(self, run_id: str, end: BurstEnd) -> BurstEnd:
        """Order all pairs to end a burst before its planned end. The first order is used.

        A second call with any order will finish a call that was interrupted.

        Args:
            run_id: The run id.
            end: The order to store.

        Returns:
            The stored order, which may be the one of another coordinator.

        Raises:
            EntityNotFound: The run does not exist.
        """
        row = message_row(run_partition(run_id), f"{ENDED}{end.burst_index:05d}", end)
        try:
            await self._table.insert(row)
        except EntityExists:
            stored = await self._table.get(row.partition_key, row.row_key)
            end = end if stored is None else parse_row(BurstEnd, stored)
        await self._change_control(run_id, lambda _: {"burst_end": end})
        return end

    async def read_ends(self, run_id: str) -> Sequence[BurstEnd]:
        """Return the bursts that ended before their planned end, sorted by burst."""
        rows = self._table.scan(run_partition(run_id), row_from=ENDED, row_before=f"{ENDED}:")
        return [parse_row(BurstEnd, row) async for row in rows]

    async def _change_control(
        self, run_id: str, change: Callable[[Control], Mapping[str, object]]
    ) -> Control:
        """Change the control row and its copies. Unchanged rows are not written.

        Each copy is in a separate partition. If a copy misses a change because of an error or a
        restart, the next lease extension will apply it.
        """
        control = await self._change_copy(run_id, 0, change)
        if control is None:
            raise EntityNotFound(f"run {run_id}: not found")
        written = {name: getattr(control, name) for name in _CANCEL}
        ended = {} if control.burst_end is None else {"burst_end": control.burst_end}

        def followed(copy: Control) -> Mapping[str, object]:
            until_at = max(copy.lease_until_at, control.lease_until_at)
            cancelled = written if copy.cancelled_at is None else {}
            return {"lease_until_at": until_at} | cancelled | ended

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
        """Store the digests of all job messages of a burst before they are sent.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
            jobs: Jobs of the burst.
            superseded: Jobs that were replaced. Their messages can still arrive. Agents drop such
                messages and report no error.
        """
        await self._table.batch(jobs_rows(run_id, burst_index, jobs, superseded))

    async def read_jobs(self, run_id: str, burst_index: int, pair_index: int) -> PlannedJobs | None:
        """Return the planned jobs of a pair and of the other pairs in the same row.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
            pair_index: The pair index in the run, from 0.

        Returns:
            Planned jobs, or None if the pair does not exist.
        """
        part = pair_index // JOBS_PAIRS_COUNT
        row = await self._table.get(run_partition(run_id), jobs_key(burst_index, part))
        return None if row is None else parse_jobs(part, row)

    async def save_move(
        self, run_id: str, burst_index: int, pair_index: int, move: Message
    ) -> bool:
        """Record that a pair uses another server from a burst on.

        Args:
            run_id: The run id.
            burst_index: The first burst with the new server.
            pair_index: The pair index in the run, from 0.
            move: Failover record.

        Returns:
            False if there already is a record for this burst and pair.
        """
        key = f"{MOVED}{burst_index:05d}.{pair_index:05d}"
        try:
            await self._table.insert(message_row(run_partition(run_id), key, move))
        except EntityExists:
            return False
        return True

    async def read_moves(self, run_id: str, model: type[_M]) -> Sequence[_M]:
        """Return the failovers of a run, sorted by burst and pair.

        Args:
            run_id: The run id.
            model: The record class to parse.
        """
        rows = self._table.scan(run_partition(run_id), row_from=MOVED, row_before=f"{MOVED}:")
        return [parse_row(model, row) async for row in rows]


class FleetRecords:
    """Rows of the table *results* that describe agents."""

    def __init__(self, table: Table) -> None:
        self._table = table
        # Digest of the last written passport and the time of writing, by key.
        self._written: dict[str, tuple[str, float]] = {}
        # Digest and passport from the last read, by key.
        self._passports: dict[str, tuple[str, HostInfo]] = {}

    async def beat(self, presence: Presence) -> None:
        """Create or replace the presence row of an agent.

        The passport would be three quarters of a heartbeat and rarely changes, so it has a separate
        row. The presence row contains only its digest. The passport row is written first, if the
        passport has changed or the last heartbeat failed. It is also written again after
        :data:`PASSPORT_AGAIN_S`, because the table can be restored from an older backup.
        """
        key = f"{presence.role}.{presence.agent_id}"
        row = message_row(PRESENCE, key, presence.model_copy(update={"passport": None}))
        written = self._written.pop(key, None)
        if presence.passport is not None:
            passport_row = message_row(PASSPORT, key, presence.passport)
            digest, now_s = _digest(passport_row), time.monotonic()
            if written is None or written[0] != digest or now_s - written[1] > PASSPORT_AGAIN_S:
                await self._table.upsert(passport_row)
                written = (digest, now_s)
            row = replace(row, properties={**row.properties, PASSPORT: digest})
        await self._table.upsert(row)
        if written is not None:
            self._written[key] = written

    async def leave(self, role: Role, agent_id: str) -> None:
        """Delete the rows of an agent that stops.

        Args:
            role: The agent role.
            agent_id: The agent id.
        """
        for partition in (PRESENCE, PASSPORT):
            await self._table.delete(partition, f"{role}.{agent_id}")

    async def read_presences(self) -> Sequence[Presence]:
        """Return all presences, including old ones. You can use ``beat_at`` to get their age.

        An unreadable row, for example from an agent of another version, is logged and skipped. A
        row that an agent wrote under the name of another agent is skipped too. It should not affect
        the other agents.
        """
        rows = [row async for row in self._table.scan(PRESENCE)]
        written = {
            row.row_key: row.properties[PASSPORT] for row in rows if PASSPORT in row.properties
        }
        if any(self._passports.get(key, ("",))[0] != digest for key, digest in written.items()):
            self._passports = {
                row.row_key: (_digest(row), passport)
                async for row in self._table.scan(PASSPORT)
                if (passport := try_row(HostInfo, row)) is not None
            }
        results = []
        for row in rows:
            presence = try_row(Presence, row)
            if presence is None or not keeps_rules(row, presence):
                continue
            if row.row_key in written and row.row_key in self._passports:
                _, passport = self._passports[row.row_key]
                presence = presence.model_copy(update={PASSPORT: passport})
            results.append(presence)
        return results

    async def save_tunnel(self, server_id: str, tunnel: Tunnel) -> None:
        """Request the other end of a tunnel from a server's agent, or renew the request.

        Args:
            server_id: The server agent's id.
            tunnel: The client's request, which identifies the tunnel.
        """
        await self._table.upsert(
            message_row(tunnels_partition(server_id), tunnel_key(ASK, tunnel), tunnel)
        )

    async def read_tunnels(self, server_id: str) -> Sequence[Tunnel]:
        """Return tunnel requests for a server's agent. Several jobs can request the same VNI."""
        rows = self._table.scan(
            tunnels_partition(server_id), row_from=f"{ASK}.", row_before=f"{ASK}.:"
        )
        results = [(row, try_row(Tunnel, row)) async for row in rows]
        return [
            tunnel for row, tunnel in results if tunnel is not None and keeps_rules(row, tunnel)
        ]

    async def answer_tunnel(self, server_id: str, tunnel: Tunnel, problem: str) -> None:
        """Report to the client whether the other end of the tunnel is ready.

        Args:
            server_id: The server agent's id.
            tunnel: The client's request, which identifies the tunnel.
            problem: Reason why the tunnel failed, or empty if it is ready.
        """
        key = tunnel_key(ANSWER, tunnel)
        await self._table.upsert(make_row(tunnels_partition(server_id), key, {"problem": problem}))

    async def read_tunnel_answer(self, server_id: str, tunnel: Tunnel) -> str | None:
        """Return the result of a tunnel request.

        Args:
            server_id: The server agent's id.
            tunnel: The client's request, which identifies the tunnel.

        Returns:
            Empty text if the tunnel is ready, otherwise the problem. None if the server has not
            answered.
        """
        row = await self._table.get(tunnels_partition(server_id), tunnel_key(ANSWER, tunnel))
        return None if row is None else plain_text(str(row.properties.get("problem")), 300)

    async def drop_tunnel(self, server_id: str, tunnel: Tunnel) -> None:
        """Delete the tunnel request of this job. Requests of other jobs for the same VNI remain.

        Args:
            server_id: The server agent's id.
            tunnel: The client's request, which identifies the tunnel.
        """
        for kind in (ASK, ANSWER):
            await self._table.delete(tunnels_partition(server_id), tunnel_key(kind, tunnel))


def _digest(row: Entity) -> str:
    return hashlib.sha256(str(row.properties.get("json")).encode()).hexdigest()[:16]
