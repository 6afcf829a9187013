"""Test that records are read exactly as written with all table adapters, in any event order.

Tests marked with :data:`of_coordinators` use only tables that agents do not access.
``RecordingTable`` is used to count the written rows, and can be set to fail between two writes
like a killed process.
"""

import asyncio
import functools
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from broadside.exchange.messages import (
    AgentState,
    Claim,
    Control,
    Endpoint,
    EngineReport,
    Flow,
    HostInfo,
    HostSecond,
    Interval,
    Job,
    JobPhase,
    JobReport,
    Outcome,
    Presence,
    Role,
    ServerTest,
    Side,
    Track,
    Traffic,
)
from broadside.exchange.pacing import CONTROL_PAIRS_COUNT, control_copies_count
from broadside.exchange.ports import (
    Entity,
    EntityChanged,
    EntityExists,
    EntityNotFound,
    ExchangeUnavailable,
    RawStore,
    RecordUnreadable,
    Table,
)
from broadside.exchange.records import (
    Document,
    Judging,
    QueuedBurst,
    Records,
    RunHeader,
    RunOutcome,
)
from broadside.exchange.records.run_records import FleetRecords, RunRecords
from broadside.exchange.second_rows import CHUNK_S, TAIL, TAIL_S
from tests.contract.adapters import COORDINATOR_TABLES
from tests.one_table import PairSeconds, read_seconds, read_served, records_in

of_coordinators = pytest.mark.parametrize("table_place", COORDINATOR_TABLES, indirect=True)

AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ENDPOINT = Endpoint(agent_id="server-1", address="10.2.1.1", port=5201)


class Died(Exception):
    """Simulated end of the process."""


class RecordingTable:
    """Table to record the written keys. It can fail before write number ``writes_left``."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.written: list[str] = []
        self.writes_left: int | None = None
        self.before_replace: Callable[[], None] = lambda: None

    def _write(self, *entities: Entity) -> None:
        if self.writes_left is not None:
            if self.writes_left == 0:
                raise Died
            self.writes_left -= 1
        self.written += [f"{e.partition_key}|{e.row_key}" for e in entities]

    async def insert(self, entity: Entity) -> str:
        self._write(entity)
        return await self._table.insert(entity)

    async def upsert(self, entity: Entity) -> str:
        self._write(entity)
        return await self._table.upsert(entity)

    async def replace(self, entity: Entity, etag: str) -> str:
        self.before_replace()
        return await self._table.replace(entity, etag)

    async def get(self, partition_key: str, row_key: str) -> Entity | None:
        return await self._table.get(partition_key, row_key)

    def scan(
        self,
        partition_key: str,
        *,
        row_from: str | None = None,
        row_before: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Entity]:
        return self._table.scan(
            partition_key, row_from=row_from, row_before=row_before, limit=limit
        )

    async def delete(self, partition_key: str, row_key: str) -> bool:
        return await self._table.delete(partition_key, row_key)

    async def batch(self, entities: Sequence[Entity]) -> None:
        """Write one row at a time if a failure is planned. This is the worst case."""
        if self.writes_left is None:
            self._write(*entities)
            return await self._table.batch(entities)
        for entity in entities:
            self._write(entity)
            await self._table.upsert(entity)
        return None

    async def next_partition(self, key_from: str, key_before: str) -> str | None:
        return await self._table.next_partition(key_from, key_before)

    async def delete_partition(self, partition_key: str) -> int:
        return await self._table.delete_partition(partition_key)

    async def close(self) -> None:
        await self._table.close()


@pytest.fixture
def recording_table(table: Table) -> RecordingTable:
    return RecordingTable(table)


@pytest.fixture
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the row size, so that a document with a few kilobytes needs many rows."""
    monkeypatch.setattr("broadside.exchange.documents._ROW_BYTES", 1_000)


@pytest.fixture
def records(recording_table: RecordingTable) -> Records:
    return records_in(recording_table)


def header(run_id: str, created_at: datetime = AT) -> RunHeader:
    return RunHeader(
        run_id=run_id,
        scenario="smoke",
        created_at=created_at,
        created_by="me",
        labels={"why": "test"},
    )


def control(run_id: str) -> Control:
    return Control(run_id=run_id, lease_until_at=AT + timedelta(minutes=1))


def job(pair_index: int = 0, burst_index: int = 0) -> Job:
    return Job(
        run_id="run-1",
        burst_index=burst_index,
        pair_index=pair_index,
        endpoint=ENDPOINT,
        traffic=Traffic(),
        planned_start_at=AT,
        duration_s=1740,
    )


def claim(agent_id: str = "client-1", at: datetime = AT, of: Job | None = None) -> Claim:
    job_id = (of or job()).job_id
    return Claim(job_id=job_id, agent_id=agent_id, phase=JobPhase.CLAIMED, claimed_at=at)


