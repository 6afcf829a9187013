"""Analysis of how a device scales out under constant load.

The result has all steps, how much each of them added, and what was lost. You can only see a
device's capacity when the offered load is higher. So we look for steps within a hold. If a load was
not fully carried, we also look for a step in the pause to the next hold. If a step ends at the
offered load, it is *capped*. It can be larger than measured, so its size should not be used in any
mean. This module does no input or output.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.formulas.change_points import (
    STEP_LEAST_RATIO,
    Step,
    find_steps,
    levels_of,
)
from broadside.coordinator.core.measure.formulas.steady import t95
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.summary import (
    Disruption,
    DisruptionKind,
    UnitChange,
    Units,
    UnitSummary,
    figure,
    instant,
)
from broadside.exchange.messages import Message, UtcDatetime, renamed

# Seconds in which TCP starts. They should not be used for a level.
HEAD_S: Final = 3
# Share of the offered load. If the rate is above this, the device is not the limit.
CARRIED_RATIO: Final = 0.95
# Seconds before and after a step. Losses in this time belong to the step.
NEAR_S: Final = 3.0
# Seconds to average for a level.
LEVEL_LEAST_S: Final = 5
# How many device counter bins we need to compute a level.
COUNTER_BINS_MIN_COUNT: Final = 3
# How many points to store in a rate curve.
POINTS_MAX_COUNT: Final = 600
_Z95: Final = 1.96
_Z95_ONE_SIDED: Final = 1.645


class RateCurve(Message):
    """Received payload rate over time at real scale, to be used for charts.

    Attributes:
        start_at: Start of the first step.
        every_s: Length of a step in seconds.
        bits_per_second: Received payload rates in bit/s, one per step. None is unknown.
    """

    start_at: UtcDatetime
    every_s: float
    bits_per_second: tuple[float | None, ...]


class CapacityStep(Message):
    """Change in device capacity, with rates as payload at real scale.

    Attributes:
        at: Time of the step.
        from_at: Start of the 95 % interval for the time.
        to_at: End of the 95 % interval for the time.
        after_overload_s: Seconds from the start of the overload.
        before_bits_per_second: Carried rate before the step, in bit/s.
        after_bits_per_second: Carried rate after the step, in bit/s.
        size_bits_per_second: Size of the step in bit/s. It is the mean of all steps when they
            differ by noise only.
        half_width_bits_per_second: Half of the 95 % interval of the size, in bit/s.
        capped: True if the step ended at the offered load.
        in_pause: True if it happened between two holds, so that its time is not known.
        counter_size_bits_per_second: Size in bit/s at the IP layer, from the device counter. None
            without a counter.
        retransmits_count: Retransmissions around the step, above those that are normal for the
            level.
        rtt_max_s: Largest round-trip time around the step, in seconds.
        short_bytes: Payload that is missing from the previous level around the step, in bytes.
        broken_pairs_count: Number of pairs for which connections were reset around the step.
    """

    at: UtcDatetime
    from_at: UtcDatetime
    to_at: UtcDatetime
    after_overload_s: float
    before_bits_per_second: float
    after_bits_per_second: float
    size_bits_per_second: float
    half_width_bits_per_second: float
    capped: bool = False
    in_pause: bool = False
    counter_size_bits_per_second: Annotated[
        float | None, renamed("counter_size_bits_per_second", "ledger_size_bits_per_second")
    ] = None
    retransmits_count: float | None = None
    rtt_max_s: float | None = None
    short_bytes: float | None = None
    broken_pairs_count: int = 0


class Scaling(Message):
    """Result for a hold, using its own seconds.

    Attributes:
        steps_count: Number of steps.
        quiet_s: Seconds from the last step to the end, or from the start if there was no step.
        carried: True if the offered load was reached at the end, or ``None`` if it had no limit.
    """

    steps_count: int
    quiet_s: float
    carried: bool | None


class NewUnit(Message):
    """Unit that carried its first stream after the start of the overload.

    Attributes:
        address: Translated address of the unit.
        first_at: First traffic of the unit.
        after_overload_s: Seconds from the start of the overload.
        flows_mean_count: Mean number of streams over the seconds with traffic. None if not
            recorded.
    """

    address: str
    first_at: UtcDatetime
    after_overload_s: float
    flows_mean_count: float | None = None


class ScaleIn(Message):
    """Disruptions when the load was reduced.

    Attributes:
        from_at: Time when the load was reduced.
        holds_count: Number of holds with the reduced load.
        broken_pairs_count: Number of pairs for which connections were reset.
        stalled_pairs_count: Number of pairs that stalled.
        short_bytes: Payload that is missing compared with the level before, in bytes. None if
            unknown.
        units_left: Units that left during a hold, by translated addresses.
        flows_cut_count: Number of streams of these units that were cut. None if the units are
            unknown.
    """

    from_at: UtcDatetime
    holds_count: int
    broken_pairs_count: int
    stalled_pairs_count: int
    short_bytes: float | None
    retransmits_count: float | None
    units_left: tuple[UnitChange, ...] = ()
    flows_cut_count: int | None = None


class ScaleOut(Message):
    """Result for all holds together.

    Attributes:
        overload_at: First time when the offered load was higher than the carried load.
        first_bits_per_second: Carried rate at the start of the overload, in bit/s.
        last_bits_per_second: Carried rate at the end, in bit/s.
        took_s: Seconds from the overload to the last step.
        steps: Changes of the capacity.
        unit_bits_per_second: Mean size in bit/s of the steps up that were not capped.
        unit_half_width_bits_per_second: Half of the 95 % interval of this mean, in bit/s.
        scale_in: Disruptions when the load was reduced.
        units_before_count: Number of units from telemetry at the start. None if unknown.
        units_after_count: Number of units from telemetry at the end. None if unknown.
        seen_before_count: Number of units by translated addresses in the first hold. None if
            unknown.
        seen_after_count: Number of units by translated addresses in the last hold with more load.
            None if unknown.
        seen_unit_bits_per_second: Mean rate of the units at their limit in the last overloaded
            hold, in bit/s.
        seen_unit_half_width_bits_per_second: Half of the 95 % interval of this mean over the units,
            in bit/s.
        new_units: Units that carried their first stream after the start of the overload.
        rate_curve: Received payload over time.
    """

    overload_at: UtcDatetime | None
    first_bits_per_second: float | None
    last_bits_per_second: float | None
    took_s: float | None
    steps: tuple[CapacityStep, ...] = ()
    unit_bits_per_second: float | None = None
    unit_half_width_bits_per_second: float | None = None
    scale_in: ScaleIn | None = None
    units_before_count: float | None = None
    units_after_count: float | None = None
    seen_before_count: int | None = None
    seen_after_count: int | None = None
    seen_unit_bits_per_second: float | None = None
    seen_unit_half_width_bits_per_second: float | None = None
    new_units: tuple[NewUnit, ...] = ()
    rate_curve: Annotated[RateCurve | None, renamed("rate_curve", "course")] = None

    def units_for(self, bits_per_second: float, units_count: float | None) -> int | None:
        """Return how many units are needed to carry a rate.

        To be safe, the lower bound of the interval for a unit is used. If no step shows the size of
        a unit, the rate of its own streams is used. If the number of units at the start is not
        known from the user, telemetry or translated addresses, it will be computed from the first
        level.

        Args:
            bits_per_second: Rate to carry.
            units_count: Number of units at the start. None if unknown.

        Returns:
            Number of units, or ``None`` when it cannot be computed.
        """
        unit, half = self.unit_bits_per_second, self.unit_half_width_bits_per_second
        if unit is None:
            unit = self.seen_unit_bits_per_second
            half = self.seen_unit_half_width_bits_per_second
        if unit is None or self.first_bits_per_second is None:
            return None
        there = (
            units_count
            or self.units_before_count
            or self.seen_before_count
            or max(1.0, round(self.first_bits_per_second / unit))
        )
        least = unit - (half or 0.0)
        if least <= 0:
            return None
        more = max(0.0, bits_per_second - self.first_bits_per_second)
        return math.ceil(there + math.ceil(more / least))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPhase:
    """Constant load for a burst, with a value per second in arrays, where NaN is unknown.

    Attributes:
        start_s: Time of the first second, in epoch seconds.
        rates: Received payload in bit/s at real scale.
        retransmits: Retransmitted segments.
        rtt_s: Round-trip time in seconds.
        offered_bits_per_second: Offered load, or ``None`` if it has no limit.
        downward: True if the load is lower than in the previous hold.
        disruptions: Disruptions during the hold.
        pairs_count: Number of pairs. 0 if unknown.
        device_counter: Device counter as measured.
        scale: Factor to get real bytes from the counter.
        units: Units by translated addresses, as measured. None if unknown.
    """

    start_s: float
    rates: Floats
    retransmits: Floats
    rtt_s: Floats
    offered_bits_per_second: float | None = None
    downward: bool = False
    disruptions: tuple[Disruption, ...] = ()
    pairs_count: int = 0
    device_counter: CounterRecord | None = None
    scale: float = 1.0
    units: Units | None = None

    @property
    def end_s(self) -> float:
        return self.start_s + len(self.rates)

    @property
    def known(self) -> NDArray[np.intp]:
        """Indexes for seconds that can be used for a level."""
        places = np.flatnonzero(~np.isnan(self.rates))
        return places[places >= HEAD_S]

    @property
    def without_stalls(self) -> Floats:
        """Rates as if a stalled pair carried the same as the other pairs' mean."""
        rates = self.rates.copy()
        for item in self.disruptions:
            if item.kind is DisruptionKind.STALL and item.pairs_count < self.pairs_count:
                first, last = (
                    max(0, round(at.timestamp() - self.start_s))
                    for at in (item.start_at, item.end_at)
                )
                rates[first:last] *= self.pairs_count / (self.pairs_count - item.pairs_count)
        return rates

    def level(self, *, at_end: bool) -> float | None:
        """Return the median rate in bit/s at either end of the hold.

        Args:
            at_end: Set to true to use the last seconds, and to false to use the first.

        Returns:
            The median. None if no second of the hold has a usable rate.
        """
        seen = self.rates[self.known]
        part = seen[-LEVEL_LEAST_S:] if at_end else seen[:LEVEL_LEAST_S]
        return float(np.median(part)) if len(part) else None

    def carries(self, level: float | None) -> bool:
        """Return true if a level has reached the offered load.

        If there is no limit for the load, it cannot be reached.

        Args:
            level: Level to check in bit/s. None if unknown, which returns False.
        """
        offered = self.offered_bits_per_second
        return level is not None and offered is not None and level >= CARRIED_RATIO * offered


