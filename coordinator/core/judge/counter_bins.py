"""Bins of a device counter, and cumulative curves for the fleet bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.evidence import FirewallLedger

# A device cannot have a higher rate in bit/s. A higher value shows that the counter wrapped.
BITS_PER_SECOND_MAX: Final = 1e15


class Traffic(Protocol):
    """Payload for each second on the UTC grid, starting at ``start_s`` (epoch s)."""

    @property
    def start_s(self) -> int: ...
    @property
    def received_bytes(self) -> Floats: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Cumulative bytes over time, linear between the knots and constant outside them.

    Attributes:
        at_s: Times of the knots, increasing (epoch s).
        total_bytes: Cumulative bytes at the knots.
    """

    at_s: Floats
    total_bytes: Floats

    def between(self, start_s: Floats, end_s: Floats) -> Floats:
        """Return how many bytes are in each interval.

        Args:
            start_s: Start of the intervals (epoch s).
            end_s: End of the intervals (epoch s), same shape.
        """
        return np.interp(end_s, self.at_s, self.total_bytes) - np.interp(
            start_s, self.at_s, self.total_bytes
        )


def fleet_curve(bursts: Sequence[Traffic]) -> Curve:
    """Return one cumulative curve for all bursts, which may overlap and be in any order."""
    seconds = np.concatenate(
        [burst.start_s + np.arange(len(burst.received_bytes)) for burst in bursts]
    )
    amounts = np.concatenate([countable(burst.received_bytes) for burst in bursts])
    return seconds_curve(seconds, amounts)


def countable(amounts: Floats) -> Floats:
    """Replace unknown, negative and infinite numbers of bytes by 0."""
    return np.maximum(0.0, np.nan_to_num(amounts, nan=0.0, posinf=0.0, neginf=0.0))


def seconds_curve(seconds: Floats, amounts: Floats) -> Curve:
    """Return a cumulative curve for bytes in whole seconds.

    Args:
        seconds: Start of each second (epoch s). A second can occur several times.
        amounts: Bytes in each second.
    """
    unique, place = np.unique(seconds, return_inverse=True)
    summed = np.bincount(place, weights=amounts, minlength=len(unique))
    knots = np.empty(2 * len(unique))
    knots[0::2], knots[1::2] = unique, unique + 1
    totals = np.zeros(2 * len(unique))
    totals[1::2] = np.cumsum(summed)
    totals[2::2] = totals[1:-1:2]
    return Curve(at_s=knots, total_bytes=totals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Readable bins of a device counter, in time order and without overlap.

    Attributes:
        start_s: Start of the bins (epoch s).
        end_s: End of the bins (epoch s).
        bytes: Counted bytes.
        rejected_count: Number of bins with impossible values, for example negative, infinite or
            reversed.
    """

    start_s: Floats
    end_s: Floats
    bytes: Floats
    rejected_count: int = 0

    @property
    def width_s(self) -> Floats:
        return self.end_s - self.start_s

    def __len__(self) -> int:
        return len(self.start_s)

    def pick(self, chosen: NDArray[np.bool_]) -> "Bins":
        return Bins(
            start_s=self.start_s[chosen], end_s=self.end_s[chosen], bytes=self.bytes[chosen]
        )


def readable(ledger: FirewallLedger) -> Bins:
    """Return the usable bins of a counter.

    Unknown and impossible bins are skipped. The impossible ones are counted.
    """
    start, end, seen = ledger.start_s, ledger.end_s, ledger.bytes
    order = np.argsort(start, kind="stable")
    start, end, seen = start[order], end[order], seen[order]
    with np.errstate(invalid="ignore"):
        placed = np.isfinite(start) & np.isfinite(end) & (end > start)
        possible = (seen >= 0) & (seen * 8 <= BITS_PER_SECOND_MAX * (end - start))
        reached = np.fmax.accumulate(np.where(placed, end, -np.inf))
        apart = np.ones(len(start), np.bool_)
        apart[1:] = start[1:] >= reached[:-1] - 1e-6
    known = placed & possible & apart
    rejected = int((~np.isnan(seen) & ~known).sum())
    return Bins(start_s=start[known], end_s=end[known], bytes=seen[known], rejected_count=rejected)
