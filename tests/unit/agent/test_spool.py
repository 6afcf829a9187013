from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.agent import spool as spool_module
from broadside.agent.spool import Spool, SpooledTable
from broadside.exchange.messages import (
    Endpoint,
    EngineReport,
    Flow,
    Interval,
    JobReport,
    OutageKind,
    Outcome,
    ServerTest,
    ServiceOutage,
    Side,
    Track,
)
from broadside.exchange.outage_log import OutageLog
from broadside.exchange.ports import (
    Entity,
    EntityTooLarge,
    ExchangeMisconfigured,
    ExchangeUnavailable,
    Value,
)
from broadside.exchange.row_text import format_entity, parse_entity
from broadside.exchange.second_rows import CHUNK_S
from tests.one_table import records_in
from tests.unit.agent.doubles import MemoryTable


def row(key: str, /, **properties: Value) -> Entity:
    return Entity(partition_key="burst.run-1.00000", row_key=key, properties=properties)


values = st.one_of(
    st.text(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.binary(),
    st.datetimes(timezones=st.just(UTC)),
)


@given(st.dictionaries(st.text(min_size=1), values))
def test_row_is_restored_from_disk(properties: dict[str, Value]) -> None:
    entity = row("chunk", **properties)
    restored = parse_entity(format_entity(entity))
    assert restored == entity
    assert [type(value) for value in restored.properties.values()] == [
        type(value) for value in properties.values()
    ]


def spooled(tmp_path: Path, max_bytes: int = 10**6) -> tuple[MemoryTable, Spool, SpooledTable]:
    table, spool = MemoryTable(), Spool(tmp_path, max_bytes)
    return table, spool, SpooledTable(table, spool)


def suffixes(folder: Path) -> list[str]:
    return [path.suffix for path in folder.iterdir()]


def contents(folder: Path) -> list[bytes]:
    """Return the file contents, oldest first."""
    return [path.read_bytes() for path in sorted(folder.iterdir())]


async def test_rows_are_not_spooled_while_the_table_is_available(tmp_path: Path) -> None:
    table, spool, results = spooled(tmp_path)
    await results.upsert(row("report", n=1))
    await results.batch([row("chunk.0"), row("chunk.1")])
    assert table.written == ["report", "chunk.0", "chunk.1"]
    assert len(spool) == 0
    assert suffixes(tmp_path) == []


async def test_spooled_rows_keep_order_and_the_newest_per_key(
    tmp_path: Path,
) -> None:
    table, spool, results = spooled(tmp_path)
    table.away = True
    await results.upsert(row("chunk.0", n=1))
    await results.upsert(row("report", n=1))
    await results.upsert(row("chunk.0", n=2))
    with pytest.raises(ExchangeUnavailable):
        await results.drain()
    table.away = False
    # The table is available again, but older rows are sent first.
    await results.upsert(row("claim", n=1))
    assert table.written == []
    await results.drain()
    assert table.written == ["report", "chunk.0", "claim"]
    assert table.rows["burst.run-1.00000", "chunk.0"].properties == {"n": 2}
    assert len(spool) == 0
    assert suffixes(tmp_path) == []


async def test_delayed_report_has_its_delivery_time(tmp_path: Path) -> None:
    table, _, results = spooled(tmp_path)
    table.away = True
    at = datetime(2026, 11, 20, 3, 12, tzinfo=UTC)
    open_ = ServiceOutage(kind=OutageKind.TABLE_AWAY, from_at=at, count=2)
    report = JobReport(
        job_id="run-1.00000.00000",
        run_id="run-1",
        burst_index=0,
        pair_index=0,
        agent_id="c1",
        outcome=Outcome.MEASURED,
        planned_start_at=at,
        reported_at=at,
        troubles=(open_,),
    )
    endpoint = Endpoint(agent_id="s1", address="10.2.1.1", port=5201)
    engine = EngineReport(engine="iperf3")
    test = ServerTest(
        agent_id="s1", endpoint=endpoint, started_at=at, engine=engine, troubles=(open_,)
    )
    records = records_in(results)
    await records.bursts.save_report(report)
    await records.bursts.save_test(test, (), ())
    table.away = False
    await results.drain()
    late = (await records_in(table).bursts.read_reports("run-1", 0))[0]
    [served] = await records_in(table).bursts.read_tests(at, at + timedelta(hours=1))
    assert late.delivered_at is not None
    for reported in (late.troubles, served.test.troubles):
        assert [trouble.to_at is not None for trouble in reported] == [True]
    assert late.model_copy(update={"delivered_at": None, "troubles": report.troubles}) == report


async def test_delayed_test_ends_only_after_all_its_seconds(tmp_path: Path) -> None:
    """Check this, because a coordinator could use a partial test when it reads in between."""
    table, _, results = spooled(tmp_path)
    at = datetime(2026, 11, 2, 9, tzinfo=UTC)
    intervals = tuple(
        Interval(start_s=n, end_s=n + 1, transferred_bytes=n) for n in range(2 * CHUNK_S)
    )
    complete = Track(
        side=Side.SERVER, flow=Flow.UP, first_data_at_s=at.timestamp(), intervals=intervals
    )
    begun = ServerTest(
        agent_id="server-1",
        endpoint=Endpoint(agent_id="server-1", address="10.1.0.4", port=5201),
        started_at=at,
        engine=EngineReport(engine="iperf3", version="3.18"),
    )
    reported: list[tuple[bool, int]] = []

    class CheckedTable(MemoryTable):
        async def upsert(self, entity: Entity) -> str:
            await table.upsert(entity)
            [result] = await records_in(table).bursts.read_tests(at, at + timedelta(seconds=1))
            count = sum(len(track.intervals) for track in result.tracks)
            reported.append((result.test.ended_at is not None, count))
            return ""

    bursts = records_in(results).bursts
    await bursts.save_test(begun, [replace(complete, intervals=intervals[:9])], ())
    table.away = True
    # The spool has older rows with the same keys.
    for until in (12, 15):
        partial = replace(complete, intervals=intervals[:until])
        await bursts.save_test(begun, [partial], (), from_s=until - 3)
    ended = begun.model_copy(update={"ended_at": at + timedelta(seconds=2 * CHUNK_S)})
    await bursts.save_test(ended, [complete], ())
    table.away = False
    await SpooledTable(CheckedTable(), Spool(tmp_path, 10**7)).drain()
    assert reported[-1] == (True, len(intervals))
    assert all(count == len(intervals) for is_ended, count in reported if is_ended)


async def test_restarted_agent_sends_its_spooled_rows(tmp_path: Path) -> None:
    table, _, results = spooled(tmp_path)
    table.away = True
    at = datetime(2026, 11, 20, tzinfo=UTC)
    await results.batch([row("chunk.0", packed=b"\x00\xff", at=at), row("report", n=1)])
    (tmp_path / "000000000009.row").write_bytes(b'["torn')
    table.away = False
    again = SpooledTable(table, Spool(tmp_path, 10**6))
    await again.drain()
    assert table.written == ["chunk.0", "report"]
    assert table.rows["burst.run-1.00000", "chunk.0"].properties == {
        "packed": b"\x00\xff",
        "at": at,
    }


class Killed(BaseException):
    """Exception to simulate the end of the process."""


async def test_kill_during_a_rewrite_never_sends_the_old_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Killed

    table, _, results = spooled(tmp_path)
    table.away = True
    await results.upsert(row("chunk.0", n=1))
    with monkeypatch.context() as death, pytest.raises(Killed):
        death.setattr(Spool, "drop", die)
        await results.upsert(row("chunk.0", n=2))
    assert len(suffixes(tmp_path)) == 2
    table.away = False
    # The second restart has to read the state from the first one.
    for _ in range(2):
        await SpooledTable(table, Spool(tmp_path, 10**6)).drain()
    assert table.written == ["chunk.0"]
    assert table.rows["burst.run-1.00000", "chunk.0"].properties == {"n": 2}
    assert suffixes(tmp_path) == []


async def test_rows_wait_for_access_to_the_table_after_restart(tmp_path: Path) -> None:
    table, _, results = spooled(tmp_path)
    table.away = True
    await results.upsert(row("report", n=1))
    again = SpooledTable(table, Spool(tmp_path, 10**6))

    table.away = False
    table.refusing = lambda _: ExchangeMisconfigured("the table refuses the default identity")
    with pytest.raises(ExchangeUnavailable, match="refuses the default identity"):
        await again.drain()
    await again.upsert(row("claim", n=1))
    assert suffixes(tmp_path) == [".row", ".row"]
    table.refusing = lambda _: None
    await again.drain()
    assert table.written == ["report", "claim"]


async def test_row_waits_for_a_misconfigured_table(tmp_path: Path) -> None:
    table, spool, results = spooled(tmp_path)
    table.refusing = lambda _: ExchangeMisconfigured("the table does not exist")
    await results.upsert(row("test", n=1))
    assert len(spool) == 1
    table.refusing = lambda _: None
    await results.drain()
    assert table.written == ["test"]


@pytest.mark.parametrize("refused", [False, True])
async def test_newer_row_written_during_a_send_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    table, spool, results = spooled(tmp_path)
    table.away = True
    await results.upsert(row("chunk.0", n=1))
    table.away = False
    write = table.upsert

    async def slow_upsert(entity: Entity) -> str:
        if entity.properties["n"] == 1:
            await results.upsert(row("chunk.0", n=2))
            if refused:
                raise EntityTooLarge("too large")
        return await write(entity)

    monkeypatch.setattr(table, "upsert", slow_upsert)
    await results.drain()
    assert table.rows["burst.run-1.00000", "chunk.0"].properties == {"n": 2}
    assert len(spool) == 0


async def test_full_spool_logs_lost_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table, spool, results = spooled(tmp_path, max_bytes=200)
    table.away = True
    await results.upsert(row("chunk.0", packed=b"x" * 50))
    await results.upsert(row("chunk.1", packed=b"x" * 500))
    assert len(spool) == 1
    assert "LOST burst.run-1.00000 chunk.1" in caplog.text
    # The row replaces an older one and needs no more space.
    await results.upsert(row("chunk.0", packed=b"y" * 50))
    assert "chunk.0" not in caplog.text


async def test_rejected_row_does_not_block_the_others(tmp_path: Path) -> None:
    table, spool, results = spooled(tmp_path)
    table.away = True
    await results.batch([row("raw", n=1), row("report", n=1)])
    table.away = False
    table.refusing = lambda entity: EntityTooLarge("large") if entity.row_key == "raw" else None
    await results.drain()
    assert table.written == ["report"]
    assert len(spool) == 0
    assert suffixes(tmp_path) == [".refused"]


async def test_rejected_rows_use_space_and_the_oldest_is_dropped(tmp_path: Path) -> None:
    troubles, max_bytes = OutageLog(), 1000
    table, spool = MemoryTable(), Spool(tmp_path, max_bytes)
    results = SpooledTable(table, spool, troubles)
    table.refusing = lambda _: EntityTooLarge("too large")
    for index in range(10):
        table.away = True
        await results.upsert(row(f"chunk.{index}", packed=b"x" * 100))
        table.away = False
        await results.drain()
        assert 0 < spool.size_bytes == sum(map(len, contents(tmp_path))) <= max_bytes
    stored = [parse_entity(text).row_key for text in contents(tmp_path)]
    assert stored == [f"chunk.{index}" for index in range(10 - len(stored), 10)]
    counts = {t.kind: t.count for t in troubles.new_since(datetime.min.replace(tzinfo=UTC))}
    assert counts[OutageKind.LOST] == 10
    again = Spool(tmp_path, max_bytes // 2)
    assert 0 < again.size_bytes <= max_bytes // 2
    assert again.put(row("next", n=1))
    assert len(suffixes(tmp_path)) == suffixes(tmp_path).count(".refused") + 1


async def test_partial_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _, results = spooled(tmp_path)
    table.away = True

    def fail(path: Path, text: bytes) -> None:
        with path.open("wb") as file:
            file.write(text[:3])
        raise OSError("the disk is broken")

    with monkeypatch.context() as broken:
        broken.setattr(spool_module, "_write_private", fail)
        await results.upsert(row("report"))
    assert suffixes(tmp_path) == []
    for kind in ("row", "raw"):
        # Left by a process that was killed.
        (tmp_path / f"000000000007.{kind}-part").write_bytes(b"[")
    Spool(tmp_path, 10**6)
    assert suffixes(tmp_path) == []


async def test_unreadable_row_is_lost_and_blocks_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table, spool, troubles = MemoryTable(), Spool(tmp_path, 10**6), OutageLog()
    results = SpooledTable(table, spool, troubles)
    table.away = True
    await results.batch([row("gone"), row("torn"), row("report")])
    (tmp_path / "000000000001.row").unlink()
    (tmp_path / "000000000002.row").write_bytes(b'["torn')
    table.away = False
    await results.drain()
    await results.upsert(row("next"))
    assert table.written == ["report", "next"]
    assert suffixes(tmp_path) == [".refused"]
    assert "LOST burst.run-1.00000 gone: the spool cannot be read" in caplog.text
    counts = {
        trouble.kind: trouble.count
        for trouble in troubles.new_since(datetime.min.replace(tzinfo=UTC))
    }
    assert counts[OutageKind.LOST] == 2