def scaling_of(phase: LoadPhase) -> Scaling:
    """Return the values to use to decide if the load should be held for longer.

    Args:
        phase: The load phase up to now.
    """
    steps = list(_within(phase, phase.start_s))
    since_s = steps[-1].at.timestamp() if steps else phase.start_s
    bounded = phase.offered_bits_per_second is not None
    return Scaling(
        steps_count=len(steps),
        quiet_s=round(phase.end_s - since_s, 3),
        carried=phase.carries(phase.level(at_end=True)) if bounded else None,
    )


def find_scale_out(phases: Sequence[LoadPhase]) -> ScaleOut:
    """Find steps and the unit size using all holds.

    Args:
        phases: The holds in time order.
    """
    up = [phase for phase in phases if not phase.downward and len(phase.known)]
    over = next((phase for phase in up if not phase.carries(phase.level(at_end=False))), None)
    down = [phase for phase in phases if phase.downward]
    reported = {
        "rate_curve": _rate_curve(phases),
        "scale_in": _scale_in(down) if down else None,
        **_seen_units(up, over),
    }
    if over is None:
        level = up[-1].level(at_end=True) if up else None
        return ScaleOut(
            overload_at=None,
            first_bits_per_second=None,
            last_bits_per_second=level,
            took_s=None,
            **reported,
        )
    begun_s = over.start_s
    steps: list[CapacityStep] = []
    before: LoadPhase | None = None
    for phase in up[up.index(over) :]:
        if before is not None and (between := _between(before, phase, begun_s)) is not None:
            steps.append(between)
        steps += _within(phase, begun_s)
        before = phase
    steps = [_with_counter(steps, place, up) for place in range(len(steps))]
    units = [step for step in steps if _is_unit(step)]
    unit, half = _mean([step.size_bits_per_second for step in units], units)
    if unit is not None and half is not None and _are_similar(units):
        size = {
            "size_bits_per_second": six_digits(unit),
            "half_width_bits_per_second": six_digits(half),
        }
        steps = [step.model_copy(update=size) if _is_unit(step) else step for step in steps]
    return ScaleOut(
        overload_at=instant(begun_s),
        first_bits_per_second=figure(over.level(at_end=False)),
        last_bits_per_second=figure(up[-1].level(at_end=True)),
        took_s=steps[-1].after_overload_s if steps else None,
        steps=tuple(steps),
        unit_bits_per_second=figure(unit),
        unit_half_width_bits_per_second=figure(half),
        **reported,
    )


