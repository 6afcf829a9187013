"""Attacks by other users of a host through the folders of Broadside."""

import asyncio
import json
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final
from unittest import mock

from broadside.agent.attempt import Attempt, AttemptLimits
from broadside.agent.raw_spool import SpooledRaw
from broadside.agent.spool import Spool, SpooledTable
from broadside.agent.workspace import Workspace
from broadside.exchange.documents import TableRaw
from broadside.exchange.embedded.embedded_queue import EmbeddedQueue
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.engines.port import EngineFile, FileWatch, Process
from broadside.exchange.http.credential import AgentCredential
from broadside.exchange.ports import Entity, ExchangeError, ExchangeMisconfigured, RawName
from tests.attack import Attack, attack_variants, refusal
from tests.unit.agent.doubles import MemoryTable

DISK: Final = "other users of the host"
SECRET: Final = b"root:x:0:0:a file of somebody else's"


async def _modes() -> str:
    """Check file modes with umask 0 and with existing files that are too permissive."""
    before = os.umask(0)
    try:
        with tempfile.TemporaryDirectory() as base:
            return await _is_private(Path(base))
    finally:
        os.umask(before)


async def _is_private(root: Path) -> str:
    table = EmbeddedTable(root / "data", "results")
    queue = EmbeddedQueue(root / "data")
    row = Entity(partition_key="p", row_key="r", properties={"json": "{}"})
    await table.upsert(row)
    await queue.counts()
    spool = Spool(root / "state" / "broadside" / "c1" / "client", 10**6)
    spool.put(row)
    spool.put_raw(RawName(folder="f", file="x"), b"text")
    seen = await asyncio.to_thread(lambda: list(root.rglob("*")))
    assert any(path.name.endswith("-wal") for path in seen)
    assert any(path.suffix == ".raw" for path in seen)
    open_to_others = [
        f"{path.relative_to(root)} {path.stat().st_mode & 0o777:o}"
        for path in seen
        if path.stat().st_mode & 0o077
    ]
    await table.close()
    await queue.close()
    assert not open_to_others, open_to_others
    return f"{len(seen)} files and folders, none of them for others"


def _opened_before() -> str:
    with tempfile.TemporaryDirectory() as base:
        path = Path(base) / "results.sqlite3"
        path.touch(0o644)
        path.chmod(0o644)
        touch(Path(base), "results")
        mode = path.stat().st_mode & 0o777
        assert mode == 0o600, f"{mode:o}"
    return "made 0600 when it is opened"


# Links -------------------------------------------------------------------------------------------


def _linked(attack: Callable[..., str], *given: object) -> str:
    """Run an attack with a folder and another user's file, which must not be changed."""
    with tempfile.TemporaryDirectory() as base:
        theirs, folder = Path(base) / "theirs", Path(base) / "ours"
        theirs.write_bytes(SECRET)
        theirs.chmod(0o644)
        folder.mkdir()
        text = attack(folder, theirs, *given)
        assert theirs.read_bytes() == SECRET, "it was written"
        assert theirs.stat().st_mode & 0o777 == 0o644, "its read permissions were changed"
        return text


def _database(folder: Path, theirs: Path, end: str) -> str:
    (folder / f"results.sqlite3{end}").symlink_to(theirs)
    return refusal(ExchangeMisconfigured, lambda: touch(folder, "results"), "it was opened")


def touch(folder: Path, name: str) -> None:
    """Open a folder's table, read from it, and close it."""

    async def read() -> None:
        table = EmbeddedTable(folder, name)
        try:
            await table.get("a", "b")
        finally:
            await table.close()

    asyncio.run(read())


def _drained(table: MemoryTable, spool: Spool) -> None:
    async def drain() -> None:
        await SpooledTable(table, spool).drain()
        await SpooledRaw(TableRaw(table), spool).drain()

    asyncio.run(drain())


def _spooled(folder: Path, theirs: Path, name: str) -> str:
    """Put a symbolic link among the spool's files, which must not be sent, replaced or followed."""
    (folder / name).symlink_to(theirs)
    (folder / "000000000007.row").symlink_to(folder / "nowhere")
    table, spool = MemoryTable(), Spool(folder, 10**6)
    spool.put(Entity(partition_key="p", row_key="r", properties={}))
    spool.put_raw(RawName(folder="f", file="x"), b"text")
    _drained(table, spool)
    assert SECRET not in repr(table.rows).encode()
    assert {key for _, key in table.rows} == {"r", "x.000"}
    return "links are removed, not followed; what is our own is sent"


