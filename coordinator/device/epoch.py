"""Conversion of epoch times in seconds, milliseconds, microseconds or nanoseconds."""

from typing import Final

# 1e11 is the year 5138 in seconds and the year 1973 in milliseconds. The same gap exists between
# the finer units, so no realistic time is ambiguous.
_FINER_FROM: Final = 1e11
_STEP: Final = 1e3


def epoch_seconds(value: float) -> float:
    """Return an epoch time in seconds and detect its unit from its size.

    Grafana, Azure and Java write milliseconds. InfluxDB writes nanoseconds.
    """
    for _ in range(3):
        if abs(value) < _FINER_FROM:
            break
        value /= _STEP
    return value