def _is_unit(step: CapacityStep) -> bool:
    return step.size_bits_per_second > 0 and not step.capped and not step.in_pause


def _are_similar(steps: Sequence[CapacityStep]) -> bool:
    """Return true if step sizes only differ by their measurement errors.

    To see this, Cochran's Q (The combination of estimates from different experiments, Biometrics
    10, 1954) is compared to the 95th percentile of chi-squared (Wilson and Hilferty, PNAS 17,
    1931). If noise lifts a level, a step will be larger and the next step smaller. So there is only
    a small change in their mean.
    """
    if len(steps) < 2:
        return False
    sizes = np.array([step.size_bits_per_second for step in steps])
    errors = np.array([step.half_width_bits_per_second for step in steps]) / _Z95
    q = float((((sizes - sizes.mean()) / errors) ** 2).sum())
    part = 2 / (9 * (len(steps) - 1))
    return q <= (len(steps) - 1) * (1 - part + _Z95_ONE_SIDED * math.sqrt(part)) ** 3


def _mean(
    sizes: Sequence[float], steps: Sequence[CapacityStep]
) -> tuple[float | None, float | None]:
    """Return the mean size and half its 95 % interval.

    For a single step, its own interval is used.
    """
    if not sizes:
        return None, None
    if len(sizes) == 1:
        return sizes[0], steps[0].half_width_bits_per_second
    error = float(np.std(sizes, ddof=1)) / math.sqrt(len(sizes))
    return float(np.mean(sizes)), t95(len(sizes) - 1) * error