def server_test(started_at: datetime = AT, agent_id: str = "server-1") -> ServerTest:
    engine = EngineReport(engine="iperf3", version="3.18", cookie="c" * 37)
    endpoint = ENDPOINT.model_copy(update={"agent_id": agent_id})
    return ServerTest(agent_id=agent_id, endpoint=endpoint, started_at=started_at, engine=engine)


def report(pair_index: int, outcome: Outcome) -> JobReport:
    return JobReport(
        job_id=job(pair_index).job_id,
        run_id="run-1",
        burst_index=0,
        pair_index=pair_index,
        agent_id="client-1",
        outcome=outcome,
        reason="r" * 5_000,
        planned_start_at=AT,
        reported_at=AT,
    )


@functools.cache
def intervals(count: int, *, seed: int = 1, span_s: float = 1.0) -> tuple[Interval, ...]:
    """Return noisy intervals with times in full microseconds, as stored in chunks."""
    noise = random.Random(seed)
    ends_us = [0]
    for _ in range(count):
        ends_us.append(ends_us[-1] + round(span_s * 1e6) + noise.randint(-400, 400))
    return tuple(
        Interval(
            start_s=start_us / 1e6,
            end_s=end_us / 1e6,
            transferred_bytes=noise.randrange(2**31),
            retransmits_count=noise.randrange(50),
            rtt_s=noise.randrange(1000, 9000) / 1e6,
            cwnd_bytes=noise.randrange(2**24),
        )
        for start_us, end_us in pairwise(ends_us)
    )


def track(count: int, *, side: Side = Side.CLIENT, flow: Flow = Flow.UP, seed: int = 1) -> Track:
    zero_s = AT.timestamp() + 0.012345
    return Track(
        side=side, flow=flow, first_data_at_s=zero_s, intervals=intervals(count, seed=seed)
    )


@functools.cache
def host(count: int, *, before_count: int = 5, seed: int = 2) -> tuple[HostSecond, ...]:
    noise = random.Random(seed)
    return tuple(
        HostSecond(
            start_at_s=AT.timestamp() + second,
            end_at_s=AT.timestamp() + second + 1,
            nic_rx_bytes=noise.randrange(2**31),
            nic_tx_bytes=noise.randrange(2**31),
            nic_rx_packets_count=noise.randrange(2**20),
            nic_tx_packets_count=noise.randrange(2**20),
            nic_drops_count=0,
            tcp_retransmits_count=noise.randrange(50),
            cpu_busy_ratio=noise.randrange(1_001) / 1_000,
            cpu_busiest_core_ratio=noise.randrange(1_001) / 1_000,
        )
        for second in range(-before_count, count)
    )


async def run_ids(records: Records, **bounds: object) -> Sequence[str]:
    return [header.run_id async for header in records.private.list_runs(**bounds)]  # type: ignore[arg-type]  # bounds by name, from the cases below


# Runs.


async def test_run_is_read_as_created(records: Records) -> None:
    await records.create_run(header("run-1"), b'{"pairs": 30}', control("run-1"))
    assert await records.read_run("run-1") == (header("run-1"), b'{"pairs": 30}')
    assert await records.runs.read_control("run-1") == control("run-1")
    assert await records.read_run("run-2") is None
    assert await records.runs.read_control("run-2") is None


@of_coordinators
async def test_run_id_is_unique(records: Records) -> None:
    await records.create_run(header("run-1"), b"first", control("run-1"))
    with pytest.raises(EntityExists, match="run-1"):
        await records.create_run(header("run-1"), b"second", control("run-1"))
    stored = await records.read_run("run-1")
    assert stored is not None
    assert stored[1] == b"first"
    assert await run_ids(records) == ["run-1"]


@of_coordinators
async def test_runs_are_listed_newest_first(records: Records) -> None:
    created = [AT + timedelta(seconds=n, microseconds=400) for n in (3, 1, 5, 2, 4)]
    for at in created:
        run_id = f"run-{at.second}"
        await records.create_run(header(run_id, at), b"", control(run_id))
    assert await run_ids(records) == ["run-5", "run-4", "run-3", "run-2", "run-1"]
    assert await run_ids(records, limit=2) == ["run-5", "run-4"]
    assert await run_ids(records, before_at=created[0]) == ["run-2", "run-1"]
    just_after = created[0] + timedelta(microseconds=1)
    assert await run_ids(records, before_at=just_after) == ["run-3", "run-2", "run-1"]
    assert await run_ids(records, before_at=AT) == []


OVER = RunOutcome(cancelled=False, verdict="pass", ended_at=AT, completeness_ratio=1.0)


