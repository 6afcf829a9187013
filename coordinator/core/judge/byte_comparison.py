"""Comparison of the bytes that a device counted with those that the records predict."""

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

NOISE_BINS_MIN: Final = 5  # bins that tell their own scatter
HALF_FULL_RATIO: Final = 0.5  # of the busiest bin: bins at edges tell the lag's error, not scatter
SCATTER_BURSTS_MIN: Final = 3  # bursts that tell theirs
ODD_BURSTS_MIN: Final = 4  # and which of them is odd
# 95 % half width of one bin where too few bins tell: full bins of the original test's published
# metric scatter by 1.3 %, of which 0.6 % is the reading of its chart
NOISE_ASSUMED_RATIO: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """What all bursts of a reconciliation have in common."""

    ledger: FirewallLedger
    lag: Lag
    overhead: CounterFactor
    idle: IdleLevel | None
    rejected_count: int
    clock_bound_s: float
    neighbours: tuple[str, ...]
    bypassed: bool
    datagrams: bool  # UDP
    busy_bytes: float  # of the whole ledger, over its usual level
    sent_bytes: float  # payload of all bursts
    lags_scale: float = 0.0  # counted bytes for a byte of payload, where the lag is unknown


def scatter_of_bursts(ratios: Sequence[float]) -> tuple[float, float]:
    """95 % half widths, relative, of the bursts' mean ratio and of one burst's; NaN: too few.

    One burst's, from four on, by the median absolute deviation, so that an odd one stands out
    instead of hiding itself.
    """
    count = len(ratios)
    if count < SCATTER_BURSTS_MIN:
        return math.nan, math.nan
    array = np.array(ratios)
    # Of a device that was bypassed the mean says nothing; a byte of payload is at least a byte.
    size = max(1.0, abs(float(array.mean()))) / t95(count - 1)
    spread = float(array.std(ddof=1))
    if count >= ODD_BURSTS_MIN:
        spread = 1.4826 * float(np.median(np.abs(array - np.median(array))))
    return (
        float(array.std(ddof=1)) / math.sqrt(count) / size,
        spread / size,
    )


def _bins_noise(net: Floats, fleet: Floats, width: Floats, *, trades: bool) -> float:
    """95 % half width of the sum of bins by their own scatter, relative; NaN: too few bins.

    Over the bins that are at least half as busy as the busiest. Bins that trade bytes with their
    neighbours at a shared edge lose nothing in the sum: where all of a burst's bins are summed,
    those beside a bin that is not busy tell only what they do not give back, while there are
    enough without them, and the first autocovariance is taken off. What the outer edges of the two
    outer bins trade with others stays: of bins that only trade, one bin's variance in all.
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
    basis: Literal["rate", "bytes"]
    ledger_bytes: float  # without the idle level
    expected_bytes: float
    residual_ratio: float
    below_ratio: float  # from it to the ends of its 95 % interval
    above_ratio: float
    extra_ratio: float  # of below_ratio: what the counter may count beside payload and headers
    between_ratio: float  # without what all bursts of the run share
    unheard_ratio: float  # of its bytes, what no receiver may have counted

    @property
    def uncertainty_ratio(self) -> float:
        return max(self.below_ratio, self.above_ratio)

    @property
    def noise_ratio(self) -> float:
        """The same without what extra bytes would explain."""
        return max(self.below_ratio - self.extra_ratio, self.above_ratio)


def compare_bytes(
    held: RunComparison,
    share: BurstShare,
    extra: ExtraBytes,
    idle_ends: tuple[float, float],
    scatter_ratio: float,
) -> list[Comparison]:
    """Compare the bytes of all bins, and those of full bins where there are enough of them.

    Over every bin that the fleet may have touched, bytes that were under way when receivers
    stopped are in the counter and in no receiver's seconds. They are at most what was sent and not
    received; half of that is allowed for. Over full bins nothing is under way, but there are fewer
    of them, and a lag that drifts inside a burst stretches them all: they count where all bytes
    agree, except for what no receiver may have counted.
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
    # What a UDP sender sent and no receiver got is lost, not under way.
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
    # Of a run that was not to cross the device, what is uncertain of crossing bytes shrinks with
    # them. The uncertainty of the idle level and of the neighbours stays.
    shrinks = min(1.0, abs(crossed)) if held.bypassed else 1.0
    # The packets of other runs may have any size (see OVERHEAD_LESS_RATIO).
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
    """Return the residual, and how much lower it is where the counter holds all extra bytes.

    A surplus that extra bytes explain is no residual. A deficit is measured against the least that
    the counter may hold, and its lower end against the most.
    """
    most = (1 + extra.high_ratio) / (1 + extra.low_ratio)
    if bypassed:
        return crossed, crossed - crossed / most
    residual = crossed - min(max(crossed, 1.0), most)
    return residual, residual - (crossed / most - 1)


def _noise(net: Floats, share: BurstShare, scatter_ratio: float, *, rate: bool) -> float:
    """Return the 95 % half width of the sum of bins, relative: by bursts, by bins, or assumed."""
    if not (rate or math.isnan(scatter_ratio)):
        return scatter_ratio
    parts = share.full if rate else share.parts
    noise = _bins_noise(net, parts.fleet, parts.width, trades=not rate)
    return NOISE_ASSUMED_RATIO / math.sqrt(max(1, share.bins_count)) if math.isnan(noise) else noise
