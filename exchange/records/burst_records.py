"""What agents record of bursts: claims, reports, seconds, probes, and what engines printed.

A chunk row holds up to :data:`~broadside.exchange.second_rows.CHUNK_S` seconds of one end: for
each flow the packed intervals (``client_up_0...``) and the instant of their zero
(``client_up_first_data_at_s``), and the packed host counters (``host_0...``). It is rewritten whole
once a minute under the same key, and between the row ``tail`` behind it: writing either twice is
harmless. A 1740 s burst is two rows an end.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final, TypeVar

from broadside.exchange.documents import TableRaw
from broadside.exchange.messages import (
    Claim,
    HostSecond,
    Job,
    JobReport,
    Message,
    ServerTest,
    Track,
)
from broadside.exchange.ports import (
    Entity,
    EntityExists,
    RawName,
    RawStore,
    RecordUnreadable,
    Table,
    scan_changed,
)
from broadside.exchange.records.keys import (
    CHUNK,
    CLAIM,
    PROBE,
    REPORT,
    TEST_CHUNK,
    TESTS,
    burst_partition,
    epoch_ms,
    raw_folder,
    raw_name,
    server_raw_folder,
    server_raw_name,
    server_test_key,
    server_tests_hour,
    server_tests_partition,
    server_tests_partitions,
)
from broadside.exchange.records.row_rules import Kind, Violation, keeps_rules, place_of
from broadside.exchange.rows import leave_out, message_row, parse_row, row_name, try_row
from broadside.exchange.second_rows import (
    TAIL,
    PackedEnd,
    Probes,
    TestSeconds,
    chunk_rows,
    packed_end,
    parse_probes,
    probe_rows,
    unpacked_tracks,
)

# A day of readings ten times a second in both directions: nobody's end of a test has more.
_END_MAX_BYTES: Final = 64 * 1_048_576
_TOO_MANY: Final = f"with those before it over {_END_MAX_BYTES} bytes of one end of a test"

ALL_PAIRS: Final = range(99_999)  # their numbers have five digits in keys

_PAIR: Final = re.compile(r"[0-9]{5}")
_PAIR_PART: Final = re.compile(rf"[0-9]{{5}}\.([0-9]{{3}}|{TAIL})")

_M = TypeVar("_M", bound=Message)


class BurstRecords:
    """Rows of the table *results*; without ``raw`` it keeps what engines printed too."""

    def __init__(self, table: Table, raw: RawStore | None = None) -> None:
        self._table = table
        self._raw = raw or TableRaw(table)
        # A blob account that came later does not hide what the table keeps from before.
        self._raw_stores = (self._raw, TableRaw(table)) if raw else (self._raw,)

    # Client ends ------------------------------------------------------------------------------

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
            try:
                holder = parse_row(Claim, there)
            except RecordUnreadable:  # somebody's, whoever wrote it
                return False
            return (holder.agent_id, holder.claimed_at) == (claim.agent_id, claim.claimed_at)
        return True

    async def read_claim_row(self, run_id: str, burst_index: int, pair_index: int) -> Entity | None:
        """The claim of a pair as it is stored, readable or not."""
        key = f"{CLAIM}{pair_index:05d}"
        return await self._table.get(burst_partition(run_id, burst_index), key)

    async def save_claim(self, job: Job, claim: Claim) -> None:
        """Replace one's own claim row as the job moves on."""
        await self._table.upsert(_claim_row(job, claim))

    async def save_report(self, report: JobReport) -> None:
        """Create or replace the client end's account of a job."""
        partition = burst_partition(report.run_id, report.burst_index)
        await self._table.upsert(message_row(partition, f"{REPORT}{report.pair_index:05d}", report))

    async def save_seconds(
        self,
        job: Job,
        tracks: Sequence[Track],
        host: Sequence[HostSecond],
        *,
        from_s: float = 0.0,
    ) -> None:
        """Store the client end's seconds so far; only chunks that end after ``from_s`` (engine
        time) are written, and of an open one most times the tail alone.

        ``tracks`` and ``host`` are everything since the job began, each time. ``from_s`` is the
        engine time up to which an earlier save *returned*; the last save of a job leaves it out.
        """
        partition = burst_partition(job.run_id, job.burst_index)
        rows = chunk_rows(
            partition,
            f"{CHUNK}{job.pair_index:05d}",
            tracks,
            host,
            host_zero_s=job.planned_start_at.timestamp(),
            from_s=from_s,
        )
        await self._table.batch(rows)

    async def save_probes(self, job: Job, probes: Probes) -> None:
        """Keep what the client end's probes said of the path."""
        partition = burst_partition(job.run_id, job.burst_index)
        rows = await asyncio.to_thread(
            probe_rows, partition, f"{PROBE}{job.pair_index:05d}", probes
        )
        await self._table.batch(rows)

    async def stream_probes(
        self, run_id: str, burst_index: int
    ) -> AsyncIterator[tuple[int, Probes]]:
        """The probes of a burst, pair by pair in index order."""
        async for pair_index, rows in self._by_pair(run_id, burst_index, PROBE):
            try:
                probes = parse_probes(rows)
            except RecordUnreadable as error:
                leave_out(error)
                continue
            yield pair_index, probes

    async def stream_seconds(
        self, run_id: str, burst_index: int, broken: list[Violation] | None = None
    ) -> AsyncIterator[tuple[int, PackedEnd]]:
        """The client ends' seconds of a burst still packed, pair by pair in index order.

        Args:
            run_id: The run.
            burst_index: The burst.
            broken: Gets the rows that break a rule, which are left out.
        """
        async for pair_index, rows in self._by_pair(run_id, burst_index, CHUNK, broken):
            if (end := _try_end(rows)) is not None:
                yield pair_index, end

    async def _by_pair(
        self, run_id: str, burst_index: int, prefix: str, broken: list[Violation] | None = None
    ) -> AsyncIterator[tuple[int, list[Entity]]]:
        """Rows ``<prefix><pair>.<n>`` of a burst, those of a pair together."""
        rows: list[Entity] = []
        pair_index, held_bytes = -1, 0
        async for row in self._table.scan(
            burst_partition(run_id, burst_index), row_from=prefix, row_before=f"{prefix}:"
        ):
            index = _index(row, prefix, _PAIR_PART)
            if index is None or not keeps_rules(row, None, broken):
                continue
            if index != pair_index:
                if rows:
                    yield pair_index, rows
                rows, held_bytes = [], 0
            pair_index = index
            held_bytes += _bytes_of(row)
            if held_bytes > _END_MAX_BYTES:
                leave_out(RecordUnreadable(f"row {row_name(row)}: {_TOO_MANY}"))
                rows = []
            else:
                rows.append(row)
        if rows:
            yield pair_index, rows

    async def read_changed(
        self, kind: type[_M], run_id: str, burst_index: int, etags: dict[str, str]
    ) -> Mapping[int, _M]:
        """Claims or reports that are not as they were by ``etags``, which are brought up to date;
        by pair index."""
        name = CLAIM if kind is Claim else REPORT
        partition = burst_partition(run_id, burst_index)
        return _by_index(kind, name, await self._changed(partition, name, f"{name}:", etags))

    async def read_tails(
        self, run_id: str, burst_index: int, etags: dict[str, str]
    ) -> Mapping[int, PackedEnd]:
        """The newest seconds of the client ends whose rows changed, as above; by pair index."""
        partition = burst_partition(run_id, burst_index)
        return {
            index: end
            for row in await self._changed(partition, CHUNK, f"{CHUNK}:", etags)
            if row.row_key.endswith(f".{TAIL}") and keeps_rules(row, None)
            if (index := _index(row, CHUNK, _PAIR_PART)) is not None
            if (end := _try_end([row])) is not None
        }

    async def read_test_tails(
        self, from_at: datetime, before_at: datetime, etags: dict[str, str]
    ) -> Mapping[str, PackedEnd]:
        """The same of server ends, by their tests' keys."""
        span = f"{epoch_ms(from_at):013d}", f"{epoch_ms(before_at) + 1:013d}"
        parts = await asyncio.gather(
            *(
                self._changed(partition, *span, etags)
                for hour_at in _hours(from_at, before_at)
                for partition in server_tests_partitions(hour_at)
            )
        )
        tails: dict[str, PackedEnd] = {}
        for row in chain.from_iterable(parts):
            test, is_tail, _ = row.row_key.partition(f"{TEST_CHUNK}.{TAIL}")
            if is_tail and keeps_rules(row, None) and (end := _try_end([row])) is not None:
                tails[test] = end
        return tails

    async def _changed(
        self, partition: str, row_from: str, row_before: str, etags: dict[str, str]
    ) -> list[Entity]:
        rows = [
            row
            async for row in scan_changed(
                self._table, partition, etags, row_from=row_from, row_before=row_before
            )
        ]
        etags.update((row.row_key, row.etag or "") for row in rows)
        return rows

    async def read_claims(
        self,
        run_id: str,
        burst_index: int,
        pairs: range = ALL_PAIRS,
        broken: list[Violation] | None = None,
    ) -> Mapping[int, Claim]:
        """Return the claims of some pairs, by pair index.

        Args:
            run_id: The run.
            burst_index: The burst.
            pairs: The pairs' numbers.
            broken: Gets the rows that break a rule, which are left out.
        """
        return await self._read_pairs(Claim, CLAIM, run_id, burst_index, pairs, broken)

    async def read_reports(
        self,
        run_id: str,
        burst_index: int,
        pairs: range = ALL_PAIRS,
        broken: list[Violation] | None = None,
    ) -> Mapping[int, JobReport]:
        """Return the reports of some pairs, by pair index; as :meth:`read_claims`."""
        return await self._read_pairs(JobReport, REPORT, run_id, burst_index, pairs, broken)

    async def _read_pairs(
        self,
        kind: type[_M],
        name: str,
        run_id: str,
        burst_index: int,
        pairs: range,
        broken: list[Violation] | None,
    ) -> Mapping[int, _M]:
        rows = self._table.scan(
            burst_partition(run_id, burst_index),
            row_from=f"{name}{pairs.start:05d}",
            row_before=f"{name}{pairs.stop:05d}",
        )
        return _by_index(kind, name, [row async for row in rows], broken)

    async def save_raw(self, run_id: str, burst_index: int, pair_index: int, text: bytes) -> None:
        """Keep what the client end's engine printed."""
        await self._raw.save(raw_name(run_id, burst_index, pair_index), text)

    async def read_raw(self, run_id: str, burst_index: int, pair_index: int) -> bytes | None:
        """What the client end's engine printed, or None."""
        return await self._find_raw(raw_name(run_id, burst_index, pair_index))

    async def _find_raw(self, name: RawName) -> bytes | None:
        for store in self._raw_stores:
            if (found := await store.read(name)) is not None:
                return found
        return None

    async def _delete_raw(self, folder: str) -> None:
        for store in self._raw_stores:
            await store.delete_folder(folder)

    async def delete(self, run_id: str, burst_index: int) -> int:
        """Remove a burst's rows and raw output, but its server ends'; return how many rows."""
        await self._delete_raw(raw_folder(run_id, burst_index))
        return await self._table.delete_partition(burst_partition(run_id, burst_index))

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
        partition = server_tests_partition(test.started_at, test.agent_id)
        key = server_test_key(test)
        rows = chunk_rows(
            partition,
            f"{key}{TEST_CHUNK}",
            tracks,
            host,
            host_zero_s=test.started_at.timestamp(),
            from_s=from_s,
        )
        # Whoever reads that the test has ended finds all its seconds: they go first.
        row = message_row(partition, key, test)
        await self._table.batch([row, *rows] if test.ended_at is None else [*rows, row])

    async def read_tests(self, from_at: datetime, before_at: datetime) -> Sequence[TestSeconds]:
        """Every server-side test that started in the span, over the whole fleet, all at once, in
        the order of their start."""
        ends = [found async for found in self.stream_tests(from_at, before_at)]
        ends.sort(key=lambda found: server_test_key(found[0]))

        def unpacked() -> list[TestSeconds]:
            return [TestSeconds(test=test, tracks=unpacked_tracks(end)) for test, end in ends]

        return await asyncio.to_thread(unpacked)

    async def stream_tests(
        self,
        from_at: datetime,
        before_at: datetime,
        broken: list[Violation] | None = None,
    ) -> AsyncIterator[tuple[ServerTest, PackedEnd]]:
        """The same one by one, the seconds still packed; an agent's in the order of their start.

        Args:
            from_at: The start of the span.
            before_at: Its end, excluded.
            broken: Gets the rows that break a rule, which are left out.
        """
        partitions = (p for at in _hours(from_at, before_at) for p in server_tests_partitions(at))
        for partition in partitions:
            instant = ""
            tests: dict[str, tuple[ServerTest, list[Entity]]] = {}  # of one millisecond
            async for row in self._table.scan(
                partition,
                row_from=f"{epoch_ms(from_at):013d}",
                row_before=f"{epoch_ms(before_at) + 1:013d}",
            ):
                if (begun := row.row_key.partition(".")[0]) != instant:
                    for found in _started(tests, from_at, before_at):
                        yield found
                    instant, tests = begun, {}
                if not _is_chunk(row):
                    test = try_row(ServerTest, row)
                    if test is not None and keeps_rules(row, test, broken):
                        tests[row.row_key] = (test, [])
                    continue
                if not keeps_rules(row, None, broken):
                    continue
                _, chunks = tests.get(row.row_key.rpartition(f"{TEST_CHUNK}.")[0], (None, None))
                if chunks is None:
                    leave_out(RecordUnreadable(f"row {row_name(row)}: of no test on record"))
                elif sum(map(_bytes_of, (*chunks, row))) > _END_MAX_BYTES:
                    leave_out(RecordUnreadable(f"row {row_name(row)}: {_TOO_MANY}"))
                else:
                    chunks.append(row)
            for found in _started(tests, from_at, before_at):
                yield found

    async def save_server_raw(self, test: ServerTest, text: bytes) -> None:
        """Keep what the server end's engine printed, under its test's own key."""
        await self._raw.save(server_raw_name(test), text)

    async def read_server_raw(self, test: ServerTest) -> bytes | None:
        """What the server end's engine printed, or None."""
        return await self._find_raw(server_raw_name(test))

    async def tests_hours(self, before_at: datetime) -> AsyncIterator[datetime]:
        """The UTC hours that end by ``before_at`` in which a server-side test started; each costs
        a read, those without one nothing."""
        start, stop = TESTS, server_tests_partitions(before_at)[0]
        while key := await self._table.next_partition(start, stop):
            hour_at = server_tests_hour(key)
            if hour_at is None:
                leave_out(RecordUnreadable(f"partition {key}: its key names no hour"))
                start = f"{key} "  # no key lies between
            else:
                yield hour_at
                start = server_tests_partitions(hour_at + timedelta(hours=1))[0]

    async def delete_tests(self, hour_at: datetime) -> int:
        """Remove the server-side tests that started in an hour; return how many rows it was."""
        await self._delete_raw(server_raw_folder(hour_at))
        partitions = server_tests_partitions(hour_at)
        return sum(await asyncio.gather(*map(self._table.delete_partition, partitions)))


