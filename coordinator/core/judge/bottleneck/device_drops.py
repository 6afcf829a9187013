"""Drops that the source of the device counter counted, in a burst's window and beside bursts."""

from collections.abc import Sequence
from datetime import datetime

import numpy as np

from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.summary import Window


def drops_per_second(
    ledger: FirewallLedger | None,
    window: Window | None,
    lag_s: float | None,
    busy: Sequence[tuple[datetime, datetime]],
) -> tuple[float, float | None] | None:
    """Return the rate of drops in the window and beside all bursts, packets/s.

    Args:
        ledger: The device counter with its bins.
        window: The burst's window.
        lag_s: The counter's lag; None: unknown, taken as 0.
        busy: Start and end of every burst of the run.

    Returns:
        In the window; and while no burst runs, None where no bin is quiet. None where the source
        counts no drops, or no whole bin lies in the window.
    """
    if ledger is None or window is None or ledger.drops_count is None:
        return None
    if len(ledger.drops_count) != len(ledger):
        return None
    start_s, end_s = ledger.start_s - (lag_s or 0.0), ledger.end_s - (lag_s or 0.0)
    known = np.isfinite(ledger.drops_count)
    inside = (start_s >= window.start_at.timestamp()) & (end_s <= window.end_at.timestamp()) & known
    if not inside.any():
        return None
    quiet = known.copy()
    for from_at, to_at in busy:
        quiet &= (end_s <= from_at.timestamp()) | (start_s >= to_at.timestamp() + ledger.grain_s)

    def rate(chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
        return float(ledger.drops_count[chosen].sum() / (end_s - start_s)[chosen].sum())  # type: ignore[index]  # is not None: see above

    return rate(inside), rate(quiet) if quiet.any() else None
