"""Tests for embedded fabric that need processes, sockets or real time."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from broadside.exchange.ports import (
    ExchangeUnavailable,
)
from tests.unit.exchange.embedded.test_embedded_fabric import (
    assert_raises,
    make_both,
    run_in_mount_namespace,
)


def test_adapter_opened_before_a_fork_is_rejected_in_the_child(
    tmp_path: Path,
) -> None:
    script = f"""
import asyncio, os
from pathlib import Path
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.ports import Entity, ExchangeMisconfigured

row = Entity(partition_key="part", row_key="row", properties={{"n": 1}})
opened, unopened = (EmbeddedTable(Path({str(tmp_path)!r}), "results") for _ in range(2))
loop = asyncio.new_event_loop()
loop.run_until_complete(opened.insert(row))
child = os.fork()
if child == 0:
    # Do not use `loop` here. To close it would also remove its waker from the shared epoll.
    own = asyncio.new_event_loop()
    try:
        own.run_until_complete(opened.get("part", "row"))
    except ExchangeMisconfigured as error:
        print(error, flush=True)
    print(own.run_until_complete(unopened.get("part", "row")).properties, flush=True)
    own.run_until_complete(opened.close())
    own.run_until_complete(unopened.close())
    os._exit(0)
os.waitpid(child, 0)
print(loop.run_until_complete(opened.get("part", "row")).properties)
loop.run_until_complete(opened.close())
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    error_text, child_read, parent_read = ran.stdout.splitlines()
    assert "open the fabric after the fork" in error_text
    assert str(tmp_path) in error_text
    assert child_read == parent_read == "{'n': 1}"


async def test_lock_of_another_process_is_reported_after_the_timeout(tmp_path: Path) -> None:
    await make_both(tmp_path)
    holders = [sqlite3.connect(tmp_path / name) for name in ("results.sqlite3", "queue.sqlite3")]
    try:
        for holder in holders:
            holder.execute("BEGIN IMMEDIATE")
        await assert_raises(
            tmp_path, ExchangeUnavailable, "locked by another process for over 0.2 s"
        )
    finally:
        for holder in holders:
            holder.close()
    # The adapters should work again.
    await make_both(tmp_path)


FILL = """
import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from broadside.exchange.embedded.embedded_queue import EmbeddedQueue, QueueRules
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.ports import Entity, ExchangeError, Outgoing

directory = Path({directory!r})
ends_at = datetime.now(UTC) + timedelta(hours=1)
table, queue = EmbeddedTable(directory, "results"), EmbeddedQueue(directory)

async def put(n):
    properties = {{"data": bytes(60_000)}}
    await table.upsert(Entity(partition_key="p", row_key=f"{{n:03d}}", properties=properties))

async def send(n):
    await queue.send([Outgoing(body=bytes(60_000), message_id=str(n), expires_at=ends_at)])

async def main():
    ballast = directory / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    for n in range(100):
        try:
            await {write}(n)
        except ExchangeError as error:
            print(type(error).__name__, error)
            break
    ballast.unlink()
    await {write}(999)
    print(n + 1)
    print({stored})
    await table.close()
    await queue.close()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("name", "write", "stored"),
    [
        ("results", "put", 'len([row async for row in table.scan("p")])'),
        ("queue", "send", "(await queue.counts()).active_count"),
    ],
)
def test_full_disk_is_reported_and_written_data_remains(
    tmp_path: Path, name: str, write: str, stored: str
) -> None:
    script = FILL.format(directory=str(tmp_path), write=write, stored=stored)
    error, written_count, stored_count = run_in_mount_namespace(
        tmp_path, "size=6m", script
    ).splitlines()
    assert error.startswith(f"ExchangeUnavailable {tmp_path / name}.sqlite3: disk full; free space")
    assert int(written_count) > 1, "the disk was full before the first write"
    assert stored_count == written_count, "an acknowledged write is missing"


OPEN = """
import asyncio
from pathlib import Path
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.ports import Entity, ExchangeError

async def main():
    table = EmbeddedTable(Path({directory!r}), "results")
    try:
        await table.upsert(Entity(partition_key="p", row_key="r", properties={{}}))
    except ExchangeError as error:
        print(type(error).__name__, error)
    await table.close()

asyncio.run(main())
"""


def test_read_only_directory_is_reported(tmp_path: Path) -> None:
    reported = run_in_mount_namespace(tmp_path, "ro", OPEN.format(directory=str(tmp_path)))
    assert reported.startswith("ExchangeMisconfigured ")
    assert str(tmp_path) in reported
    assert "BROADSIDE_DATA_DIR" in reported
