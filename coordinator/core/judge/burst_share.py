"""One burst in the device counter: its bins, counted and predicted."""

from dataclasses import dataclass

from broadside.coordinator.core.measure.columns import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class BinSums:
    """Bin by bin, in order."""

    ledger: Floats  # bytes
    fleet: Floats  # payload
    width: Floats  # s
    placed: Floats  # payload at the lags of the lag's interval; shape (bins, lags)
    earlier: Floats  # payload, were the fleet earlier by what the rest of its place is uncertain
    later: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstShare:
    """One burst's part in the ledger, the idle level still in it: over every bin that it may have
    touched, and over those that lie wholly in its steady window."""

    total_bytes: float  # fleet payload of the burst, wherever it falls
    fleet_bytes: float  # of it, in bins that count
    ledger_bytes: float  # the ledger's in those bins; a shared bin's by expected share
    beside_bytes: float  # neighbours' that were taken off those bins
    width_s: float
    bins_count: int  # that hold any of the burst
    moved: tuple["MovedShare", "MovedShare"]  # the same at either end of the lag's interval
    unseen_bytes: float  # what other bursts' unseen pairs may have added, at most
    tail_bytes: float  # sent and never counted by a receiver: on the way when the test ended
    # Over the idle level, that bins right beside the burst show and that may have run during it
    near_bytes_per_s: float
    parts: BinSums  # of the bins that count
    full: BinSums  # of those in the steady window
    fleet_bytes_per_s: float  # in the steady window

    def unsure_ratio(self, level: float) -> float:
        """How far the residual moves over the lag's interval, beside an idle level."""
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
    """A burst's part in the ledger, were the lag another."""

    ledger_bytes: float
    fleet_bytes: float
    width_s: float
