"""Share of each test that lies outside the seconds that all measured pairs have in common."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from broadside.coordinator.core.measure.align import Aligned
from broadside.coordinator.core.measure.columns import Floats
from broadside.exchange.messages import pair_name


def _outside_s(aligned: Aligned, common: tuple[int, int]) -> Floats:
    """Return each pair's recorded seconds of its planned test that lie outside a window.

    Args:
        aligned: The aligned burst.
        common: The window's cells, [from, before).
    """
    span = slice(*common)
    recorded = [flow.own_coverage.sum(axis=1, dtype=np.float64) for flow in aligned.flows]
    inside = [flow.coverage[:, span].sum(axis=1, dtype=np.float64) for flow in aligned.flows]
    return np.asarray(np.maximum(0.0, np.max(np.subtract(recorded, inside), axis=0)))


def outside_ratio(aligned: Aligned, common: tuple[int, int]) -> dict[str, Floats]:
    """The share of each pair's recorded seconds outside the window, by its field; NaN: none."""
    recorded = np.max([flow.own_coverage.sum(axis=1) for flow in aligned.flows], axis=0)
    share = np.full(len(recorded), np.nan)
    if not all(flow.means_only for flow in aligned.flows):
        np.divide(_outside_s(aligned, common), recorded, out=share, where=recorded > 0)
    return {"outside_ratio": share}


def most_outside(aligned: Aligned, rows: Sequence[int], common: tuple[int, int]) -> dict[str, Any]:
    """Fields of the pair with the most seconds outside the window.

    A mean without seconds is a mean of the whole test, wherever the window lies.
    """
    if not rows or all(flow.means_only for flow in aligned.flows):
        return {}
    lost = _outside_s(aligned, common)
    worst = max(rows, key=lambda row: lost[row])
    pair = aligned.pairs[worst]
    if (most_s := round(float(lost[worst]))) == 0:
        return {}
    return {"outside_s": most_s, "outside_pair": pair.name or pair_name(pair.pair_index)}
