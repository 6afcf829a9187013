"""The fleet's rate and the device's own, as intervals beside one limit.

Guarded acceptance (JCGM 106:2012, 8.3.2; ILAC-G8:09/2019, 4.2.2): a *pass* needs the whole 95 %
interval above the limit, a *fail* the whole interval below it. The limit is the target less its
tolerance. docs/statistics.md has the formulas and an example.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.figures import RECEIVED, Layer
from broadside.coordinator.core.judge.declaration_error import misreading, rates_of
from broadside.coordinator.core.measure.headers import (
    OVERHEAD_KNOWN_RATIO,
    OVERHEAD_LESS_RATIO,
    OVERHEAD_MORE_RATIO,
)
from broadside.coordinator.core.measure.steady import VALUES_MIN, t95
from broadside.coordinator.core.plan.spec import RunSpec
from broadside.coordinator.core.summary import BurstSummary

WHOLE_RATIO: Final = 0.9999  # of planned pair-seconds: nothing to speak of is missing
BURSTS_MIN: Final = 3  # of which a scatter between bursts can be told: with two, t is 12.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A rate with its 95 % interval, in bit/s at the objective's layer."""

    value: float
    below: float  # from it to the ends
    above: float

    @property
    def low(self) -> float:
        return self.value - self.below

    @property
    def high(self) -> float:
        return self.value + self.above

    def __str__(self) -> str:
        if self.below == self.above:
            return f"{words.rate(self.value)} +- {words.rate(self.below)}"
        return f"{words.rate(self.value)} (-{words.rate(self.below)}, +{words.rate(self.above)})"


def limit_of(spec: RunSpec) -> float | None:
    """What must be carried to pass, in bit/s as this run can measure it, at its layer."""
    target = spec.scaled_target_bits_per_second
    return None if target is None else target * (1 - spec.objective.tolerance_ratio)


def factor_of(spec: RunSpec, burst: BurstSummary) -> float:
    """Bytes at the objective's layer for a byte of payload."""
    return burst.header_ratio if spec.objective.layer is Layer.IP else 1.0


def header_bounds(spec: RunSpec, burst: BurstSummary) -> tuple[float, float]:
    """How much less and more of the rate the headers' share may make, at the objective's layer."""
    if spec.objective.layer is not Layer.IP:
        return 0.0, 0.0
    if burst.headers_assumed:
        return OVERHEAD_LESS_RATIO, OVERHEAD_MORE_RATIO
    return OVERHEAD_KNOWN_RATIO, OVERHEAD_KNOWN_RATIO


def received(spec: RunSpec, burst: BurstSummary, between: float | None = None) -> Interval | None:
    """What the fleet received; None where the burst is too short to carry an interval.

    The half width holds the scatter of its seconds and the clocks' bounds (both in the burst's
    own), and what the headers' share may be off. Where a record has no seconds (a table of means)
    the scatter ``between`` its bursts stands for that of each, if they are long enough. Where a
    sender's seconds stand for a receiver's, what they lack of what was sent may have been in
    flight before the window, not lost in it: it widens the upper end.
    """
    rate, window = RECEIVED.of_burst(burst), burst.window
    half = burst.fleet_received_half_width_bits_per_second
    if half is None and window is not None and window.window_s >= VALUES_MIN:
        half = between
    if rate is None or half is None:
        return None
    factor = factor_of(spec, burst)
    value = rate * factor
    less, more = header_bounds(spec, burst)
    return Interval(
        value=value,
        below=math.hypot(half * factor, value * less),
        above=math.hypot(half * factor, value * more) + _unheard(burst) * factor,
    )


def scatter_of_device(burst: BurstSummary) -> float | None:
    """What a burst's mean may be off by the scatter of the device's own bins, in bit/s of payload.

    For a table of means, whose ends recorded no scatter. Student's t times the standard deviation
    of a bin, not of their mean: nothing is assumed of how bins correlate. None where fewer than
    :data:`BURSTS_MIN` bins lie wholly in the window.
    """
    held, rate = burst.reconciliation, RECEIVED.of_burst(burst)
    if held is None or held.bypassed or held.residual_ratio is None or rate is None:
        return None
    if held.ledger_cov_ratio is None or held.full_bins_count < BURSTS_MIN:
        return None
    return rate * t95(held.full_bins_count - 1) * held.ledger_cov_ratio


def _unheard(burst: BurstSummary) -> float:
    """Payload bit/s that senders tell, and no receiver's seconds."""
    more = sum(
        max(0.0, flow.sent_bits_per_second - flow.received_bits_per_second)
        for flow in burst.flows
        if flow.sent_bits_per_second is not None and flow.received_bits_per_second is not None
    )
    return more * max(0.0, 1 - burst.proven_ratio)


def carried(spec: RunSpec, burst: BurstSummary, fleet: Interval) -> Interval | None:
    """What the device's own ledger says that it carried of the fleet's rate.

    The ledger's bytes over the fleet's, times the fleet's rate; None where no ledger tells, or
    its metric is declared wrongly. A counter that is higher than the fleet may hold what unseen
    pairs sent: then no factor shows a wrong declaration.
    """
    held = burst.reconciliation
    if held is None or held.bypassed or held.residual_ratio is None:
        return None
    wrong = misreading(held, rates_of([burst]))
    whole = burst.completeness.completeness_ratio >= WHOLE_RATIO
    if wrong is not None and wrong.is_sure and (whole or wrong.factor < 1):
        return None
    low, high = held.residual_ends
    layer, extra = fleet.value * held.layer_ratio, fleet.value * held.extra_ratio
    layer_low = layer if held.layer_low_ratio is None else fleet.value * held.layer_low_ratio
    below = fleet.value * (held.residual_ratio - low) - layer_low - extra
    above = fleet.value * (high - held.residual_ratio) - layer
    return Interval(
        value=fleet.value * (1 + held.residual_ratio),
        below=math.hypot(fleet.below, below) + layer_low + extra,
        above=math.hypot(fleet.above, above) + layer,
    )


def between_bursts(bursts: Sequence[BurstSummary]) -> float | None:
    """What one burst's mean payload rate may be off by the scatter of all, in bit/s.

    Student's t times their standard deviation: conservative, for a burst's own noise is part of
    it. None for under :data:`BURSTS_MIN` bursts.
    """
    rates = [rate for burst in bursts if (rate := RECEIVED.of_burst(burst)) is not None]
    if len(rates) < BURSTS_MIN:
        return None
    return t95(len(rates) - 1) * stdev(rates)


def compared(spec: RunSpec, burst: BurstSummary, fleet: Interval, limit: float) -> str:
    target = spec.scaled_target_bits_per_second or limit
    window_s = 0 if burst.window is None else burst.window.window_s
    tolerance = spec.objective.tolerance_ratio
    less = (
        f", the target of {words.rate(target)} less {words.ratio(tolerance, 0)}"
        if tolerance
        else ""
    )
    return (
        f"the fleet received {fleet} at the {spec.objective.layer} layer over {window_s} s; "
        f"the limit is {words.rate(limit)}{less}"
    )
