"""Comparison of the bytes that a device counted with the predicted bytes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from broadside.coordinator.core.judge.burst_share import BurstShare
from broadside.coordinator.core.judge.counter_factor import CounterFactor, ExtraBytes
from broadside.coordinator.core.judge.idle_level import IdleLevel
from broadside.coordinator.core.judge.lag import Lag
from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.measure.headers import OVERHEAD_LESS_RATIO, OVERHEAD_MORE_RATIO
from broadside.coordinator.core.measure.steady import t95

# The scatter between bins is estimated from this number of bins or more.
NOISE_BINS_MIN: Final = 5
# Bins with a lower rate, relative to the busiest bin, are not used for the scatter. Bins at the
# edges of a burst show the error of the lag instead.
HALF_FULL_RATIO: Final = 0.5
# The scatter between bursts is estimated from this number of bursts or more.
SCATTER_BURSTS_MIN: Final = 3
# With this number of bursts or more, outliers can be detected.
ODD_BURSTS_MIN: Final = 4
# The 95 % half width of a bin if there are too few bins to estimate it. In the published metric of
# the original test, full bins scatter by 1.3 %. A part of this, 0.6 %, is the error from reading
# its chart.
NOISE_ASSUMED_RATIO: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Values that are the same for all bursts of a reconciliation.

    Attributes:
        ledger: Device counter.
        lag: Counter lag.
        overhead: Counted bytes per payload byte.
        idle: Level of other traffic. None if it is unknown.
        rejected_count: Number of bins with impossible values.
        clock_bound_s: Largest clock error of the hosts.
        neighbours: Ids of other runs with traffic through the same device.
        bypassed: True if the run must not cross the device.
        datagrams: True for UDP.
        busy_bytes: Bytes in the whole counter above its usual level.
        sent_bytes: Payload of all bursts.
        lags_scale: Counted bytes per payload byte if the lag is unknown, else 0.
    """

    ledger: FirewallLedger
    lag: Lag
    overhead: CounterFactor
    idle: IdleLevel | None
    rejected_count: int
    clock_bound_s: float
    neighbours: tuple[str, ...]
    bypassed: bool
    datagrams: bool
    busy_bytes: float
    sent_bytes: float
    lags_scale: float = 0.0


