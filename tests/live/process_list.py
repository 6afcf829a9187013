"""What other users of this host may read of processes while a test runs."""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

LOOK_S: Final = 0.1  # between looks at the process list: a command lives for a second
YOUNG_COUNT: Final = 20  # looks at a process, which may start as its parent's copy


@dataclass(kw_only=True)
class ProcessList:
    """Everybody's arguments, as anybody may read them, for as long as it is open."""

    arguments: set[bytes] = field(default_factory=set)
    engines_environments: set[bytes] = field(default_factory=set)  # of programs strangers talk to
    open_environments: set[str] = field(default_factory=set)  # that another user may read
    _over: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        ages: dict[str, int] = {}
        while not self._over.wait(LOOK_S):
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
    def watched(self) -> Iterator[None]:
        thread = threading.Thread(target=self.look)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
