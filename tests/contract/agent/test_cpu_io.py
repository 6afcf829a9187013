"""Tests for cpu that need processes, sockets or real time."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.unit.agent.engine_runs import run_engine
from tests.unit.agent.test_cpu import TICK_S


async def test_exit_reports_cpu_time_of_process_and_child() -> None:
    burn = "import os,time\nwhile time.process_time() < 0.2: pass\n"
    both = f"import os\nif os.fork(): os.wait()\nelse:\n exec({burn!r})\n os._exit(0)\n" + burn
    exit_ = await run_engine(
        [sys.executable, "-c", both], on_line=lambda *_: None, deadline_at_s=None
    )
    assert exit_.exit_code == 0
    assert exit_.cpu_s is not None and exit_.cpu_s >= 0.4 - 2 * TICK_S


def children() -> list[str]:
    """Return the child processes for all threads in this process, including zombies."""
    tasks = Path("/proc/self/task").glob("*/children")
    return [pid for path in tasks for pid in path.read_text().split()]


@pytest.mark.parametrize("turns", range(8))
async def test_cancelled_process_is_killed_and_reaped(turns: int) -> None:
    # Processes from earlier tests.
    others = set(children())
    running = asyncio.create_task(
        run_engine(["sleep", "60"], on_line=lambda *_: None, deadline_at_s=None)
    )
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for _ in range(100):
        if not (remaining := set(children()) - others):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{remaining} still run")
