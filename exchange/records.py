"""Domain verbs over a :class:`~exchange.ports.Table`: the only place that spells keys and columns.

Layout (partition key | row key); ``<part>`` and ``<n>`` are three digits from 000::

    runs                    | <inverted created epoch ms>.<run>   RunHeader; newest first
                            | open.<run>                          nothing; a run without a verdict
    run.<run>               | control                             Control
                            | header                              RunHeader
                            | plan.<part>                         document (coordinator's)
                            | queued.<burst>                      QueuedBurst
                            | closed.<burst>                      ClosedBurst (coordinator's)
                            | judging                             Judging
                            | moved.<burst>.<pair>                Move (coordinator's)
                            | summary.<name>.<part>               document (coordinator's)
    burst.<run>.<burst>     | claim.<pair>                        Claim
                            | report.<pair>                       JobReport
                            | chunk.client.<pair>.<n>             packed seconds
                            | probe.<pair>.<n>                    packed probes
    tests.<UTC hour>        | <epoch ms>.<agent>.<port>           ServerTest
                            | <epoch ms>.<agent>.<port>.chunk.<n> packed seconds
    presence                | <role>.<agent>                      Presence
    tunnel.<server agent>   | ask.<vni>.<job>                     Tunnel
                            | answer.<vni>.<job>                  problem, or none

What engines printed is a folder and a file of the raw store: of a blob container or, without one,
of this table (folder | file.<part>, a document)::

    raw.<run>.<burst>       / client.<pair>
    raw.tests.<UTC hour>    / <epoch ms>.<agent>.<port>

A message is one ``json`` property. A *document* is a text over several properties and rows
(:mod:`exchange.documents`).

A chunk row holds up to :data:`~exchange.second_rows.CHUNK_S` seconds of one end: for each flow the
packed intervals (``client_up_0...``) and the instant of their zero
(``client_up_first_data_at_s``), and the packed host counters (``host_0...``). It is rewritten whole
every few seconds under the same key: writing it twice is harmless. A 1740 s burst is at most four
rows an end.

When a process dies between two writes, what stands afterwards is this:

- ``create_run``: control row only, or control, header and plan, but no row in ``runs``: the run
  never shows in a list, no message of it is on the queue, and its id stays taken.
- a run's row in ``runs`` and its ``open`` row land together; a run that has its outcome and an
  ``open`` row still is told its outcome again.
- between sending a burst's messages and ``save_queued``: the coordinator that resumes sees no such
  row and sends again, which the queue's duplicate detection, or at last the claim row, makes
  harmless.
- ``claim`` written, message not settled: the message comes again, and loses, unless it is the very
  same claim (agent and instant) whose answer was lost on the way.
- claimed, never reported: the claim row tells how far the job came and the chunks hold its seconds
  so far; the server's end of the test is under ``tests``.
- seconds and tests: the rows of one save land together (up to the table's batch limits), so what
  stands is an earlier save, whole.
- a document over the batch limits (4 MiB): rows without row 000, which nobody reads, or, where it
  replaced another one, a mixture that is found out and raises ``RecordUnreadable``.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from exchange.chunks import pack, unpack
from exchange.documents import document_rows, read_document
from exchange.messages import (
    Claim,
    Control,
    HostSecond,
    Job,
    JobReport,
    Message,
    Presence,
    Role,
    RunId,
    ServerTest,
    Track,
    Tunnel,
    UtcDatetime,
)
from exchange.ports import (
    Entity,
    EntityChanged,
    EntityExists,
    EntityNotFound,
    ExchangeUnavailable,
    RawName,
    RawStore,
    RecordUnreadable,
    Table,
)
from exchange.probes import Probes, parse_probes, probe_rows
from exchange.rows import (
    cut_properties,
    joined_properties,
    make_row,
    message_row,
    parse_row,
    row_name,
)
from exchange.second_rows import (
    PackedEnd,
    PairSeconds,
    TestSeconds,
    chunk_rows,
    packed_end,
    unpacked_host,
    unpacked_tracks,
)
from exchange.table_blobs import TableRaw

_INVERTED_FROM_MS: Final = 9_999_999_999_999  # 13 digits, until the year 2286
_OPEN: Final = "open."  # after all digits: behind the list of runs
_AFTER_OPEN: Final = "open/"  # the character after the dot's
ALL_PAIRS: Final = range(99_999)  # their numbers have five digits in keys
_CHANGE_TRIES_COUNT: Final = 10
_CHANGE_PAUSE_S: Final = 0.1  # s, at most, between two tries

_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")

log = logging.getLogger(__name__)


class RunOutcome(Message):
    """How a run ended, in the few figures that lists and sums over many runs need."""

    cancelled: bool
    verdict: str  # pass, fail or inconclusive
    ended_at: UtcDatetime  # when the verdict was computed
    completeness_ratio: float
    fleet_received_bits_per_second: float | None = None  # payload, as measured (at scale)
    firewall_bits_per_second: float | None = None  # at the ledger's layer
    scale: float = 1.0
    limiter: str | None = None


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
    outcome: RunOutcome | None = None  # None: it goes on


class Records:
    """Reads and writes the project's values in one table, and what engines printed in ``raw``.

    Without ``raw`` the table keeps that too. Every verb may raise ``ExchangeUnavailable``; every
    reading one ``RecordUnreadable``, which names the row.
    """

    def __init__(self, table: Table, raw: RawStore | None = None) -> None:
        self._table = table
        self._raw = raw or TableRaw(table)
        # A blob account that came later does not hide what the table keeps from before.
        self._raw_stores = (self._raw, TableRaw(table)) if raw else (self._raw,)

    # Runs -------------------------------------------------------------------------------------

    async def create_run(
        self, header: RunHeader, plan: bytes, control: Control, *, listed: bool = True
    ) -> None:
        """Store a new run: plan and control first, the header last, so that a run that shows in
        a list is whole; unless ``listed`` it shows from :meth:`show_run` on. Raises EntityExists
        when the run id is taken."""
        partition = _run_partition(header.run_id)
        await self._table.insert(message_row(partition, "control", control))
        plan_rows = await document_rows(partition, "plan", plan)
        await self._table.batch([*plan_rows, message_row(partition, "header", header)])
        if listed:
            await self.show_run(header)

    async def show_run(self, header: RunHeader) -> None:
        """Let a run that is stored whole show in lists, and be open; again changes nothing."""
        key = _run_key(header)
        if await self._table.get("runs", key) is None:
            opened = [] if header.outcome else [_open_row(header.run_id)]
            await self._table.batch([message_row("runs", key, header), *opened])

    async def list_open(self) -> Sequence[str]:
        """The ids of runs that show and have no outcome yet, however old; the last id first."""
        rows = self._table.scan("runs", row_from=_OPEN, row_before=_AFTER_OPEN)
        return [row.row_key.removeprefix(_OPEN) async for row in rows][::-1]

    async def drop_open(self, run_id: str) -> None:
        """The run is not to be looked after any more."""
        await self._table.delete("runs", f"{_OPEN}{run_id}")

    async def read_run(self, run_id: str) -> tuple[RunHeader, bytes] | None:
        """Header and plan, or None."""
        partition = _run_partition(run_id)
        row = await self._table.get(partition, "header")
        plan = await read_document(self._table, partition, "plan")
        return None if row is None or plan is None else (parse_row(RunHeader, row), plan)

    async def list_runs(
        self, *, limit: int = 100, before_at: datetime | None = None
    ) -> AsyncIterator[RunHeader]:
        """Newest first, created before ``before_at``."""
        row_from = None if before_at is None else _inverted_ms(before_at)
        left_count = limit
        async for row in self._table.scan("runs", row_from=row_from, row_before=_OPEN):
            header = parse_row(RunHeader, row)
            if before_at is not None and header.created_at >= before_at:
                continue  # within the key's millisecond
            if left_count <= 0:
                return
            left_count -= 1
            yield header

    async def scan_runs(
        self, *, key_from: str | None = None, before_at: datetime | None = None
    ) -> AsyncIterator[tuple[str, RunHeader]]:
        """Key and header, newest first, from the key on, and created before ``before_at``."""
        starts = [key_from or "", "" if before_at is None else _inverted_ms(before_at)]
        row_from = max(starts) or None
        async for row in self._table.scan("runs", row_from=row_from, row_before=_OPEN):
            header = parse_row(RunHeader, row)
            if before_at is None or header.created_at < before_at:
                yield row.row_key, header

    async def save_outcome(self, run_id: str, outcome: RunOutcome) -> None:
        """Say in the list of runs how one ended, which closes it; nothing in the list where the run
        was removed meanwhile."""
        row = await self._table.get(_run_partition(run_id), "header")
        if row is not None:
            header = parse_row(RunHeader, row).model_copy(update={"outcome": outcome})
            await self._table.upsert(message_row("runs", _run_key(header), header))
        await self.drop_open(run_id)

    async def read_control(self, run_id: str) -> Control | None:
        """The run's control row, or None."""
        row = await self._table.get(_run_partition(run_id), "control")
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
        """Apply what ``change`` says of the row's newest state; when nothing, write nothing."""

        def changed(row: Entity) -> Entity:
            control = parse_row(Control, row)
            new = Control.model_validate(dict(control) | dict(change(control)))
            return row if new == control else message_row(row.partition_key, row.row_key, new)

        row = await self._change_row(run_id, "control", changed)
        if row is None:
            raise EntityNotFound(f"run {run_id}: there is none")
        return parse_row(Control, row)

    async def _change_row(
        self, run_id: str, key: str, change: Callable[[Entity], Entity]
    ) -> Entity | None:
        """Replace one of a run's rows by what ``change`` makes of its newest state, whoever else
        writes; the row as it is then. The same row back: nothing is written. None: there is none.
        """
        for _ in range(_CHANGE_TRIES_COUNT):
            row = await self._table.get(_run_partition(run_id), key)
            if row is None or (new := change(row)) is row:
                return row
            try:
                await self._table.replace(new, row.etag or "")
            except EntityChanged:
                await asyncio.sleep(random.uniform(0, _CHANGE_PAUSE_S))  # noqa: S311 - jitter
            else:
                return new
        raise ExchangeUnavailable(
            f"run {run_id}: its {key} row changed under {_CHANGE_TRIES_COUNT} attempts to "
            "change it; try again"
        )

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
        await self._change_row(run_id, _queued_key(burst_index), changed)

    async def read_queued(self, run_id: str) -> Mapping[int, QueuedBurst]:
        """By burst index."""
        return {
            int(number): _parse_queued(row)
            async for number, row in self._numbered(_run_partition(run_id), "queued.")
        }

    async def save_closed(self, run_id: str, burst_index: int, closed: Message) -> None:
        """Keep what is left to know of a burst that is over."""
        partition = _run_partition(run_id)
        await self._table.upsert(message_row(partition, f"closed.{burst_index:05d}", closed))

    async def read_closed(
        self, run_id: str, model: type[_M], *, from_index: int = 0
    ) -> Mapping[int, _M]:
        """What :meth:`save_closed` kept, by burst index, from an index on."""
        partition = _run_partition(run_id)
        rows = self._table.scan(
            partition, row_from=f"closed.{from_index:05d}", row_before="closed.:"
        )
        return {
            int(row.row_key.removeprefix("closed.")): parse_row(model, row) async for row in rows
        }

    async def hold_judging(self, run_id: str, hold: Judging, now: datetime) -> bool:
        """Judge a run, or go on judging it; False while another coordinator does."""
        row = message_row(_run_partition(run_id), "judging", hold)
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

    async def save_move(
        self, run_id: str, burst_index: int, pair_index: int, move: Message
    ) -> bool:
        """Note that a pair has another server from a burst on; False when somebody has."""
        key = f"moved.{burst_index:05d}.{pair_index:05d}"
        try:
            await self._table.insert(message_row(_run_partition(run_id), key, move))
        except EntityExists:
            return False
        return True

    async def read_moves(self, run_id: str, model: type[_M]) -> Sequence[_M]:
        """What :meth:`save_move` noted, by burst and pair."""
        partition = _run_partition(run_id)
        rows = self._table.scan(partition, row_from="moved.", row_before="moved.:")
        return [parse_row(model, row) async for row in rows]

    async def save_summary(self, run_id: str, name: str, document: bytes) -> None:
        """Create or replace a document beside the run's plan."""
        partition = _run_partition(run_id)
        await self._table.batch(await document_rows(partition, f"summary.{name}", document))

    async def read_summary(self, run_id: str, name: str) -> bytes | None:
        """The document, or None."""
        return await read_document(self._table, _run_partition(run_id), f"summary.{name}")

    async def drop_run(self, run_id: str) -> None:
        """Remove a run that never showed, so no job of it was ever queued."""
        await self._table.delete_partition(_run_partition(run_id))

    async def delete_run(self, header: RunHeader, bursts_count: int) -> int:
        """Remove everything of a run but its server ends' records; return how many rows it was.

        Its row in ``runs`` goes last: a removal that dies midway shows, and can be done again.
        """
        await self.drop_open(header.run_id)
        for index in range(bursts_count):
            await self._delete_raw(_raw_folder(header.run_id, index))
        partitions = [_burst_partition(header.run_id, index) for index in range(bursts_count)]
        partitions.append(_run_partition(header.run_id))
        deleted = [await self._table.delete_partition(partition) for partition in partitions]
        return sum(deleted) + await self._table.delete("runs", _run_key(header))

    # Jobs -------------------------------------------------------------------------------------

    async def claim(self, job: Job, claim: Claim) -> bool:
        """Create the claim row; False when somebody else (or an earlier delivery) has it."""
        row = _claim_row(job, claim)
        try:
            await self._table.insert(row)
        except EntityExists:
            # It may be this very claim, stored by an attempt whose answer was lost.
            there = await self._table.get(row.partition_key, row.row_key)
            if there is None:
                return False
            holder = parse_row(Claim, there)
            return (holder.agent_id, holder.claimed_at) == (claim.agent_id, claim.claimed_at)
        return True

    async def save_claim(self, job: Job, claim: Claim) -> None:
        """Replace one's own claim row as the job moves on."""
        await self._table.upsert(_claim_row(job, claim))

    async def save_report(self, report: JobReport) -> None:
        """Create or replace the client end's account of a job."""
        partition = _burst_partition(report.run_id, report.burst_index)
        await self._table.upsert(message_row(partition, f"report.{report.pair_index:05d}", report))

    async def save_seconds(
        self,
        job: Job,
        tracks: Sequence[Track],
        host: Sequence[HostSecond],
        *,
        from_s: float = 0.0,
    ) -> None:
        """Store the client end's seconds so far; only chunks that end after ``from_s`` (engine
        time) are written, so a live upload rewrites the open chunk only.

        ``tracks`` and ``host`` are everything since the job began, each time. ``from_s`` is the
        engine time up to which an earlier save *returned*; the last save of a job leaves it out.
        """
        partition = _burst_partition(job.run_id, job.burst_index)
        rows = chunk_rows(
            partition,
            f"chunk.client.{job.pair_index:05d}",
            tracks,
            host,
            host_zero_s=job.planned_start_at.timestamp(),
            from_s=from_s,
        )
        await self._table.batch(rows)

    async def save_probes(self, job: Job, probes: Probes) -> None:
        """Keep what the client end's probes said of the path."""
        partition = _burst_partition(job.run_id, job.burst_index)
        rows = await asyncio.to_thread(probe_rows, partition, f"probe.{job.pair_index:05d}", probes)
        await self._table.batch(rows)

    async def stream_probes(
        self, run_id: str, burst_index: int
    ) -> AsyncIterator[tuple[int, Probes]]:
        """The probes of a burst, pair by pair in index order."""
        rows: list[Entity] = []
        pair_index = -1
        async for number, row in self._numbered(_burst_partition(run_id, burst_index), "probe."):
            index = int(number.split(".")[0])
            if index != pair_index and rows:
                yield pair_index, parse_probes(rows)
                rows = []
            pair_index = index
            rows.append(row)
        if rows:
            yield pair_index, parse_probes(rows)

    async def read_claims(
        self, run_id: str, burst_index: int, pairs: range = ALL_PAIRS
    ) -> Mapping[int, Claim]:
        """Of some pairs, by pair index."""
        return await self._read_pairs(Claim, "claim", run_id, burst_index, pairs)

    async def read_reports(
        self, run_id: str, burst_index: int, pairs: range = ALL_PAIRS
    ) -> Mapping[int, JobReport]:
        """Of some pairs, by pair index."""
        return await self._read_pairs(JobReport, "report", run_id, burst_index, pairs)

    async def _read_pairs(
        self, kind: type[_M], name: str, run_id: str, burst_index: int, pairs: range
    ) -> Mapping[int, _M]:
        rows = self._table.scan(
            _burst_partition(run_id, burst_index),
            row_from=f"{name}.{pairs.start:05d}",
            row_before=f"{name}.{pairs.stop:05d}",
        )
        return {
            int(row.row_key.removeprefix(f"{name}.")): parse_row(kind, row) async for row in rows
        }

    async def read_seconds(self, run_id: str, burst_index: int) -> Sequence[PairSeconds]:
        """The client ends' seconds of a burst, by pair index, all at once: for small bursts."""
        ends = [end async for end in self.stream_seconds(run_id, burst_index)]

        def unpacked() -> list[PairSeconds]:
            return [
                PairSeconds(
                    pair_index=pair_index, tracks=unpacked_tracks(end), host=unpacked_host(end)
                )
                for pair_index, end in ends
            ]

        return await asyncio.to_thread(unpacked)  # off the loop: a big burst takes a while

    async def stream_seconds(
        self, run_id: str, burst_index: int
    ) -> AsyncIterator[tuple[int, PackedEnd]]:
        """The client ends' seconds of a burst still packed, pair by pair in index order."""
        partition = _burst_partition(run_id, burst_index)
        rows: list[Entity] = []
        pair_index = -1
        async for number, row in self._numbered(partition, "chunk.client."):
            index = int(number.split(".")[0])
            if index != pair_index and rows:
                yield pair_index, packed_end(rows)
                rows = []
            pair_index = index
            rows.append(row)
        if rows:
            yield pair_index, packed_end(rows)

    async def save_raw(self, run_id: str, burst_index: int, pair_index: int, text: bytes) -> None:
        """Keep what the client end's engine printed."""
        await self._raw.save(_raw_name(run_id, burst_index, pair_index), text)

    async def read_raw(self, run_id: str, burst_index: int, pair_index: int) -> bytes | None:
        """What the client end's engine printed, or None."""
        return await self._find_raw(_raw_name(run_id, burst_index, pair_index))

    async def _find_raw(self, name: RawName) -> bytes | None:
        for store in self._raw_stores:
            if (found := await store.read(name)) is not None:
                return found
        return None

    async def _delete_raw(self, folder: str) -> None:
        for store in self._raw_stores:
            await store.delete_folder(folder)

    # Server ends ------------------------------------------------------------------------------

    async def save_test(
        self,
        test: ServerTest,
        tracks: Sequence[Track],
        host: Sequence[HostSecond],
        *,
        from_s: float = 0.0,
    ) -> None:
        """Store a server-side test so far, or whole; keyed by agent, port and start.

        ``from_s`` works as in :meth:`save_seconds`.
        """
        partition, key = _tests_partition(test.started_at), _test_key(test)
        rows = chunk_rows(
            partition,
            f"{key}.chunk",
            tracks,
            host,
            host_zero_s=test.started_at.timestamp(),
            from_s=from_s,
        )
        await self._table.batch([message_row(partition, key, test), *rows])

    async def read_tests(self, from_at: datetime, before_at: datetime) -> Sequence[TestSeconds]:
        """Every server-side test that started in the span, over the whole fleet, all at once."""
        ends = [found async for found in self.stream_tests(from_at, before_at)]

        def unpacked() -> list[TestSeconds]:
            return [
                TestSeconds(test=test, tracks=unpacked_tracks(end), host=unpacked_host(end))
                for test, end in ends
            ]

        return await asyncio.to_thread(unpacked)

    async def stream_tests(
        self, from_at: datetime, before_at: datetime
    ) -> AsyncIterator[tuple[ServerTest, PackedEnd]]:
        """The same one by one, the seconds still packed; in the order of their start."""
        hour_at = from_at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        while hour_at < before_at:
            instant = ""
            tests: dict[str, tuple[ServerTest, list[Entity]]] = {}  # of one millisecond
            async for row in self._table.scan(
                _tests_partition(hour_at),
                row_from=f"{_epoch_ms(from_at):013d}",
                row_before=f"{_epoch_ms(before_at) + 1:013d}",
            ):
                if (begun := row.row_key.partition(".")[0]) != instant:
                    for found in _started(tests, from_at, before_at):
                        yield found
                    instant, tests = begun, {}
                if "json" in row.properties:
                    tests[row.row_key] = (parse_row(ServerTest, row), [])
                elif (key := row.row_key.rpartition(".chunk.")[0]) in tests:
                    tests[key][1].append(row)
            for found in _started(tests, from_at, before_at):
                yield found
            hour_at += timedelta(hours=1)

    async def save_server_raw(self, test: ServerTest, text: bytes) -> None:
        """Keep what the server end's engine printed, under its test's own key."""
        await self._raw.save(_server_raw_name(test), text)

    async def read_server_raw(self, test: ServerTest) -> bytes | None:
        """What the server end's engine printed, or None."""
        return await self._find_raw(_server_raw_name(test))

    async def has_tests(self, hour_at: datetime) -> bool:
        """Whether any server-side test started in the UTC hour of ``hour_at``."""
        async for _ in self._table.scan(_tests_partition(hour_at), limit=1):
            return True
        return False

    async def delete_tests(self, hour_at: datetime) -> int:
        """Remove the server-side tests that started in an hour; return how many rows it was."""
        await self._delete_raw(_server_raw_folder(hour_at))
        return await self._table.delete_partition(_tests_partition(hour_at))

    # Presence ---------------------------------------------------------------------------------

    async def beat(self, presence: Presence) -> None:
        """Create or replace an agent's row."""
        key = f"{presence.role}.{presence.agent_id}"
        await self._table.upsert(message_row("presence", key, presence))

    async def leave(self, role: Role, agent_id: str) -> None:
        """Remove an agent's row: it said goodbye."""
        await self._table.delete("presence", f"{role}.{agent_id}")

    async def read_presences(self) -> Sequence[Presence]:
        """Every row, also stale ones: judge by ``beat_at``.

        A row that cannot be read, as an agent of another version may write, is logged and left
        out: one such agent must not stop the rest of the fleet.
        """
        presences = []
        async for row in self._table.scan("presence"):
            try:
                presences.append(parse_row(Presence, row))
            except RecordUnreadable as error:
                log.warning("presence left out: %s", error, extra={"action": "presence_unreadable"})
        return presences

    # Tunnels ----------------------------------------------------------------------------------

    async def save_tunnel(self, server_id: str, tunnel: Tunnel) -> None:
        """Ask a server's agent for the other end of a tunnel, or say that it is still wanted."""
        await self._table.upsert(
            message_row(f"tunnel.{server_id}", _tunnel_key("ask", tunnel), tunnel)
        )

    async def read_tunnels(self, server_id: str) -> Sequence[Tunnel]:
        """What is asked of a server's agent; several jobs may ask for one id."""
        rows = self._numbered(f"tunnel.{server_id}", "ask.")
        return [parse_row(Tunnel, row) async for _, row in rows]

    async def answer_tunnel(self, server_id: str, tunnel: Tunnel, problem: str) -> None:
        """Say that the other end stands (an empty problem), or why it does not."""
        key = _tunnel_key("answer", tunnel)
        await self._table.upsert(make_row(f"tunnel.{server_id}", key, {"problem": problem}))

    async def read_tunnel_answer(self, server_id: str, tunnel: Tunnel) -> str | None:
        """The problem, empty where there is none; None: no answer to this job yet."""
        row = await self._table.get(f"tunnel.{server_id}", _tunnel_key("answer", tunnel))
        return None if row is None else str(row.properties.get("problem"))

    async def drop_tunnel(self, server_id: str, tunnel: Tunnel) -> None:
        """This job wants it no more; what another asked for under the same id stays."""
        for kind in ("ask", "answer"):
            await self._table.delete(f"tunnel.{server_id}", _tunnel_key(kind, tunnel))

    # Rows -------------------------------------------------------------------------------------

    async def _numbered(self, partition: str, prefix: str) -> AsyncIterator[tuple[str, Entity]]:
        """Rows whose key is ``prefix`` and then a digit, each with the rest of its key."""
        async for row in self._table.scan(partition, row_from=prefix, row_before=prefix + ":"):
            yield row.row_key.removeprefix(prefix), row


