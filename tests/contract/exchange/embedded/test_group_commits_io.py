"""Tests for group commits that need processes, sockets or real time."""

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


async def occupy_worker(table: EmbeddedTable, pause_s: float = 0.3) -> asyncio.Task[None]:
    """Keep the worker thread busy, so that new requests have to wait together."""

    def busy(connection: sqlite3.Connection) -> None:
        time.sleep(pause_s)

    current = asyncio.create_task(table._database.read(busy))
    await asyncio.sleep(0.05)
    return current


async def test_waiting_writes_share_commits(table: EmbeddedTable) -> None:
    lines: list[str] = []
    await table._database.read(lambda connection: connection.set_trace_callback(lines.append))
    await occupy_worker(table)
    await asyncio.gather(*(table.insert(row(number)) for number in range(4 * GROUP_MAX_COUNT)))
    assert lines.count("COMMIT") == 4
    assert len(await keys(table)) == 4 * GROUP_MAX_COUNT


async def test_results_of_a_group_wake_the_event_loop_once(
    table: EmbeddedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count how often the event loop is woken, which takes more time than to write the rows."""
    current = await occupy_worker(table, 1.0)
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
    assert 0 < len(woken) < 2 * 6, (
        "expected one wake-up for the blocker, the four groups and the reads"
    )


@pytest.mark.parametrize("writes_count", [1, 3])
async def test_retry_interval_does_not_grow_while_waiting_for_a_lock(
    table: EmbeddedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes_count: int
) -> None:
    """Check the retry interval while another process has the lock, and that all writes succeed
    after it."""
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

    # The writes have to wait together.
    await occupy_worker(table)
    monkeypatch.setattr("broadside.exchange.embedded.sqlite.time.sleep", paused)
    await asyncio.gather(*(table.insert(row(number)) for number in range(writes_count)))
    other.close()
    assert len(pauses_s) == 100
    assert max(pauses_s[50:]) <= 2 * max(pauses_s[:50])
    assert len(await keys(table)) == writes_count


async def test_failed_write_does_not_affect_the_group(table: EmbeddedTable) -> None:
    await table.insert(row(3))
    await occupy_worker(table)
    done = await asyncio.gather(
        *(table.insert(row(number)) for number in range(6)), return_exceptions=True
    )
    assert [type(result) for result in done] == [str, str, str, EntityExists, str, str]
    assert await keys(table) == [f"{number:05d}" for number in range(6)]


async def test_unknown_error_ends_all_waiting_writes(table: EmbeddedTable) -> None:
    """Test an unknown error that will end the common transaction."""

    def spoils(connection: sqlite3.Connection) -> None:
        connection.execute("ROLLBACK")
        raise OSError("of no known kind")

    await occupy_worker(table)
    async with asyncio.timeout(20):
        done = await asyncio.gather(
            table.insert(row(1)),
            table._database.run(spoils),
            table.insert(row(2)),
            return_exceptions=True,
        )
    assert [type(result) for result in done] == [OSError, OSError, OSError]
    await table.insert(row(3))
    assert await keys(table) == ["00003"]


async def test_full_disk_stores_only_acknowledged_writes(table: EmbeddedTable) -> None:
    await table.insert(row(999))
    (pages,) = await table._database.read(
        lambda connection: connection.execute("PRAGMA page_count").fetchone()
    )
    await table._database.read(
        lambda connection: connection.execute(f"PRAGMA max_page_count={pages + 12}").fetchone()
    )
    await occupy_worker(table)
    done = await asyncio.gather(
        *(table.insert(row(number, 9_000)) for number in range(12)), return_exceptions=True
    )
    reported = [f"{number:05d}" for number, result in enumerate(done) if isinstance(result, str)]
    assert 0 < len(reported) < 12
    assert {type(result) for result in done} == {str, ExchangeUnavailable}
    assert await keys(table) == [*reported, "00999"]


async def test_cancelled_write_is_not_executed(table: EmbeddedTable) -> None:
    await occupy_worker(table)
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
    async def write(writer):
        for number in range(100_000):
            key = f"{writer:02d}.{number:05d}"
            await table.insert(Entity(partition_key="p", row_key=key, properties={"n": number}))
            print(key, flush=True)
    await asyncio.gather(*(write(writer) for writer in range(20)))

asyncio.run(main())
"""


@pytest.mark.parametrize("after_lines", [1, 150, 700])
def test_killed_writer_loses_no_acknowledged_write(tmp_path: Path, after_lines: int) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    reported = [writer.stdout.readline().strip() for _ in range(after_lines)]
    os.kill(writer.pid, signal.SIGKILL)
    # The last line can be incomplete.
    reported += writer.stdout.read().split()[:-1]
    writer.wait()
    writer.stdout.close()

    async def stored() -> set[str]:
        table = EmbeddedTable(tmp_path, "results")
        result = set(await keys(table))
        await table.close()
        return result

    assert set(reported) <= asyncio.run(stored())
