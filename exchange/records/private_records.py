"""What no agent reads or writes: the list of runs, what is queued, judged and kept of each."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from broadside.exchange.chunks import pack, unpack
from broadside.exchange.documents import document_rows, read_document
from broadside.exchange.messages import Job, Message, RunId, UtcDatetime
from broadside.exchange.ports import (
    Entity,
    EntityChanged,
    EntityExists,
    EntityNotFound,
    RecordUnreadable,
    Table,
    Value,
)
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
from broadside.exchange.records.shelf import Shelf, change_row
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


class RunOutcome(Message):
    """How a run ended, in the few figures that lists and sums over many runs need."""

    cancelled: bool
    verdict: str  # pass, fail, inconclusive or measured
    ended_at: UtcDatetime  # when the verdict was computed
    completeness_ratio: float
    fleet_received_bits_per_second: float | None = None  # payload, as measured (at scale)
    firewall_bits_per_second: float | None = None  # at the ledger's layer
    scale: float = 1.0
    limiter: str | None = None
    residual_ratio: float | None = None  # as the registry of figures tells it of a run
    cost_usd: float | None = None  # at real scale; None: an import, or a price is unknown
    charged: bool = False  # whether Azure bills it


class Judging(Message):
    """Which coordinator judges a run, until when without a sign of life of it."""

    by: str
    until_at: UtcDatetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedBurst:
    """A burst's messages on the queue, one a pair, in the order of the plan's pairs."""

    numbers: tuple[int, ...]  # sequence numbers
    moved: tuple[int | None, ...]  # since which burst a pair has the server that its message names


class RunHeader(Message):
    """What a list of runs shows without opening any."""

    run_id: RunId
    scenario: str
    created_at: UtcDatetime
    created_by: str
    labels: Mapping[str, str] = {}
    device: Mapping[str, str] = {}  # what the specification says of it
    traffic_from_at: UtcDatetime | None = None  # its first burst; None: written before it was kept
    bursts_count: int | None = None
    outcome: RunOutcome | None = None  # None: it goes on


class PrivateRecords:
    """Rows of the table *private*."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def shelf(self, name: str, model: type[_M]) -> Shelf[_M]:
        """Values of one kind by key; its name is one of :mod:`broadside.exchange.records.keys`."""
        return Shelf(self._table, name, model)

    # The list of runs -------------------------------------------------------------------------

    async def save_header(self, header: RunHeader) -> None:
        """Store what a run is; it does not show in a list yet."""
        await self._table.upsert(message_row(run_partition(header.run_id), HEADER, header))

    async def read_header(self, run_id: str) -> RunHeader | None:
        row = await self._table.get(run_partition(run_id), HEADER)
        return None if row is None else parse_row(RunHeader, row)

    async def show_run(self, header: RunHeader) -> None:
        """Let a run that is stored whole show in lists, and be open; again changes nothing."""
        key = run_key(header.created_at, header.run_id)
        if await self._table.get(RUNS, key) is None:
            opened = [] if header.outcome else [make_row(RUNS, f"{OPEN}{header.run_id}", {})]
            await self._table.batch([message_row(RUNS, key, header), *opened])

    async def list_open(self) -> Sequence[str]:
        """The ids of runs that show and have no outcome yet, however old; the last id first."""
        rows = self._table.scan(RUNS, row_from=OPEN, row_before=AFTER_OPEN)
        return [row.row_key.removeprefix(OPEN) async for row in rows][::-1]

    async def drop_open(self, run_id: str) -> None:
        """The run is not to be looked after any more."""
        await self._table.delete(RUNS, f"{OPEN}{run_id}")

    async def list_runs(
        self, *, limit: int = 100, before_at: datetime | None = None
    ) -> AsyncIterator[RunHeader]:
        """Newest first, created before ``before_at``."""
        left_count = limit
        async for _, header in self.scan_runs(before_at=before_at):
            if left_count <= 0:
                return
            left_count -= 1
            yield header

    async def scan_runs(
        self, *, key_from: str | None = None, before_at: datetime | None = None
    ) -> AsyncIterator[tuple[str, RunHeader]]:
        """Key and header, newest first, from the key on, and created before ``before_at``."""
        starts = [key_from or "", "" if before_at is None else newest_first(before_at)]
        row_from = max(starts) or None
        async for row in self._table.scan(RUNS, row_from=row_from, row_before=OPEN):
            header = try_row(RunHeader, row)
            if header is None:
                continue
            if before_at is None or header.created_at < before_at:  # within the key's millisecond
                yield row.row_key, header

    async def save_outcome(self, run_id: str, outcome: RunOutcome) -> None:
        """Say in the list of runs how one ended, which closes it; nothing in the list where the run
        was removed meanwhile."""
        header = await self.read_header(run_id)
        if header is not None:
            key = run_key(header.created_at, run_id)
            over = header.model_copy(update={"outcome": outcome})
            await self._table.upsert(message_row(RUNS, key, over))
        await self.drop_open(run_id)

    async def delete(self, run_id: str) -> int:
        """Remove all of a run but its row in the list; return how many rows it was."""
        return await self._table.delete_partition(run_partition(run_id))

    async def delete_listed(self, header: RunHeader) -> int:
        """Remove a run's row in the list; return how many it was."""
        return await self._table.delete(RUNS, run_key(header.created_at, header.run_id))

    # Who was handed what ----------------------------------------------------------------------

    async def save_given(self, job: Job, who: str) -> None:
        """Note that an agent was handed a job, before it is."""
        tunnel = job.traffic.encapsulation
        said: dict[str, Value] = {
            "server": job.endpoint.agent_id,
            "ports": " ".join(map(str, job.endpoint.ports)),
            "planned_start_at": job.planned_start_at,
            **({} if tunnel is None else {"tunnel_port": tunnel.port, "vni_from": tunnel.vni_from}),
        }
        key = f"{GIVEN}{job.burst_index:05d}.{job.pair_index:05d}.{who}"
        await self._table.upsert(make_row(run_partition(job.run_id), key, said))

    async def read_job_facts(
        self, run_id: str, burst_index: int, pair_index: int, who: str
    ) -> Mapping[str, Any]:
        """Return what a job that an agent was handed says, as the rules for rows name it.

        Returns:
            ``planned_start_at``, ``server``, ``ports``, ``tunnel_port`` and ``vni``; empty where
            the agent was not handed it, or an earlier version handed it.
        """
        key = f"{GIVEN}{burst_index:05d}.{pair_index:05d}.{who}"
        row = await self._table.get(run_partition(run_id), key)
        if row is None or "server" not in row.properties:
            return {}
        said = row.properties
        vni_from = said.get("vni_from")
        return {
            "server": said["server"],
            "ports": tuple(int(port) for port in str(said["ports"]).split()),
            "planned_start_at": said["planned_start_at"],
            "tunnel_port": said.get("tunnel_port"),
            "vni": vni_from + pair_index if isinstance(vni_from, int) else None,
        }

    async def read_given(self, run_id: str) -> set[tuple[int, int, str]]:
        """Burst, pair and agent of every :meth:`save_given`."""
        found = set()
        async for row in self._table.scan(
            run_partition(run_id), row_from=GIVEN, row_before=f"{GIVEN}:"
        ):
            burst, pair, who = row.row_key.removeprefix(GIVEN).split(".", 2)
            found.add((int(burst), int(pair), who))
        return found

    # The life of a run ------------------------------------------------------------------------

    async def save_queued(
        self,
        run_id: str,
        burst_index: int,
        numbers: Sequence[int],
        moved: Sequence[int | None] | None = None,
    ) -> None:
        """Note that a burst's messages are on the queue; of several notes the first stands.

        ``numbers`` are their sequence numbers, ``moved`` the bursts since which each has its
        server: None where that is the plan's.
        """
        queued = QueuedBurst(numbers=tuple(numbers), moved=tuple(moved or [None] * len(numbers)))
        with contextlib.suppress(EntityExists):
            await self._table.insert(_queued_row(run_id, burst_index, queued))

    async def save_moved(
        self, run_id: str, burst_index: int, messages: Mapping[int, tuple[int, int]]
    ) -> None:
        """Note new messages of a queued burst, whoever else does: by place, number and since which
        burst the pair has that server. A newer move's message stays."""

        def changed(row: Entity) -> Entity:
            queued = _parse_queued(row)
            numbers, moved = list(queued.numbers), list(queued.moved)
            for place, (number, since) in messages.items():
                before = moved[place]
                if before is None or before < since:
                    numbers[place], moved[place] = number, since
            new = QueuedBurst(numbers=tuple(numbers), moved=tuple(moved))
            return _queued_row(run_id, burst_index, new)

        # None: the run was pruned meanwhile.
        await change_row(self._table, run_partition(run_id), f"{QUEUED}{burst_index:05d}", changed)

    async def read_queued(self, run_id: str) -> Mapping[int, QueuedBurst]:
        """By burst index."""
        return {index: _parse_queued(row) async for index, row in self._of_bursts(run_id, QUEUED)}

    async def save_closed(self, run_id: str, burst_index: int, closed: Message) -> None:
        """Keep what is left to know of a burst that is over."""
        key = f"{CLOSED}{burst_index:05d}"
        await self._table.upsert(message_row(run_partition(run_id), key, closed))

    async def read_closed(
        self, run_id: str, model: type[_M], *, from_index: int = 0
    ) -> Mapping[int, _M]:
        """What :meth:`save_closed` kept, by burst index, from an index on."""
        rows = self._of_bursts(run_id, CLOSED, from_index)
        return {index: parse_row(model, row) async for index, row in rows}

    async def _of_bursts(
        self, run_id: str, prefix: str, from_index: int = 0
    ) -> AsyncIterator[tuple[int, Entity]]:
        """A run's rows of one kind, by burst index."""
        async for row in self._table.scan(
            run_partition(run_id), row_from=f"{prefix}{from_index:05d}", row_before=f"{prefix}:"
        ):
            yield int(row.row_key.removeprefix(prefix)), row

    async def hold_judging(self, run_id: str, hold: Judging, now: datetime) -> bool:
        """Judge a run, or go on judging it; False while another coordinator does."""
        row = message_row(run_partition(run_id), JUDGING, hold)
        held = await self._table.get(row.partition_key, row.row_key)
        try:
            if held is None:
                await self._table.insert(row)
                return True
            other = parse_row(Judging, held)
            if other.by != hold.by and other.until_at > now:
                return False
            await self._table.replace(row, held.etag or "")
        except (EntityExists, EntityChanged, EntityNotFound):  # somebody was faster
            return False
        return True

    # Documents --------------------------------------------------------------------------------

    async def save_document(
        self, run_id: str, document: Document, content: bytes, burst_index: int | None = None
    ) -> None:
        """Create or replace what is kept of a run, or of one of its bursts."""
        name = document_key(document, burst_index)
        await self._table.batch(await document_rows(run_partition(run_id), name, content))

    async def read_document(
        self, run_id: str, document: Document, burst_index: int | None = None
    ) -> bytes | None:
        """What :meth:`save_document` kept, or None."""
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
