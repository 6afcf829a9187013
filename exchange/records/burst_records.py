"""Records that agents write for bursts, such as claims, reports, seconds and engine output.

A chunk row contains up to :data:`~broadside.exchange.second_rows.CHUNK_S` seconds of one end. It
has the packed intervals (``client_up_0...``) and start time (``client_up_first_data_at_s``) of each
flow, and the packed host counters (``host_0...``). During a burst the whole row is written again
once a minute, under the same key. Between these writes the newest seconds are written to the row
``tail``. To write either row twice is harmless. A 1740 s burst has two rows per end, the chunk and
the tail.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final, TypeVar

from broadside.exchange.canary_rows import CanaryRounds, canary_rows, parse_canary
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
    CANARY,
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
from broadside.exchange.records.row_rules import RowKind, Violation, keeps_rules, place_of
from broadside.exchange.rows import leave_out, message_row, parse_row, row_name, try_row
from broadside.exchange.second_rows import (
    TAIL,
    HostCounters,
    PackedEnd,
    Probes,
    TestSeconds,
    chunk_rows,
    packed_end,
    parse_probes,
    probe_rows,
    unpacked_tracks,
)

# This is enough for one day with ten measurements per second in both directions.
_END_MAX_BYTES: Final = 64 * 1_048_576
_TOO_MANY: Final = f"with those before it over {_END_MAX_BYTES} bytes of one end of a test"

# Pair indexes have five digits in keys.
ALL_PAIRS: Final = range(99_999)

_PAIR: Final = re.compile(r"[0-9]{5}")
_PAIR_PART: Final = re.compile(rf"[0-9]{{5}}\.([0-9]{{3}}|{TAIL})")

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Message)


class BurstRecords:
    """Rows of the table *results*. Without a ``raw`` store it also stores engine output."""

    def __init__(self, table: Table, raw: RawStore | None = None) -> None:
        self._table = table
        self._raw = raw or TableRaw(table)
        # You can still read output that was stored in the table before a blob account was
        # configured.
        self._raw_stores = (self._raw, TableRaw(table)) if raw else (self._raw,)

    # Client ends ------------------------------------------------------------------------------

    async def claim(self, job: Job, claim: Claim) -> bool:
        """Create the claim row of a job.

        Args:
            job: The job to claim.
            claim: The claim of this agent.

        Returns:
            False if another agent or an earlier delivery has claimed the job.
        """
        row = _claim_row(job, claim)
        try:
            await self._table.insert(row)
        except EntityExists:
            # If the result of an earlier attempt was lost, this claim will be in the table.
            there = await self._table.get(row.partition_key, row.row_key)
            if there is None:
                return False
            try:
                holder = parse_row(Claim, there)
            # We cannot read a claim from another version, but it should be used as a claim.
            except RecordUnreadable:
                return False
            return (holder.agent_id, holder.claimed_at) == (claim.agent_id, claim.claimed_at)
        return True

    async def read_claim_row(self, run_id: str, burst_index: int, pair_index: int) -> Entity | None:
        """Return the claim row of a pair without validation.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
            pair_index: The pair index in the run, from 0.

        Returns:
            The row. None if no agent has claimed the job.
        """
        key = f"{CLAIM}{pair_index:05d}"
        return await self._table.get(burst_partition(run_id, burst_index), key)

    async def save_claim(self, job: Job, claim: Claim) -> None:
        """Replace this agent's claim row when the job progresses.

        Args:
            job: Job of the claim, which decides the row.
            claim: New state of the job.
        """
        await self._table.upsert(_claim_row(job, claim))

    async def save_report(self, report: JobReport) -> None:
        """Create or replace the client's report of a job."""
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
        """Store the seconds of the client end.

        Only rows that can have changed after ``from_s`` are written. Most calls write only the
        tail.

        Args:
            job: The job of the pair.
            tracks: All intervals to date, from the start of the job.
            host: All host counters to date, from the start of the job.
            from_s: Engine time in seconds up to which a save has already *succeeded*. Omit it for
                the last save of a job.
        """
        partition = burst_partition(job.run_id, job.burst_index)
        rows = chunk_rows(
            partition,
            f"{CHUNK}{job.pair_index:05d}",
            tracks,
            HostCounters(seconds=host, zero_s=job.planned_start_at.timestamp()),
            from_s=from_s,
        )
        await self._table.batch(rows)

    async def save_probes(self, job: Job, probes: Probes) -> None:
        """Store the results of the client end's probes.

        Args:
            job: Job of the client end.
            probes: Results of its probes in the burst.
        """
        partition = burst_partition(job.run_id, job.burst_index)
        rows = await asyncio.to_thread(
            probe_rows, partition, f"{PROBE}{job.pair_index:05d}", probes
        )
        await self._table.batch(rows)

    async def save_canary(self, job: Job, rounds: CanaryRounds) -> None:
        """Store the canaries of a pair, as seen by its client.

        Args:
            job: Job of the client end.
            rounds: All rounds of canaries in the burst.
        """
        partition = burst_partition(job.run_id, job.burst_index)
        await self._table.batch(canary_rows(partition, f"{CANARY}{job.pair_index:05d}", rounds))

    async def stream_canaries(
        self, run_id: str, burst_index: int
    ) -> AsyncIterator[tuple[int, CanaryRounds]]:
        """Yield the canaries of a burst with their pair indexes, in order.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
        """
        async for item in self._parsed_by_pair(run_id, burst_index, CANARY, parse_canary):
            yield item

    async def stream_probes(
        self, run_id: str, burst_index: int
    ) -> AsyncIterator[tuple[int, Probes]]:
        """Yield the probes of a burst with their pair indexes, in order.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
        """
        async for item in self._parsed_by_pair(run_id, burst_index, PROBE, parse_probes):
            yield item

    async def stream_seconds(
        self, run_id: str, burst_index: int, broken: list[Violation] | None = None
    ) -> AsyncIterator[tuple[int, PackedEnd]]:
        """Yield the packed seconds of a burst's client ends with their pair indexes, in order.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
            broken: List to which violations are appended. The rows that violate a rule are skipped.
                None only skips them.
        """
        async for pair_index, rows in self._by_pair(run_id, burst_index, CHUNK, broken):
            if (end := _try_end(rows)) is not None:
                yield pair_index, end

    async def _parsed_by_pair(
        self, run_id: str, burst_index: int, prefix: str, parse: Callable[[Sequence[Entity]], _T]
    ) -> AsyncIterator[tuple[int, _T]]:
        """Yield pair index and parsed rows. Rows that cannot be read are left out."""
        async for pair_index, rows in self._by_pair(run_id, burst_index, prefix):
            try:
                parsed = parse(rows)
            except RecordUnreadable as error:
                leave_out(error)
                continue
            yield pair_index, parsed

    async def _by_pair(
        self, run_id: str, burst_index: int, prefix: str, broken: list[Violation] | None = None
    ) -> AsyncIterator[tuple[int, list[Entity]]]:
        """Yield rows ``<prefix><pair>.<n>`` of a burst, grouped by pair."""
        rows: list[Entity] = []
        pair_index, size_bytes = -1, 0
        async for row in self._table.scan(
            burst_partition(run_id, burst_index), row_from=prefix, row_before=f"{prefix}:"
        ):
            index = _index(row, prefix, _PAIR_PART)
            if index is None or not keeps_rules(row, None, broken):
                continue
            if index != pair_index:
                if rows:
                    yield pair_index, rows
                rows, size_bytes = [], 0
            pair_index = index
            size_bytes += _bytes_of(row)
            if size_bytes > _END_MAX_BYTES:
                leave_out(RecordUnreadable(f"row {row_name(row)}: {_TOO_MANY}"))
                rows = []
            else:
                rows.append(row)
        if rows:
            yield pair_index, rows

    async def read_changed(
        self, kind: type[_M], run_id: str, burst_index: int, etags: dict[str, str]
    ) -> Mapping[int, _M]:
        """Read claims or reports that changed since the last call.

        Args:
            kind: ``Claim`` or ``JobReport``.
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
            etags: Known ETags by row key. This call updates them.

        Returns:
            New and changed messages by pair index.
        """
        name = CLAIM if kind is Claim else REPORT
        partition = burst_partition(run_id, burst_index)
        return _by_index(kind, name, await self._changed(partition, name, f"{name}:", etags))

    async def read_tails(
        self, run_id: str, burst_index: int, etags: dict[str, str]
    ) -> Mapping[int, PackedEnd]:
        """Read the newest seconds of client ends that changed since the last call.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
            etags: Known ETags by row key. This call updates them.

        Returns:
            Tails by pair index.
        """
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
        """Read the newest seconds of server ends that changed since the last call.

        Args:
            from_at: Earliest start of a test.
            before_at: Tests that started at this time or later are not included.
            etags: Known ETags by row key. This call updates them.

        Returns:
            Tails by key of the test.
        """
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
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
            pairs: Range of pair indexes.
            broken: List to which violations are appended. The rows that violate a rule are skipped.
                None only skips them.

        Returns:
            Claim by pair index. Pairs without a claim have no entry.
        """
        return await self._read_pairs(
            Claim, CLAIM, burst_partition(run_id, burst_index), pairs, broken
        )

    async def read_reports(
        self,
        run_id: str,
        burst_index: int,
        pairs: range = ALL_PAIRS,
        broken: list[Violation] | None = None,
    ) -> Mapping[int, JobReport]:
        """Return the reports of some pairs, by pair index. See :meth:`read_claims`.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
            pairs: Range of pair indexes.
            broken: List to which violations are appended. The rows that violate a rule are skipped.
                None only skips them.

        Returns:
            Report by pair index. Pairs without a report have no entry.
        """
        return await self._read_pairs(
            JobReport, REPORT, burst_partition(run_id, burst_index), pairs, broken
        )

    async def _read_pairs(
        self,
        kind: type[_M],
        name: str,
        partition: str,
        pairs: range,
        broken: list[Violation] | None,
    ) -> Mapping[int, _M]:
        rows = self._table.scan(
            partition,
            row_from=f"{name}{pairs.start:05d}",
            row_before=f"{name}{pairs.stop:05d}",
        )
        return _by_index(kind, name, [row async for row in rows], broken)

    async def save_raw(self, run_id: str, burst_index: int, pair_index: int, text: bytes) -> None:
        """Store the output of the client end's engine.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
            pair_index: The pair index in the run, from 0.
            text: The engine output, plain or ``Packed``.
        """
        await self._raw.save(raw_name(run_id, burst_index, pair_index), text)

    async def read_raw(self, run_id: str, burst_index: int, pair_index: int) -> bytes | None:
        """Return the output of the client end's engine.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.
            pair_index: The pair index in the run, from 0.

        Returns:
            Engine output, or None if it is not stored.
        """
        return await self._find_raw(raw_name(run_id, burst_index, pair_index))

    async def _find_raw(self, name: RawName) -> bytes | None:
        for store in self._raw_stores:
            if (text := await store.read(name)) is not None:
                return text
        return None

    async def _delete_raw(self, folder: str) -> None:
        for store in self._raw_stores:
            await store.delete_folder(folder)

    async def delete(self, run_id: str, burst_index: int) -> int:
        """Delete rows and raw output of a burst, except for server ends.

        Args:
            run_id: The run id.
            burst_index: The burst index in the run, from 0.

        Returns:
            The number of deleted rows.
        """
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
        """Store the current state of a server-side test.

        Args:
            test: Test, identified by agent, port and start time.
            tracks: All intervals to date, from the start of the test.
            host: All host counters to date, from the start of the test.
            from_s: Engine time in seconds up to which a save has already succeeded. See
                :meth:`save_seconds`.
        """
        partition = server_tests_partition(test.started_at, test.agent_id)
        key = server_test_key(test)
        rows = chunk_rows(
            partition,
            f"{key}{TEST_CHUNK}",
            tracks,
            HostCounters(seconds=host, zero_s=test.started_at.timestamp()),
            from_s=from_s,
        )
        # We should write the seconds first, so that all seconds can be read if the end of a test
        # has been stored.
        row = message_row(partition, key, test)
        await self._table.batch([row, *rows] if test.ended_at is None else [*rows, row])

    async def read_tests(self, from_at: datetime, before_at: datetime) -> Sequence[TestSeconds]:
        """Return all server-side tests that started in a time range, sorted by start.

        Args:
            from_at: Earliest start of a test.
            before_at: Tests that started at this time or later are not included.
        """
        ends = [text async for text in self.stream_tests(from_at, before_at)]
        ends.sort(key=lambda text: server_test_key(text[0]))

        def unpacked() -> list[TestSeconds]:
            return [TestSeconds(test=test, tracks=unpacked_tracks(end)) for test, end in ends]

        return await asyncio.to_thread(unpacked)

    async def stream_tests(
        self,
        from_at: datetime,
        before_at: datetime,
        broken: list[Violation] | None = None,
    ) -> AsyncIterator[tuple[ServerTest, PackedEnd]]:
        """Yield server-side tests with packed seconds. The tests of each agent are sorted by start.

        Args:
            from_at: Earliest start of a test.
            before_at: Tests that started at this time or later are not included.
            broken: List to which violations are appended. The rows that violate a rule are skipped.
                None only skips them.
        """
        partitions = (p for at in _hours(from_at, before_at) for p in server_tests_partitions(at))
        for partition in partitions:
            instant = ""
            # Tests that started in the same millisecond. Their rows are next to each other.
            tests: dict[str, tuple[ServerTest, list[Entity]]] = {}
            async for row in self._table.scan(
                partition,
                row_from=f"{epoch_ms(from_at):013d}",
                row_before=f"{epoch_ms(before_at) + 1:013d}",
            ):
                if (begun := row.row_key.partition(".")[0]) != instant:
                    for text in _started(tests, from_at, before_at):
                        yield text
                    instant, tests = begun, {}
                _add_row(tests, row, broken)
            for text in _started(tests, from_at, before_at):
                yield text

    async def save_server_raw(self, test: ServerTest, text: bytes) -> None:
        """Store the output of the server end's engine under the key of the test.

        Args:
            test: Test of the server end, which decides the name.
            text: Output of the engine as it was written.
        """
        await self._raw.save(server_raw_name(test), text)

    async def read_server_raw(self, test: ServerTest) -> bytes | None:
        """Return the output of the server end's engine, or None if it is not stored."""
        return await self._find_raw(server_raw_name(test))

    async def tests_hours(self, before_at: datetime) -> AsyncIterator[datetime]:
        """Yield the UTC hours before ``before_at`` in which server-side tests started.

        Each yielded hour needs one request. Hours without tests need no request.
        """
        start, stop = TESTS, server_tests_partitions(before_at)[0]
        while key := await self._table.next_partition(start, stop):
            hour_at = server_tests_hour(key)
            if hour_at is None:
                leave_out(RecordUnreadable(f"partition {key}: its key names no hour"))
                # Continue after this partition. No other key sorts between it and the new start.
                start = f"{key} "
            else:
                yield hour_at
                start = server_tests_partitions(hour_at + timedelta(hours=1))[0]

    async def delete_tests(self, hour_at: datetime) -> int:
        """Delete the server-side tests that started in an hour and return the number of rows."""
        await self._delete_raw(server_raw_folder(hour_at))
        partitions = server_tests_partitions(hour_at)
        return sum(await asyncio.gather(*map(self._table.delete_partition, partitions)))


