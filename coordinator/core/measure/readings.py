"""Reading length for either end."""

import math

from broadside.coordinator.core.measure.columns import TrackColumns


def reading_of(track: TrackColumns) -> float:
    """Return a track's mean reading length in seconds, weighted by bytes.

    The result is NaN if there are no rows.
    """
    length_s = track.end_s - track.start_s
    total = float(track.transferred_bytes.sum())
    if total > 0:
        return float(length_s @ track.transferred_bytes) / total
    return float(length_s.max(initial=0.0)) or math.nan
