"""Measure the CPU time that the hypervisor takes (steal time).

If the machine does not run, the metrics of a burst are not steady.
"""

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

# The ratio refers to the time of all cores.
MUCH_RATIO: Final = 0.05
# The column of the steal time in /proc/stat, counted after the name.
_STEAL: Final = 8


class Taken:
    """Ratio of steal time to the time of all cores within a ``with`` block."""

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
        total_s = (time.monotonic() - self._began_s) * (os.cpu_count() or 1)
        self.ratio = (_taken_s() - self._before_s) / total_s

    @property
    def much(self) -> bool:
        return self.ratio >= MUCH_RATIO


def _taken_s() -> float:
    cpu = Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()
    return int(cpu[_STEAL]) / os.sysconf("SC_CLK_TCK")