def told_late(row: Entity, at: datetime) -> Entity:
    """A row as it leaves an agent's spool: an account of a job or test says when that was."""
    model: type[JobReport | ServerTest]
    if row.row_key.startswith(REPORT):
        model = JobReport
    elif row.partition_key.startswith(TESTS) and "json" in row.properties:
        model = ServerTest
    else:
        return row
    try:
        account = parse_row(model, row)
    except RecordUnreadable:  # another version's: it goes as it is
        return row
    return message_row(row.partition_key, row.row_key, account.delivered(at))


def _hours(from_at: datetime, before_at: datetime) -> Iterator[datetime]:
    """The UTC hours that a span touches."""
    hour_at = from_at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    while hour_at < before_at:
        yield hour_at
        hour_at += timedelta(hours=1)


def _claim_row(job: Job, claim: Claim) -> Entity:
    partition = burst_partition(job.run_id, job.burst_index)
    return message_row(partition, f"{CLAIM}{job.pair_index:05d}", claim)


def _started(
    tests: Mapping[str, tuple[ServerTest, list[Entity]]], from_at: datetime, before_at: datetime
) -> list[tuple[ServerTest, PackedEnd]]:
    """The tests of the span with their chunks, which follow them in key order."""
    return [
        (test, _try_end(rows) or packed_end(()))
        for test, rows in tests.values()
        if from_at <= test.started_at < before_at
    ]