def scatter_of_bursts(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the scatter between the counted ratios of the bursts.

    With four bursts or more the scatter of one burst is estimated with the median absolute
    deviation. An outlier then does not hide itself.

    Args:
        ratios: Counted bytes divided by payload, for each burst.

    Returns:
        Relative 95 % half widths for the mean of all bursts and for a single burst. Both are NaN if
        there are fewer than three bursts.
    """
    count = len(ratios)
    if count < SCATTER_BURSTS_MIN:
        return math.nan, math.nan
    array = np.array(ratios)
    # If the device was bypassed, the mean is near 0 and is no useful scale. One byte of payload is
    # counted as one byte or more.
    size = max(1.0, abs(float(array.mean()))) / t95(count - 1)
    spread = float(array.std(ddof=1))
    if count >= ODD_BURSTS_MIN:
        spread = 1.4826 * float(np.median(np.abs(array - np.median(array))))
    return (
        float(array.std(ddof=1)) / math.sqrt(count) / size,
        spread / size,
    )


def _bins_noise(net: Floats, fleet: Floats, width: Floats, *, trades: bool) -> float:
    """Return the relative 95 % half width for the sum of bins, or NaN for too few bins.

    It is estimated from the scatter of all bins with at least half the rate of the busiest bin.

    If all bins of a burst are summed (``trades``), bytes that move to a neighbouring bin do not
    change the sum. The first autocovariance, which is negative for such bins, is then added to the
    variance. The result is never less than the variance of one bin, for the outer edges of the two
    outer bins. Bins beside a bin that is not busy are left out if there are enough without them.
    They add only the bytes that they gained or lost in total.
    """
    busy = fleet > HALF_FULL_RATIO * width * float((fleet / width).max(initial=0.0))
    edges = np.zeros(len(net), np.bool_)
    if trades:
        walled = np.concatenate(([False], busy, [False]))
        inside = busy & walled[:-2] & walled[2:]
        if inside.sum() >= NOISE_BINS_MIN:
            busy, edges = inside, ~inside
    count = int(busy.sum())
    if count < NOISE_BINS_MIN:
        return math.nan
    scale = float(net[busy].sum() / fleet[busy].sum())
    off = net[busy] / fleet[busy] - scale
    alone = float((off**2).sum()) * count / (count - 1)
    traded = 2 * float((off[1:] * off[:-1]).sum()) if trades else 0.0
    error = math.sqrt(max(alone + traded, alone / count)) / count
    kept = float((net - scale * fleet)[edges].sum() / fleet.sum())
    return math.hypot(error * t95(count - 1), kept) / max(1.0, scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Counted bytes of a burst or run, compared with the predicted bytes.

    Attributes:
        basis: Bins that were used. ``rate`` for full bins in the window, ``bytes`` for all bins.
        ledger_bytes: Counted bytes without the idle level.
        expected_bytes: Predicted bytes.
        residual_ratio: Counted bytes divided by predicted bytes, minus 1.
        below_ratio: Distance from the residual to the lower end of its 95 % interval.
        above_ratio: Distance from the residual to the upper end.
        extra_ratio: Part of ``below_ratio`` for bytes other than payload and headers.
        between_ratio: Uncertainty without the errors that all bursts of the run share.
        unheard_ratio: Part of the bytes that may have been missed by all receivers.
    """

    basis: Literal["rate", "bytes"]
    ledger_bytes: float
    expected_bytes: float
    residual_ratio: float
    below_ratio: float
    above_ratio: float
    extra_ratio: float
    between_ratio: float
    unheard_ratio: float

    @property
    def uncertainty_ratio(self) -> float:
        """Larger distance from the residual to an end of its interval."""
        return max(self.below_ratio, self.above_ratio)

    @property
    def noise_ratio(self) -> float:
        """Same as ``uncertainty_ratio``, but without the part for extra bytes."""
        return max(self.below_ratio - self.extra_ratio, self.above_ratio)


def compare_bytes(
    held: RunComparison,
    share: BurstShare,
    extra: ExtraBytes,
    idle_ends: tuple[float, float],
    scatter_ratio: float,
) -> list[Comparison]:
    """Compare the bytes of all bins, and of the full bins if there are enough.

    All bins together also include bytes that were in flight when the receivers stopped. These
    bytes are at most the difference of sent and received bytes. Half of this difference is added to
    the prediction.

    Full bins do not have this error, but there are fewer of them. A lag that changes during the
    burst moves all of them in the same direction. The caller uses them only if they agree with all
    bytes.

    Args:
        held: Values for all bursts.
        share: Bytes of the burst in the counter.
        extra: Bytes that may be counted in addition to payload and headers.
        idle_ends: Idle level uncertainty below and above it, in bytes/s.
        scatter_ratio: Relative half width from the scatter between bursts. NaN if unknown.

    Returns:
        The comparison of all bins, then the one of full bins if available.
    """
    found = [_compared(held, share, extra, idle_ends, scatter_ratio, rate=False)]
    if len(share.full.fleet) >= NOISE_BINS_MIN:
        found.append(_compared(held, share, extra, idle_ends, scatter_ratio, rate=True))
    return found


def _compared(
    held: RunComparison,
    share: BurstShare,
    extra: ExtraBytes,
    idle_ends: tuple[float, float],
    scatter_ratio: float,
    *,
    rate: bool,
) -> Comparison:
    overhead = held.overhead
    level = 0.0 if held.idle is None else held.idle.bytes_per_s
    # UDP bytes that were not received are lost and not in flight.
    half_tail = 0.0 if held.datagrams else share.tail_bytes / share.total_bytes / 2
    parts = share.full if rate else share.parts
    width = float(parts.width.sum())
    fleet = float(parts.fleet.sum()) * (1 if rate else 1 + half_tail)
    expected = fleet * overhead.ratio * (1 + extra.low_ratio)
    net = parts.ledger - level * parts.width
    crossed = float(net.sum()) / expected
    unheard = 0.0 if rate else math.hypot(share.unseen_bytes / share.fleet_bytes, half_tail)
    unsure = math.hypot(
        _noise(net, share, scatter_ratio, rate=rate),
        held.clock_bound_s / max(1.0, width),
        0.0 if rate else share.unsure_ratio(level),
        unheard,
    )
    # In a reference run, errors that are proportional to the crossing bytes are reduced with these
    # bytes. The errors of the idle level and of other runs are not reduced.
    shrinks = min(1.0, abs(crossed)) if held.bypassed else 1.0
    # Packets in other runs can have any size (see OVERHEAD_LESS_RATIO).
    beside = share.beside_bytes / share.fleet_bytes
    below, above = (
        math.hypot(unsure, each) * shrinks for each in (overhead.more_ratio, overhead.less_ratio)
    )
    layer = overhead.layer_ratio * shrinks
    idle_below, idle_above = (each * width / expected for each in idle_ends)
    lasting = share.near_bytes_per_s * width / expected - idle_above
    lasting = 0.0 if held.bypassed else max(0.0, lasting)
    shared = held.idle is not None and held.idle.how != "quiet"
    residual, surplus = _residual(crossed, extra, bypassed=held.bypassed)
    return Comparison(
        basis="rate" if rate else "bytes",
        ledger_bytes=float(net.sum()),
        expected_bytes=expected,
        residual_ratio=residual,
        below_ratio=math.hypot(below, idle_above, beside * OVERHEAD_MORE_RATIO)
        + overhead.layer_low_ratio * shrinks
        + lasting
        + surplus,
        above_ratio=math.hypot(above, idle_below, beside * OVERHEAD_LESS_RATIO) + layer,
        extra_ratio=surplus,
        between_ratio=math.hypot(
            unsure,
            overhead.between_ratio,
            0.0 if shared else max(idle_below, idle_above),
            beside * OVERHEAD_MORE_RATIO,
        ),
        unheard_ratio=unheard,
    )


def _residual(crossed: float, extra: ExtraBytes, *, bypassed: bool) -> tuple[float, float]:
    """Return the residual and the change of its lower end for all extra bytes.

    A surplus that extra bytes can explain is not part of the residual. A deficit is compared with
    the lowest number of bytes that the counter may include. Its lower end is compared with the
    highest number.
    """
    most = (1 + extra.high_ratio) / (1 + extra.low_ratio)
    if bypassed:
        return crossed, crossed - crossed / most
    residual = crossed - min(max(crossed, 1.0), most)
    return residual, residual - (crossed / most - 1)


def _noise(net: Floats, share: BurstShare, scatter_ratio: float, *, rate: bool) -> float:
    """Return the relative 95 % half width for the sum of bins.

    It is from the scatter between bursts or between bins. If both are unknown, it is assumed.
    """
    if not (rate or math.isnan(scatter_ratio)):
        return scatter_ratio
    parts = share.full if rate else share.parts
    noise = _bins_noise(net, parts.fleet, parts.width, trades=not rate)
    return NOISE_ASSUMED_RATIO / math.sqrt(max(1, share.bins_count)) if math.isnan(noise) else noise
