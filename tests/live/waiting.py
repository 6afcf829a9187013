"""How tests wait for what is outside of them: soon told, and never at the cost of it."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE_S: Final = 60.0
_PAUSE_S: Final = (0.05, 2.0)
_SHARE: Final = 6  # times as long as a look took, for some take a whole process: the pause after it


def wait_for(
    what: str, check: Callable[[], Any], timeout_s: float = PATIENCE_S, *, pause_s: float = 0.0
) -> Any:
    """The first true answer of ``check``; fails with ``what`` when there is none in time.

    ``pause_s`` is the least time between two looks, where each costs another process as much.
    """
    end_s = time.monotonic() + timeout_s
    while (began_s := time.monotonic()) < end_s:
        if answer := check():
            return answer
        time.sleep(max(pause_s, _pause_s(began_s)))
    raise AssertionError(f"not within {timeout_s:g} s: {what}")


async def until(what: str, check: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """As :func:`wait_for`, while the event loop goes on."""
    end_s = time.monotonic() + timeout_s
    while (began_s := time.monotonic()) < end_s:
        if answer := check():
            return answer
        await asyncio.sleep(_pause_s(began_s))
    raise AssertionError(f"not within {timeout_s:g} s: {what}")


def _pause_s(began_s: float) -> float:
    least_s, most_s = _PAUSE_S
    return min(most_s, max(least_s, _SHARE * (time.monotonic() - began_s)))
