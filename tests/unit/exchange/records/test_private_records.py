"""Unit tests for the private rows of a run, with a table in memory."""

from datetime import UTC, datetime, timedelta

import pytest

from broadside.exchange.engines import traffic_of
from broadside.exchange.messages import RunOutcome, Vxlan
from broadside.exchange.records.private_records import Judging, PrivateRecords, RunHeader
from tests.unit.agent.doubles import MemoryTable
from tests.unit.exchange.engines.asks import job

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
OUTCOME = RunOutcome(cancelled=False, verdict="pass", ended_at=NOW, completeness_ratio=1.0)


@pytest.fixture
def records() -> PrivateRecords:
    return PrivateRecords(MemoryTable())


def header(run_id: str, created_at: datetime = NOW, **fields: object) -> RunHeader:
    return RunHeader.model_validate(
        {"run_id": run_id, "scenario": "smoke", "created_by": "me", "created_at": created_at}
        | fields
    )


async def shown(records: PrivateRecords, *headers: RunHeader) -> None:
    for one in headers:
        await records.save_header(one)
        await records.show_run(one)


async def listed(records: PrivateRecords, **options: object) -> list[str]:
    return [one.run_id async for one in records.list_runs(**options)]  # type: ignore[arg-type]


async def test_runs_are_listed_newest_first_up_to_the_limit(records: PrivateRecords) -> None:
    ages_s = {"r3": 0.0, "r1": 7200.0, "r2": 60.0}
    await shown(records, *(header(r, NOW - timedelta(seconds=s)) for r, s in ages_s.items()))
    assert await listed(records) == ["r3", "r2", "r1"]
    assert await listed(records, limit=2) == ["r3", "r2"]
    assert await listed(records, limit=0) == []


async def test_before_a_time_is_exact_within_a_millisecond(records: PrivateRecords) -> None:
    """Check this, because keys have milliseconds and times have microseconds."""
    early, late = NOW + timedelta(microseconds=100), NOW + timedelta(microseconds=200)
    await shown(records, header("r1", early), header("r2", late))
    assert await listed(records, before_at=late) == ["r1"]
    assert await listed(records, before_at=early) == []


async def test_outcome_closes_a_run_and_does_not_list_a_deleted_one(
    records: PrivateRecords,
) -> None:
    await shown(records, header("r1"), header("r2"))
    assert await records.list_open() == ["r2", "r1"]
    await records.save_outcome("r1", OUTCOME)
    await records.save_outcome("r9", OUTCOME)
    assert await records.list_open() == ["r2"]
    assert sorted(await listed(records)) == ["r1", "r2"]
    stored = await records.read_listed("r1")
    assert stored is not None
    assert stored.outcome == OUTCOME


async def test_repeated_listing_does_not_open_a_finished_run_again(records: PrivateRecords) -> None:
    await shown(records, header("r1"))
    await records.save_outcome("r1", OUTCOME)
    await records.show_run(header("r1"))
    assert await records.list_open() == []
    stored = await records.read_listed("r1")
    assert stored is not None
    assert stored.outcome == OUTCOME


async def test_changed_labels_do_not_change_the_outcome_and_none_removes(
    records: PrivateRecords,
) -> None:
    await shown(records, header("r1", labels={"site": "a", "rack": "1"}))
    await records.save_outcome("r1", OUTCOME)
    await records.change_labels("r1", {"site": None, "rack": "2", "team": "x"})
    await records.change_labels("r9", {"site": "b"})
    entry, own = await records.read_listed("r1"), await records.read_header("r1")
    assert entry is not None
    assert own is not None
    assert entry.labels == own.labels == {"rack": "2", "team": "x"}
    assert entry.outcome == OUTCOME


async def test_lease_is_exclusive_until_it_expires(records: PrivateRecords) -> None:
    first = Judging(by="a", until_at=NOW + timedelta(seconds=30))
    other = Judging(by="b", until_at=NOW + timedelta(seconds=60))
    assert await records.acquire_judging("r1", first, NOW)
    assert not await records.acquire_judging("r1", other, NOW)
    assert await records.acquire_judging("r1", first, NOW)
    assert await records.acquire_judging("r2", other, NOW)
    assert await records.acquire_judging("r1", other, first.until_at)
    assert not await records.acquire_judging("r1", first, first.until_at)


async def test_only_the_first_queue_record_of_a_burst_counts(records: PrivateRecords) -> None:
    await records.save_queued("r1", 0, [11, 12])
    await records.save_queued("r1", 0, [21, 22])
    queued = await records.read_queued("r1")
    assert queued[0].numbers == (11, 12)
    assert queued[0].moved == (None, None)


async def test_earlier_failover_does_not_replace_a_later_one(records: PrivateRecords) -> None:
    await records.save_queued("r1", 3, [11, 12, 13], [None, 2, None])
    await records.save_moved("r1", 3, {0: (31, 3), 1: (32, 3)})
    await records.save_moved("r1", 3, {1: (42, 2)})
    # The run was deleted.
    await records.save_moved("r9", 3, {0: (1, 1)})
    assert list(await records.read_queued("r1")) == [3]
    queued = (await records.read_queued("r1"))[3]
    assert queued.numbers == (31, 32, 13)
    assert queued.moved == (3, 3, None)


async def test_facts_of_a_job_are_those_delivered_to_this_agent(records: PrivateRecords) -> None:
    tunnel = Vxlan(vni_from=700)
    request = job(traffic_of(encapsulation=tunnel)).model_copy(update={"pair_index": 4})
    await records.save_given(request, "c.1")
    facts = await records.read_job_facts("r1", 0, 4, "c.1")
    assert facts["server"] == request.endpoint.agent_id
    assert facts["ports"] == tuple(request.endpoint.ports)
    assert facts["planned_start_at"] == request.planned_start_at
    assert (facts["tunnel_port"], facts["vni"]) == (tunnel.port, 704)
    assert await records.read_job_facts("r1", 0, 4, "c.2") == {}
    assert await records.read_given("r1") == {(0, 4, "c.1")}
