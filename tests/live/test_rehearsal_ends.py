"""Test that an interrupted rehearsal leaves no command, child process or folder behind."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadside.lab.namespaces import list_processes
from tests.azure_emulator.__main__ import remove_stale_folders
from tests.azure_emulator.stage import enclosure
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


@contextlib.contextmanager
def playing(sleep: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a rehearsal of sleeping commands until the end of the block."""
    environment = os.environ | {"TMPDIR": str(folder)}
    argv = [sys.executable, "-c", PLAY, sleep]
    with subprocess.Popen(
        argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as rehearsal:
        try:
            wait_for("the commands of two stages", lambda: len(sleepers(sleep)) == 4)
            yield rehearsal
        finally:
            rehearsal.kill()
            for pid in sleepers(sleep):
                os.kill(pid, signal.SIGKILL)


def sleepers(sleep: str) -> list[int]:
    return [process.pid for process in list_processes() if process.command.strip() == sleep]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_terminated_rehearsal_stops_its_commands(number: signal.Signals, tmp_path: Path) -> None:
    sleep = f"sleep {300_000 + os.getpid()}.{number}"
    with playing(sleep, tmp_path) as rehearsal:
        rehearsal.send_signal(number)
        reported, _ = rehearsal.communicate(timeout=60)
        assert rehearsal.returncode == 128 + number
        assert f"stopped by {number.name}" in reported
        wait_for("the end of the commands", lambda: not sleepers(sleep))
        assert list(tmp_path.iterdir()) == [], "temporary folders remain"


@pytest.mark.skipif(not enclosure(), reason="PID namespaces are not allowed")
def test_killed_rehearsal_leaves_no_command_and_the_next_one_removes_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = f"sleep {300_000 + os.getpid()}.9"
    with playing(sleep, tmp_path) as rehearsal:
        rehearsal.kill()
        rehearsal.wait(60)
        wait_for("the end of the commands", lambda: not sleepers(sleep))
    assert len(list(tmp_path.iterdir())) == 2
    in_use = tmp_path / f"rehearsal-{os.getpid()}-x"
    in_use.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    remove_stale_folders()
    assert list(tmp_path.iterdir()) == [in_use]


def test_a_killed_make_ends_its_rehearsal(tmp_path: Path) -> None:
    sleep = f"sleep {300_000 + os.getpid()}.77"
    makefile = tmp_path / "Makefile"
    makefile.write_text('all:\n\t@"$$PYTHON" -c "$$PLAY" "$$SLEEP"\n')
    folder = tmp_path / "temporary"
    folder.mkdir()
    environment = os.environ | {
        "TMPDIR": str(folder), "PYTHON": sys.executable, "PLAY": PLAY, "SLEEP": sleep,
        "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{ROOT}",
    }  # fmt: skip
    with subprocess.Popen(
        ["make", "-f", str(makefile)], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
    ) as make:
        try:
            wait_for("the commands of two stages", lambda: len(sleepers(sleep)) == 4)
            make.kill()
            wait_for("the end of the commands", lambda: not sleepers(sleep))
            wait_for("the end of the folders", lambda: not list(folder.iterdir()))
        finally:
            make.kill()
            for process in list_processes():
                if sleep in process.command:
                    os.kill(process.pid, signal.SIGKILL)
