"""Counted and predicted bytes of one burst in the device counter."""

from dataclasses import dataclass

from broadside.coordinator.core.measure.columns import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class BinSums:
    """Bytes of a burst in each bin, in time order.

    Attributes:
        ledger: Counted bytes.
        fleet: Predicted payload, in bytes.
        width: Bin length, in s.
        placed: Predicted payload at each trial lag in the lag interval, shape (bins, lags).
        earlier: Predicted payload if the fleet sent earlier by the remaining time error.
        later: Predicted payload if the fleet sent later by the remaining time error.
    """

    ledger: Floats
    fleet: Floats
    width: Floats
    placed: Floats
    earlier: Floats
    later: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstShare:
    """Bytes of one burst in the device counter, with the idle level included.

    The sums include every bin that the burst may have touched.

    Attributes:
        total_bytes: Fleet payload in the burst, including payload outside known bins.
        fleet_bytes: Fleet payload in the bins that are used.
        ledger_bytes: Counted bytes in these bins. If bursts share a bin, it is divided by their
            payload.
        beside_bytes: Bytes of other runs that were subtracted from these bins.
        width_s: Total length of these bins.
        bins_count: Number of bins with bytes of the burst.
        moved: The same sums at both ends of the lag interval.
        unseen_bytes: Bytes that unseen pairs of other bursts may have added to these bins.
        tail_bytes: Bytes that were sent but that no receiver counted, because they were in flight
            at the end.
        near_bytes_per_s: Rate of other traffic above the idle level, beside the burst. It may have
            continued during the burst.
        parts: Bins that are used.
        full: Bins that are completely inside the steady window.
        fleet_bytes_per_s: Payload rate in the steady window.
    """

    total_bytes: float
    fleet_bytes: float
    ledger_bytes: float
    beside_bytes: float
    width_s: float
    bins_count: int
    moved: tuple["MovedShare", "MovedShare"]
    unseen_bytes: float
    tail_bytes: float
    near_bytes_per_s: float
    parts: BinSums
    full: BinSums
    fleet_bytes_per_s: float

    def unsure_ratio(self, level: float) -> float:
        """Return how much the residual can change within the lag interval.

        Args:
            level: Idle level, in bytes/s.

        Returns:
            The largest relative change. 0 if no bytes above the idle level were counted, or if none
            were predicted.
        """
        net = self.ledger_bytes - level * self.width_s
        if net <= 0 or self.fleet_bytes <= 0:
            return 0.0
        ends = [each for each in self.moved if each.fleet_bytes > 0]
        return max(
            (
                abs(
                    (each.ledger_bytes - level * each.width_s)
                    / each.fleet_bytes
                    * self.fleet_bytes
                    / net
                    - 1
                )
                for each in ends
            ),
            default=0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedShare:
    """Bytes of a burst in the device counter at a different lag.

    Attributes:
        ledger_bytes: Counted bytes, with the idle level included.
        fleet_bytes: Fleet payload.
        width_s: Total bin length.
    """

    ledger_bytes: float
    fleet_bytes: float
    width_s: float