def told_late(row: Entity, at: datetime) -> Entity:
    """A row as it leaves an agent's spool: an account of a job or test says when that was."""
    model: type[JobReport | ServerTest]
    if row.row_key.startswith("report."):
        model = JobReport
    elif row.partition_key.startswith("tests.") and "json" in row.properties:
        model = ServerTest
    else:
        return row
    try:
        account = parse_row(model, row)
    except RecordUnreadable:  # another version's: it goes as it is
        return row
    return message_row(row.partition_key, row.row_key, account.delivered(at))


def _run_partition(run_id: str) -> str:
    return f"run.{run_id}"


def _burst_partition(run_id: str, burst_index: int) -> str:
    return f"burst.{run_id}.{burst_index:05d}"


def _tests_partition(at: datetime) -> str:
    return f"tests.{at.astimezone(UTC):%Y-%m-%dT%H}"


def _test_key(test: ServerTest) -> str:
    return f"{_epoch_ms(test.started_at):013d}.{test.agent_id}.{test.endpoint.port}"


def _tunnel_key(kind: str, tunnel: Tunnel) -> str:
    return f"{kind}.{tunnel.vni:08d}.{tunnel.opened_by}"


def _raw_folder(run_id: str, burst_index: int) -> str:
    return f"raw.{run_id}.{burst_index:05d}"


