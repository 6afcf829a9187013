"""Measure how long a backup takes while a fleet is busy, and how long a writer has to wait.

To run it, use ``python -m tests.bench.bench_backup [--megabytes 2000] [--agents 60] [--rounds 3]``.

A separate process writes to the store like a coordinator with a fleet during a burst. An agent
sends a heartbeat every 5 s and its seconds every 3 s. A round measures the writer alone, the backup
alone, and both. The writer alone is the reference, because other processes can cause most of its
longest wait if the machine is shared.
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.ports import Entity
from broadside.exchange.programs import module_command
from tests.bench.limit_rows import Row, show

BEAT_S, UPLOAD_S = 5.0, 3.0
UPLOAD_BYTES: Final = 1_500
# Size of each row that fills the store.
FILLING_BYTES: Final = 60_000
ROWS_AT_ONCE: Final = 50
RATIO_MAX: Final = 2.0
WAIT_MAX_S: Final = 0.1


def rows(megabytes: int, agents: int, rounds: int) -> Iterator[Row]:
    """Yield the median of the rounds for the durations, and the longest wait of all rounds."""
    with tempfile.TemporaryDirectory() as base:
        data = Path(base) / "data"
        asyncio.run(_fill(data, megabytes))
        alone_s, quiet_s, busy_s, waits_s = [], [], [], []
        for number in range(rounds):
            quiet_s.append(_back_up(data, Path(base) / f"quiet-{number}"))
            with _Writer(data, agents) as writer:
                # The observation is as long as a backup, so that the longest waits are comparable.
                time.sleep(quiet_s[-1])
                alone_s.append(writer.longest_wait_s())
                busy_s.append(_back_up(data, Path(base) / f"busy-{number}"))
                waits_s.append(writer.longest_wait_s())
                # The checkpoint of the write-ahead log follows the backup.
                time.sleep(1.0)
                waits_s.append(writer.longest_wait_s())
    name = f"backup of {megabytes} MB"
    quiet = statistics.median(quiet_s)
    yield Row(name=name, value=quiet, unit="s")
    yield Row(
        name=f"{name} beside {agents} busy agents",
        value=statistics.median(busy_s),
        unit="s",
        limit=RATIO_MAX * quiet,
        peer="without them",
        peer_value=quiet,
    )
    yield Row(
        name=f"{name}: longest wait of a write meanwhile",
        value=max(waits_s),
        unit="s",
        limit=max(WAIT_MAX_S, RATIO_MAX * max(alone_s)),
        peer="without it",
        peer_value=max(alone_s),
    )


async def _fill(data: Path, megabytes: int) -> None:
    fabric = open_fabric(FabricSettings(data_dir=data))
    try:
        for number in range(0, megabytes * 1_000_000 // FILLING_BYTES, ROWS_AT_ONCE):
            await fabric.results.batch(
                [
                    Entity(
                        partition_key="filling",
                        row_key=f"{row:08d}",
                        properties={"blob": os.urandom(FILLING_BYTES)},
                    )
                    for row in range(number, number + ROWS_AT_ONCE)
                ]
            )
        for table in (fabric.private, fabric.control):
            await table.upsert(Entity(partition_key="p", row_key="r", properties={"n": 1}))
    finally:
        await fabric.close()


def _back_up(data: Path, file: Path) -> float:
    """Run the backup command as a user does, remove its file, and return the seconds taken."""
    began_s = time.monotonic()
    subprocess.run(
        module_command("broadside.coordinator", "backup", str(file)),
        env=os.environ | {"BROADSIDE_DATA_DIR": str(data)},
        check=True,
        capture_output=True,
    )
    took_s = time.monotonic() - began_s
    file.unlink()
    return took_s


class _Writer:
    """Process that writes for a fleet while the context is open."""

    def __init__(self, data: Path, agents: int) -> None:
        self._own, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=_write, args=(data, agents, theirs))

    def __enter__(self) -> "_Writer":
        self._process.start()
        self._own.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._own.send("end")
        self._process.join()

    def longest_wait_s(self) -> float:
        """Return the longest wait of a write since the previous call."""
        self._own.send("ask")
        return float(self._own.recv())


def _write(data: Path, agents: int, at: Connection) -> None:
    asyncio.run(_write_for_fleet(data, agents, at))


async def _write_for_fleet(data: Path, agents: int, at: Connection) -> None:
    fabric = open_fabric(FabricSettings(data_dir=data))
    waits_s = [0.0]
    tasks = [
        asyncio.create_task(work)
        for agent in range(agents)
        for work in (
            _repeat(fabric, f"agent-{agent:03d}", BEAT_S, 600, waits_s),
            _repeat(fabric, f"agent-{agent:03d}.chunk", UPLOAD_S, UPLOAD_BYTES, waits_s),
        )
    ]
    at.send("ready")
    while await asyncio.to_thread(at.recv) != "end":
        at.send(max(waits_s))
        waits_s[:] = [0.0]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await fabric.close()


async def _repeat(
    fabric: Fabric, key: str, every_s: float, size_bytes: int, waits_s: list[float]
) -> None:
    """Write a row at an interval. An upload adds a row each time, a heartbeat replaces its row."""
    number = 0
    await asyncio.sleep(hash(key) % 1_000 / 1_000 * every_s)
    while True:
        number += 1
        row_key = key if every_s == BEAT_S else f"{key}.{number:06d}"
        row = Entity(
            partition_key="p", row_key=row_key, properties={"blob": os.urandom(size_bytes)}
        )
        began_s = time.monotonic()
        await fabric.results.upsert(row)
        waits_s.append(time.monotonic() - began_s)
        await asyncio.sleep(every_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=2_000)
    parser.add_argument("--agents", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    return int(
        show(rows(arguments.megabytes, arguments.agents, arguments.rounds), as_json=arguments.json)
    )


if __name__ == "__main__":
    sys.exit(main())
