"""Event loop lag, which delays leases, heartbeats and responses."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

# Interval between two measurements.
LOOK_S: Final = 0.05
# Period of the reported maximum. It covers two scrapes at the usual 30 s.
KEPT_S: Final = 60.0


class LoopLag:
    """Longest event loop lag in the last minute, in seconds."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        # Each entry is a monotonic second and the longest lag that ended in it.
        self._longest: deque[tuple[int, float]] = deque()

    async def watch(self) -> None:
        """Measure until cancelled. The lag is the delay after the requested sleep."""
        while True:
            began_s = self._clock_s()
            await asyncio.sleep(LOOK_S)
            self.note(self._clock_s() - began_s - LOOK_S)

    def note(self, lag_s: float) -> None:
        now_s = int(self._clock_s())
        lag_s = max(0.0, lag_s)
        if self._longest and self._longest[-1][0] == now_s:
            self._longest[-1] = (now_s, max(lag_s, self._longest[-1][1]))
        else:
            self._longest.append((now_s, lag_s))
        self._forget()

    @property
    def longest_s(self) -> float | None:
        """Longest lag in seconds. None if nothing was measured in the last minute."""
        self._forget()
        return max((lag_s for _, lag_s in self._longest), default=None)

    def _forget(self) -> None:
        while self._longest and self._longest[0][0] < self._clock_s() - KEPT_S:
            self._longest.popleft()
