"""Where a curve bends: the value past which more of it hardly gives more. Pure."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

POINTS_MIN_COUNT: Final = 4  # fewer points show no bend
BEND_MIN_RATIO: Final = 0.15  # of the curve's height, above the straight line from end to end
LOG_FROM_RATIO: Final = 8.0  # values that span more are read on a logarithmic scale
MORE_RATIO: Final = 1.25  # of the most over the rate at a knee near the end


def knee_index(values: Sequence[float], rates: Sequence[float]) -> int | None:
    """The index of the knee of ``rates`` over ``values``; None where there is none.

    The point that lies highest above the chord of the normalised curve (Satopaa, Albrecht, Irwin,
    Raghavan: Finding a "Kneedle" in a Haystack, ICDCS Workshops 2011, section II), values that
    span three octaves or more on a logarithmic scale. That scale flattens a knee near its end:
    where it shows none, the linear one does, if hardly more comes after it. ``values`` ascend;
    equal in length.
    """
    x, y = np.asarray(values, float), np.asarray(rates, float)
    if len(x) < POINTS_MIN_COUNT or not np.all(np.diff(x) > 0):
        return None
    if x[0] <= 0 or x[-1] / x[0] < LOG_FROM_RATIO:
        return _bend(x, y)
    index = _bend(np.log2(x), y)
    if index is None and (index := _bend(x, y)) is not None and y.max() > MORE_RATIO * y[index]:
        return None
    return index


def _bend(x: NDArray[np.float64], y: NDArray[np.float64]) -> int | None:
    # The curve ends where it peaks: what falls off behind it is a cliff, not a knee.
    end = int(y.argmax())
    if end == 0 or y[end] <= y[0]:
        return None
    x, y = (x - x[0]) / (x[-1] - x[0]), (y - y[0]) / (y[end] - y[0])
    above = (y - x)[: end + 1]
    index = int(above.argmax())
    return index if above[index] >= BEND_MIN_RATIO else None
