"""Shares intervals' amounts out over cells by the time that they overlap."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.measure.columns import Floats

TOUCH_S: Final = 1e-6  # s of a cell below which an interval does not reach it


class Spread:
    """Shares intervals' amounts out over cells by the time that they overlap.

    Intervals are sorted and disjoint; ``edges`` has one more element than there are cells.
    Cumulative amounts are interpolated linearly at the edges and differenced, so amounts that lie
    within ``edges`` are conserved. Tracks that lie end to end, each with its count of intervals in
    ``counts``, are done at once: cells then have the shape (tracks, cells).
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
        self.coverage = self.over(self._length_s)  # seconds of each cell that intervals cover

    def over(self, amount: NDArray[np.floating]) -> Floats:
        """The cells' parts of ``amount``, one value an interval."""
        total = np.cumsum(amount, dtype=np.float64) - amount
        at_edges: Floats = total.take(self._place)
        at_edges += amount.take(self._place) * self._inside
        cells = at_edges[:, 1:] - at_edges[:, :-1]
        return cells[0] if self._flat else cells

    def where_covered(self, amount: NDArray[np.floating]) -> Floats:
        """The same, NaN where no interval reaches."""
        return np.where(self.coverage > TOUCH_S, self.over(amount), np.nan)

    def mean(self, values: NDArray[np.floating]) -> Floats:
        """Mean of the values over each cell, weighted by overlap; NaN where none is known."""
        weighted, known = self._known(values, values * self._length_s)
        cells = np.full(known.shape, np.nan)
        np.divide(weighted, known, out=cells, where=known > TOUCH_S)
        return cells

    def share(self, counts: NDArray[np.floating]) -> Floats:
        """Counts shared out; NaN where no interval with a known count reaches."""
        cells, known = self._known(counts, counts)
        cells[known <= TOUCH_S] = np.nan
        return cells

    def _known(
        self, values: NDArray[np.floating], amount: NDArray[np.floating]
    ) -> tuple[Floats, Floats]:
        """Amounts of the intervals whose value is known, and the seconds that those cover."""
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
    """Of each track and edge the last interval that begins by then, or where none does the track's
    first one; and when that begins. Shape (tracks, edges)."""
    counted = np.asarray(counts, np.intp)[:, None]
    last = np.cumsum(counted)[:, None] - 1
    first = last - counted + 1
    following_s = np.append(start_s[1:], np.inf)
    following_s[last] = np.inf
    # Most intervals are of one length: what is not beside where that puts it is searched for.
    begun_s = start_s[first]
    each_s = np.maximum((start_s[last] - begun_s) / np.maximum(counted - 1, 1), 1e-9)
    guess = edges - begun_s
    guess /= each_s
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
    found_s, edges_s = start_s.take(moved), edges.take(columns)
    place[tracks, columns], begins_s[tracks, columns] = moved, found_s
    wrong = (found_s > edges_s) & (moved > first[tracks, 0])
    wrong |= following_s.take(moved) <= edges_s
    for track in set(tracks[wrong].tolist()):
        mine = slice(int(first[track, 0]), int(last[track, 0]) + 1)
        found = np.searchsorted(start_s[mine], edges, side="right") - 1
        place[track] = mine.start + np.maximum(found, 0)
        begins_s[track] = start_s[place[track]]
    return place, begins_s