def _spool_file(folder: Path, _theirs: Path, name: str, text: bytes | Callable[[], bytes]) -> str:
    """Put a foreign file into the spool."""
    (folder / name).write_bytes(text if isinstance(text, bytes) else text())
    table = MemoryTable()
    _drained(table, Spool(folder, 10**7))
    assert not table.rows
    left = [path.name for path in folder.iterdir()]
    assert left == [f"{name.partition('.')[0]}.refused"], left
    return f"set aside as {left[0]}"


def _credential_part(folder: Path, theirs: Path) -> str:
    (folder / "credential.part").symlink_to(theirs)
    credential = AgentCredential(
        coordinators=("https://x",), authority=None, agent_id="a", role="client",
        secret="", issued_s=0.0,
    )  # fmt: skip
    path = folder / "credential.json"
    return refusal(OSError, lambda: credential.save(path), "written through the link")


def _workspace_file(_folder: Path, theirs: Path) -> str:
    workspace = Workspace("attacked")
    try:
        (workspace.path / "script").symlink_to(theirs)
        script = EngineFile(name="script", text="!id")
        return refusal(OSError, lambda: workspace.fill([script]), "written through the link")
    finally:
        workspace.close()


def _watched_log(folder: Path, theirs: Path) -> str:
    """Replace a log with a link to another's file. The engine can be run by the user nobody."""
    (folder / "log").symlink_to(theirs)
    reader = mock.Mock()
    reader.sample.return_value = ()

    async def poll() -> None:
        watch = FileWatch(name="log", path=str(folder / "log"), tail=True)
        attempt = await Attempt.spawn(
            Process(argv=("true",)), reader, AttemptLimits(raw_max_bytes=1000)
        )
        attempt.poll((watch,))
        await attempt.exit

    asyncio.run(poll())
    reader.sample.assert_not_called()
    return "it is not read"


def _foreign_rows(folder: Path, _theirs: Path) -> str:
    """Replace a table with a view in a file that is marked as ours."""
    touch(folder, "results")
    with sqlite3.connect(folder / "results.sqlite3") as foreign:
        foreign.execute("DROP TABLE entity")
        foreign.execute("CREATE VIEW entity AS SELECT 1 AS partition_key")
    foreign.close()
    return refusal(ExchangeError, lambda: touch(folder, "results"), "it was read")


_DEEP: Final = b"[" * 100_000
_SPOOL_FILES: Final[dict[str, tuple[str, bytes | Callable[[], bytes]]]] = {
    "a deep row": ("000000000001.row", _DEEP),
    "an empty row": ("000000000001.row", b""),
    "a row of 5,000 digits": ("000000000001.row", b'["p","r",{"n":' + b"9" * 5_000 + b"}]"),
    "output under a deep name": ("000000000001.raw", _DEEP + b"\nx"),
    "output that is not packed": ("000000000001.raw", json.dumps(["f", "x"]).encode() + b"\nx"),
    "output that unfolds to 300 MB": (
        "000000000001.raw",
        lambda: json.dumps(["f", "x"]).encode() + b"\n" + zlib.compress(bytes(300_000_000), 9),
    ),
}

ATTACKS: Final[tuple[Attack, ...]] = (
    Attack("open modes", DISK, "reading data, spool and raw output with umask 0", _modes),
    Attack("a file left open", DISK, "a database file of mode 0644", _opened_before),
    *attack_variants(
        "a link as results.sqlite3{}",
        DISK,
        "another's file, changed",
        partial(_linked, _database),
        ("", "-wal", "-shm"),
    ),
    *attack_variants(
        "a link as the spool's {}",
        DISK,
        "another's file, sent",
        partial(_linked, _spooled),
        (
            "000000000001.row",
            "000000000001.raw",
            "000000000001.refused",
            "000000000001.row-part",
            "000000000008.row-part",
        ),
    ),
    *attack_variants(
        "in the spool: {}", DISK, "the agent's start", partial(_linked, _spool_file), _SPOOL_FILES
    ),
    *attack_variants(
        "a link {}",
        DISK,
        "another's file",
        _linked,
        {
            "as a credential": _credential_part,
            "as an engine's log": _watched_log,
            "in an engine's folder": _workspace_file,
        },
    ),
    Attack("a view as a table", DISK, "a crash of the reader", partial(_linked, _foreign_rows)),
)