def with_delivery_time(row: Entity, at: datetime) -> Entity:
    """Add the delivery time to a report or test that leaves the spool.

    Args:
        row: The row to send. Rows of other kinds are returned unchanged.
        at: The delivery time.

    Returns:
        The row with the time, or the same row.
    """
    model: type[JobReport | ServerTest]
    if row.row_key.startswith(REPORT):
        model = JobReport
    elif row.partition_key.startswith(TESTS) and "json" in row.properties:
        model = ServerTest
    else:
        return row
    try:
        account = parse_row(model, row)
    # We do not need to change rows of another version.
    except RecordUnreadable:
        return row
    return message_row(row.partition_key, row.row_key, account.delivered(at))


def _hours(from_at: datetime, before_at: datetime) -> Iterator[datetime]:
    """Yield the UTC hours that overlap a time range."""
    hour_at = from_at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    while hour_at < before_at:
        yield hour_at
        hour_at += timedelta(hours=1)


def _claim_row(job: Job, claim: Claim) -> Entity:
    partition = burst_partition(job.run_id, job.burst_index)
    return message_row(partition, f"{CLAIM}{job.pair_index:05d}", claim)


def _add_row(
    tests: dict[str, tuple[ServerTest, list[Entity]]], row: Entity, broken: list[Violation] | None
) -> None:
    """Add a test, or append a chunk to its test."""
    if not _is_chunk(row):
        test = try_row(ServerTest, row)
        if test is not None and keeps_rules(row, test, broken):
            tests[row.row_key] = (test, [])
        return
    if not keeps_rules(row, None, broken):
        return
    _, chunks = tests.get(row.row_key.rpartition(f"{TEST_CHUNK}.")[0], (None, None))
    if chunks is None:
        leave_out(RecordUnreadable(f"row {row_name(row)}: of no test on record"))
    elif sum(map(_bytes_of, (*chunks, row))) > _END_MAX_BYTES:
        leave_out(RecordUnreadable(f"row {row_name(row)}: {_TOO_MANY}"))
    else:
        chunks.append(row)