@of_coordinators
async def test_run_is_open_until_it_has_an_outcome(records: Records) -> None:
    for run_id in ("run-1", "run-2", "run-3"):
        await records.create_run(header(run_id), b"", control(run_id))
    await records.create_run(header("run-4"), b"", control("run-4"), listed=False)
    assert await records.private.list_open() == ["run-3", "run-2", "run-1"]
    await records.private.save_outcome("run-2", OVER)
    # This call is late and repeated.
    await records.private.show_run(header("run-2"))
    assert await records.private.list_open() == ["run-3", "run-1"]
    await records.delete_run(header("run-3"), 0)
    assert await records.private.list_open() == ["run-1"]
    assert sorted(await run_ids(records)) == ["run-1", "run-2"]


@of_coordinators
@pytest.mark.usefixtures("small_rows")
@pytest.mark.parametrize("writes_count", range(6))
async def test_interrupted_creation_leaves_no_partial_run(
    records: Records, recording_table: RecordingTable, writes_count: int
) -> None:
    # This needs three rows.
    plan = random.Random(3).randbytes(2_500)
    recording_table.writes_left = writes_count
    with pytest.raises(Died):
        await records.create_run(header("run-1"), plan, control("run-1"))
    assert await run_ids(records) == []
    stored = await records.read_run("run-1")
    assert stored in (None, (header("run-1"), plan))
    recording_table.writes_left = None
    await records.create_run(header("run-2"), plan, control("run-2"))
    assert await run_ids(records) == ["run-2"]


@of_coordinators
async def test_lease_only_moves_forward(records: Records) -> None:
    await records.create_run(header("run-1"), b"", control("run-1"))
    later_at = AT + timedelta(minutes=5)
    assert (await records.runs.renew_lease("run-1", later_at)).lease_until_at == later_at
    assert (await records.runs.renew_lease("run-1", AT)).lease_until_at == later_at
    assert await records.runs.read_control("run-1") == Control(
        run_id="run-1", lease_until_at=later_at
    )


@of_coordinators
async def test_first_cancel_takes_precedence(records: Records) -> None:
    await records.create_run(header("run-1"), b"", control("run-1"))
    first = await records.runs.cancel_run("run-1", at=AT, by="ann", reason="wrong target")
    assert (first.cancelled_at, first.cancelled_by) == (AT, "ann")
    later_at = AT + timedelta(seconds=1)
    assert await records.runs.cancel_run("run-1", at=later_at, by="bob", reason="me too") == first
    assert await records.runs.read_control("run-1") == first


@of_coordinators
async def test_an_unknown_run_has_no_control(records: Records) -> None:
    with pytest.raises(EntityNotFound, match="run-9"):
        await records.runs.renew_lease("run-9", AT)
    with pytest.raises(EntityNotFound, match="run-9"):
        await records.runs.cancel_run("run-9", at=AT, by="ann", reason="")


@of_coordinators
async def test_time_without_zone_is_rejected_for_the_control_row(records: Records) -> None:
    await records.create_run(header("run-1"), b"", control("run-1"))
    with pytest.raises(ValueError, match="cancelled_at"):
        await records.runs.cancel_run("run-1", at=datetime(2026, 1, 1), by="ann", reason="")  # noqa: DTZ001 - the case
    assert await records.runs.read_control("run-1") == control("run-1")


@of_coordinators
async def test_renewal_preserves_a_concurrent_cancel(records: Records) -> None:
    await records.create_run(header("run-1"), b"", control("run-1"))
    until_at = [AT + timedelta(minutes=n) for n in range(2, 8)]
    await asyncio.gather(
        *(records.runs.renew_lease("run-1", at) for at in until_at[:3]),
        records.runs.cancel_run("run-1", at=AT, by="ann", reason="stop"),
        *(records.runs.renew_lease("run-1", at) for at in until_at[3:]),
    )
    stored = await records.runs.read_control("run-1")
    assert stored is not None
    assert (stored.cancelled_at, stored.lease_until_at) == (AT, until_at[-1])


@of_coordinators
async def test_endless_conflict_ends_with_an_error(
    records: Records, recording_table: RecordingTable
) -> None:
    await records.create_run(header("run-1"), b"", control("run-1"))

    def conflict() -> None:
        raise EntityChanged("always")

    recording_table.before_replace = conflict
    with pytest.raises(ExchangeUnavailable, match="run-1"):
        await records.runs.renew_lease("run-1", AT + timedelta(hours=1))


