"""Epoch times as systems write them: seconds, or a thousandth, millionth or billionth of one."""

from typing import Final

# The year 5138 in seconds is the year 1973 in milliseconds, and so on: no time is meant both ways.
_FINER_FROM: Final = 1e11
_STEP: Final = 1e3


def epoch_seconds(value: float) -> float:
    """Return an epoch time in seconds, whichever unit it was written in.

    Grafana, Azure and Java write milliseconds, InfluxDB nanoseconds.
    """
    for _ in range(3):
        if abs(value) < _FINER_FROM:
            break
        value /= _STEP
    return value
