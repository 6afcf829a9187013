"""How late the event loop is: leases, heartbeats and answers wait for whatever blocks it."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.05  # s between two looks
KEPT_S: Final = 60.0  # s of which the longest lag is shown: two scrapes at the usual 30 s


class LoopLag:
    """The longest lag of the last minute (s)."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._longest: deque[tuple[int, float]] = deque()  # second, longest lag that ended in it

    async def watch(self) -> None:
        """Measure until cancelled: how much later than asked a sleep ends."""
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
        """None: nothing was measured in the last minute."""
        self._forget()
        return max((lag_s for _, lag_s in self._longest), default=None)

    def _forget(self) -> None:
        while self._longest and self._longest[0][0] < self._clock_s() - KEPT_S:
            self._longest.popleft()