@of_coordinators
async def test_one_coordinator_judges_until_its_lock_expires(records: Records) -> None:
    until_at = AT + timedelta(seconds=30)
    locks = [Judging(by=f"c{index}", until_at=until_at) for index in range(4)]
    taken = await asyncio.gather(
        *(records.private.acquire_judging("run-1", lock, AT) for lock in locks)
    )
    assert sum(taken) == 1
    first = locks[taken.index(True)]
    other = Judging(by="other", until_at=until_at + timedelta(seconds=30))
    assert not await records.private.acquire_judging(
        "run-1", other, until_at - timedelta(seconds=1)
    )
    assert await records.private.acquire_judging("run-1", first, until_at - timedelta(seconds=1))
    assert await records.private.acquire_judging("run-1", other, until_at)
    assert not await records.private.acquire_judging("run-1", first, until_at)


@of_coordinators
async def test_sequence_numbers_are_stored_by_burst(records: Records) -> None:
    numbers = [2**40 + 7 * n for n in range(1_000)]
    await records.create_run(header("run-1"), b"", control("run-1"))
    await records.private.save_queued("run-1", 0, [0, 0])
    await records.private.save_queued("run-1", 12, numbers)
    await records.private.save_queued("run-1", 13, [])
    # This is a later write by a second coordinator.
    await records.private.save_queued("run-1", 0, [8, 9])
    queued = await records.private.read_queued("run-1")
    assert {index: burst.numbers for index, burst in queued.items()} == {
        0: (0, 0),
        12: tuple(numbers),
        13: (),
    }
    assert queued[0].moved == (None, None)
    assert await records.private.read_queued("run-2") == {}


@of_coordinators
async def test_messages_of_moved_pairs_are_recorded(
    records: Records, recording_table: RecordingTable
) -> None:
    await records.private.save_queued("run-1", 3, [1, 2, 3], [None, 2, None])
    await asyncio.gather(
        records.private.save_moved("run-1", 3, {0: (10, 1)}),
        records.private.save_moved("run-1", 3, {2: (12, 3)}),
    )
    # This is a late write for an older failover.
    await records.private.save_moved("run-1", 3, {1: (99, 1)})
    [queued] = (await records.private.read_queued("run-1")).values()
    assert queued == QueuedBurst(numbers=(10, 2, 12), moved=(1, 2, 3))

    def conflict() -> None:
        raise EntityChanged("always")

    recording_table.before_replace = conflict
    with pytest.raises(ExchangeUnavailable, match="run-1"):
        await records.private.save_moved("run-1", 3, {0: (11, 2)})


@of_coordinators
@pytest.mark.parametrize("size", [0, 10, 70_000, 1_000_000, 9_000_000])
async def test_summary_of_any_size_is_read_unchanged(records: Records, size: int) -> None:
    document = random.Random(size).randbytes(size)
    await records.private.save_document("run-1", Document.RUN, document)
    assert await records.private.read_document("run-1", Document.RUN) == document
    assert await records.private.read_document("run-1", Document.BURST) is None
    await records.private.save_document("run-1", Document.RUN, b"shorter")
    assert await records.private.read_document("run-1", Document.RUN) == b"shorter"


@of_coordinators
async def test_documents_of_bursts_are_separate(records: Records) -> None:
    places = [(Document.SERIES, None), (Document.SERIES, 0), (Document.BURST, 0)]
    for document, index in places:
        await records.private.save_document(
            "run-1", document, f"{document} {index}".encode(), index
        )
    for document, index in places:
        stored = await records.private.read_document("run-1", document, index)
        assert stored == f"{document} {index}".encode()


@of_coordinators
@pytest.mark.usefixtures("small_rows")
@pytest.mark.parametrize("writes_count", range(4))
async def test_partial_document_is_missing_or_detected(
    records: Records, recording_table: RecordingTable, writes_count: int
) -> None:
    # This needs five rows.
    old, new = (random.Random(seed).randbytes(4_500) for seed in (4, 5))
    recording_table.writes_left = writes_count
    with pytest.raises(Died):
        await records.private.save_document("run-1", Document.RUN, new)
    assert await records.private.read_document("run-1", Document.RUN) is None
    recording_table.writes_left = None
    await records.private.save_document("run-1", Document.RUN, old)
    recording_table.writes_left = writes_count
    with pytest.raises(Died):
        await records.private.save_document("run-1", Document.RUN, new)
    if writes_count == 0:
        assert await records.private.read_document("run-1", Document.RUN) == old
    else:
        with pytest.raises(RecordUnreadable, match=r"run-1\|summary\.run"):
            await records.private.read_document("run-1", Document.RUN)
    recording_table.writes_left = None
    await records.private.save_document("run-1", Document.RUN, new)
    assert await records.private.read_document("run-1", Document.RUN) == new


# Jobs.


