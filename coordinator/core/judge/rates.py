"""Rates of the fleet and of the device, with intervals to compare with a limit.

The rule is guarded acceptance (JCGM 106:2012, 8.3.2; ILAC-G8:09/2019, 4.2.2). For a *pass* the
whole 95 % interval must be above the limit. For a *fail* the whole interval must be below it. The
limit is the target minus its tolerance. See docs/statistics.md for the formulas and an example.
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

# A record with this share of the planned pair-seconds is treated as complete.
WHOLE_RATIO: Final = 0.9999
# The scatter between bursts is estimated from this number of bursts or more. With two bursts,
# Student's t would be 12.7.
BURSTS_MIN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Rate with its 95 % interval, in bit/s at the objective's layer.

    Attributes:
        value: Rate.
        below: Distance from the rate down to the lower end of the interval.
        above: Distance from the rate up to the upper end.
    """

    value: float
    below: float
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
    """Return the rate that a pass requires in bit/s, or None if no target is set.

    The limit is at the objective's layer and scaled for the lab.
    """
    target = spec.scaled_target_bits_per_second
    return None if target is None else target * (1 - spec.objective.tolerance_ratio)


def factor_of(spec: RunSpec, burst: BurstSummary) -> float:
    """Return how many bytes at the objective's layer there are per payload byte.

    Args:
        spec: Specification for the run.
        burst: Burst with its header ratios.
    """
    return burst.header_ratio if spec.objective.layer is Layer.IP else 1.0


def header_bounds(spec: RunSpec, burst: BurstSummary) -> tuple[float, float]:
    """Return the relative errors of a rate that are caused by the header size.

    Args:
        spec: Specification with the objective's layer.
        burst: Burst with its header data.

    Returns:
        The errors towards lower and towards higher rates.
    """
    if spec.objective.layer is not Layer.IP:
        return 0.0, 0.0
    if burst.headers_assumed:
        return OVERHEAD_LESS_RATIO, OVERHEAD_MORE_RATIO
    return OVERHEAD_KNOWN_RATIO, OVERHEAD_KNOWN_RATIO


def received(spec: RunSpec, burst: BurstSummary, between: float | None = None) -> Interval | None:
    """Return the rate that the fleet received, with its interval.

    The interval includes the scatter between seconds, the clock errors and the header size error. A
    table of means has no seconds. The scatter ``between`` bursts is then used if the burst is long
    enough.

    If a sender's seconds replace those of a receiver, the upper end is increased. The bytes that
    are missing there may have been in flight before the window, and not lost.

    Args:
        spec: Specification for the run.
        burst: Measured burst.
        between: Half width for the scatter between bursts, in bit/s of payload. None if unknown.

    Returns:
        The interval. None if the burst is too short for an interval.
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
    """Return the half width from the scatter of the device bins, in bit/s of payload.

    It is used for a table of means, because it contains no scatter. It is Student's t times the
    standard deviation of a bin, and not that of the mean. The correlation between bins can
    therefore be ignored. None if fewer than :data:`BURSTS_MIN` bins are completely inside the
    window.
    """
    held, rate = burst.reconciliation, RECEIVED.of_burst(burst)
    if held is None or held.bypassed or held.residual_ratio is None or rate is None:
        return None
    if held.ledger_cov_ratio is None or held.full_bins_count < BURSTS_MIN:
        return None
    return rate * t95(held.full_bins_count - 1) * held.ledger_cov_ratio


def _unheard(burst: BurstSummary) -> float:
    """Return the payload rate that only the senders recorded, in bit/s."""
    more = sum(
        max(0.0, flow.sent_bits_per_second - flow.received_bits_per_second)
        for flow in burst.flows
        if flow.sent_bits_per_second is not None and flow.received_bits_per_second is not None
    )
    return more * max(0.0, 1 - burst.proven_ratio)


def carried(spec: RunSpec, burst: BurstSummary, fleet: Interval) -> Interval | None:
    """Return the part of the fleet's rate that crossed the device, from the device counter.

    It is the fleet rate multiplied by counted bytes / expected bytes. If the counter is higher than
    the fleet and pairs are unseen, it may include their bytes. The factor then does not show a
    wrong declaration.

    Args:
        spec: Specification for the run.
        burst: Burst with its reconciliation.
        fleet: Fleet rate.

    Returns:
        The interval. None if there is no counter, if it was bypassed, or if its metric is declared
        wrongly.
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
    """Return the half width of one burst from the scatter between bursts, in bit/s of payload.

    It is Student's t times the standard deviation. This is conservative, because it includes the
    noise of the burst itself. None if there are fewer than :data:`BURSTS_MIN` bursts.
    """
    rates = [rate for burst in bursts if (rate := RECEIVED.of_burst(burst)) is not None]
    if len(rates) < BURSTS_MIN:
        return None
    return t95(len(rates) - 1) * stdev(rates)


def compared(spec: RunSpec, burst: BurstSummary, fleet: Interval, limit: float) -> str:
    """Return a text that compares the rate with the limit.

    Args:
        spec: Specification with the target.
        burst: Burst with its window.
        fleet: Fleet rate.
        limit: Limit, in bit/s.
    """
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