def _within(phase: LoadPhase, begun_s: float) -> Iterator[CapacityStep]:
    """Yield steps using a hold's own seconds."""
    places = phase.known
    if not len(places):
        return
    for step in _steps(phase.rates[places], phase.without_stalls[places]):
        low, at, high = (
            phase.start_s + float(places[index])
            for index in (step.index_low, step.index, step.index_high)
        )
        near = slice(
            max(0, int(low - phase.start_s - NEAR_S)), int(high - phase.start_s + NEAR_S) + 1
        )
        yield CapacityStep(
            at=instant(at),
            from_at=instant(low),
            to_at=instant(high),
            after_overload_s=round(at - begun_s, 3),
            before_bits_per_second=six_digits(step.before),
            after_bits_per_second=six_digits(step.after),
            size_bits_per_second=six_digits(step.size),
            half_width_bits_per_second=six_digits(step.half_width),
            capped=step.size > 0 and phase.carries(step.after),
            retransmits_count=_over_median(phase.retransmits, near),
            rtt_max_s=_most(phase.rtt_s[near]),
            short_bytes=_short_bytes(phase.rates[near], min(step.before, step.after)),
            broken_pairs_count=sum(
                item.pairs_count
                for item in phase.disruptions
                if item.kind is DisruptionKind.RESET
                and low - NEAR_S <= item.start_at.timestamp() <= high + NEAR_S
            ),
        )


def _steps(rates: Floats, without_stalls: Floats) -> Sequence[Step]:
    """Find steps using rates with or without stalls, and return the better fit.

    When a pair stalls and the device is full, other pairs will use its share. When pairs are paced,
    they will not.
    """
    reported = [
        (steps, float(np.abs(values - levels_of(steps, values)).sum()))
        for values in (rates, without_stalls)
        for steps in (find_steps(values),)
    ]
    return min(reported, key=lambda item: item[1])[0]