async def test_job_is_claimed_once(records: Records) -> None:
    assert await records.bursts.claim(job(), claim("client-1"))
    assert not await records.bursts.claim(job(), claim("client-2"))
    again_at = AT + timedelta(seconds=1)
    assert not await records.bursts.claim(job(), claim("client-1", again_at)), (
        "an earlier delivery has claimed it"
    )
    assert await records.bursts.read_claims("run-1", 0) == {0: claim("client-1")}


async def test_repeated_claim_after_a_lost_answer_succeeds(records: Records) -> None:
    assert await records.bursts.claim(job(), claim("client-1"))
    assert await records.bursts.claim(job(), claim("client-1"))


async def test_claims_and_reports_are_read_by_pair(records: Records) -> None:
    for pair_index in (2, 0, 11):
        claimed = claim(of=job(pair_index))
        assert await records.bursts.claim(job(pair_index), claimed)
        armed = claimed.model_copy(update={"phase": JobPhase.ARMED, "armed_at": AT})
        await records.bursts.save_claim(job(pair_index), armed)
    again = job(0, burst_index=1)
    assert await records.bursts.claim(again, claim(of=again))
    claims = await records.bursts.read_claims("run-1", 0)
    assert list(claims) == [0, 2, 11]
    assert list(await records.bursts.read_claims("run-1", 0, range(1, 11))) == [2]
    assert list(await records.bursts.read_claims("run-1", 0, range(2, 12))) == [2, 11]
    assert {c.phase for c in claims.values()} == {JobPhase.ARMED}

    await records.bursts.save_report(report(3, Outcome.ABANDONED))
    await records.bursts.save_report(report(3, Outcome.MEASURED))
    await records.bursts.save_report(report(1, Outcome.MISSED))
    assert list(await records.bursts.read_reports("run-1", 0, range(2))) == [1]
    reports = await records.bursts.read_reports("run-1", 0)
    assert reports == {1: report(1, Outcome.MISSED), 3: report(3, Outcome.MEASURED)}
    assert await records.bursts.read_reports("run-1", 1) == {}


async def test_long_burst_needs_at_most_eight_rows_per_pair(
    records: Records, recording_table: RecordingTable
) -> None:
    up, down = track(1740), track(1740, flow=Flow.DOWN, seed=9)
    # This includes a minute for the engine warm-up and the margins.
    seen = host(1740 + 60 + 30, before_count=30)
    await records.bursts.save_seconds(job(), [up, down], seen)
    server = [replace(up, side=Side.SERVER), replace(down, side=Side.SERVER)]
    await records.bursts.save_test(server_test(), server, seen)
    chunks = [key for key in recording_table.written if "chunk" in key]
    assert len(chunks) <= 8
    [seconds] = await read_seconds(records, "run-1", 0)
    assert seconds == PairSeconds(pair_index=0, tracks=(up, down), host=seen)
    assert await read_served(records, AT) == [(server_test(), tuple(server), seen)]


async def test_seconds_of_many_pairs_are_separate(records: Records) -> None:
    await records.bursts.save_seconds(job(7), [track(700, seed=7)], host(700, seed=7))
    await records.bursts.save_seconds(job(2), [track(3, seed=2)], ())
    await records.bursts.save_seconds(job(30), (), host(3, seed=30))
    await records.bursts.save_seconds(job(2, burst_index=1), [track(5)], ())
    assert await read_seconds(records, "run-1", 0) == [
        PairSeconds(pair_index=2, tracks=(track(3, seed=2),), host=()),
        PairSeconds(pair_index=7, tracks=(track(700, seed=7),), host=host(700, seed=7)),
        PairSeconds(pair_index=30, tracks=(), host=host(3, seed=30)),
    ]
    assert await read_seconds(records, "run-1", 2) == []


async def test_live_uploads_equal_one_complete_save(
    records: Records, recording_table: RecordingTable
) -> None:
    complete, seen = track(780), host(785)
    from_s, chunk_writes_count = 0.0, 0
    # The write interval is set to 13 s. The host readings are 4 s late.
    for count in range(13, 781, 13):
        sofar = replace(complete, intervals=complete.intervals[:count])
        recording_table.written.clear()
        await records.bursts.save_seconds(job(), [sofar], seen[: max(0, count + 1)], from_s=from_s)
        chunk_writes_count += any(not key.endswith(TAIL) for key in recording_table.written)
        from_s = sofar.intervals[-1].end_s
        if count % 130 == 0:
            [seconds] = await read_seconds(records, "run-1", 0)
            assert seconds.tracks == (sofar,), "a tail and its chunk must be one track"
    assert chunk_writes_count <= 1 + 780 / TAIL_S, "a live upload must write only the tail"
    await records.bursts.save_seconds(job(), [complete], seen, from_s=from_s)
    [seconds] = await read_seconds(records, "run-1", 0)
    assert seconds == PairSeconds(pair_index=0, tracks=(complete,), host=seen)


