"""Where a curve bends: the value past which more of it hardly gives more. Pure."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

POINTS_MIN_COUNT: Final = 4  # fewer points show no bend
RISE_MIN_RATIO: Final = 0.1  # of the most, from the first point: a smaller rise is noise or none
BEND_MIN_RATIO: Final = 0.15  # of the curve's height, above the straight line from end to end
LOG_FROM_RATIO: Final = 8.0  # values that span more are read on a logarithmic scale
MORE_RATIO: Final = 1.25  # of the most over the rate at a knee near the end


def is_enough(values: Sequence[float]) -> bool:
    """Whether there are enough values, each once, for a knee to show if there is one."""
    return len(values) >= POINTS_MIN_COUNT and len(set(values)) == len(values)


def knee_index(
    values: Sequence[float], rates: Sequence[float], half_widths: Sequence[float | None] = ()
) -> int | None:
    """The index of the knee of ``rates`` over ``values``; None where there is none.

    The point that lies highest above the chord of the normalised curve (Satopaa, Albrecht, Irwin,
    Raghavan: Finding a "Kneedle" in a Haystack, ICDCS Workshops 2011, section II), values that
    span three octaves or more on a logarithmic scale. That scale flattens a knee near its end:
    where it shows none, the linear one does, if hardly more comes after it. A curve that does not
    rise has none: its first point and its most are a tenth of the most apart, and more than their
    ``half_widths`` (of 95 % intervals; an unknown one counts as none). ``values`` ascend; equal in
    length.
    """
    x, y = np.asarray(values, float), np.asarray(rates, float)
    if not is_enough(values) or not np.all(np.diff(x) > 0) or not _rises(rates, half_widths):
        return None
    if x[0] <= 0 or x[-1] / x[0] < LOG_FROM_RATIO:
        return _bend(x, y)
    index = _bend(np.log2(x), y)
    if index is None and (index := _bend(x, y)) is not None and y.max() > MORE_RATIO * y[index]:
        return None
    return index


def _rises(rates: Sequence[float], half_widths: Sequence[float | None]) -> bool:
    peak = max(range(len(rates)), key=rates.__getitem__)
    rise = rates[peak] - rates[0]
    widths = (half_widths[0] or 0.0) + (half_widths[peak] or 0.0) if half_widths else 0.0
    return rise >= RISE_MIN_RATIO * rates[peak] and rise > widths


def _bend(x: NDArray[np.float64], y: NDArray[np.float64]) -> int | None:
    # The curve ends where it peaks: what falls off behind it is a cliff, not a knee.
    end = int(y.argmax())
    if end == 0 or y[end] <= y[0]:
        return None
    x, y = (x - x[0]) / (x[-1] - x[0]), (y - y[0]) / (y[end] - y[0])
    above = (y - x)[: end + 1]
    index = int(above.argmax())
    return index if above[index] >= BEND_MIN_RATIO else None
