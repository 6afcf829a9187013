"""Checks that compare the measured rate with the limit of the objective.

The rule is guarded acceptance (JCGM 106:2012, 8.3.2; ILAC-G8:09/2019, 4.2.2). For a *pass* the
whole 95 % interval needs to be above the limit. For a *fail* the whole interval needs to be below
it. The limit is the target minus its tolerance. See docs/statistics.md for the formulas and an
example.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Final

import numpy as np

from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.checks.check_types import (
    NOTHING,
    BurstInput,
    CheckResult,
    RunInput,
    inconclusive,
)
from broadside.coordinator.core.judge.checks.pair_texts import missing_pairs, missing_pairs_step
from broadside.coordinator.core.judge.reconciliation.residual_causes import (
    certain_declaration_error,
)
from broadside.coordinator.core.measure.formulas.headers import (
    OVERHEAD_KNOWN_RATIO,
    OVERHEAD_LESS_RATIO,
    OVERHEAD_MORE_RATIO,
)
from broadside.coordinator.core.measure.formulas.steady import VALUES_MIN, mean_of_bursts, t95
from broadside.coordinator.core.metrics import (
    RECEIVED,
    RECEIVED_HALF_WIDTH,
    Layer,
    layer_label,
)
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import (
    BottleneckName,
    BurstSummary,
    Finding,
    FindingValue,
    MeasuredFinding,
    SecondState,
    Verdict,
    problem,
)
from broadside.coordinator.core.thresholds import describe_thresholds
from broadside.exchange.engines import offered_bits_per_second, scaled

# A record with this share of the planned pair-seconds is treated as complete.
COMPLETE_RATIO: Final = 0.9999
# The scatter between bursts is estimated from this number of bursts or more. With two bursts,
# Student's t would be 12.7.
BURSTS_MIN: Final = 3
# The distribution of pair rates is estimated from this number of pairs or more.
PAIRS_MIN: Final = 2


def check_rate(inputs: BurstInput) -> CheckResult:
    """Check that the fleet received the target rate.

    Formula: pass if R - h > limit and S - h > limit (h of R); fail if R + h < limit; otherwise
        inconclusive.
    Reads: receivers' and senders' seconds over the common window; for missing pairs their rates in
        other bursts, and the device counter.
    If absent: inconclusive. Missing pairs prevent a fail if the traffic that they may have carried
        reaches the limit (their largest rate in other bursts, else a prediction from the other
        pairs), or if a device counter may contain the difference. Missing seconds prevent a pass
        if the worst window that they allow is not above the limit.
    """
    spec, burst = inputs.spec, inputs.burst
    received = RECEIVED.of_burst(burst)
    if received is None or burst.window is None:
        return inconclusive(
            "no-window",
            92,
            "No second is common to all measured pairs, so the fleet has no rate.",
            "Read the states of the pairs (`broadside pairs`), and check their starts and clocks",
        )
    limit, fleet = limit_of(spec), received_rate(spec, burst, inputs.between_bits_per_second)
    if limit is None:
        rate = formatting.rate(received * layer_factor(spec, burst))
        sentence = (
            f"Received rate {rate} ({layer_label(spec.objective.layer)}). No target rate was set, "
            "so the rate has no limit."
        )
        has_thresholds = any(describe_thresholds(spec.objective)) or spec.bypasses_device
        return CheckResult(
            Verdict.PASS if has_thresholds else Verdict.MEASURED,
            (_rate_finding("no-target", 20, sentence, received * layer_factor(spec, burst)),),
        )
    if fleet is None:
        return _interval_unknown(burst.window.window_s)
    comparison = _compare(spec, burst, fleet, limit)
    missing = min(burst.completeness.completeness_ratio, burst.proven_ratio) < COMPLETE_RATIO
    if fleet.high < limit:
        return _below_limit(inputs, fleet, limit, comparison, missing=missing)
    reached = _rate_finding("target-reached", 50, f"{comparison}.", fleet.value)
    passed = CheckResult(Verdict.PASS, (reached,))
    return _doubt(inputs, fleet, limit, comparison, missing=missing) or passed


def _interval_unknown(window_s: int) -> CheckResult:
    if window_s < VALUES_MIN:
        sentence = (
            f"The window of {window_s} s is too short for a 95 % interval of the rate "
            f"({VALUES_MIN} s or more are required)."
        )
        step = "Run bursts of 30 s or more"
    else:
        sentence = (
            f"Too few seconds of the window of {window_s} s were recorded for a 95 % interval of "
            f"the rate ({VALUES_MIN} s or more are required)."
        )
        step = "Run bursts of 30 s or more. If they are long enough, read the agents' logs"
    return inconclusive("interval-unknown", 91, sentence, step, FindingValue.time(window_s))


def _rate_finding(id: str, weight: float, sentence: str, rate: float) -> Finding:
    return MeasuredFinding(
        id=id,
        kind="verdict",
        severity="note",
        weight=weight,
        sentence=sentence,
        value=FindingValue.rate(rate),
    )


def _compare(spec: RunSpec, burst: BurstSummary, fleet: "RateInterval", limit: float) -> str:
    """Return a text with the rate, its interval, the limit and the target."""
    window_s = 0 if burst.window is None else burst.window.window_s
    tolerance, target = spec.objective.tolerance_ratio, spec.scaled_target_bits_per_second
    less = (
        f" (target {formatting.rate(target)} minus {formatting.ratio(tolerance, 0)})"
        if tolerance
        else ""
    )
    side = "below" if fleet.high < limit else "above" if fleet.low > limit else "not clearly above"
    return (
        f"Received rate {fleet} is {side} the limit {formatting.rate(limit)}{less}, "
        f"{layer_label(spec.objective.layer)}, over {window_s} s"
    )


def _below_limit(
    inputs: BurstInput, fleet: "RateInterval", limit: float, comparison: str, *, missing: bool
) -> CheckResult:
    """Return a fail, or an inconclusive result if missing records may make up the difference."""
    value = FindingValue.rate(fleet.value)
    reason = _open_reason(inputs, fleet, limit) if missing else None
    if reason is not None:
        step = missing_pairs_step(inputs.burst)
        sentence = f"{comparison}. But {reason}.{missing_pairs(inputs.burst)}"
        return inconclusive("target-open", 85, sentence, step, value)
    step = inputs.burst.bottleneck_details.advice or (
        "Find the bottleneck: check NICs, CPUs, TCP windows and the telemetry of the firewall"
    )
    sentence = f"{comparison}. {_bottleneck_text(inputs.burst.bottleneck)}".rstrip()
    missed = problem("target-missed", 100, sentence, step, value)
    return CheckResult(Verdict.FAIL, (missed,))


def _bottleneck_text(bottleneck: BottleneckName) -> str:
    """Return the bottleneck as a sentence, and whether it is in the device under test."""
    if bottleneck is BottleneckName.UNKNOWN:
        return "The bottleneck is unknown."
    if bottleneck in (BottleneckName.FIREWALL, BottleneckName.SNAT_PORTS, BottleneckName.ONE_UNIT):
        return f"The bottleneck is in the device under test: {bottleneck.label}."
    return (
        f"The bottleneck is {bottleneck.label}, not the device under test: the target was not "
        "reached, but the run does not show how much the device can carry."
    )


def _open_reason(inputs: BurstInput, fleet: "RateInterval", limit: float) -> str | None:
    """Return a text if missing records prevent a fail, or None if the burst fails."""
    spec, burst = inputs.spec, inputs.burst
    unseen_s = burst.completeness.planned_s - burst.completeness.measured_s
    unseen = unseen_bits_per_second(spec, burst, inputs.others) * layer_factor(spec, burst)
    if fleet.high + unseen >= limit:
        return (
            f"{unseen_s} seconds of all pairs were not measured; they may have carried the missing "
            f"{formatting.rate(limit - fleet.value)}"
        )
    device = device_rate(spec, burst, fleet)
    if device is not None and device.high >= limit:
        return (
            f"{unseen_s} seconds of all pairs were not measured, and the device counted {device}, "
            "which may include their traffic"
        )
    return None


def _doubt(
    inputs: BurstInput, fleet: "RateInterval", limit: float, comparison: str, *, missing: bool
) -> CheckResult | None:
    """Return the result if the rate does not clearly pass, or None if it passes."""
    burst = inputs.burst
    factor = layer_factor(inputs.spec, burst)
    if fleet.low <= limit:
        return inconclusive(
            "target-undecided",
            86,
            f"{comparison}. The limit is inside the 95 % interval, so neither pass nor fail is "
            "shown.",
            "Run longer bursts (`burst_s`), or reduce the scatter of the rate",
            FindingValue.rate(fleet.value),
        )
    sent = _sent_rate(burst)
    # All received bytes must have been sent. The tolerance for the two ends allows a received
    # rate above the sent rate. But such a rate does not prove that the target was reached.
    excess = 0.0 if sent is None else fleet.value - sent * factor
    if sent is not None and excess > 0 and fleet.low - excess <= limit:
        return inconclusive(
            "target-above-sent",
            82,
            f"{comparison}. But the senders recorded only {formatting.rate(sent * factor)}, and "
            "with this rate the limit is not clearly reached.",
            "Find out why the receivers recorded more than was sent, then run again",
            FindingValue.rate(fleet.value),
        )
    worst = (burst.worst_bits_per_second or 0.0) * factor
    if missing and worst - fleet.below <= limit:
        return inconclusive(
            "target-unproven",
            80,
            f"{comparison}. But records are missing, and the lowest rate that they allow is "
            f"{formatting.rate(worst)}.{missing_pairs(burst)}",
            missing_pairs_step(burst),
            FindingValue.rate(worst),
        )
    return None


def _sent_rate(burst: BurstSummary) -> float | None:
    """Return the payload rate that the senders recorded in bit/s, or None if one is missing."""
    measured = sum(pair.received_bits_per_second is not None for pair in burst.pairs)
    if not burst.flows or any(flow.sent_pairs_count < measured for flow in burst.flows):
        return None
    return burst.fleet_sent_bits_per_second


def check_device_rate(inputs: BurstInput) -> CheckResult:
    """Check that the rate from the device counter is above the limit.

    Formula: R * (1 + residual) - h > limit, with h of R and of the residual.
    Reads: the device counter and its residual.
    If absent: skipped; the check counter-record handles a missing counter.
    """
    limit = limit_of(inputs.spec)
    fleet = received_rate(inputs.spec, inputs.burst, inputs.between_bits_per_second)
    if limit is None or fleet is None or fleet.low <= limit:
        return NOTHING
    device = device_rate(inputs.spec, inputs.burst, fleet)
    if device is None or device.low > limit:
        return NOTHING
    return inconclusive(
        "device-unproven",
        84,
        f"The rate by the device counter is {device}. This is "
        f"{'below' if device.high < limit else 'not clearly above'} the limit "
        f"{formatting.rate(limit)}. The rate by the fleet is {fleet}.",
        "Find traffic that bypasses the device, or use shorter counter bins and longer bursts",
        FindingValue.rate(device.value),
    )


def check_burst_scatter(inputs: RunInput) -> CheckResult:
    """Check that the limit is not inside the interval of the bursts' mean.

    Formula: mean of the bursts' rates - sqrt(h_run² + h_header²) > limit; h_run is the run's h
        without the error of the header size.
    Reads: rates and intervals of the bursts.
    If absent: the check is skipped with fewer than three bursts.
    """
    spec, bursts = inputs.plan.spec, inputs.bursts
    limit = limit_of(spec)
    rates = [(burst, rate) for burst in bursts if (rate := received_rate(spec, burst)) is not None]
    if limit is None or len(rates) < BURSTS_MIN:
        return NOTHING
    halves = [
        None if half is None else half * layer_factor(spec, burst)
        for burst, _ in rates
        for half in [RECEIVED_HALF_WIDTH.of_burst(burst)]
    ]
    mean = mean_of_bursts([rate.value for _, rate in rates], halves)
    bounds = zip(*(header_bounds(spec, burst) for burst in bursts), strict=True)
    less, more = (math.hypot(mean.half_width, mean.value * max(ratios)) for ratios in bounds)
    run = RateInterval(value=mean.value, below=less, above=more)
    # If the whole interval is on one side of the limit, the checks of the bursts decide.
    if run.low > limit or run.high < limit:
        return NOTHING
    return inconclusive(
        "target-undecided",
        86,
        f"The mean received rate of {len(rates)} bursts is {run} "
        f"({layer_label(spec.objective.layer)}). The limit {formatting.rate(limit)} is inside this "
        "95 % interval.",
        "Run more bursts, or find out why their rates differ",
    )


# Rates with their intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class RateInterval:
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
            return f"{formatting.rate(self.value)} +- {formatting.rate(self.below)}"
        return (
            f"{formatting.rate(self.value)} (-{formatting.rate(self.below)}, "
            f"+{formatting.rate(self.above)})"
        )


def limit_of(spec: RunSpec) -> float | None:
    """Return the rate that a pass requires in bit/s, or None if no target is set.

    The limit is at the objective's layer and scaled for the lab.
    """
    target = spec.scaled_target_bits_per_second
    return None if target is None else target * (1 - spec.objective.tolerance_ratio)


def layer_factor(spec: RunSpec, burst: BurstSummary) -> float:
    """Return how many bytes at the objective's layer there are per payload byte.

    Args:
        spec: Specification with the layer of the objective.
        burst: Burst with the measured ratio of headers.

    Returns:
        Bytes at the layer divided by payload bytes, at least 1.
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