def _try_end(rows: Sequence[Entity]) -> PackedEnd | None:
    """One end's seconds; None where they cannot be read, which is logged once."""
    try:
        return packed_end(rows)
    except RecordUnreadable as error:
        leave_out(error)
        return None


def _by_index(
    kind: type[_M], name: str, rows: Sequence[Entity], broken: list[Violation] | None = None
) -> Mapping[int, _M]:
    """Claims or reports by pair index; what cannot be read, or breaks a rule, is left out."""
    found = {}
    for row in rows:
        if (index := _index(row, name, _PAIR)) is None or (value := try_row(kind, row)) is None:
            continue
        if keeps_rules(row, value, broken):
            found[index] = value
    return found


def _is_chunk(row: Entity) -> bool:
    """Return whether a row of the server ends holds packed seconds, by its key."""
    place = place_of(row.partition_key, row.row_key)
    if place is None:
        return "json" not in row.properties
    return place.kind is Kind.TEST_CHUNK


def _bytes_of(row: Entity) -> int:
    return sum(len(value) for value in row.properties.values() if isinstance(value, bytes | str))


def _index(row: Entity, prefix: str, form: re.Pattern[str]) -> int | None:
    """The pair that a row's key names; None for a key that none of ours made, logged once."""
    found = form.fullmatch(row.row_key.removeprefix(prefix))
    if found is None:
        leave_out(RecordUnreadable(f"row {row_name(row)}: its key names no pair"))
        return None
    return int(found[0][:5])