async def test_later_estimate_of_the_first_data_is_used(records: Records) -> None:
    early = track(CHUNK_S - 10)
    await records.bursts.save_seconds(job(), [early], ())
    late = replace(track(CHUNK_S + 30), first_data_at_s=early.first_data_at_s - 0.004)
    await records.bursts.save_seconds(job(), [late], (), from_s=CHUNK_S + 20.0)
    [seconds] = await read_seconds(records, "run-1", 0)
    assert seconds.tracks[0].first_data_at_s == late.first_data_at_s


async def test_warm_up_seconds_stay_before_the_test(records: Records) -> None:
    warm_up = tuple(replace(interval, omitted=True) for interval in intervals(3, seed=3))
    complete = replace(track(20), intervals=warm_up + intervals(20))
    await records.bursts.save_seconds(job(), [complete], ())
    [seconds] = await read_seconds(records, "run-1", 0)
    assert seconds.tracks == (complete,)


async def test_noisy_intervals_of_100_ms_fit(records: Records) -> None:
    noise = random.Random(6)
    fine = replace(track(0), intervals=intervals(4_700, span_s=0.1))
    wild = tuple(
        replace(
            interval, transferred_bytes=noise.randrange(2**62), cwnd_bytes=noise.getrandbits(62)
        )
        for interval in fine.intervals
    )
    fine = replace(fine, intervals=wild)
    await records.bursts.save_seconds(job(), [fine], ())
    [seconds] = await read_seconds(records, "run-1", 0)
    assert seconds.tracks == (fine,)


@of_coordinators
async def test_raw_output_in_many_rows_is_read_unchanged(
    records: Records, recording_table: RecordingTable
) -> None:
    # This needs nine rows in two batches.
    text = random.Random(8).randbytes(6_000_000)
    await records.bursts.save_raw("run-1", 0, 4, text)
    assert len(recording_table.written) > 1
    assert await records.bursts.read_raw("run-1", 0, 4) == text
    assert await records.bursts.read_raw("run-1", 0, 5) is None


async def test_raw_output_of_a_server_belongs_to_its_test(table: Table, records: Records) -> None:
    await records.bursts.save_test(server_test(), [track(10, side=Side.SERVER)], host(10))
    await records.bursts.save_server_raw(server_test(), b"server output")
    assert await records.bursts.read_server_raw(server_test()) == b"server output"
    other = server_test(AT + timedelta(milliseconds=1))
    assert await records.bursts.read_server_raw(other) is None
    assert len(await records.bursts.read_tests(AT, AT + timedelta(hours=1))) == 1
    # These are the test, its seconds and their last chunk.
    assert await records.bursts.delete_tests(AT) == 3
    assert await records.bursts.read_server_raw(server_test()) is None


@of_coordinators
async def test_raw_output_is_read_from_both_stores(
    table: Table, records: Records, raw: RawStore
) -> None:
    """Test raw output in the current store and in the table used by earlier versions."""
    with_store = records_in(table, raw)
    await records.bursts.save_raw("run-1", 0, 1, b"old")
    await with_store.bursts.save_raw("run-1", 0, 0, b"new")
    for pair_index, text in enumerate([b"new", b"old"]):
        assert await with_store.bursts.read_raw("run-1", 0, pair_index) == text
    assert await with_store.bursts.read_raw("run-1", 0, 2) is None
    await with_store.create_run(header("run-1"), b"plan", control("run-1"))
    await with_store.delete_run(header("run-1"), 1)
    for pair_index in range(2):
        assert await with_store.bursts.read_raw("run-1", 0, pair_index) is None


# Server ends.


async def test_tests_are_selected_by_start_over_hours_and_agents(records: Records) -> None:
    # The tests start within three hours.
    starts = [AT + timedelta(minutes=20 * n, microseconds=n) for n in range(9)]
    for at in starts:
        for agent_id in ("server-1", "server.chunk.1"):
            await records.bursts.save_test(
                server_test(at, agent_id), [track(9, side=Side.SERVER)], host(9)
            )
    tests = await records.bursts.read_tests(starts[1], starts[7])
    assert [(t.test.started_at, t.test.agent_id) for t in tests] == [
        (at, agent_id) for at in starts[1:7] for agent_id in ("server-1", "server.chunk.1")
    ]
    assert all(t.tracks == (track(9, side=Side.SERVER),) for t in tests)
    after_all_at = starts[8] + timedelta(microseconds=1)
    assert await records.bursts.read_tests(after_all_at, AT + timedelta(days=1)) == []
    assert await records.bursts.read_tests(starts[7], starts[1]) == []
    assert len(await records.bursts.read_tests(AT, AT + timedelta(days=1))) == 18