def _between(before: LoadPhase, after: LoadPhase, begun_s: float) -> CapacityStep | None:
    """Return a step in the pause between two holds, if the first was not fully carried."""
    old, new = before.level(at_end=True), after.level(at_end=False)
    if old is None or new is None or before.carries(old):
        return None
    size = new - old
    spread = math.hypot(_spread(before, at_end=True), _spread(after, at_end=False))
    if abs(size) <= max(2 * STEP_LEAST_RATIO * max(old, new), 2 * spread):
        return None
    return CapacityStep(
        at=instant((before.end_s + after.start_s) / 2),
        from_at=instant(before.end_s),
        to_at=instant(after.start_s),
        after_overload_s=round((before.end_s + after.start_s) / 2 - begun_s, 3),
        before_bits_per_second=six_digits(old),
        after_bits_per_second=six_digits(new),
        size_bits_per_second=six_digits(size),
        half_width_bits_per_second=six_digits(spread),
        capped=size > 0 and after.carries(new),
        in_pause=True,
    )


def _spread(phase: LoadPhase, *, at_end: bool) -> float:
    seen = phase.rates[phase.known]
    return float(np.std(seen[-LEVEL_LEAST_S:] if at_end else seen[:LEVEL_LEAST_S]))


def _with_counter(
    steps: Sequence[CapacityStep], place: int, phases: Sequence[LoadPhase]
) -> CapacityStep:
    """Add the size by the device counter to a step, if bins are short enough."""
    step = steps[place]
    phase = next((h for h in phases if h.start_s <= step.at.timestamp() < h.end_s), None)
    if step.in_pause or phase is None or phase.device_counter is None:
        return step
    device_counter = phase.device_counter
    since_s = max(
        phase.start_s + HEAD_S, steps[place - 1].to_at.timestamp() if place else phase.start_s
    )
    until_s = min(
        phase.end_s - 1,
        steps[place + 1].from_at.timestamp() if place + 1 < len(steps) else phase.end_s,
    )
    lag_s = device_counter.lag_hint_s or 0.0
    levels = []
    for from_s, before_s in (
        (since_s, step.from_at.timestamp()),
        (step.to_at.timestamp(), until_s),
    ):
        inside = (device_counter.start_s - lag_s >= from_s) & (
            device_counter.end_s - lag_s <= before_s
        )
        inside &= ~np.isnan(device_counter.bytes)
        if inside.sum() < COUNTER_BINS_MIN_COUNT:
            return step
        spans = device_counter.end_s[inside] - device_counter.start_s[inside]
        levels.append(8 * phase.scale * float(device_counter.bytes[inside].sum() / spans.sum()))
    return step.model_copy(
        update={"counter_size_bits_per_second": six_digits(levels[1] - levels[0])}
    )


def _seen_units(up: Sequence[LoadPhase], over: LoadPhase | None) -> dict[str, Any]:
    """Return the units by translated addresses, as fields of the result.

    Args:
        up: Holds without reduced load.
        over: First hold with more load than the device carried, if any.
    """
    known = [(phase, phase.units) for phase in up if phase.units is not None and phase.units.count]
    if not known:
        return {}
    joined = [one for one in known[0][1].changes if one.change == "joined"]
    result: dict[str, Any] = {
        "seen_before_count": (known[0][1].count or 0) - len(joined),
        "seen_after_count": known[-1][1].count,
    }
    full = [one for one in known if not one[0].carries(one[0].level(at_end=True))]
    if over is None or not full:
        return result
    phase, units = full[-1]
    rates = _unit_rates(phase, units)
    if len(rates):
        result["seen_unit_bits_per_second"] = six_digits(float(rates.mean()))
    if len(rates) > 1:
        half = t95(len(rates) - 1) * float(rates.std(ddof=1)) / math.sqrt(len(rates))
        result["seen_unit_half_width_bits_per_second"] = six_digits(half)
    result["new_units"] = tuple(
        NewUnit(
            address=unit.address,
            first_at=unit.first_at,
            after_overload_s=round(unit.first_at.timestamp() - over.start_s, 3),
            flows_mean_count=unit.flows_mean_count,
        )
        for _, unit in seen_first([phase.units for phase in up])
        if unit.first_at.timestamp() >= over.start_s
    )
    return result


