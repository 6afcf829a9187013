"""How the end of an engine that runs until it is stopped is read."""

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace

import pytest

from agent.attempt import Attempt
from exchange.engines.port import Process, Reading
from tests.unit.agent.jobs import make_reading

LOOP = "import time\nwhile True: time.sleep(0.05)"


class AnyReader:
    """Says the same of whatever it reads."""

    def feed(self, line: bytes, at_s: float) -> tuple[()]:
        return ()

    def sample(self, name: str, text: str, at_s: float) -> tuple[()]:
        return ()

    def finish(self, exit_code: int | None = None, **_: object) -> Reading:
        reading = make_reading()
        return replace(reading, report=reading.report.model_copy(update={"error": None}))


async def started(code: str, stop_after_s: float | None) -> Attempt:
    return await Attempt.spawn(
        Process(argv=(sys.executable, "-c", code), stop_after_s=stop_after_s),
        AnyReader(),
        raw_max_bytes=1000,
        instant_s=time.time(),
    )


@pytest.mark.parametrize(
    ("number", "says"), [(signal.SIGKILL, "signal 9 (Killed)"), (signal.SIGSEGV, "signal 11")]
)
async def test_an_end_that_the_agent_did_not_cause_is_a_failure(
    number: signal.Signals, says: str
) -> None:
    attempt = await started(LOOP, 60)
    os.kill(attempt.process.pid, number)
    await attempt.exit
    reading = attempt.read()
    assert says in (reading.report.error or "")
    assert not reading.usable


async def test_an_end_of_its_own_is_a_failure_too() -> None:
    attempt = await started("", 60)
    await attempt.exit
    assert "exit code 0" in (attempt.read().report.error or "")


async def test_the_end_at_its_time_is_none() -> None:
    attempt = await started(LOOP, 0.2)
    exit_ = await attempt.exit
    assert (exit_.exit_code, exit_.stopped) == (-signal.SIGTERM, None)
    assert attempt.read().report.error is None


async def test_an_engine_with_an_end_of_its_own_may_end() -> None:
    attempt = await started("", None)
    await asyncio.wait_for(attempt.exit, 20)
    assert attempt.read().report.error is None