def received_rate(
    spec: RunSpec, burst: BurstSummary, between: float | None = None
) -> RateInterval | None:
    """Return the rate that the fleet received, with its interval.

    The interval includes the scatter between seconds, the clock errors and the header size error. A
    table of means has no seconds. The scatter ``between`` bursts is then used if the burst is long
    enough.

    If a sender's seconds replace those of a receiver, the upper end will be increased. The bytes
    that are missing there may have been in flight before the window, and not lost.

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
    factor = layer_factor(spec, burst)
    value = rate * factor
    less, more = header_bounds(spec, burst)
    sent_only = sum(
        max(0.0, flow.sent_bits_per_second - flow.received_bits_per_second)
        for flow in burst.flows
        if flow.sent_bits_per_second is not None and flow.received_bits_per_second is not None
    ) * max(0.0, 1 - burst.proven_ratio)
    return RateInterval(
        value=value,
        below=math.hypot(half * factor, value * less),
        above=math.hypot(half * factor, value * more) + sent_only * factor,
    )


def half_width_of_bursts(bursts: Sequence[BurstSummary]) -> float | None:
    """Return the half width of one burst from the scatter between bursts, in bit/s of payload.

    It is Student's t times the standard deviation. This is conservative, because it includes the
    noise of the burst itself. None if there are fewer than :data:`BURSTS_MIN` bursts.
    """
    rates = [rate for burst in bursts if (rate := RECEIVED.of_burst(burst)) is not None]
    return None if len(rates) < BURSTS_MIN else t95(len(rates) - 1) * stdev(rates)


def half_width_of_device(burst: BurstSummary) -> float | None:
    """Return the half width from the scatter of the device bins, in bit/s of payload.

    It is used for a table of means, because it contains no scatter. It is Student's t times the
    standard deviation of a bin, and not that of the mean. The correlation between bins can
    therefore be ignored. None if fewer than :data:`BURSTS_MIN` bins are completely inside the
    window.
    """
    counter, rate = burst.reconciliation, RECEIVED.of_burst(burst)
    if counter is None or counter.bypassed or counter.residual_ratio is None or rate is None:
        return None
    if counter.counter_cov_ratio is None or counter.full_bins_count < BURSTS_MIN:
        return None
    return rate * t95(counter.full_bins_count - 1) * counter.counter_cov_ratio


def device_rate(spec: RunSpec, burst: BurstSummary, fleet: RateInterval) -> RateInterval | None:
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
    counter = burst.reconciliation
    if counter is None or counter.bypassed or counter.residual_ratio is None:
        return None
    wrong = certain_declaration_error(counter, [burst])
    complete = burst.completeness.completeness_ratio >= COMPLETE_RATIO
    if wrong is not None and (complete or wrong.factor < 1):
        return None
    low, high = counter.residual_ends
    layer, extra = fleet.value * counter.layer_ratio, fleet.value * counter.extra_ratio
    layer_low = layer if counter.layer_low_ratio is None else fleet.value * counter.layer_low_ratio
    below = fleet.value * (counter.residual_ratio - low) - layer_low - extra
    above = fleet.value * (high - counter.residual_ratio) - layer
    return RateInterval(
        value=fleet.value * (1 + counter.residual_ratio),
        below=math.hypot(fleet.below, below) + layer_low + extra,
        above=math.hypot(fleet.above, above) + layer,
    )


# Traffic of pairs without a record


def unseen_bits_per_second(
    spec: RunSpec, burst: BurstSummary, others: Sequence[BurstSummary] = ()
) -> float:
    """Return an upper limit for the payload rate of unseen pair-seconds, in bit/s.

    If a pair has records in other bursts, its largest rate in them is used. It is multiplied by the
    largest growth that a measured pair shows over its own rates in other bursts. For other pairs
    the upper end of a 95 % prediction interval is used. It is computed from the log rates of the
    measured pairs (Hahn and Meeker, Statistical Intervals, 1991, 4.7) and is never lower than the
    largest of them. A paced pair cannot exceed its pace.

    Args:
        spec: Specification for the run. A pace in it limits every pair.
        burst: Burst with unseen pairs.
        others: Other bursts of the run, in any order.

    Returns:
        The payload rate in the window, for all flows together. Infinite if there is no upper limit.
    """
    pace = offered_bits_per_second(scaled(spec.traffic, spec.scale))
    known: dict[int, float] = {}
    for other in others:
        for index, rate in _pair_rates(other).items():
            known[index] = max(rate, known.get(index, 0.0))
    measured = _pair_rates(burst)
    growth = max([1.0, *(rate / known[i] for i, rate in measured.items() if known.get(i))])
    predicted = _predict_rate(list(measured.values()))
    total = 0.0
    for pair in burst.pairs:
        unseen_ratio = 1.0 - pair.completeness_ratio
        if unseen_ratio > 0:
            history = known.get(pair.pair_index)
            most = predicted if history is None else history * growth
            total += min(most, math.inf if pace is None else float(pace)) * unseen_ratio
    return total


def _pair_rates(burst: BurstSummary) -> dict[int, float]:
    """Return the rates of the measured pairs by index, in bit/s."""
    return {
        pair.pair_index: pair.received_bits_per_second
        for pair in burst.pairs
        if pair.state is SecondState.MEASURED and pair.received_bits_per_second
    }


def _predict_rate(rates: Sequence[float]) -> float:
    """Return an upper limit for the rate of one more pair, or infinity for too few pairs."""
    count = len(rates)
    if count < PAIRS_MIN:
        return math.inf
    logs = np.log(rates)
    half = t95(count - 1) * float(logs.std(ddof=1)) * math.sqrt(1 + 1 / count)
    # We use this to prevent an overflow. If there are only a few pairs with very different rates,
    # the limit will not be useful.
    exponent = min(float(logs.mean()) + half, math.log(max(rates)) + 50.0)
    return max(math.exp(exponent), max(rates))