async def test_test_is_saved_again_with_the_same_key(records: Records) -> None:
    running = server_test()
    await records.bursts.save_test(running, (), ())
    await records.bursts.save_test(running, [track(10, side=Side.SERVER)], host(10))
    ended = running.model_copy(update={"ended_at": AT + timedelta(seconds=30)})
    complete = track(30, side=Side.SERVER)
    await records.bursts.save_test(ended, [complete], host(30), from_s=10.0)
    assert await read_served(records, AT) == [(ended, (complete,), host(30))]


# Retention.


@of_coordinators
async def test_delete_removes_only_the_rows_of_the_run(table: Table, records: Records) -> None:
    for run_id in ("run-1", "run-10"):
        await records.create_run(header(run_id), b"plan", control(run_id))
        await records.private.save_queued(run_id, 0, [1, 2])
        await records.private.save_document(run_id, Document.RUN, b"summary")
        for burst_index in range(2):
            a_job = job(burst_index=burst_index).model_copy(update={"run_id": run_id})
            assert await records.bursts.claim(a_job, claim())
            await records.bursts.save_seconds(a_job, [track(10)], host(10))
            await records.bursts.save_raw(run_id, burst_index, 0, b"raw")
    rows_count = await records.delete_run(header("run-1"), 2)
    # These are the rows for the run, for each burst and in the list.
    assert rows_count == 5 + 2 * 3 + 1
    bursts = [f"{kind}.run-1.{n:05d}" for kind in ("burst", "raw") for n in range(2)]
    for partition in ("run.run-1", *bursts):
        assert [row async for row in table.scan(partition)] == []
    assert [h.run_id async for h in records.private.list_runs()] == ["run-10"]
    assert await records.read_run("run-10") is not None
    assert await records.bursts.read_raw("run-10", 1, 0) == b"raw"
    assert await records.delete_run(header("run-1"), 2) == 0


@of_coordinators
async def test_tests_are_deleted_by_hour(records: Records) -> None:
    later_at = AT + timedelta(hours=1)
    for at in (AT, later_at):
        await records.bursts.save_test(server_test(at), [track(10, side=Side.SERVER)], host(10))
    hours = [at.replace(minute=0, second=0, microsecond=0) for at in (AT, later_at)]

    async def stored_hours(before_at: datetime) -> list[datetime]:
        return [hour_at async for hour_at in records.bursts.tests_hours(before_at)]

    assert await stored_hours(later_at) == hours[:1]
    assert await stored_hours(later_at + timedelta(hours=1)) == hours
    assert await records.bursts.delete_tests(AT) == 3
    assert await stored_hours(later_at + timedelta(days=400)) == hours[1:]


# Presence.


def presence(agent_id: str, role: Role = Role.CLIENT) -> Presence:
    return Presence(
        agent_id=agent_id,
        role=role,
        state=AgentState.IDLE,
        beat_at=AT,
        started_at=AT,
        address="10.1.1.1",
        broadside_version="0.1.0",
    )


async def test_presence_of_agents_is_added_updated_and_removed(records: Records) -> None:
    await records.fleet.beat(presence("a"))
    await records.fleet.beat(presence("a", Role.SERVER))
    later = presence("a").model_copy(update={"beat_at": AT + timedelta(seconds=5)})
    await records.fleet.beat(later)
    assert await records.fleet.read_presences() == [later, presence("a", Role.SERVER)]
    await records.fleet.leave(Role.SERVER, "a")
    await records.fleet.leave(Role.SERVER, "never-there")
    assert await records.fleet.read_presences() == [later]


async def test_host_info_is_stored_separately_from_heartbeats(
    records: Records, table: Table
) -> None:
    """Test a reader with cached host data, and a reader in a restarted coordinator."""

    async def stored_presence() -> str:
        row = await table.get("presence", "client.a")
        assert row is not None
        return str(row.properties["json"])

    gro = {"generic-receive-offload": True}
    reported = presence("a").model_copy(update={"passport": HostInfo(offloads=gro)})
    others = [presence("b"), presence("a", Role.SERVER)]
    for item in (reported, *others, reported):
        await records.fleet.beat(item)
    assert await records.fleet.read_presences() == [reported, *others]
    assert "generic-receive-offload" not in await stored_presence()
    other = HostInfo(offloads={"generic-receive-offload": False})
    changed = reported.model_copy(update={"passport": other})
    await records.fleet.beat(changed)
    for reader in (records.fleet, FleetRecords(table)):
        assert await reader.read_presences() == [changed, *others]
    # Agents in earlier versions use this form.
    complete = Entity(
        partition_key="presence",
        row_key="client.a",
        properties={"json": reported.model_dump_json()},
    )
    await table.upsert(complete)
    assert await records.fleet.read_presences() == [reported, *others]
    await records.fleet.leave(Role.CLIENT, "a")
    assert await table.get("passport", "client.a") is None


