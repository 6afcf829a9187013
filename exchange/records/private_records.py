"""Records in the private table, which agents cannot access.

These are the list of runs and, for each run, queue numbers, results and documents.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from broadside.exchange.chunks import pack, unpack
from broadside.exchange.documents import document_rows, read_document
from broadside.exchange.messages import Job, Message, RunId, RunOutcome, UtcDatetime
from broadside.exchange.ports import (
    Entity,
    EntityChanged,
    EntityExists,
    EntityNotFound,
    RecordUnreadable,
    Table,
    Value,
)
from broadside.exchange.records.collection import Collection, change_row
from broadside.exchange.records.keys import (
    AFTER_OPEN,
    CLOSED,
    GIVEN,
    HEADER,
    JUDGING,
    OPEN,
    QUEUED,
    RUNS,
    Document,
    document_key,
    newest_first,
    run_key,
    run_partition,
)
from broadside.exchange.rows import (
    cut_properties,
    joined_properties,
    make_row,
    message_row,
    parse_row,
    row_name,
    try_row,
)

_M = TypeVar("_M", bound=Message)


class Judging(Message):
    """Lease of the coordinator that computes the verdict of a run.

    Attributes:
        by: The coordinator that has the lease.
        until_at: The lease will expire at this time unless it is renewed.
    """

    by: str
    until_at: UtcDatetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedBurst:
    """Queue messages of a burst, one per pair, in the order of the plan.

    Attributes:
        numbers: Sequence number of each message.
        moved: For each pair, the first burst with the server in its message. None means the planned
            server.
    """

    numbers: tuple[int, ...]
    moved: tuple[int | None, ...]


class RunHeader(Message):
    """Entry of a run in the list of runs.

    Attributes:
        created_at: Time of the launch.
        device: Description of the device from the specification.
        traffic_from_at: Start of the first burst. None in headers of versions without this field.
        bursts_count: Number of bursts. None in headers of versions without this field.
        outcome: Outcome of the run. None while it continues.
    """

    run_id: RunId
    scenario: str
    created_at: UtcDatetime
    created_by: str
    labels: Mapping[str, str] = {}
    device: Mapping[str, str] = {}
    traffic_from_at: UtcDatetime | None = None
    bursts_count: int | None = None
    outcome: RunOutcome | None = None


class PrivateRecords:
    """Rows of the table *private*."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def shelf(self, name: str, model: type[_M]) -> Collection[_M]:
        """Return a collection of values by key.

        Args:
            name: Name from :mod:`broadside.exchange.records.keys`.
            model: Class of the values.
        """
        return Collection(self._table, name, model)

    # The list of runs -------------------------------------------------------------------------

    async def save_header(self, header: RunHeader) -> None:
        """Store the header of a run that is not listed yet."""
        await self._table.upsert(message_row(run_partition(header.run_id), HEADER, header))

    async def read_header(self, run_id: str) -> RunHeader | None:
        """Return the header of a run, or None if it does not exist."""
        row = await self._table.get(run_partition(run_id), HEADER)
        return None if row is None else parse_row(RunHeader, row)

    async def read_listed(self, run_id: str) -> RunHeader | None:
        """Return the entry of a run in the list, with its outcome, or None if it is not listed."""
        header = await self.read_header(run_id)
        if header is None:
            return None
        row = await self._table.get(RUNS, run_key(header.created_at, run_id))
        return header if row is None else parse_row(RunHeader, row)

    async def change_labels(self, run_id: str, change: Mapping[str, str | None]) -> None:
        """Change the labels of a run in the list. The labels in its plan are not changed.

        If the run does not exist, there is no effect.

        Args:
            run_id: The run id.
            change: New values by name. None removes a label.
        """

        def changed(row: Entity) -> Entity:
            header = parse_row(RunHeader, row)
            labels = {
                name: value
                for name, value in {**header.labels, **change}.items()
                if value is not None
            }
            header = header.model_copy(update={"labels": labels})
            return message_row(row.partition_key, row.row_key, header)

        header = await self.read_header(run_id)
        if header is not None:
            # The entry in the list is written again from the header when the run ends.
            await change_row(self._table, run_partition(run_id), HEADER, changed)
            await change_row(self._table, RUNS, run_key(header.created_at, run_id), changed)

    async def show_run(self, header: RunHeader) -> None:
        """Add a complete run to the list and mark it as open. A second call has no effect."""
        key = run_key(header.created_at, header.run_id)
        if await self._table.get(RUNS, key) is None:
            opened = [] if header.outcome else [make_row(RUNS, f"{OPEN}{header.run_id}", {})]
            await self._table.batch([message_row(RUNS, key, header), *opened])

    async def list_open(self) -> Sequence[str]:
        """Return the ids of all listed runs without outcome, in descending order."""
        rows = self._table.scan(RUNS, row_from=OPEN, row_before=AFTER_OPEN)
        return [row.row_key.removeprefix(OPEN) async for row in rows][::-1]

    async def drop_open(self, run_id: str) -> None:
        """Remove a run from the open runs."""
        await self._table.delete(RUNS, f"{OPEN}{run_id}")

    async def list_runs(
        self, *, limit: int = 100, before_at: datetime | None = None
    ) -> AsyncIterator[RunHeader]:
        """Yield headers of runs, newest first.

        Args:
            limit: The maximum number of runs to return.
            before_at: Return only runs created before this time. None returns all.
        """
        left_count = limit
        async for _, header in self.scan_runs(before_at=before_at):
            if left_count <= 0:
                return
            left_count -= 1
            yield header

    async def scan_runs(
        self, *, key_from: str | None = None, before_at: datetime | None = None
    ) -> AsyncIterator[tuple[str, RunHeader]]:
        """Yield keys and headers of runs, newest first.

        Args:
            key_from: The key to start from. None starts with the newest run.
            before_at: Return only runs created before this time. None returns all.
        """
        starts = [key_from or "", "" if before_at is None else newest_first(before_at)]
        row_from = max(starts) or None
        async for row in self._table.scan(RUNS, row_from=row_from, row_before=OPEN):
            header = try_row(RunHeader, row)
            if header is None:
                continue
            # We need to compare again, because the key only has milliseconds.
            if before_at is None or header.created_at < before_at:
                yield row.row_key, header

    async def save_outcome(self, run_id: str, outcome: RunOutcome) -> None:
        """Store the outcome in the list of runs and close the run.

        If the run was deleted in the meantime, the list will not be changed.

        Args:
            run_id: The run id.
            outcome: The outcome to store.
        """
        header = await self.read_header(run_id)
        if header is not None:
            key = run_key(header.created_at, run_id)

            def over(row: Entity) -> Entity:
                listed = parse_row(RunHeader, row).model_copy(update={"outcome": outcome})
                return message_row(RUNS, key, listed)

            await change_row(self._table, RUNS, key, over)
        await self.drop_open(run_id)

    async def delete(self, run_id: str) -> int:
        """Delete all rows of a run except its list entry, and return their number."""
        return await self._table.delete_partition(run_partition(run_id))

    async def delete_listed(self, header: RunHeader) -> int:
        """Delete a run's list entry and return the number of deleted rows."""
        return await self._table.delete(RUNS, run_key(header.created_at, header.run_id))

    # Jobs delivered to agents ------------------------------------------------------------------

    async def save_given(self, job: Job, user: str) -> None:
        """Record that an agent will receive a job, before the job is delivered.

        Args:
            job: The job to deliver.
            user: The agent id.
        """
        tunnel = job.traffic.encapsulation
        properties: dict[str, Value] = {
            "server": job.endpoint.agent_id,
            "ports": " ".join(map(str, job.endpoint.ports)),
            "planned_start_at": job.planned_start_at,
            **({} if tunnel is None else {"tunnel_port": tunnel.port, "vni_from": tunnel.vni_from}),
        }
        key = f"{GIVEN}{job.burst_index:05d}.{job.pair_index:05d}.{user}"
        await self._table.upsert(make_row(run_partition(job.run_id), key, properties))

    async def read_job_facts(
        self, run_id: str, burst_index: int, pair_index: int, user: str
    ) -> Mapping[str, Any]:
        """Return the values of a delivered job, by the names that the row rules use.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
            pair_index: The pair index in the run, from 0.
            user: The agent id.

        Returns:
            ``planned_start_at``, ``server``, ``ports``, ``tunnel_port`` and ``vni``. Empty if the
            job was not delivered to the agent, or an earlier version delivered it.
        """
        key = f"{GIVEN}{burst_index:05d}.{pair_index:05d}.{user}"
        row = await self._table.get(run_partition(run_id), key)
        if row is None or "server" not in row.properties:
            return {}
        properties = row.properties
        vni_from = properties.get("vni_from")
        return {
            "server": properties["server"],
            "ports": tuple(int(port) for port in str(properties["ports"]).split()),
            "planned_start_at": properties["planned_start_at"],
            "tunnel_port": properties.get("tunnel_port"),
            "vni": vni_from + pair_index if isinstance(vni_from, int) else None,
        }

    async def read_given(self, run_id: str) -> set[tuple[int, int, str]]:
        """Return burst, pair and agent of every job recorded by :meth:`save_given`."""
        bursts = set()
        async for row in self._table.scan(
            run_partition(run_id), row_from=GIVEN, row_before=f"{GIVEN}:"
        ):
            burst, pair, user = row.row_key.removeprefix(GIVEN).split(".", 2)
            bursts.add((int(burst), int(pair), user))
        return bursts

    # The life of a run ------------------------------------------------------------------------

    async def save_queued(
        self,
        run_id: str,
        burst_index: int,
        numbers: Sequence[int],
        moved: Sequence[int | None] | None = None,
    ) -> None:
        """Record that the messages of a burst are on the queue. Only the first record counts.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
            numbers: Sequence number of each message, in the order of the plan.
            moved: For each pair, the first burst with its server. None means the planned server.
        """
        queued = QueuedBurst(numbers=tuple(numbers), moved=tuple(moved or [None] * len(numbers)))
        with contextlib.suppress(EntityExists):
            await self._table.insert(_queued_row(run_id, burst_index, queued))

    async def save_moved(
        self, run_id: str, burst_index: int, messages: Mapping[int, tuple[int, int]]
    ) -> None:
        """Record new messages for pairs of a queued burst, with optimistic locking.

        If the record already has the message of a later failover, it will not be replaced.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
            messages: Sequence number and first burst with the new server, by position of the pair
                in the plan.
        """

        def changed(row: Entity) -> Entity:
            queued = _parse_queued(row)
            numbers, moved = list(queued.numbers), list(queued.moved)
            for place, (number, since) in messages.items():
                before = moved[place]
                if before is None or before < since:
                    numbers[place], moved[place] = number, since
            new = QueuedBurst(numbers=tuple(numbers), moved=tuple(moved))
            return _queued_row(run_id, burst_index, new)

        # This will be None if the run has been deleted in the meantime.
        await change_row(self._table, run_partition(run_id), f"{QUEUED}{burst_index:05d}", changed)

    async def read_queued(self, run_id: str) -> Mapping[int, QueuedBurst]:
        """Return the queued bursts of a run by burst index."""
        return {index: _parse_queued(row) async for index, row in self._of_bursts(run_id, QUEUED)}

    async def save_closed(self, run_id: str, burst_index: int, closed: Message) -> None:
        """Store the remaining data of a finished burst.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
            closed: The record to store.
        """
        key = f"{CLOSED}{burst_index:05d}"
        await self._table.upsert(message_row(run_partition(run_id), key, closed))

    async def read_closed(
        self, run_id: str, model: type[_M], *, from_index: int = 0
    ) -> Mapping[int, _M]:
        """Return the records from :meth:`save_closed` by burst index.

        Args:
            run_id: The run id.
            model: The record class to parse.
            from_index: The first burst index.

        Returns:
            Record by burst index. Bursts that are not closed have no entry.
        """
        rows = self._of_bursts(run_id, CLOSED, from_index)
        return {index: parse_row(model, row) async for index, row in rows}

    async def _of_bursts(
        self, run_id: str, prefix: str, from_index: int = 0
    ) -> AsyncIterator[tuple[int, Entity]]:
        """Yield the rows of one kind with their burst index."""
        async for row in self._table.scan(
            run_partition(run_id), row_from=f"{prefix}{from_index:05d}", row_before=f"{prefix}:"
        ):
            yield int(row.row_key.removeprefix(prefix)), row

    async def acquire_judging(self, run_id: str, judging: Judging, now: datetime) -> bool:
        """Acquire or renew the lease for computing a run's verdict.

        Args:
            run_id: The run id.
            judging: The new lease.
            now: The current time.

        Returns:
            False if another coordinator has the lease.
        """
        row = message_row(run_partition(run_id), JUDGING, judging)
        stored = await self._table.get(row.partition_key, row.row_key)
        try:
            if stored is None:
                await self._table.insert(row)
                return True
            other = parse_row(Judging, stored)
            if other.by != judging.by and other.until_at > now:
                return False
            await self._table.replace(row, stored.etag or "")
        # The row has already been written by another coordinator.
        except (EntityExists, EntityChanged, EntityNotFound):
            return False
        return True

    # Documents --------------------------------------------------------------------------------

    async def save_document(
        self, run_id: str, document: Document, content: bytes, burst_index: int | None = None
    ) -> None:
        """Create or replace a document of a run or burst.

        Args:
            run_id: The run id.
            document: Kind of the document.
            content: Text, plain or ``Packed``.
            burst_index: The burst index, or None for a run document.
        """
        name = document_key(document, burst_index)
        await self._table.batch(await document_rows(run_partition(run_id), name, content))

    async def read_document(
        self, run_id: str, document: Document, burst_index: int | None = None
    ) -> bytes | None:
        """Return a document of a run or burst.

        Args:
            run_id: The run id.
            document: Kind of the document.
            burst_index: The burst index, or None for a run document.

        Returns:
            Text, or None if it does not exist.
        """
        name = document_key(document, burst_index)
        return await read_document(self._table, run_partition(run_id), name)


def _queued_row(run_id: str, burst_index: int, queued: QueuedBurst) -> Entity:
    packed = pack({"numbers": queued.numbers, "moved": queued.moved})
    key = f"{QUEUED}{burst_index:05d}"
    return make_row(run_partition(run_id), key, cut_properties("numbers", packed))


def _parse_queued(row: Entity) -> QueuedBurst:
    try:
        columns = unpack(joined_properties(row, "numbers"))
    except RecordUnreadable as error:
        raise RecordUnreadable(f"row {row_name(row)}: numbers: {error}") from error
    numbers = tuple(n for n in columns["numbers"] if n is not None)
    return QueuedBurst(numbers=numbers, moved=tuple(columns["moved"]))
