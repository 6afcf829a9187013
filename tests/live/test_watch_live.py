"""Test ``broadside watch`` on a terminal until the verdict, and leave it without an abort."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from broadside.coordinator import scenarios
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from tests.live.live_site import BROADSIDE, Site
from tests.live.waiting import wait_for
from tests.unit.coordinator.presences import fleet
from tests.unit.coordinator.stored_run import store_run

pytestmark = pytest.mark.live


class Terminal:
    """Command on a terminal with 80 columns and 24 lines."""

    def __init__(self, arguments: list[str], site: Site) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [*BROADSIDE, *arguments],
            env=site.environment | {"TERM": "xterm-256color"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # Background jobs of a shell ignore SIGINT, and so would child processes.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(slave)
        os.set_blocking(self._master, False)
        self.text = ""

    def until(self, wanted: str | None, timeout_s: float = 30) -> str:
        """Wait for ``wanted`` and return all output. Use None to wait for the command to end."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            try:
                self.text += os.read(self._master, 65536).decode(errors="replace")
            except (BlockingIOError, OSError):
                if wanted is None and self.process.poll() is not None:
                    return self.text
                time.sleep(0.05)
            if wanted is not None and wanted in self.text:
                return self.text
        raise AssertionError(f"not within {timeout_s:g} s: {wanted or 'the end'}\n{self.text}")

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


@contextmanager
def on_terminal(site: Site, *arguments: str) -> Iterator[Terminal]:
    terminal = Terminal(list(arguments), site)
    try:
        yield terminal
    finally:
        terminal.close()


async def launched(fabric: Fabric) -> str:
    """Launch a run on a simulated fleet, to start in ten minutes."""
    now = datetime.now(UTC)
    for agent in fleet(2):
        clock = agent.clock and agent.clock.model_copy(update={"read_at": now})
        await fabric.records.fleet.beat(agent.model_copy(update={"beat_at": now, "clock": clock}))
    spec = scenarios.load("smoke", {"pairs_count": 2, "lead_s": 600})
    return (await Coordinator(fabric).launch(spec, by="me")).run_id


async def test_watch_of_a_finished_run_ends_with_its_verdict(site: Site) -> None:
    fabric = open_fabric(FabricSettings(data_dir=site.folder / "data"))
    run_id = await store_run(fabric)
    await fabric.close()
    with on_terminal(site, "watch", run_id) as terminal:
        text = terminal.until(None)
    assert terminal.process.returncode == 2, text
    # The command should switch to the alternate screen and back.
    assert "\x1b[?1049h" in text
    assert text.index("\x1b[?1049l") < text.index("verdict:")
    plain = site.run("watch", run_id, "--plain")
    assert plain.returncode == 2
    assert "\x1b[?1049h" not in plain.stdout + plain.stderr


async def test_plain_output_continues_after_a_killed_coordinator(site: Site) -> None:
    fabric = open_fabric(FabricSettings(data_dir=site.folder / "data"))
    run_id = await launched(fabric)
    await fabric.close()
    serve, url = site.start_coordinator()
    log = site.folder / "watch.log"

    def has_printed(text: str) -> bool:
        return text in log.read_text()

    watch = site.start("watch", "watch", run_id, "--plain", "--api", url)
    wait_for("a line of the run", lambda: has_printed("starts in"))
    serve.kill()
    serve.wait()
    wait_for("a line about the missing response", lambda: has_printed("no response"))
    port = url.rsplit(":", 1)[1]
    site.start("again", "serve", "--port", port)
    assert site.run("abort", run_id).returncode == 0
    # The run was cancelled before its start, so it is inconclusive.
    assert watch.wait(60) == 2, log.read_text()
    assert has_printed("verdict:")


async def test_leaving_watch_does_not_abort_the_run(site: Site) -> None:
    fabric = open_fabric(FabricSettings(data_dir=site.folder / "data"))
    run_id = await launched(fabric)
    for by_key in (True, False):
        with on_terminal(site, "watch", "last") as terminal:
            terminal.until("starts in")
            if by_key:
                terminal.press("q")
            else:
                terminal.process.send_signal(signal.SIGINT)
            text = terminal.until(None)
        assert terminal.process.returncode == 130, text
        assert f"left {run_id} without aborting it" in text
        # No coordinator manages the run, and the output should state that.
        assert "broadside serve" in text
        assert "Traceback" not in text
    control = await fabric.records.runs.read_control(run_id)
    await fabric.close()
    assert control is not None
    assert control.cancelled_at is None
