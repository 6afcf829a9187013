"""The fleet's rate, and the device's own, held against one limit by guarded acceptance.

JCGM 106:2012, 8.3.2, and ILAC-G8:09/2019, 4.2.2: a *pass* needs the whole 95 % interval of what was
measured on the good side of the limit, a *fail* needs the whole of it on the other; between the two
nothing is concluded. There is one limit, the target less its tolerance, and one interval: nothing
else is allowed for. docs/verdict.md has the formulas and an example.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.figures import RECEIVED, Layer
from broadside.coordinator.core.goals import goals_set
from broadside.coordinator.core.measure.headers import (
    OVERHEAD_KNOWN_RATIO,
    OVERHEAD_LESS_RATIO,
    OVERHEAD_MORE_RATIO,
)
from broadside.coordinator.core.measure.steady import VALUES_MIN, t95
from broadside.coordinator.core.plan.spec import RunSpec
from broadside.coordinator.core.summary import (
    BurstSummary,
    Check,
    Finding,
    Verdict,
    Window,
    inconclusive,
    note,
    problem,
)

WHOLE_RATIO: Final = 0.9999  # of planned pair-seconds: nothing to speak of is missing
UNSEEN_FACTOR: Final = 1.5  # of the fullest seen pair's rate: what an unseen one may have sent
SLOW_RATIO: Final = 0.015  # of the limit: what a part of a window may fall short as noise does
SLOW_SIGMAS: Final = 3.0  # and of its own noise
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

    The ledger's bytes over the fleet's, times the fleet's rate; None where no ledger tells.
    """
    held = burst.reconciliation
    if held is None or held.bypassed or held.residual_ratio is None:
        return None
    low, high = held.residual_ends
    layer = fleet.value * held.layer_ratio
    below = fleet.value * (held.residual_ratio - low) - layer
    above = fleet.value * (high - held.residual_ratio) - layer
    return Interval(
        value=fleet.value * (1 + held.residual_ratio),
        below=math.hypot(fleet.below, below) + layer,
        above=math.hypot(fleet.above, above) + layer,
    )


def hold_rate(spec: RunSpec, burst: BurstSummary, between: float | None) -> Check:
    """One burst's rate against the limit; for ``between`` see :func:`received`."""
    if RECEIVED.of_burst(burst) is None or burst.window is None:
        return inconclusive(
            "no-window",
            92,
            "there is no second that all measured pairs share, so there is no fleet rate",
            "look at the pairs' states; check starts and clocks",
        )
    limit, fleet = limit_of(spec), received(spec, burst, between)
    if limit is None:
        rate = (RECEIVED.of_burst(burst) or 0.0) * factor_of(spec, burst)
        asked = any(goals_set(spec.objective)) or spec.bypasses_device
        return Verdict.PASS if asked else Verdict.MEASURED, [
            Finding(
                id="no-target",
                kind="verdict",
                severity="note",
                weight=20,
                sentence=f"the fleet received {words.rate(rate)} at the {spec.objective.layer} "
                "layer; no target was set, so of the rate nothing was to be passed or failed",
            )
        ]
    if fleet is None:
        return inconclusive(
            "interval-unknown",
            91,
            f"the window of {burst.window.window_s} s is too short, or its seconds are not on "
            "record, to say how sure its mean is; a verdict needs an interval",
            "run bursts of 30 s or more",
        )
    reached = Finding(
        id="target-reached",
        kind="verdict",
        severity="note",
        weight=50,
        sentence=_compared(spec, burst, fleet, limit),
    )
    return (
        _hold_fleet(spec, burst, fleet, limit)
        or _hold_device(spec, burst, fleet, limit)
        or (Verdict.PASS, [reached])
    )


def _hold_fleet(spec: RunSpec, burst: BurstSummary, fleet: Interval, limit: float) -> Check | None:
    """None where the whole interval is above the limit, whatever is missing."""
    factor = factor_of(spec, burst)
    seen = burst.completeness
    whole = seen.completeness_ratio >= WHOLE_RATIO and burst.proven_ratio >= WHOLE_RATIO
    said = _compared(spec, burst, fleet, limit)
    if fleet.high < limit:
        unseen_s = seen.planned_s - seen.measured_s
        peak = (burst.peak_pair_bits_per_second or 0.0) * factor
        filled = UNSEEN_FACTOR * peak * unseen_s / max(1, burst.duration_s)
        if not whole and fleet.high + filled >= limit:
            return inconclusive(
                "target-open",
                85,
                f"{said}; the {unseen_s} unseen pair-seconds could make up the "
                f"{words.rate(limit - fleet.value)} that it falls short",
                "run again with every pair",
            )
        return Verdict.FAIL, [
            problem(
                "target-missed",
                100,
                said,
                burst.limiter_details.advice
                or "find the limit: look at NICs, CPU, windows and the firewall's own metrics",
            )
        ]
    if fleet.low <= limit:
        return inconclusive(
            "target-undecided",
            86,
            f"{said}: the limit lies within the interval, so neither a pass nor a failure is shown",
            "run longer or more bursts, or state another target",
        )
    worst = (burst.worst_bits_per_second or 0.0) * factor
    if not whole and worst - fleet.below <= limit:
        return inconclusive(
            "target-unproven",
            80,
            f"{said}, but rows are missing, and over the worst window that they leave open "
            f"receivers saw {words.rate(worst)}",
            "run again with every pair",
        )
    return None


