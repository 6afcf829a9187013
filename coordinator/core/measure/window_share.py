"""Share of a test that is outside the window that all measured pairs share."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from broadside.coordinator.core.measure.align import Aligned
from broadside.coordinator.core.measure.columns import Floats
from broadside.exchange.messages import pair_name


def _outside_s(aligned: Aligned, common: tuple[int, int]) -> Floats:
    """Return how many recorded seconds are outside the window, per pair.

    Args:
        aligned: The aligned burst.
        common: The window's cells, [from, before).
    """
    span = slice(*common)
    recorded = [flow.own_coverage.sum(axis=1, dtype=np.float64) for flow in aligned.flows]
    inside = [flow.coverage[:, span].sum(axis=1, dtype=np.float64) for flow in aligned.flows]
    return np.asarray(np.maximum(0.0, np.max(np.subtract(recorded, inside), axis=0)))


def outside_ratio(aligned: Aligned, common: tuple[int, int]) -> dict[str, Floats]:
    """Return the share of recorded seconds outside the window, by field name.

    Args:
        aligned: The aligned burst.
        common: The window's cells, [from, before).

    Returns:
        An array with a value per pair. It is NaN if the pair has no seconds.
    """
    recorded = np.max([flow.own_coverage.sum(axis=1) for flow in aligned.flows], axis=0)
    share = np.full(len(recorded), np.nan)
    if not all(flow.means_only for flow in aligned.flows):
        np.divide(_outside_s(aligned, common), recorded, out=share, where=recorded > 0)
    return {"outside_ratio": share}


def most_outside(aligned: Aligned, rows: Sequence[int], common: tuple[int, int]) -> dict[str, Any]:
    """Return summary fields for the pair that has the most seconds outside the window.

    If there are only means, the result is empty. Such a mean is for the whole test and does not
    depend on the window.

    Args:
        aligned: The aligned burst.
        rows: Rows for the pairs to compare.
        common: The window's cells, [from, before).
    """
    if not rows or all(flow.means_only for flow in aligned.flows):
        return {}
    lost = _outside_s(aligned, common)
    worst = max(rows, key=lambda row: lost[row])
    pair = aligned.pairs[worst]
    if (most_s := round(float(lost[worst]))) == 0:
        return {}
    return {"outside_s": most_s, "outside_pair": pair.name or pair_name(pair.pair_index)}
