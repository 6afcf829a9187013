"""Confidence sequence for the rate of a burst, which may be looked at after every batch.

A 95 % interval is wrong in more than 5 % of the cases if it is computed repeatedly and the test
stops as soon as it excludes the limit. A confidence sequence holds at all times at once (time
uniform), so it is allowed to stop at any time (S. R. Howard, A. Ramdas, J. McAuliffe, J. Sekhon,
Annals of Statistics 49, 2021).

The sequence here contains all means that a test does not reject. The test compares two predictions
of the batch means: one for this mean, and one for other means. By Ville's inequality, the ratio of
the predictions exceeds ``1 / ALPHA`` at any time with a probability of at most ``ALPHA``, if the
mean is true.

- The scatter is unknown, so both predictions are averaged over all scatters (H. Wang and A. Ramdas,
  "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance",
  Sequential Analysis 44, 2025; T. L. Lai, Annals of Statistics 4, 1976).
- The correlation is unknown. The prediction for this mean uses the correlation that fits best, and
  the prediction for other means uses an average (L. Wasserman, A. Ramdas, S. Balakrishnan,
  "Universal inference", PNAS 117, 2020). This holds for each correlation in the list, because the
  true one cannot fit better than the best one.

docs/statistics.md has the formula with its symbols.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats

# Probability that a decision is wrong at any time, for both sides together.
ALPHA: Final = 0.02
# Seconds per batch. The length is fixed, so that it cannot depend on the values.
BATCH_S: Final = 2
# Seconds at the start that are not used, because TCP needs some seconds to reach its rate. It is
# fixed for the same reason.
SKIP_S: Final = 10
# Correlations of neighbouring batches.
_PHIS: Final = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
# Variances of the distance to the limit that the prediction for other means expects, relative to
# the variance of a batch.
_SPREADS: Final = np.array([0.1, 1.0, 10.0, 100.0])
# Smallest scatter relative to the mean, against rounding errors.
_ROUNDING_RATIO: Final = 1e-9
_STEPS_COUNT: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceSequence:
    """Confidence sequence at one time.

    Attributes:
        low: Lower end in the unit of the values.
        high: Upper end in the same unit.
    """

    low: float
    high: float


def batch_means(seconds: Floats) -> Floats:
    """Return the means of the complete batches after the first :data:`SKIP_S` seconds.

    Args:
        seconds: Values by second from the start of a burst, of shape (..., seconds).
    """
    used = seconds[..., SKIP_S:]
    count = used.shape[-1] // BATCH_S
    parts = used[..., : count * BATCH_S].reshape(*used.shape[:-1], count, BATCH_S)
    means: Floats = parts.mean(axis=-1)
    return means


def evidence_against(batches: Floats, mean: Floats | float) -> Floats:
    """Return the evidence against a mean after each batch.

    Args:
        batches: Batch means in time order, of shape (..., batches).
        mean: The mean to test, of shape () or (...).

    Returns:
        Logarithm of the ratio of the predictions, of shape (..., batches). From ``-log(ALPHA)`` on,
        the mean is rejected. It is 0 for a single batch.
    """
    off = batches - np.asarray(mean)[..., None]
    products = np.zeros_like(off)
    products[..., 1:] = np.cumsum(off[..., 1:] * off[..., :-1], axis=-1)
    return _log_ratios(
        np.arange(1, batches.shape[-1] + 1),
        off[..., :1],
        off,
        _Sums(np.cumsum(off, axis=-1), np.cumsum(off**2, axis=-1), products),
        _ROUNDING_RATIO * np.abs(batches).max(axis=-1, keepdims=True, initial=1e-300),
    )


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums of the distances from a mean: plain, squared, and products of neighbours."""

    plain: Floats
    squares: Floats
    products: Floats


