"""Rate of drops in the device counter, during a window and between bursts."""

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
    """Return the rate of drops in a window and while no burst runs, in packets/s.

    Args:
        ledger: Device counter with its bins.
        window: Window of the burst.
        lag_s: Counter lag. None if it is unknown, then 0 is used.
        busy: Start and end of every burst of the run.

    Returns:
        Both rates. The second one is None if there is no bin without a burst. The whole result is
        None if the source does not count drops, or if no bin is completely inside the window.
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
