"""What one process writes side by side shares a commit; each stands or falls by itself."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.embedded.sqlite import GROUP_MAX_COUNT
from broadside.exchange.ports import Entity, EntityExists, ExchangeUnavailable


@pytest.fixture
async def table(tmp_path: Path) -> AsyncIterator[EmbeddedTable]:
    table = EmbeddedTable(tmp_path, "results")
    assert await table.get("p", "k") is None
    yield table
    await table.close()


def row(number: int, size: int = 10) -> Entity:
    return Entity(partition_key="p", row_key=f"{number:05d}", properties={"blob": b"x" * size})


async def keys(table: EmbeddedTable) -> list[str]:
    return [result.row_key async for result in table.scan("p")]


async def hold(table: EmbeddedTable, pause_s: float = 0.3) -> asyncio.Task[None]:
    """Keep the worker busy, so that what is asked meanwhile waits together."""

    def busy(connection: sqlite3.Connection) -> None:
        time.sleep(pause_s)

    current = asyncio.create_task(table._database.read(busy))
    await asyncio.sleep(0.05)
    return current


async def test_writes_that_wait_together_share_commits(table: EmbeddedTable) -> None:
    lines: list[str] = []
    await table._database.read(lambda connection: connection.set_trace_callback(lines.append))
    await hold(table)
    await asyncio.gather(*(table.insert(row(number)) for number in range(4 * GROUP_MAX_COUNT)))
    assert lines.count("COMMIT") == 4
    assert len(await keys(table)) == 4 * GROUP_MAX_COUNT


async def test_what_was_done_together_is_told_together(
    table: EmbeddedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each telling wakes the event loop, which costs more than the row."""
    current = await hold(table, 1.0)
    loop = asyncio.get_running_loop()
    woken: list[object] = []
    wake = loop.call_soon_threadsafe

    def counted(*args: Any, **options: Any) -> asyncio.Handle:
        woken.append(args)
        return wake(*args, **options)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    writes = (table.insert(row(number)) for number in range(4 * GROUP_MAX_COUNT))
    reads = (table.get("p", f"{number:05d}") for number in range(GROUP_MAX_COUNT))
    await asyncio.gather(current, *writes, *reads)
    assert 0 < len(woken) < 2 * 6, "the one that held, four groups and what was read beside them"


@pytest.mark.parametrize("writes_count", [1, 3])
async def test_who_waits_longest_looks_no_more_seldom(
    table: EmbeddedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes_count: int
) -> None:
    """While another process holds the lock; when it lets go, all that waited stands."""
    other = sqlite3.connect(
        tmp_path / "results.sqlite3", isolation_level=None, check_same_thread=False
    )
    other.execute("BEGIN IMMEDIATE")
    pauses_s: list[float] = []
    pause = time.sleep

    def paused(pause_s: float) -> None:
        pauses_s.append(pause_s)
        if len(pauses_s) == 100:
            other.execute("COMMIT")
        pause(pause_s)

    await hold(table)  # so that they wait together
    monkeypatch.setattr("broadside.exchange.embedded.sqlite.time.sleep", paused)
    await asyncio.gather(*(table.insert(row(number)) for number in range(writes_count)))
    other.close()
    assert len(pauses_s) == 100
    assert max(pauses_s[50:]) <= 2 * max(pauses_s[:50])
    assert len(await keys(table)) == writes_count


async def test_one_that_fails_fails_alone(table: EmbeddedTable) -> None:
    await table.insert(row(3))
    await hold(table)
    done = await asyncio.gather(
        *(table.insert(row(number)) for number in range(6)), return_exceptions=True
    )
    assert [type(one) for one in done] == [str, str, str, EntityExists, str, str]
    assert await keys(table) == [f"{number:05d}" for number in range(6)]


async def test_nobody_waits_for_ever_on_an_error_of_no_known_kind(table: EmbeddedTable) -> None:
    """One that ends the transaction of all, and is neither SQLite's nor ours."""

    def spoils(connection: sqlite3.Connection) -> None:
        connection.execute("ROLLBACK")
        raise OSError("of no known kind")

    await hold(table)
    async with asyncio.timeout(20):
        done = await asyncio.gather(
            table.insert(row(1)),
            table._database.run(spoils),
            table.insert(row(2)),
            return_exceptions=True,
        )
    assert [type(one) for one in done] == [OSError, OSError, OSError]
    await table.insert(row(3))
    assert await keys(table) == ["00003"]


async def test_on_a_full_disk_what_was_told_stands_and_nothing_else(table: EmbeddedTable) -> None:
    await table.insert(row(999))
    (pages,) = await table._database.read(
        lambda connection: connection.execute("PRAGMA page_count").fetchone()
    )
    await table._database.read(
        lambda connection: connection.execute(f"PRAGMA max_page_count={pages + 12}").fetchone()
    )
    await hold(table)
    done = await asyncio.gather(
        *(table.insert(row(number, 9_000)) for number in range(12)), return_exceptions=True
    )
    reported = [f"{number:05d}" for number, one in enumerate(done) if isinstance(one, str)]
    assert 0 < len(reported) < 12
    assert {type(one) for one in done} == {str, ExchangeUnavailable}
    assert await keys(table) == [*reported, "00999"]


async def test_a_write_given_up_before_its_turn_is_not_done(table: EmbeddedTable) -> None:
    await hold(table)
    writes = [asyncio.create_task(table.insert(row(number))) for number in range(3)]
    await asyncio.sleep(0.05)
    writes[1].cancel()
    await asyncio.gather(*writes, return_exceptions=True)
    assert await keys(table) == ["00000", "00002"]


WRITER = """
import asyncio, sys
from pathlib import Path
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.ports import Entity

async def main():
    table = EmbeddedTable(Path(sys.argv[1]), "results")
    async def write(lane):
        for number in range(100_000):
            key = f"{lane:02d}.{number:05d}"
            await table.insert(Entity(partition_key="p", row_key=key, properties={"n": number}))
            print(key, flush=True)
    await asyncio.gather(*(write(lane) for lane in range(20)))

asyncio.run(main())
"""


@pytest.mark.parametrize("after_lines", [1, 150, 700])
def test_a_killed_writer_loses_nothing_that_it_told(tmp_path: Path, after_lines: int) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    reported = [writer.stdout.readline().strip() for _ in range(after_lines)]
    os.kill(writer.pid, signal.SIGKILL)
    reported += writer.stdout.read().split()[:-1]  # the last line may be cut
    writer.wait()
    writer.stdout.close()

    async def stored() -> set[str]:
        table = EmbeddedTable(tmp_path, "results")
        result = set(await keys(table))
        await table.close()
        return result

    assert set(reported) <= asyncio.run(stored())