def _log_ratios(
    n: NDArray[np.int_], first: Floats, last: Floats, sums: _Sums, floor: Floats | float
) -> Floats:
    """Return the logarithm of the ratio of both predictions.

    Args:
        n: Number of batches.
        first: Distance of the first batch from the mean.
        last: Distance of the last batch from the mean.
        sums: Sums over the batches.
        floor: Smallest scatter.
    """
    null = np.full(np.shape(sums.plain), -np.inf)
    other = np.full(np.shape(sums.plain), -np.inf)
    ends, inner = first + last, sums.squares - first**2 - last**2
    for phi in _PHIS:
        # Sums with the inverse correlation matrix of an AR(1) process.
        weighted = ((1 - phi) * sums.plain + phi * ends) / (1 + phi)
        information = (2 + (n - 2) * (1 - phi)) / (1 + phi)
        quadratic = (sums.squares + phi**2 * inner - 2 * phi * sums.products) / (1 - phi**2)
        weighted, information, quadratic = (
            np.where(n > 1, several, one)
            for several, one in (
                (weighted, sums.plain),
                (information, 1.0),
                (quadratic, sums.squares),
            )
        )
        quadratic = np.maximum(quadratic, n * floor**2)
        determinant = (n - 1) / 2 * np.log(1 - phi**2)
        null = np.maximum(null, -determinant - n / 2 * np.log(quadratic))
        for spread in _SPREADS:
            explained = weighted**2 / (information + 1 / spread)
            rest = np.maximum(quadratic - explained, n * floor**2)
            shrink = -np.log1p(information * spread) / 2
            other = np.logaddexp(other, shrink - determinant - n / 2 * np.log(rest))
    return np.asarray(other - np.log(len(_PHIS) * len(_SPREADS)) - null)


def certain_at_s(seconds: Floats, limit: float, least_s: float) -> Floats:
    """Return the first second at which each series is certainly above or below a limit.

    Args:
        seconds: Values by second from the start of a burst, of shape (series, seconds).
        limit: The limit, in the unit of the values.
        least_s: Shortest duration in seconds.

    Returns:
        Seconds from the start, of shape (series,). NaN if the series is not certain at its end.
    """
    ratios = evidence_against(batch_means(seconds), limit)
    ends_s = SKIP_S + BATCH_S * np.arange(1, ratios.shape[-1] + 1)
    certain = (ratios >= -np.log(ALPHA)) & (ends_s >= least_s)
    return np.where(certain.any(axis=-1), ends_s[certain.argmax(axis=-1)], np.nan)


def sequence_at_end(batches: Floats) -> ConfidenceSequence | None:
    """Return the confidence sequence after the last batch.

    Args:
        batches: Batch means in time order, of shape (batches,).

    Returns:
        The sequence. None if it has no end, for example with fewer than three batches.
    """
    if len(batches) < 3:
        return None
    count, middle = len(batches), float(batches.mean())
    off = batches - middle
    floor = _ROUNDING_RATIO * max(float(np.abs(batches).max()), 1e-300)
    # Distances from the mean of all batches, from far to near.
    reach = max(float(np.abs(batches).max()), 1e-300) * 10.0
    distances = reach * np.geomspace(1.0, 1e-13, _STEPS_COUNT)
    squares, products = float((off**2).sum()), float((off[1:] * off[:-1]).sum())
    inside = float(off[1:].sum() + off[:-1].sum())

    def is_accepted(shift: Floats) -> NDArray[np.bool_]:
        """Return which distances from the mean are not rejected."""
        sums = _Sums(
            -count * shift,
            squares + count * shift**2,
            products - inside * shift + (count - 1) * shift**2,
        )
        ratios = _log_ratios(np.array(count), off[0] - shift, off[-1] - shift, sums, floor)
        return np.asarray(ratios < -np.log(ALPHA))

    ends = []
    for side in (-1.0, 1.0):
        shift = side * distances
        accepted = np.flatnonzero(is_accepted(shift))
        if not len(accepted):
            ends.append(middle)
            continue
        if accepted[0] == 0:
            return None
        # Between two distances that differ by 8 %.
        shift = np.linspace(shift[accepted[0] - 1], shift[accepted[0]], _STEPS_COUNT)
        ends.append(middle + float(shift[np.flatnonzero(is_accepted(shift))[0] - 1]))
    return ConfidenceSequence(low=ends[0], high=ends[1])
