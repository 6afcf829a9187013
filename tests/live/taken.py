"""What a hypervisor takes away: no figure of a burst is steady while the machine stands still."""

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

MUCH_RATIO: Final = 0.05  # of all cores' time
_STEAL: Final = 8  # its column in /proc/stat, after the name


class Taken:
    """How much of the machine's time was taken within a ``with``, as a ratio of all its cores'."""

    ratio: float

    def __enter__(self) -> Self:
        self._began_s, self._before_s = time.monotonic(), _taken_s()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        whole_s = (time.monotonic() - self._began_s) * (os.cpu_count() or 1)
        self.ratio = (_taken_s() - self._before_s) / whole_s

    @property
    def much(self) -> bool:
        return self.ratio >= MUCH_RATIO


def _taken_s() -> float:
    cpu = Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()
    return int(cpu[_STEAL]) / os.sysconf("SC_CLK_TCK")
