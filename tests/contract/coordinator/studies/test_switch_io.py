"""Tests for switch that need processes, sockets or real time."""

import asyncio
import errno
import os
import sys
from pathlib import Path

import pytest

from broadside.coordinator.studies.switch import Switch, SwitchError


def write_to(path: Path, text: str) -> tuple[str, ...]:
    script = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    return (sys.executable, "-c", script, str(path), text)


async def test_command_sets_the_state(tmp_path: Path) -> None:
    path = tmp_path / "state"
    switch = Switch(rest="off", states={"off": write_to(path, "off"), "on": write_to(path, "on")})
    await switch.set("on")
    assert path.read_text() == "on"


async def test_failed_command_error_has_exit_code_and_output() -> None:
    argv = (sys.executable, "-c", "import sys; print('quota exceeded'); sys.exit(7)")
    switch = Switch(rest="off", states={"off": argv})
    with pytest.raises(SwitchError, match="exit 7: quota exceeded"):
        await switch.set("off")


async def test_hanging_command_is_killed() -> None:
    argv = (sys.executable, "-c", "import time; time.sleep(60)")
    switch = Switch(rest="off", timeout_s=0.2, states={"off": argv})
    with pytest.raises(SwitchError, match=r"did not end within 0\.2 s"):
        await switch.set("off")


@pytest.mark.parametrize("then", ["wait", "exit 0"])
async def test_background_processes_of_a_command_are_killed(tmp_path: Path, then: str) -> None:
    path, fifo = tmp_path / "state", tmp_path / "fifo"
    os.mkfifo(fifo)
    argv = ("sh", "-c", f"(exec 3< {fifo}; read line <&3; echo deny > {path}) & {then}")
    switch = Switch(rest="off", timeout_s=0.3, states={"off": argv})
    with pytest.raises(SwitchError, match=r"did not end within 0\.3 s"):
        await switch.set("off")
    async with asyncio.timeout(30):
        while has_reader(fifo):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not path.exists()


def has_reader(fifo: Path) -> bool:
    """Return True if a process is still reading from the FIFO."""
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        assert error.errno == errno.ENXIO
        return False
    return True


async def test_error_names_unknown_state_or_missing_command() -> None:
    switch = Switch(rest="off", states={"off": ("no-such-command-here",)})
    with pytest.raises(SwitchError, match="'deny': give one of off"):
        await switch.set("deny")
    with pytest.raises(SwitchError, match="no-such-command-here"):
        await switch.set("off")
