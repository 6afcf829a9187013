"""Costs that ``make test`` checks on each commit: a few ratios, in half a minute of CPU.

The measured work and its peer alternate within a second or two, and the minimum of each counts. A
load by another process then slows both. No figure has a limit of its own.
"""

import asyncio
import os
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import numpy as np

from broadside.coordinator.core.summary import canonical
from broadside.coordinator.process_memory import collect_rarely
from broadside.coordinator.runs.live_burst import LiveBurst
from tests.bench import bench_commands
from tests.bench.limit_rows import Row
from tests.bench.stored_fleet import START, embedded, plan_of, store, summarised, upload

TURNS_COUNT: Final = 7
# Pairs, s.
SUMMARY: Final = (30, 1740)
# Pairs, and the second of the snapshot.
LOOK: Final = (300, 600)
UPLOAD_S: Final = 3
PEER: Final = "fixed work of Python, zlib and numpy"


def rows() -> Iterator[Row]:
    """Yield the modules of commands, and a summary and a snapshot compared with fixed work."""
    counts = {name: _modules_count(argv) for name, argv in bench_commands.argvs().items()}
    peer, *names = counts
    for name in names:
        yield Row(
            name=f"{name}: modules",
            value=counts[name],
            unit="",
            peer=peer,
            peer_value=counts[peer],
        )
    collect_rarely()
    for name, turns in (
        ("{} x {} s: summary from the store", _summaries(*SUMMARY)),
        ("{} pairs at second {}: a live look", _snapshots(*LOOK)),
    ):
        took_s, bare_s = (min(item) for item in zip(*asyncio.run(turns), strict=True))
        text = name.format(*(SUMMARY if "summary" in name else LOOK))
        yield Row(name=text, value=took_s, unit="CPU-s", peer=PEER, peer_value=bare_s)


def _modules_count(argv: Sequence[str]) -> int:
    """Return the number of modules that a process imports, a cost independent of load."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(bench_commands.stored(Path(folder)))
        completed = subprocess.run(
            [argv[0], "-X", "importtime", *argv[1:]],
            env={**os.environ, "BROADSIDE_DATA_DIR": folder},
            capture_output=True,
            check=True,
        )
    return completed.stderr.count(b"import time:")


def _bare_s() -> float:
    """Return the CPU seconds of fixed work, about a tenth of a second."""
    began_s = time.process_time()
    values = np.random.default_rng(0).normal(625e6, 20e6, (100, 1800))
    packed = zlib.compress(values.astype(np.int64).tobytes(), 1)
    for _ in range(3):
        np.sort(np.frombuffer(zlib.decompress(packed), np.int64).reshape(values.shape), axis=0)
        np.cumsum(values, axis=1)
        sum(number * number for number in range(100_000))
    return time.process_time() - began_s


async def _summaries(pairs: int, seconds: int) -> list[tuple[float, float]]:
    with tempfile.TemporaryDirectory() as folder:
        fabric = embedded(folder)
        plan = plan_of(pairs, seconds)
        await store(fabric, plan)
        turns = []
        for _ in range(TURNS_COUNT):
            began_s = time.process_time()
            canonical(await summarised(fabric, plan))
            turns.append((time.process_time() - began_s, _bare_s()))
        await fabric.close()
    return turns


async def _snapshots(pairs: int, second: int) -> list[tuple[float, float]]:
    with tempfile.TemporaryDirectory() as folder:
        fabric = embedded(folder)
        plan = plan_of(pairs, 2 * second)
        await store(fabric, plan, until_s=second - UPLOAD_S)
        await upload(fabric, plan, until_s=second, from_s=second - UPLOAD_S)
        live = LiveBurst(fabric.records, plan, plan.bursts[0])
        # The first snapshot reads the whole burst.
        await live.take_snapshot(None, START + timedelta(seconds=second + 0.5))
        turns = []
        for at_s in range(second + 1, second + 1 + TURNS_COUNT):
            reported = range(at_s % UPLOAD_S, pairs, UPLOAD_S)
            await upload(fabric, plan, until_s=at_s, from_s=at_s - UPLOAD_S, only=reported)
            # Measuring of the whole burst runs in the background.
            if live.measuring is not None:
                await asyncio.wait({live.measuring})
            began_s = time.process_time()
            await live.take_snapshot(None, START + timedelta(seconds=at_s + 0.5))
            turns.append((time.process_time() - began_s, _bare_s()))
        await live.close()
        await fabric.close()
    return turns