def _hold_device(spec: RunSpec, burst: BurstSummary, fleet: Interval, limit: float) -> Check | None:
    """None where the device's own count, if there is one, is above the limit as well."""
    device = carried(spec, burst, fleet)
    if device is None or device.low > limit:
        return None
    return inconclusive(
        "device-unproven",
        84,
        f"by its own count the device carried {device} of the fleet's {fleet}, "
        f"which is not surely above the limit of {words.rate(limit)}",
        "find out what passed the device by, or make its ledger tell more: finer bins, longer "
        "bursts",
    )


def hold_shape(spec: RunSpec, burst: BurstSummary) -> Check:
    """A part of the window that lasts must meet the limit too: a mean hides a slow half."""
    limit, window = limit_of(spec), burst.window
    if window is None:
        return Verdict.PASS, []
    cut = []
    if window.ramp_s and window.ramp_bits_per_second is not None:
        cut = [
            note(
                id="ramp-cut",
                weight=12,
                sentence=f"the first {window.ramp_s} of {window.common_s} s that all pairs share "
                f"were cut as ramp: {words.rate(window.ramp_bits_per_second)} of payload, before "
                "the rate settles",
            )
        ]
    if limit is None:
        return Verdict.PASS, cut
    factor = factor_of(spec, burst)
    for from_s, length_s, rate, high in _slow_parts(burst, window):
        if high * factor < limit * (1 - SLOW_RATIO):
            slow = problem(
                "slow-stretch",
                84,
                f"for {length_s} s, from {from_s} s into the window, the fleet received "
                f"{words.rate(rate * factor)} at the {spec.objective.layer} layer, less than "
                f"the {words.rate(limit)} that is needed: whatever the mean is, that does not "
                "last",
                "look at what the device and the hosts did at that time",
            )
            return Verdict.INCONCLUSIVE, [*cut, slow]
    proven = window.slowest_proven_bits_per_second
    noise = SLOW_SIGMAS * (window.slowest_noise_bits_per_second or 0.0)
    if proven is not None and (proven + noise) * factor < limit * (1 - SLOW_RATIO):
        unproven = problem(
            "stretch-unproven",
            79,
            f"rows are missing, and over {window.slowest_s} s those of receivers come to "
            f"{words.rate(proven * factor)} at the {spec.objective.layer} layer, less than "
            f"the {words.rate(limit)} that is needed: nothing shows that the part held it",
            "run again with every pair",
        )
        return Verdict.INCONCLUSIVE, [*cut, unproven]
    return Verdict.PASS, cut


def _slow_parts(burst: BurstSummary, window: Window) -> Iterator[tuple[int, int, float, float]]:
    """The parts that are held against the limit: from and for how many s of the window, their
    payload bit/s, and what that may be at most. What is left after a fall is as sure as the fall.
    """
    slowest, from_s, length_s = (
        window.slowest_bits_per_second,
        window.slowest_from_s,
        window.slowest_s,
    )
    if slowest is not None and from_s is not None and length_s is not None:
        noise = SLOW_SIGMAS * (window.slowest_noise_bits_per_second or 0.0)
        yield from_s, length_s, slowest, slowest + noise
    if burst.cliff is not None:
        at_s = round((burst.cliff.at - window.start_at).total_seconds())
        after = burst.cliff.after_bits_per_second
        yield at_s, window.window_s - at_s, after, after


def between_bursts(bursts: Sequence[BurstSummary]) -> float | None:
    """What one burst's mean payload rate may be off by the scatter of all, in bit/s.

    Student's t times their standard deviation: conservative, for a burst's own noise is part of
    it. None for under :data:`BURSTS_MIN` bursts.
    """
    rates = [rate for burst in bursts if (rate := RECEIVED.of_burst(burst)) is not None]
    if len(rates) < BURSTS_MIN:
        return None
    return t95(len(rates) - 1) * stdev(rates)


def hold_bursts(spec: RunSpec, bursts: Sequence[BurstSummary]) -> Iterator[Finding]:
    """Why bursts that passed one by one do not make a run that passes: their scatter.

    The mean of the bursts, less Student's t times its standard error and what the headers' share
    may be off, must be above the limit as well.
    """
    limit = limit_of(spec)
    rates = [rate for burst in bursts if (rate := received(spec, burst)) is not None]
    if limit is None or len(rates) < BURSTS_MIN:
        return
    mean = fmean(rate.value for rate in rates)
    error = stdev(rate.value for rate in rates) / math.sqrt(len(rates))
    bounds = zip(*(header_bounds(spec, burst) for burst in bursts), strict=True)
    less, more = (math.hypot(t95(len(rates) - 1) * error, mean * max(each)) for each in bounds)
    run = Interval(value=mean, below=less, above=more)
    if run.low <= limit:
        yield problem(
            "target-undecided",
            86,
            f"over {len(rates)} bursts the fleet received {run} at the {spec.objective.layer} "
            f"layer: their scatter reaches the limit of {words.rate(limit)}",
            "run more bursts, or find out why they differ",
        )


def _compared(spec: RunSpec, burst: BurstSummary, fleet: Interval, limit: float) -> str:
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
