"""Tests for backup and restore of the embedded store."""

import asyncio
import contextlib
import gzip
import io
import json
import os
import shutil
import sqlite3
import tarfile
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from broadside.exchange.embedded.backup import (
    BackupUnusable,
    back_up,
    remove_leftovers,
    restore,
)
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Entity, Outgoing


def row(number: int) -> Entity:
    return Entity(partition_key="p", row_key=f"{number:05d}", properties={"blob": b"x" * 2_000})


async def test_backup_during_writes_has_all_acknowledged_rows(tmp_path: Path) -> None:
    fabric = open_fabric(FabricSettings(data_dir=tmp_path / "data"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tls").mkdir()
    (tmp_path / "data" / "tls" / "authority.pem").write_text("pem")
    await fabric.queue.send(
        [
            Outgoing(
                body=b"job",
                message_id="m",
                expires_at=utc_now() + timedelta(minutes=5),
            )
        ]
    )
    await fabric.private.insert(row(0))
    reported = 0
    stopping = False
    enough = asyncio.Event()

    async def write() -> None:
        nonlocal reported
        while not stopping:
            await fabric.results.insert(row(reported))
            reported += 1
            if reported == 200:
                enough.set()

    writing = asyncio.create_task(write())
    await enough.wait()
    before = reported
    names = await asyncio.to_thread(back_up, tmp_path / "data", tmp_path / "file")
    after = reported
    stopping = True
    await writing
    await fabric.close()
    assert names == ["private.sqlite3", "queue.sqlite3", "results.sqlite3", "tls/authority.pem"]
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    restore(tmp_path / "file", tmp_path / "again")
    assert {path.stat().st_mode & 0o77 for path in (tmp_path / "again").rglob("*")} == {0}
    again = open_fabric(FabricSettings(data_dir=tmp_path / "again"))
    keys = [result.row_key async for result in again.results.scan("p")]
    assert before <= len(keys) <= after + 1
    assert keys == [f"{number:05d}" for number in range(len(keys))]
    delivery = await again.queue.receive(0)
    assert delivery is not None
    assert delivery.body == b"job"
    await again.close()


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(BackupUnusable, match="nothing is stored"):
        back_up(tmp_path / "data", tmp_path / "file")

    async def make() -> None:
        fabric = open_fabric(FabricSettings(data_dir=tmp_path / "data"))
        await fabric.private.insert(row(0))
        await fabric.close()

    asyncio.run(make())
    back_up(tmp_path / "data", tmp_path / "file")
    with pytest.raises(BackupUnusable, match="already exists"):
        back_up(tmp_path / "data", tmp_path / "file")
    with pytest.raises(BackupUnusable, match="not empty"):
        restore(tmp_path / "file", tmp_path / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file"]


@pytest.mark.parametrize("spoil", [lambda text: b"", lambda text: text[:400], lambda text: b"no"])
def test_incomplete_backup_restores_nothing(tmp_path: Path, spoil: object) -> None:
    test_existing_files_are_not_overwritten(tmp_path)
    content = (tmp_path / "file").read_bytes()
    assert callable(spoil)
    (tmp_path / "file").write_bytes(spoil(content))
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


def test_backup_completes_during_continuous_commits(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("PRAGMA application_id=0", "not Broadside's"),
        ("PRAGMA application_id=1", "not Broadside's"),
        ("PRAGMA user_version=9", "layout version 9"),
        ("ALTER TABLE entity ADD COLUMN more TEXT", "tables are not those"),
        ("DROP TABLE entity", "tables are not those"),
        ("CREATE TRIGGER t AFTER INSERT ON entity BEGIN DELETE FROM entity; END", "not those"),
    ],
)
def test_foreign_database_is_not_restored(tmp_path: Path, change: str, message: str) -> None:
    make_store(data := tmp_path / "data")
    with contextlib.closing(sqlite3.connect(data / "results.sqlite3")) as database:
        database.executescript(change)
    back_up(data, tmp_path / "file")
    with pytest.raises(BackupUnusable, match=rf"results.sqlite3 in the backup.*{message}"):
        restore(tmp_path / "file", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_queue_file_with_table_layout_is_not_restored(tmp_path: Path) -> None:
    make_store(data := tmp_path / "data")
    (data / "results.sqlite3").rename(data / "queue.sqlite3")
    back_up(data, tmp_path / "file")
    with pytest.raises(BackupUnusable, match=r"queue.sqlite3 in the backup.*not Broadside's"):
        restore(tmp_path / "file", tmp_path / "again")


def test_empty_store_is_restored(tmp_path: Path) -> None:
    make_store(data := tmp_path / "data")
    # The coordinator was killed before the first row.
    (data / "control.sqlite3").touch(0o600)
    back_up(data, tmp_path / "file")
    assert "control.sqlite3" in restore(tmp_path / "file", tmp_path / "again")


def test_mode_and_owner_of_a_member_are_ignored(tmp_path: Path) -> None:
    """Check that mode, owner and file name in the archive will be ignored."""
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


def members_of(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as archive:
        return {
            member.name: content.read()
            for member in archive
            if (content := archive.extractfile(member)) is not None
        }


def pack(file: Path, members: dict[str, bytes], behind: bytes = b"") -> None:
    with gzip.open(file, "wb") as packed:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, content in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        packed.write(behind)


def flipped(content: bytes) -> bytes:
    """Change one byte in a row. SQLite will not see the change."""
    at = content.rindex(b"xxxx")
    return content[:at] + b"y" + content[at + 1 :]


def head_with(**changes: object) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    return lambda m: (
        m | {"backup.json": json.dumps(json.loads(m["backup.json"]) | changes).encode()}
    )


CHANGES: dict[str, tuple[Callable[[dict[str, bytes]], dict[str, bytes]], str]] = {
    "newer version": (
        head_with(version=2, written_by="7.1"),
        "format version 2, written by Broadside 7.1; this version reads up to 1",
    ),
    "no version": (head_with(version="1"), "has no version"),
    "a truth for a version": (head_with(version=True), "has no version"),
    "another format": (head_with(format="tar"), "names another format"),
    "no object": (lambda m: m | {"backup.json": b"[1]"}, "names another format"),
    "no JSON": (lambda m: m | {"backup.json": b"{"}, "not a backup of Broadside"),
    "a flipped byte": (
        lambda m: m | {"results.sqlite3": flipped(m["results.sqlite3"])},
        "results.sqlite3: the checksum does not match",
    ),
    "a checksum of another": (
        lambda m: m | {"SHA256SUMS": m["SHA256SUMS"].replace(b"results", b"control")},
        "control.sqlite3, results.sqlite3: the checksum does not match",
    ),
    "no sums": (
        lambda m: {k: v for k, v in m.items() if k != "SHA256SUMS"},
        "no SHA256SUMS",
    ),
    "a missing database": (
        lambda m: {k: v for k, v in m.items() if k != "results.sqlite3"},
        "results.sqlite3: the checksum does not match",
    ),
    "a database behind its end": (
        lambda m: m | {"control.sqlite3": m["results.sqlite3"]},
        "is after the last file",
    ),
    "a head in its middle": (
        lambda m: dict(sorted(m.items(), reverse=True)),
        "is in it: not a backup",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_modified_backup_is_rejected(tmp_path: Path, change: str) -> None:
    make_store(data := tmp_path / "data")
    back_up(data, tmp_path / "file")
    changed, text = CHANGES[change]
    pack(tmp_path / "other", changed(members_of(tmp_path / "file")))
    with pytest.raises(BackupUnusable, match=text):
        restore(tmp_path / "other", tmp_path / "again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file", "other"]


def test_file_that_is_not_a_backup_is_rejected(tmp_path: Path) -> None:
    make_store(data := tmp_path / "data")
    with pytest.raises(BackupUnusable, match="a SQLite database, not a backup"):
        restore(data / "results.sqlite3", tmp_path / "again")
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(BackupUnusable, match="not compressed by gzip"):
        restore(tmp_path / "text", tmp_path / "again")


@pytest.mark.parametrize("behind", [b"x", bytes(100_000)])
def test_trailing_bytes_are_rejected(tmp_path: Path, behind: bytes) -> None:
    make_store(data := tmp_path / "data")
    back_up(data, tmp_path / "file")
    pack(tmp_path / "other", members_of(tmp_path / "file"), behind)
    with pytest.raises(BackupUnusable, match="after the end of the archive"):
        restore(tmp_path / "other", tmp_path / "again")


def test_changed_or_truncated_file_is_not_restored(tmp_path: Path) -> None:
    """Change all parts in the file. Changes to unused fields in gzip or in the header can be
    harmless."""
    make_store(data := tmp_path / "data")
    back_up(data, tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    right = members_of(tmp_path / "file")
    spoiled = [
        content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]
        for at in {
            *range(0, len(content), len(content) // 40),
            *range(len(content) - 8, len(content)),
        }
    ]
    spoiled += [content[:-1], content[: len(content) // 2], content + b"x", content + content]
    refused_count = 0
    for text in spoiled:
        (tmp_path / "file").write_bytes(text)
        try:
            restore(tmp_path / "file", tmp_path / "again")
        except BackupUnusable:
            refused_count += 1
            assert not (tmp_path / "again").exists()
            continue
        assert members_of(tmp_path / "file") == right
        shutil.rmtree(tmp_path / "again")
    assert refused_count > len(spoiled) * 0.8


def test_backup_of_an_earlier_version_is_restored(
    tmp_path: Path,
) -> None:
    make_store(data := tmp_path / "data")
    back_up(data, tmp_path / "file")
    earlier = members_of(tmp_path / "file")
    del earlier["backup.json"], earlier["SHA256SUMS"]
    pack(tmp_path / "earlier", earlier)
    assert restore(tmp_path / "earlier", tmp_path / "again") == sorted(earlier)
    text = bytearray((tmp_path / "earlier").read_bytes())
    # A byte of gzip's checksum.
    text[-5] ^= 1
    (tmp_path / "earlier").write_bytes(text)
    with pytest.raises(BackupUnusable, match="damaged"):
        restore(tmp_path / "earlier", tmp_path / "another")


@pytest.mark.parametrize("prefix", [".backup-", ".restore-", ".drill-"])
def test_only_leftovers_of_killed_processes_are_removed(tmp_path: Path, prefix: str) -> None:
    (left := tmp_path / f"{prefix}x").mkdir(0o700)
    (left / "private.sqlite3").write_text("keys")
    (tmp_path / f"{prefix}link").symlink_to(tmp_path / "data")
    make_store(tmp_path / "data")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{prefix}link", "data"]
    assert (tmp_path / "data" / "private.sqlite3").exists()


def test_backup_checkpoints_a_large_write_ahead_log(tmp_path: Path) -> None:
    """Check this. If not, the next commit would have to do it and be delayed."""
    make_store(data := tmp_path / "data")
    path = data / "results.sqlite3"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writing:
        writing.execute("PRAGMA wal_autocheckpoint=0")
        writing.execute("CREATE TABLE filler (content BLOB)")
        writing.execute("INSERT INTO filler VALUES (zeroblob(5000000))")
        before_bytes = path.stat().st_size
        back_up(data, tmp_path / "file")
        assert path.stat().st_size > before_bytes + 4_000_000
        assert writing.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_backup_is_restored_into_a_linked_directory(tmp_path: Path) -> None:
    """Check a link to another disk, for example at /var/lib/broadside."""
    make_store(data := tmp_path / "data")
    back_up(data, tmp_path / "file")
    (tmp_path / "disk" / "again").mkdir(parents=True)
    (tmp_path / "again").symlink_to(tmp_path / "disk" / "again")
    restore(tmp_path / "file", tmp_path / "again")
    assert (tmp_path / "again").is_symlink()
    assert (tmp_path / "disk" / "again" / "private.sqlite3").exists()
