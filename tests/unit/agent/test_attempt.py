"""Tests for how the agent reads the end of an engine process."""

import asyncio
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.agent.attempt import Attempt, AttemptLimits, Transcript
from broadside.agent.engine_process import EngineProcess
from broadside.exchange.engines.port import FileWatch, Process, Reading
from tests.unit.agent.jobs import make_reading

LOOP = "import time\nwhile True: time.sleep(0.05)"


class AnyReader:
    """Return the same reading for any input."""

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


lines = st.lists(st.binary(max_size=300).filter(lambda line: b"\n" not in line), max_size=60)


def transcript(lines: list[bytes], max_bytes: int) -> Transcript:
    stored = Transcript(max_bytes)
    for line in lines:
        stored.add(line)
    return stored


@given(lines)
def test_short_output_is_stored_unchanged(lines: list[bytes]) -> None:
    stored = transcript(lines, 2**20)
    assert stored.text() == b"\n".join(lines)
    assert not stored.is_cut


@given(lines, st.integers(1, 5_000))
def test_lines_stay_complete_and_dropped_lines_are_counted(
    lines: list[bytes], max_bytes: int
) -> None:
    stored = transcript(lines, max_bytes)
    parts = stored.text().split(b"\n")
    notes = [at for at, line in enumerate(parts) if line.startswith(b'{"event": "cut"')]
    if not notes:
        assert stored.text() == b"\n".join(lines)
        return
    [at] = notes
    note = json.loads(parts[at])["data"]
    head, tail = parts[:at], parts[at + 1 :]
    assert head + tail == lines[:at] + lines[len(lines) - len(tail) :]
    missing = lines[at : len(lines) - len(tail)]
    assert note["lines_count"] == len(missing)
    assert note["bytes"] == sum(len(line) + 1 for line in missing)


def test_long_output_is_cut_in_the_middle_at_the_limit() -> None:
    lines = [b'{"event":"start"}', *(b"%08d" % n * 20 for n in range(30_000)), b'{"event":"end"}']
    stored = transcript(lines, 2**20)
    text = stored.text()
    assert stored.is_cut
    assert 0.9 * 2**20 < len(text) < 2**20 + 1_000
    assert text.startswith(b'{"event":"start"}\n')
    assert text.endswith(b'\n{"event":"end"}')


def test_full_disk_drops_the_first_lines_and_notes_it() -> None:
    noise = random.Random(7)
    # 0.9 MB after compression.
    lines = [noise.randbytes(300).hex().encode() for _ in range(3_000)]
    stored = Transcript(8 * 2**20)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The file size limit is used to get the same error as for a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        for line in lines:
            stored.add(line)
        note, *tail = stored.text().split(b"\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert json.loads(note)["data"]["lines_count"] == len(lines) - len(tail)
    assert tail == lines[-len(tail) :]


def test_discard_drops_the_older_lines() -> None:
    stored = transcript([b"one", b"two"], 2**20)
    stored.discard()
    stored.add(b"three")
    assert stored.text() == b"three"
