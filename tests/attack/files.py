"""Attacks by files from outside: a backup to restore, and foreign rows in a store."""

import asyncio
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from broadside.exchange.embedded.backup import BackupUnusable, restore
from broadside.exchange.embedded.embedded_queue import EmbeddedQueue, QueueRules
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Entity, Outgoing
from tests.attack import Attack, attack_variants, memory_within, refusal

FILES: Final = "a file that we are given"
_MEMORY_MAX_BYTES: Final = 32 * 1_048_576


def _member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> bytes:
    """Return one tar header as written, without any check of its values."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info.tobuf(tarfile.GNU_FORMAT)


def _packed(*parts: bytes, zeros: int = 0) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    packed = [packer.compress(part) for part in (*parts, bytes(1024))]
    packed += [packer.compress(bytes(1_048_576)) for _ in range(zeros)]
    return b"".join([*packed, packer.flush()])


def _text(name: str, text: bytes, size: int | None = None) -> bytes:
    """Return a member with its content, padded to whole blocks."""
    content = text.ljust(-(-len(text) // 512) * 512, b"\0")
    return _member(name, size=len(text) if size is None else size) + content


_HEAD: Final = _text("backup.json", b'{"format": "broadside-backup", "version": 1}')
# A store without any write.
_EMPTY: Final = _text("private.sqlite3", b"")
_TERABYTE: Final = 10**12
_BACKUPS: Final[dict[str, Callable[[], bytes]]] = {
    "a name outside": lambda: _packed(_member("../outside")),
    "a name from the root": lambda: _packed(_member("/tmp/bs-outside")),  # noqa: S108 - refused
    "a name behind a folder": lambda: _packed(_member("tls/../../outside")),
    "a link outside": lambda: _packed(_member("tls", tarfile.SYMTYPE, link="/etc")),
    "a link as a database": lambda: _packed(
        _member("private.sqlite3", tarfile.SYMTYPE, link="/etc/passwd")
    ),
    "a hard link outside": lambda: _packed(
        _member("private.sqlite3", tarfile.LNKTYPE, link="/etc/passwd")
    ),
    "a device": lambda: _packed(_member("private.sqlite3", tarfile.CHRTYPE)),
    "a pipe": lambda: _packed(_member("private.sqlite3", tarfile.FIFOTYPE)),
    "a folder as a database": lambda: _packed(_member("private.sqlite3", tarfile.DIRTYPE)),
    "a program": lambda: _packed(_member(".bashrc")),
    "a name twice": lambda: _packed(*[_member("private.sqlite3")] * 2),
    "a name of a control character": lambda: _packed(_member("tls/\x1b[2J")),
    "a million names": lambda: _packed(*[_member(f"tls/{n}.pem") for n in range(100_000)]),
    "a terabyte": lambda: _packed(_member("private.sqlite3", size=_TERABYTE)),
    "a header of a gigabyte": lambda: _packed(
        _member("x", tarfile.XHDTYPE, size=10**9), zeros=1_000
    ),
    "a name of a gigabyte": lambda: _packed(
        _member("x", tarfile.GNUTYPE_LONGNAME, size=10**9), zeros=1_000
    ),
    "a gigabyte of zeros": lambda: _packed(zeros=1_000),
    "no archive": lambda: b"SQLite format 3\0" * 100,
    "half an archive": lambda: _packed(_member("private.sqlite3", size=10**6))[:100],
    "noise, packed": lambda: _packed(bytes(range(256)) * 40),
    "a database of noise": lambda: _packed(
        _member("private.sqlite3", size=512), bytes(range(256)) * 2
    ),
    "nothing": lambda: b"",
    "a newer version": lambda: _packed(
        _text("backup.json", b'{"format": "broadside-backup", "version": 99}'), _EMPTY
    ),
    "a version of a gigabyte": lambda: _packed(
        _text("backup.json", b'{"format": "broadside-backup", "version": ' + b"9" * 60_000 + b"}")
    ),
    "a head of brackets": lambda: _packed(_text("backup.json", b"[" * 60_000)),
    "a head of a gigabyte, as a file": lambda: _packed(
        _member("backup.json", size=10**9), zeros=1_000
    ),
    "no checksums": lambda: _packed(_HEAD, _EMPTY),
    "a checksum of another": lambda: _packed(
        _HEAD, _EMPTY, _text("SHA256SUMS", b"0" * 64 + b"  private.sqlite3\n")
    ),
    "checksums of a gigabyte": lambda: _packed(
        _HEAD, _EMPTY, _member("SHA256SUMS", size=10**9), zeros=1_000
    ),
    "a database behind its checksums": lambda: _packed(
        _HEAD, _text("SHA256SUMS", b"0" * 64 + b"  private.sqlite3\n"), _EMPTY
    ),
    "a gigabyte behind its end": lambda: _packed(_EMPTY, zeros=1_000),
}


def _restored(made: Callable[[], bytes]) -> str:
    """Check that the backup is rejected and that no file was created."""
    with tempfile.TemporaryDirectory() as base:
        file, data = Path(base) / "given.tar.gz", Path(base) / "in" / "data"
        data.parent.mkdir()
        file.write_bytes(made())
        refusing = (BackupUnusable, OSError)
        with memory_within(_MEMORY_MAX_BYTES):
            text = refusal(refusing, lambda: restore(file, data), "it was laid out")
        assert {path.name for path in Path(base).rglob("*")} == {"given.tar.gz", "in"}
        return text.replace(base, "")


# Rows of an embedded store -----------------------------------------------------------------------

_ODD: Final[dict[str, Any]] = {
    "text": "x",
    "a byte that is no UTF-8": sqlite3.Binary(b"\xff\xfe"),
    "nothing": "",
    "a number": 7,
    "the largest number": 2**63 - 1,
    "the least number": -(2**63),
    "a fraction": 0.5,
    "infinity": float("inf"),
    "brackets": "[" * 100_000,
    "an escape": "\x1b[2J\x1b]0;x\x07",
    "ten megabytes": sqlite3.Binary(bytes(10_000_000)),
}


def _spoil(path: Path, table: str, column: str, also: str = "") -> None:
    """Write one row per invalid value, in the order of the rows."""
    with sqlite3.connect(path) as other:
        for number, (name, value) in enumerate(_ODD.items(), 1):
            invalid = "CAST(? AS TEXT)" if "UTF-8" in name else "?"
            changed = f"UPDATE {table} SET {column} = {invalid}{also} WHERE rowid = ?"  # noqa: S608 - ours
            other.execute(changed, (value, number))
    other.close()


async def _queued(folder: Path, column: str) -> str:
    """Queue messages with invalid values before a valid one, which must still be delivered."""
    queue = EmbeddedQueue(folder, QueueRules(lock_s=0.01, deliveries_max_count=2))
    until = utc_now() + timedelta(minutes=5)
    names = [f"odd-{number}" for number in range(len(_ODD))]
    await queue.send([Outgoing(body=b"odd", message_id=n, expires_at=until) for n in names])
    dead = ", dead_us = 1" if column in ("reason", "description") else ""
    _spoil(folder / "queue.sqlite3", "message", column, dead)
    await queue.send([Outgoing(body=b"true", message_id="true", expires_at=until)])
    result = None
    async with asyncio.timeout(60):
        while result is None or result.body != b"true":
            result = await queue.receive(0.1)
    await queue.counts()
    letters = await queue.dead_letters()
    for letter in letters:
        assert isinstance(letter.body, bytes)
        assert isinstance(letter.description, str)
    purged_count = await queue.purge()
    await queue.close()
    return f"the true one is delivered; {len(letters)} set aside, {purged_count} purged"


async def _stored(folder: Path, column: str) -> str:
    """Store rows with invalid values and a valid one, which must still be read."""
    table = EmbeddedTable(folder, "results")
    for name in (*(f"row-{number}" for number in range(len(_ODD))), "true"):
        await table.upsert(Entity(partition_key="p", row_key=name, properties={"n": 1}))
    _spoil(folder / "results.sqlite3", "entity", column)
    rows = [row async for row in table.scan("p")]
    assert "true" in {row.row_key for row in rows}
    changed = [row async for row in table.scan_changed("p", {}, row_from="0", row_before="z")]
    assert "true" in {row.row_key for row in changed}
    assert (await table.get("p", "true")) is not None
    await table.close()
    return f"{len(rows)} of {len(_ODD) + 1} are read"


async def _in_a_folder(attack: Callable[[Path, str], Coroutine[Any, Any, str]], column: str) -> str:
    with tempfile.TemporaryDirectory() as base:
        return await attack(Path(base), column)


_QUEUED: Final = (
    *("message_id", "body", "ready_us", "expires_us", "delivery_count", "lock"),
    *("dead_us", "reason", "description"),
)
ATTACKS: Final[tuple[Attack, ...]] = (
    *attack_variants(
        "a backup with {}", FILES, "other files, memory, the disk", _restored, _BACKUPS
    ),
    *attack_variants(
        "rows of a queue: invalid {}",
        FILES,
        "a true one's delivery",
        partial(_in_a_folder, _queued),
        _QUEUED,
    ),
    *attack_variants(
        "rows of a table: invalid {}",
        FILES,
        "a true one's reading",
        partial(_in_a_folder, _stored),
        ("row_key", "etag", "properties", "binary"),
    ),
)