def _unit_rates(phase: LoadPhase, units: Units) -> Floats:
    """Return the rates of units at real scale, without those that carry all of their streams' load.

    Args:
        phase: An overloaded hold.
        units: Its units.
    """
    rates: Floats = phase.scale * np.array(
        [unit.received_bits_per_second or math.nan for unit in units.units], float
    )
    flows = np.array([unit.flows_count or math.nan for unit in units.units])
    if phase.offered_bits_per_second is not None and not np.isnan(flows).any():
        offered = phase.offered_bits_per_second * flows / flows.sum()
        rates = rates[rates < CARRIED_RATIO * offered]
    return np.asarray(rates[~np.isnan(rates)])


def seen_first(holds: Sequence[Units | None]) -> tuple[tuple[int, UnitSummary], ...]:
    """Return the units that the first known hold did not show, with the hold's index.

    Args:
        holds: Units of each hold in time order, or None if they are unknown.
    """
    known = [(index, units) for index, units in enumerate(holds) if units and units.count]
    seen = {unit.address for _, units in known[:1] for unit in units.units}
    seen -= {
        one.address for _, units in known[:1] for one in units.changes if one.change == "joined"
    }
    new = []
    for index, units in known:
        for unit in units.units:
            if unit.address not in seen:
                seen.add(unit.address)
                new.append((index, unit))
    return tuple(new)


def _scale_in(phases: Sequence[LoadPhase]) -> ScaleIn:
    known = [phase.units for phase in phases if phase.units is not None and phase.units.count]
    left = [one for units in known for one in units.changes if one.change == "left"]
    broken = [item for phase in phases for item in phase.disruptions]
    shorts = [item.short_bytes for item in broken if item.short_bytes is not None]
    retransmits = [float(np.nansum(h.retransmits)) for h in phases if _has(h.retransmits)]

    def pairs_of(kind: DisruptionKind) -> int:
        return sum(item.pairs_count for item in broken if item.kind is kind)

    return ScaleIn(
        from_at=instant(phases[0].start_s),
        holds_count=len(phases),
        broken_pairs_count=pairs_of(DisruptionKind.RESET),
        stalled_pairs_count=pairs_of(DisruptionKind.STALL),
        short_bytes=sum(shorts) if shorts else None,
        retransmits_count=sum(retransmits) if retransmits else None,
        units_left=tuple(left),
        flows_cut_count=(
            sum(one.flows_count or 0 for one in left if one.flows_cut) if known else None
        ),
    )


def _rate_curve(phases: Sequence[LoadPhase]) -> RateCurve | None:
    if not phases:
        return None
    start_s, end_s = phases[0].start_s, max(phase.end_s for phase in phases)
    rates = np.full(math.ceil(end_s - start_s), np.nan)
    for phase in phases:
        at = round(phase.start_s - start_s)
        rates[at : at + len(phase.rates)] = phase.rates[: len(rates) - at]
    return rate_curve(start_s, rates)


def rate_curve(start_s: float, rates: Floats) -> RateCurve:
    """Return a rate curve with no more than ``POINTS_MAX_COUNT`` means.

    If any second is unknown, its mean will be unknown too.

    Args:
        start_s: Start in epoch seconds.
        rates: Rate per second, in bit/s.
    """
    every = max(1, math.ceil(len(rates) / POINTS_MAX_COUNT))
    complete = np.concatenate([rates, np.full(-len(rates) % every, np.nan)]).reshape(-1, every)
    means = complete.mean(axis=1)
    return RateCurve(
        start_at=instant(start_s),
        every_s=float(every),
        bits_per_second=tuple(None if math.isnan(mean) else six_digits(mean) for mean in means),
    )


def _has(values: Floats) -> bool:
    return bool((~np.isnan(values)).any())


def _most(values: Floats) -> float | None:
    return figure(float(np.nanmax(values))) if _has(values) else None


def _over_median(values: Floats, near: slice) -> float | None:
    """Return how much a count is above its normal value around a step."""
    part = values[near]
    if not _has(part):
        return None
    return max(0.0, float(np.nansum(part) - np.nanmedian(values) * (~np.isnan(part)).sum()))


def _short_bytes(rates: Floats, level: float) -> float | None:
    return six_digits(float(np.nansum(np.maximum(level - rates, 0.0))) / 8) if _has(rates) else None


def six_digits(value: float) -> float:
    """Round to six significant digits, as rates and byte sums are not more precise."""
    return float(f"{value:.6g}")
