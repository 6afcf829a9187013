"""Tests for attempt that need processes, sockets or real time."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from broadside.agent.attempt import Attempt, AttemptLimits
from broadside.agent.engine_process import EngineProcess
from broadside.exchange.engines.port import EngineResult, FileWatch, Process
from tests.unit.agent.jobs import make_reading

LOOP = "import time\nwhile True: time.sleep(0.05)"


class AnyReader:
    """Return the same reading for any input."""

    def feed(self, line: bytes, at_s: float) -> tuple[()]:
        return ()

    def sample(self, name: str, text: str, at_s: float) -> tuple[()]:
        return ()

    def finish(self, exit_code: int | None = None, **_: object) -> EngineResult:
        reading = make_reading()
        return replace(reading, report=reading.report.model_copy(update={"error": None}))


async def started(code: str, stop_after_s: float | None) -> Attempt:
    return await Attempt.spawn(
        Process(argv=(sys.executable, "-c", code), stop_after_s=stop_after_s),
        AnyReader(),
        AttemptLimits(raw_max_bytes=1000, instant_s=time.time()),
    )


@pytest.mark.parametrize(
    ("number", "message"), [(signal.SIGKILL, "signal 9 (Killed)"), (signal.SIGSEGV, "signal 11")]
)
async def test_killed_by_a_foreign_signal_is_a_failure(
    number: signal.Signals, message: str
) -> None:
    attempt = await started(LOOP, 60)
    os.kill(attempt.process.pid, number)
    await attempt.exit
    reading = attempt.read()
    assert message in (reading.report.error or "")
    assert not reading.usable


async def test_unexpected_exit_is_a_failure() -> None:
    attempt = await started("", 60)
    await attempt.exit
    assert "exit code 0" in (attempt.read().report.error or "")


async def test_planned_stop_is_not_a_failure() -> None:
    attempt = await started(LOOP, 0.2)
    exit_ = await attempt.exit
    assert (exit_.exit_code, exit_.stopped) == (-signal.SIGTERM, None)
    assert attempt.read().report.error is None


async def test_counters_are_read_before_the_second_process_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check the order. If not, traffic from the first process would be used as the initial
    value."""
    order: list[str] = []

    class RecordingReader(AnyReader):
        def sample(self, name: str, text: str, at_s: float) -> tuple[()]:
            order.append(name)
            return ()

    spawn = EngineProcess.spawn

    async def record_spawn(argv: Sequence[str], **options: Any) -> EngineProcess:
        order.append(argv[-1])
        return await spawn(argv, **options)

    monkeypatch.setattr(EngineProcess, "spawn", record_spawn)
    attempt = await Attempt.spawn(
        Process(
            argv=(sys.executable, "-c", "1"),
            pipe_to=(sys.executable, "-c", "2"),
            watches=(FileWatch(name="io", path="/proc/{pid}/io"),),
        ),
        RecordingReader(),
        AttemptLimits(raw_max_bytes=1000),
    )
    await attempt.exit
    assert order[:3] == ["1", "io", "2"]


async def test_engine_without_planned_stop_may_exit() -> None:
    attempt = await started("", None)
    await asyncio.wait_for(attempt.exit, 20)
    assert attempt.read().report.error is None