def _started(
    tests: Mapping[str, tuple[ServerTest, list[Entity]]], from_at: datetime, before_at: datetime
) -> list[tuple[ServerTest, PackedEnd]]:
    """Return the tests of the time range with their chunks."""
    return [
        (test, _try_end(rows) or packed_end(()))
        for test, rows in tests.values()
        if from_at <= test.started_at < before_at
    ]


def _try_end(rows: Sequence[Entity]) -> PackedEnd | None:
    """Return the seconds of one end, or None if they are unreadable. The error is logged once."""
    try:
        return packed_end(rows)
    except RecordUnreadable as error:
        leave_out(error)
        return None


def _by_index(
    kind: type[_M], name: str, rows: Sequence[Entity], broken: list[Violation] | None = None
) -> Mapping[int, _M]:
    """Return claims or reports by pair index. Unreadable rows and violations are skipped."""
    text = {}
    for row in rows:
        if (index := _index(row, name, _PAIR)) is None or (value := try_row(kind, row)) is None:
            continue
        if keeps_rules(row, value, broken):
            text[index] = value
    return text


def _is_chunk(row: Entity) -> bool:
    """Return True if a row of a server end contains packed seconds, judged by its key."""
    place = place_of(row.partition_key, row.row_key)
    if place is None:
        return "json" not in row.properties
    return place.kind is RowKind.TEST_CHUNK


def _bytes_of(row: Entity) -> int:
    return sum(len(value) for value in row.properties.values() if isinstance(value, bytes | str))


def _index(row: Entity, prefix: str, form: re.Pattern[str]) -> int | None:
    """Return the pair index in a row key. For an invalid key, log it once and return None."""
    text = form.fullmatch(row.row_key.removeprefix(prefix))
    if text is None:
        leave_out(RecordUnreadable(f"row {row_name(row)}: its key names no pair"))
        return None
    return int(text[0][:5])
