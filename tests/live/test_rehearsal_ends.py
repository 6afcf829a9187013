"""Test that a terminated rehearsal leaves no command and no child process behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broadside.lab.namespaces import list_processes
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
PLAY = """
import contextlib, os, sys
from tests.azure_emulator import __main__ as rehearsal
from tests.azure_emulator.stage import Stage

@contextlib.contextmanager
def set_stage(tools, folder):
    yield Stage(folder=folder, data=None, environment=dict(os.environ))

def plays(arguments):
    # Two stages run at a time, so the third one must not start.
    for name in ("one", "two", "three"):
        yield name, lambda stage: stage.run(["sh", "-c", f"{sleep} & {sleep}"])

sleep = sys.argv.pop()
rehearsal.find_tools = lambda: None
rehearsal.set_stage, rehearsal.plays = set_stage, plays
sys.exit(rehearsal.main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_terminated_rehearsal_stops_its_commands(number: signal.Signals, tmp_path: Path) -> None:
    sleep = f"sleep {300_000 + os.getpid()}.{number}"

    def sleepers() -> list[int]:
        return [process.pid for process in list_processes() if process.command.strip() == sleep]

    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", PLAY, sleep],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as rehearsal:
        try:
            wait_for("the commands of two stages", lambda: len(sleepers()) == 4)
            rehearsal.send_signal(number)
            reported, _ = rehearsal.communicate(timeout=60)
            assert rehearsal.returncode == 128 + number
            assert f"stopped by {number.name}" in reported
            wait_for("the end of the commands", lambda: not sleepers())
            assert list(tmp_path.iterdir()) == [], "temporary folders remain"
        finally:
            rehearsal.kill()
            for pid in sleepers():
                os.kill(pid, signal.SIGKILL)