@pytest.fixture
def no_reported_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the list of logged rows, because a row will be logged only once per process."""
    monkeypatch.setattr("broadside.exchange.rows._reported", set())


@pytest.mark.usefixtures("no_reported_rows")
async def test_unreadable_presence_does_not_hide_the_fleet(
    records: Records, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    await records.fleet.beat(presence("a"))
    foreign = '{"agent_id": "b", "hair": "long"}'
    await table.insert(
        Entity(partition_key="presence", row_key="client.b", properties={"json": foreign})
    )
    with caplog.at_level(logging.WARNING, "broadside.exchange.records"):
        assert await records.fleet.read_presences() == [presence("a")]
    assert "client.b" in caplog.text


# Unreadable rows.


@pytest.mark.usefixtures("no_reported_rows")
async def test_unreadable_row_is_skipped_and_logged(
    records: Records, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    def burst_row(key: str, **properties: str | bytes | float) -> Entity:
        return Entity(partition_key="burst.run-1.00000", row_key=key, properties=properties)

    await table.insert(burst_row("claim.00000", json='{"job_id": 1}'))
    await table.insert(burst_row("claim.000zz", json="{}"))
    assert await records.bursts.read_claims("run-1", 0) == {}
    await table.insert(burst_row("report.00000"))
    assert await records.bursts.read_reports("run-1", 0) == {}
    for text in (r"claim.00000: not a Claim", "claim.000zz: its key", "report.00000: not a JobRep"):
        assert text in caplog.text
    await table.insert(burst_row("chunk.client.00000.000", host_0=b"nonsense"))
    with pytest.raises(RecordUnreadable, match=r"chunk\.client\.00000\.000.*not a Broadside chunk"):
        await read_seconds(records, "run-1", 0)
    await records.bursts.save_seconds(job(), [track(3)], ())
    stored = await table.get("burst.run-1.00000", "chunk.client.00000.000")
    assert stored is not None
    packed = stored.properties["client_up_0"]
    assert isinstance(packed, bytes)
    await table.upsert(burst_row("chunk.client.00000.000", client_up_0=packed))
    assert await read_seconds(records, "run-1", 0) == []
    assert "first_data_at" in caplog.text
    await table.insert(
        Entity(
            partition_key="raw.run-1.00000",
            row_key="client.00000.000",
            properties={"part_0": b"x"},
        )
    )
    with pytest.raises(RecordUnreadable, match="rows_count"):
        await records.bursts.read_raw("run-1", 0, 0)


# Control row with many readers.


async def test_control_changes_reach_all_copies(records: Records) -> None:
    pairs_count = 2 * CONTROL_PAIRS_COUNT + 1
    first = control("run-1").model_copy(update={"copies_count": control_copies_count(pairs_count)})
    await records.runs.create("run-1", b"plan", first)
    places = (0, CONTROL_PAIRS_COUNT - 1, CONTROL_PAIRS_COUNT, pairs_count - 1)
    renewed = await records.runs.renew_lease("run-1", first.lease_until_at + timedelta(minutes=1))
    assert renewed.lease_until_at > first.lease_until_at
    for pair_index in places:
        assert await records.runs.read_control("run-1", pair_index) == renewed
    cancelled = await records.runs.cancel_run("run-1", at=AT, by="ann", reason="enough")
    for pair_index in places:
        assert await records.runs.read_control("run-1", pair_index) == cancelled
    assert await records.runs.delete("run-1") == 4, "expected three control rows and the plan"
    assert await records.runs.read_control("run-1", pairs_count - 1) is None


async def test_missed_cancel_is_copied_with_the_next_lease(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = control("run-1").model_copy(update={"copies_count": 2})
    await records.runs.create("run-1", b"plan", first)
    change = RunRecords._change_copy

    async def torn(self: RunRecords, run_id: str, copy: int, by: Any) -> Any:
        if copy:
            raise ExchangeUnavailable("away")
        return await change(self, run_id, copy, by)

    with monkeypatch.context() as patched, pytest.raises(ExchangeUnavailable):
        patched.setattr(RunRecords, "_change_copy", torn)
        await records.runs.cancel_run("run-1", at=AT, by="ann", reason="enough")
    missed = await records.runs.read_control("run-1", CONTROL_PAIRS_COUNT)
    assert missed is not None
    assert missed.cancelled_at is None
    await records.runs.renew_lease("run-1", AT + timedelta(hours=1))
    reported = await records.runs.read_control("run-1", CONTROL_PAIRS_COUNT)
    assert reported == await records.runs.read_control("run-1")
    assert reported is not None
    assert reported.cancel_reason == "enough"
