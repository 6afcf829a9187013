"""Process data that other users of this host can read during a test."""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

# The time to wait between two reads of the process list. A command takes about a second.
READ_INTERVAL_S: Final = 0.1
# Read new processes this many times, because they may start as a copy of the parent.
YOUNG_COUNT: Final = 20


@dataclass(kw_only=True)
class ProcessList:
    """Arguments and environments of all processes that other users can read.

    Attributes:
        engines_environments: Environments of engine processes, which other hosts connect to.
        open_environments: Environments that another user can read.
    """

    arguments: set[bytes] = field(default_factory=set)
    engines_environments: set[bytes] = field(default_factory=set)
    open_environments: set[str] = field(default_factory=set)
    _over: threading.Event = field(default_factory=threading.Event)

    def read_until_stopped(self) -> None:
        ages: dict[str, int] = {}
        while not self._over.wait(READ_INTERVAL_S):
            there = filter(str.isdigit, os.listdir("/proc"))  # noqa: PTH208 - it changes under us
            ages = {name: ages.get(name, 0) + 1 for name in there}
            for name, age in ages.items():
                if age <= YOUNG_COUNT:
                    with contextlib.suppress(OSError):
                        self._see(Path("/proc", name))

    def _see(self, process: Path) -> None:
        arguments = (process / "cmdline").read_bytes()
        self.arguments.add(arguments)
        if (process / "environ").stat().st_mode & 0o077:
            self.open_environments.add(arguments.decode(errors="replace"))
        if b"iperf3" in arguments:
            self.engines_environments.add((process / "environ").read_bytes())

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        thread = threading.Thread(target=self.read_until_stopped)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
