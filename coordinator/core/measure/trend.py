"""How a figure moved over a run's bursts: a slope that a few bad bursts cannot tilt."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from coordinator.core.summary import Trend, figure

if TYPE_CHECKING:
    import numpy as np

BURSTS_LEAST: Final = 4  # under these a slope has no interval worth printing
POINTS_MAX: Final = 600  # beyond, neighbouring bursts are averaged: slopes go with the square
_Z95: Final = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


def trend(name: str, at_s: Sequence[float], values: Sequence[float | None]) -> Trend | None:
    """The Theil-Sen slope of ``values`` over ``at_s`` (s), with Sen's interval.

    The median of the slopes between all pairs of points (Sen, "Estimates of the regression
    coefficient based on Kendall's tau", JASA 63, 1968). With ``M1, M2 = (N -+ z sqrt(n (n - 1)
    (2 n + 5) / 18)) / 2`` the interval reaches from the M1-th to the (M2 + 1)-th of the N slopes in
    order (Gilbert, *Statistical Methods for Environmental Pollution Monitoring*, 1987, section
    16.5), each taken outwards to a whole one. None under four known bursts, or where the median is
    zero and nothing can be a share of it.
    """
    import numpy as np  # who only reads stored trends does without

    known = [(at, value) for at, value in zip(at_s, values, strict=True) if value is not None]
    count = len(known)
    if count < BURSTS_LEAST:
        return None
    points = np.array(known, dtype=np.float64)
    points = points[np.lexsort((points[:, 1], points[:, 0]))]
    level = float(np.median(points[:, 1]))
    if level == 0 or points[0, 0] == points[-1, 0]:
        return None
    if count > POINTS_MAX:
        points = np.array([part.mean(axis=0) for part in np.array_split(points, POINTS_MAX)])
    first, second = np.triu_indices(len(points), 1)
    apart_s = points[second, 0] - points[first, 0]
    distinct = apart_s > 0
    slopes = np.sort(
        (points[second, 1] - points[first, 1])[distinct] / apart_s[distinct] * 3600 / level * 100
    )
    low, high = _interval(slopes, len(points))
    return Trend(
        name=name,
        bursts_count=count,
        median=figure(level) or 0.0,
        percent_per_hour=figure(float(np.median(slopes))) or 0.0,
        low_percent_per_hour=figure(low) or 0.0,
        high_percent_per_hour=figure(high) or 0.0,
    )


def _interval(slopes: "np.ndarray", count: int) -> tuple[float, float]:
    spread = _Z95 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    total = len(slopes)
    low = max(0, math.floor((total - spread) / 2) - 1)
    high = min(total - 1, math.ceil((total + spread) / 2))
    return float(slopes[low]), float(slopes[high])
