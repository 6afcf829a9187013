"""Test that stopped commands with a lab leave nothing behind."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broadside.lab.namespaces import list_namespaces, list_owned
from tests.invariants import left_behind
from tests.live.live_site import BROADSIDE, Site
from tests.live.waiting import wait_for

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs_root,
    pytest.mark.timeout(200),
]


def parts(prefix: str) -> set[object]:
    """Return the namespaces and processes of a lab.

    The name can be used by another test later.
    """
    return {*list_namespaces(prefix).items(), *(process.pid for process in list_owned(prefix))}


def abandoned_demos() -> list[Path]:
    """Return the folders of demos without a lab.

    Other tests may be running a demo.
    """
    folders = Path("/run/broadside/lab").glob("*/demo")
    return [folder for folder in folders if not list_owned(folder.parent.name)]


def take_ctrl_c() -> None:
    """Restore the default SIGINT handler, because background jobs of a shell ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_stopped_demo_leaves_nothing_behind(site: Site, number: signal.Signals) -> None:
    """Test that SIGTERM and Ctrl-C remove everything, and use `lab down` after SIGKILL."""
    process = subprocess.Popen(
        [*BROADSIDE, "demo", "--pairs", "2", "--seconds", "30"],
        env=site.environment | {"TMPDIR": str(site.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=take_ctrl_c,
    )
    try:
        assert process.stdout is not None
        seen = ""
        while "launched" not in seen:
            line = process.stdout.readline()
            assert line, seen
            seen += line
        (prefix,) = set(re.findall(r"--broadside-lab=(\w+)", " ".join(running(site))))
        was_up = parts(prefix)
        assert was_up
        process.send_signal(number)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    if number is signal.SIGKILL:
        # Agents and coordinator will end with the parent. The lab itself should continue to count.
        lab_local = ("chronyd", "broadside.lab.byte_counter")
        wait_for(
            "the fleet to end",
            lambda: all(any(name in line for name in lab_local) for line in running(site)),
        )
        done = site.run("lab", "down")
        assert done.returncode == 0, done.stderr
    assert not running(site)
    assert not was_up & parts(prefix)
    wait_for("the folder to be removed", lambda: not abandoned_demos())


def running(site: Site) -> list[str]:
    """Return the command lines of processes in the folder of the demo."""
    results = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={site.folder}".encode() in path.read_bytes():
                results.append((path.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return results


@pytest.mark.parametrize(
    ("module", "options", "processes_count"),
    [
        # These are clocks and agents.
        ("tests.faults", ("--only", "nothing/armed", "--labs", "1"), 8),
        ("tests.scenarios", ("--only", "128 KiB window over the path"), 1),
    ],
)
def test_ctrl_c_removes_processes_and_namespaces(
    module: str, options: tuple[str, ...], processes_count: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *options],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=take_ctrl_c,
    )
    assert process.stderr is not None
    try:
        with process.stderr:
            prefix = process.stderr.readline().split(":")[0].split()[-1]
            wait_for("a fleet", lambda: len(list_owned(prefix)) > processes_count)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 128 + signal.SIGINT
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
    assert left_behind(prefix) == []
