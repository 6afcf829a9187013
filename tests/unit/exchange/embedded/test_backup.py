"""A backup taken in mid-write is whole, and lays out as the store that it was."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broadside.exchange.embedded.backup import BackupUnusable, back_up, restore
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.ports import Entity, Outgoing


def row(number: int) -> Entity:
    return Entity(partition_key="p", row_key=f"{number:05d}", properties={"blob": b"x" * 2_000})


async def test_a_backup_while_writing_has_what_was_told_before(tmp_path: Path) -> None:
    fabric = open_fabric(FabricSettings(data_dir=tmp_path / "data"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tls").mkdir()
    (tmp_path / "data" / "tls" / "authority.pem").write_text("pem")
    await fabric.queue.send(
        [
            Outgoing(
                body=b"job",
                message_id="m",
                expires_at=datetime.now(UTC) + timedelta(minutes=5),
            )
        ]
    )
    await fabric.private.insert(row(0))
    told = 0
    stopping = False
    enough = asyncio.Event()

    async def write() -> None:
        nonlocal told
        while not stopping:
            await fabric.results.insert(row(told))
            told += 1
            if told == 200:
                enough.set()

    writing = asyncio.create_task(write())
    await enough.wait()
    before = told
    names = await asyncio.to_thread(back_up, tmp_path / "data", tmp_path / "file")
    after = told
    stopping = True
    await writing
    await fabric.close()
    assert names == ["private.sqlite3", "queue.sqlite3", "results.sqlite3", "tls/authority.pem"]
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    restore(tmp_path / "file", tmp_path / "again")
    assert {path.stat().st_mode & 0o77 for path in (tmp_path / "again").rglob("*")} == {0}
    again = open_fabric(FabricSettings(data_dir=tmp_path / "again"))
    keys = [found.row_key async for found in again.results.scan("p")]
    assert before <= len(keys) <= after + 1
    assert keys == [f"{number:05d}" for number in range(len(keys))]
    delivery = await again.queue.receive(0)
    assert delivery is not None
    assert delivery.body == b"job"
    await again.close()


def test_nothing_that_is_there_is_written_over(tmp_path: Path) -> None:
    with pytest.raises(BackupUnusable, match="nothing is stored"):
        back_up(tmp_path / "data", tmp_path / "file")

    async def make() -> None:
        fabric = open_fabric(FabricSettings(data_dir=tmp_path / "data"))
        await fabric.private.insert(row(0))
        await fabric.close()

    asyncio.run(make())
    back_up(tmp_path / "data", tmp_path / "file")
    with pytest.raises(BackupUnusable, match="there is one already"):
        back_up(tmp_path / "data", tmp_path / "file")
    with pytest.raises(BackupUnusable, match="not empty"):
        restore(tmp_path / "file", tmp_path / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file"]


@pytest.mark.parametrize("spoil", [lambda text: b"", lambda text: text[:400], lambda text: b"no"])
def test_what_is_no_whole_backup_leaves_nothing(tmp_path: Path, spoil: object) -> None:
    test_nothing_that_is_there_is_written_over(tmp_path)
    whole = (tmp_path / "file").read_bytes()
    assert callable(spoil)
    (tmp_path / "file").write_bytes(spoil(whole))
    with pytest.raises(BackupUnusable):
        restore(tmp_path / "file", tmp_path / "again")
    assert not (tmp_path / "again").exists()
