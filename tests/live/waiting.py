"""Wait for external conditions, with short delays and little CPU time."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE_S: Final = 60.0
_PAUSE_S: Final = (0.05, 2.0)
# Use a pause of this many times the duration of a check, because some checks start a process.
PAUSE_FACTOR: Final = 6


def wait_for(
    description: str,
    check: Callable[[], Any],
    timeout_s: float = PATIENCE_S,
    *,
    pause_s: float = 0.0,
) -> Any:
    """Return the first true result of ``check``, or fail with ``description`` after ``timeout_s``.

    Use ``pause_s`` to set the minimum time between two checks if they load another process.
    """
    end_s = time.monotonic() + timeout_s
    while (began_s := time.monotonic()) < end_s:
        if answer := check():
            return answer
        time.sleep(max(pause_s, _pause_s(began_s)))
    raise AssertionError(f"not within {timeout_s:g} s: {description}")


async def until(description: str, check: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """Wait like :func:`wait_for` without blocking the event loop."""
    end_s = time.monotonic() + timeout_s
    while (began_s := time.monotonic()) < end_s:
        if answer := check():
            return answer
        await asyncio.sleep(_pause_s(began_s))
    raise AssertionError(f"not within {timeout_s:g} s: {description}")


def _pause_s(began_s: float) -> float:
    least_s, most_s = _PAUSE_S
    return min(most_s, max(least_s, PAUSE_FACTOR * (time.monotonic() - began_s)))