def _raw_name(run_id: str, burst_index: int, pair_index: int) -> RawName:
    return RawName(folder=_raw_folder(run_id, burst_index), file=f"client.{pair_index:05d}")


def _server_raw_folder(at: datetime) -> str:
    return f"raw.{_tests_partition(at)}"


def _server_raw_name(test: ServerTest) -> RawName:
    return RawName(folder=_server_raw_folder(test.started_at), file=_test_key(test))


def _open_row(run_id: str) -> Entity:
    return make_row("runs", f"{_OPEN}{run_id}", {})


def _run_key(header: RunHeader) -> str:
    return f"{_inverted_ms(header.created_at)}.{header.run_id}"


def _inverted_ms(at: datetime) -> str:
    return f"{_INVERTED_FROM_MS - _epoch_ms(at):013d}"


def _epoch_ms(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _claim_row(job: Job, claim: Claim) -> Entity:
    partition = _burst_partition(job.run_id, job.burst_index)
    return message_row(partition, f"claim.{job.pair_index:05d}", claim)


def _started(
    tests: Mapping[str, tuple[ServerTest, list[Entity]]], from_at: datetime, before_at: datetime
) -> list[tuple[ServerTest, PackedEnd]]:
    """The tests of the span with their chunks, which follow them in key order."""
    return [
        (test, packed_end(rows))
        for test, rows in tests.values()
        if from_at <= test.started_at < before_at
    ]


def _queued_key(burst_index: int) -> str:
    return f"queued.{burst_index:05d}"


def _queued_row(run_id: str, burst_index: int, queued: QueuedBurst) -> Entity:
    packed = pack({"numbers": queued.numbers, "moved": queued.moved})
    return make_row(
        _run_partition(run_id), _queued_key(burst_index), cut_properties("numbers", packed)
    )


def _parse_queued(row: Entity) -> QueuedBurst:
    try:
        columns = unpack(joined_properties(row, "numbers"))
    except RecordUnreadable as error:
        raise RecordUnreadable(f"row {row_name(row)}: numbers: {error}") from error
    numbers = tuple(n for n in columns["numbers"] if n is not None)
    return QueuedBurst(numbers=numbers, moved=tuple(columns["moved"]))
