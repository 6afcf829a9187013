"""Division of interval values into cells, in proportion to the overlap time."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats

# Seconds. If the overlap is smaller, an interval does not reach a cell.
TOUCH_S: Final = 1e-6


class OverlapResampler:
    """Resampler that divides interval values into cells, in proportion to the overlap time.

    Intervals need to be sorted and must not overlap. There is one more element in ``edges`` than
    there are cells. To get the cells, cumulative values are interpolated linearly at the edges and
    then subtracted. So values within ``edges`` are conserved.

    To process several tracks at once, append their intervals to each other and set ``counts`` to
    the number of intervals in each track. Then the cells have shape (tracks, cells).

    Attributes:
        coverage: Covered time in each cell, in seconds.
    """

    def __init__(
        self, start_s: Floats, end_s: Floats, edges: Floats, counts: Sequence[int] | None = None
    ) -> None:
        self._length_s = end_s - start_s
        self._flat = counts is None
        self._place, begins_s = _places(start_s, edges, counts or [len(start_s)])
        inside = edges - begins_s
        inside /= self._length_s.take(self._place)
        np.minimum(inside, 1.0, out=inside)
        self._inside = np.maximum(inside, 0.0, out=inside)
        self.coverage = self.over(self._length_s)

    def over(self, amount: NDArray[np.floating]) -> Floats:
        """Divide ``amount``, which has one value per interval, into cells."""
        total = np.cumsum(amount, dtype=np.float64) - amount
        at_edges: Floats = total.take(self._place)
        at_edges += amount.take(self._place) * self._inside
        cells = at_edges[:, 1:] - at_edges[:, :-1]
        return cells[0] if self._flat else cells

    def covered_values(self, amount: NDArray[np.floating]) -> Floats:
        """Divide ``amount`` into cells, with NaN when no interval reaches a cell."""
        return np.where(self.coverage > TOUCH_S, self.over(amount), np.nan)

    def mean(self, values: NDArray[np.floating]) -> Floats:
        """Return the mean value per cell, weighted by overlap, with NaN if unknown."""
        weighted, known = self._known(values, values * self._length_s)
        cells = np.full(known.shape, np.nan)
        np.divide(weighted, known, out=cells, where=known > TOUCH_S)
        return cells

    def share(self, counts: NDArray[np.floating]) -> Floats:
        """Divide counts into cells, with NaN where no interval with a known count reaches."""
        cells, known = self._known(counts, counts)
        cells[known <= TOUCH_S] = np.nan
        return cells

    def _known(
        self, values: NDArray[np.floating], amount: NDArray[np.floating]
    ) -> tuple[Floats, Floats]:
        """Return cell values using only known intervals, and the seconds that these cover."""
        unknown = np.isnan(values)
        if not unknown.any():
            return self.over(amount), self.coverage
        return (
            self.over(np.where(unknown, 0.0, amount)),
            self.over(np.where(unknown, 0.0, self._length_s)),
        )


def _places(
    start_s: Floats, edges: Floats, counts: Sequence[int]
) -> tuple[NDArray[np.intp], Floats]:
    """Return the last interval that starts at or before each edge, and its start time.

    If there is none, it will be the track's first interval. Both arrays have shape (tracks, edges).
    """
    counted = np.asarray(counts, np.intp)[:, None]
    last = np.cumsum(counted)[:, None] - 1
    first = last - counted + 1
    following_s = np.append(start_s[1:], np.inf)
    following_s[last] = np.inf
    # Most intervals have the same length, so we can compute their position. We only need to search
    # when an interval is not at this position or next to it.
    begun_s = start_s[first]
    step_s = np.maximum((start_s[last] - begun_s) / np.maximum(counted - 1, 1), 1e-9)
    guess = edges - begun_s
    guess /= step_s
    np.maximum(guess, 0, out=guess)
    np.minimum(guess, counted - 1, out=guess)
    place = guess.astype(np.intp)
    place += first
    begins_s = start_s.take(place)
    later = begins_s > edges
    later &= place > first
    earlier = following_s.take(place) <= edges
    beside = np.flatnonzero(later | earlier)
    if not len(beside):
        return place, begins_s
    tracks, columns = np.divmod(beside, len(edges))
    moved = place.take(beside) + earlier.take(beside) - later.take(beside)
    result_s, edges_s = start_s.take(moved), edges.take(columns)
    place[tracks, columns], begins_s[tracks, columns] = moved, result_s
    wrong = (result_s > edges_s) & (moved > first[tracks, 0])
    wrong |= following_s.take(moved) <= edges_s
    for track in set(tracks[wrong].tolist()):
        mine = slice(int(first[track, 0]), int(last[track, 0]) + 1)
        results = np.searchsorted(start_s[mine], edges, side="right") - 1
        place[track] = mine.start + np.maximum(results, 0)
        begins_s[track] = start_s[place[track]]
    return place, begins_s
