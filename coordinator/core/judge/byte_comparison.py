"""Comparison of the bytes that a device counted with the bytes that were predicted."""

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
# Bins below this share of the busiest bin's rate are not used for the scatter. They are at the
# edges of a burst and show the lag's error instead.
HALF_FULL_RATIO: Final = 0.5
# The scatter between bursts is estimated from this number of bursts or more.
SCATTER_BURSTS_MIN: Final = 3
# With this number of bursts or more, an outlier can be detected.
ODD_BURSTS_MIN: Final = 4
# Half width of the 95 % interval of a bin if there are too few bins to estimate it. Full bins in
# the published metric of the original test scatter by 1.3 %. This includes 0.6 % from reading
# values off the chart.
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
        busy_bytes: Bytes above the usual level in the whole counter.
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
    """Return how much the ratio of counted bytes to payload varies between bursts.

    With four bursts or more, the scatter of a single burst is estimated from the median absolute
    deviation. An outlier then cannot hide itself by increasing the scatter.

    Args:
        ratios: Counted bytes divided by payload, for each burst.

    Returns:
        Relative half widths of the 95 % interval for the mean of all bursts and for a single burst.
        Both are NaN if there are fewer than three bursts.
    """
    count = len(ratios)
    if count < SCATTER_BURSTS_MIN:
        return math.nan, math.nan
    array = np.array(ratios)
    # If the device was bypassed, the mean is near 0 and cannot be used as a scale. The scale is
    # therefore at least 1, because one byte of payload is counted as one byte or more.
    size = max(1.0, abs(float(array.mean()))) / t95(count - 1)
    spread = float(array.std(ddof=1))
    if count >= ODD_BURSTS_MIN:
        spread = 1.4826 * float(np.median(np.abs(array - np.median(array))))
    return (
        float(array.std(ddof=1)) / math.sqrt(count) / size,
        spread / size,
    )


def _bins_noise(net: Floats, fleet: Floats, width: Floats, *, trades: bool) -> float:
    """Return the relative half width of the 95 % interval for a sum of bins.

    It is estimated from the scatter of the bins with more than half the rate of the busiest bin.
    NaN if there are too few of them.

    With ``trades`` all bins of a burst are added, so bytes that move to a neighbouring bin do not
    change the sum. The first autocovariance, which is negative for such bins, is then added to the
    variance. The variance is at least that of one bin, because bytes can still move at the two
    outer edges. Bins next to a bin that is not busy are left out if enough others remain. Only the
    bytes that they gained or lost in total are added.
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
    """Comparison of a burst or run, counted bytes against predicted bytes.

    Attributes:
        basis: Bins that were used, ``rate`` for full bins in the window or ``bytes`` for all bins.
        ledger_bytes: Counted bytes without the idle level.
        expected_bytes: Predicted bytes.
        residual_ratio: Counted bytes divided by predicted bytes, minus 1.
        below_ratio: Distance from the residual down to the lower end of its 95 % interval.
        above_ratio: Distance from the residual up to the upper end.
        extra_ratio: Part of ``below_ratio`` that is caused by bytes other than payload and headers.
        between_ratio: Uncertainty without errors that are the same for all bursts of the run.
        unheard_ratio: Uncertainty from bytes that the receivers may not have recorded.
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
        """Distance from the residual to the farther end of its interval."""
        return max(self.below_ratio, self.above_ratio)

    @property
    def noise_ratio(self) -> float:
        """Same as ``uncertainty_ratio``, but without the part that extra bytes cause."""
        return max(self.below_ratio - self.extra_ratio, self.above_ratio)


def compare_bytes(
    held: RunComparison,
    share: BurstShare,
    extra: ExtraBytes,
    idle_ends: tuple[float, float],
    scatter_ratio: float,
) -> list[Comparison]:
    """Compare the bytes in all bins, and in the full bins if there are enough.

    All bins together also include bytes that were in flight when the receivers stopped. There are
    at most as many as the difference between sent and received bytes. Half of this difference is
    added to the prediction.

    Full bins do not have this error, but there are fewer of them. If the lag changes during the
    burst, it changes all of them in the same direction. The caller uses them only if they agree
    with the comparison of all bins.

    Args:
        held: Values for all bursts.
        share: Bytes of the burst in the counter.
        extra: Bytes that the counter may include in addition to payload and headers.
        idle_ends: Distances from the idle level to both ends of its interval, in bytes/s.
        scatter_ratio: Relative half width from the scatter between bursts. NaN if unknown.

    Returns:
        The comparison of all bins, followed by that of the full bins if there are enough.
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
    # UDP bytes that were not received count as lost, not as in flight.
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
    # In a reference run few bytes cross the device. Errors that are proportional to these bytes
    # become smaller. The errors of the idle level and of other runs do not.
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
    """Return the residual, and how far extra bytes can move its lower end down.

    If extra bytes can explain a surplus, it is not part of the residual. A deficit is computed with
    the lowest number of bytes that the counter may include, and its lower end with the highest
    number.
    """
    most = (1 + extra.high_ratio) / (1 + extra.low_ratio)
    if bypassed:
        return crossed, crossed - crossed / most
    residual = crossed - min(max(crossed, 1.0), most)
    return residual, residual - (crossed / most - 1)


def _noise(net: Floats, share: BurstShare, scatter_ratio: float, *, rate: bool) -> float:
    """Return the relative half width of the 95 % interval for a sum of bins.

    It is estimated from the scatter between bursts or between bins. If both are unknown, a value is
    assumed.
    """
    if not (rate or math.isnan(scatter_ratio)):
        return scatter_ratio
    parts = share.full if rate else share.parts
    noise = _bins_noise(net, parts.fleet, parts.width, trades=not rate)
    return NOISE_ASSUMED_RATIO / math.sqrt(max(1, share.bins_count)) if math.isnan(noise) else noise
