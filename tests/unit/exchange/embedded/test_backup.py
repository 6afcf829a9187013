"""A backup taken in mid-write is whole, and lays out as the store that it was."""

import asyncio
import contextlib
import io
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
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


def make_store(data: Path) -> None:
    async def make() -> None:
        fabric = open_fabric(FabricSettings(data_dir=data))
        await fabric.private.insert(row(0))
        await fabric.results.insert(row(0))
        await fabric.close()

    asyncio.run(make())


COMMITS_MAX_COUNT = 100_000


def test_a_backup_ends_beside_a_process_that_commits_without_pause(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "file"
    make_store(data)
    done = threading.Event()
    commits_count = 0
    with contextlib.closing(sqlite3.connect(data / "results.sqlite3")) as filling:
        filling.execute("CREATE TABLE filler (content BLOB)")
        filling.executemany("INSERT INTO filler VALUES (?)", [(bytes(4_000_000),)] * 10)
        filling.commit()

    def write() -> None:
        nonlocal commits_count
        with contextlib.closing(sqlite3.connect(data / "results.sqlite3")) as writing:
            writing.execute("PRAGMA synchronous=OFF")
            while not done.is_set() and commits_count < COMMITS_MAX_COUNT:
                writing.execute("UPDATE entity SET etag = etag || 'x'")
                writing.execute("UPDATE entity SET etag = 'x'")
                writing.commit()
                commits_count += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        back_up(data, file)
        assert writer.is_alive(), "the copy waited for the last commit"
    finally:
        done.set()
        writer.join()


KILLED_IN_MID_COPY = """
import os, signal, sys
from pathlib import Path
from broadside.exchange.embedded import backup

copy = backup._copy

def copy_and_be_killed(source, target):
    copy(source, target)
    if source.stem == "results":
        os.kill(os.getpid(), int(sys.argv[3]))

os.umask(0)
backup._copy = copy_and_be_killed
backup.back_up(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_killed_backup_leaves_nothing_readable_and_the_next_removes_it(tmp_path: Path) -> None:
    make_store(data := tmp_path / "data")
    (folder := tmp_path / "backups").mkdir()
    words = [str(data), str(folder / "one"), str(int(signal.SIGKILL))]
    killed = subprocess.run([sys.executable, "-c", KILLED_IN_MID_COPY, *words], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = list(folder.rglob("*"))
    assert len(left) > 1, "the copy that it had just made"
    assert {path.stat().st_mode & 0o077 for path in left} == {0}
    back_up(data, folder / "two")
    assert [path.name for path in folder.iterdir()] == ["two"]


def test_a_backup_leaves_alone_what_another_one_writes_just_now(tmp_path: Path) -> None:
    make_store(data := tmp_path / "data")
    (folder := tmp_path / "backups").mkdir()
    words = [str(data), str(folder / "one"), str(int(signal.SIGSTOP))]
    other = subprocess.Popen([sys.executable, "-c", KILLED_IN_MID_COPY, *words])
    try:
        assert os.WIFSTOPPED(os.waitpid(other.pid, os.WUNTRACED)[1])
        back_up(data, folder / "two")
    finally:
        other.send_signal(signal.SIGCONT)
        other.wait(60)
    assert other.returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["one", "two"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("PRAGMA application_id=0", "not Broadside's"),
        ("PRAGMA application_id=1", "not Broadside's"),
        ("PRAGMA user_version=9", "layout version 9"),
        ("ALTER TABLE entity ADD COLUMN more TEXT", "tables are not those"),
        ("DROP TABLE entity", "tables are not those"),
        ("CREATE TRIGGER t AFTER INSERT ON entity BEGIN DELETE FROM entity; END", "not those"),
    ],
)
def test_another_programs_database_is_not_laid_out(tmp_path: Path, change: str, said: str) -> None:
    make_store(data := tmp_path / "data")
    with contextlib.closing(sqlite3.connect(data / "results.sqlite3")) as database:
        database.executescript(change)
    back_up(data, tmp_path / "file")
    with pytest.raises(BackupUnusable, match=rf"results.sqlite3 in the backup.*{said}"):
        restore(tmp_path / "file", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_the_queue_in_a_tables_place_is_not_laid_out(tmp_path: Path) -> None:
    make_store(data := tmp_path / "data")
    (data / "results.sqlite3").rename(data / "queue.sqlite3")
    back_up(data, tmp_path / "file")
    with pytest.raises(BackupUnusable, match=r"queue.sqlite3 in the backup.*not Broadside's"):
        restore(tmp_path / "file", tmp_path / "again")


def test_a_store_that_was_never_written_to_is_laid_out(tmp_path: Path) -> None:
    make_store(data := tmp_path / "data")
    (data / "control.sqlite3").touch(0o600)  # its coordinator was killed before the first row
    back_up(data, tmp_path / "file")
    assert "control.sqlite3" in restore(tmp_path / "file", tmp_path / "again")


def test_a_member_has_no_mode_and_no_owner_of_its_own(tmp_path: Path) -> None:
    """And no way to the file system but by its name: all of a member but its content is ignored."""
    make_store(data := tmp_path / "data")
    with tarfile.open(tmp_path / "file", "w:gz") as archive:
        content = (data / "private.sqlite3").read_bytes()
        member = tarfile.TarInfo("private.sqlite3")
        member.size, member.mode, member.uid = len(content), 0o6777, 12345
        archive.addfile(member, io.BytesIO(content))
    old = os.umask(0)
    try:
        restore(tmp_path / "file", tmp_path / "again")
    finally:
        os.umask(old)
    laid_out = (tmp_path / "again" / "private.sqlite3").stat()
    assert (laid_out.st_mode & 0o7777, laid_out.st_uid) == (0o600, os.geteuid())
    assert (tmp_path / "again").stat().st_mode & 0o7777 == 0o700
