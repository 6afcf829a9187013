"""Text for the conclusion of a scale-out study. Pure."""

from collections.abc import Iterator

from broadside.coordinator.core import formatting
from broadside.coordinator.core.measure.experiments.scale_out import CapacityStep, ScaleOut
from broadside.coordinator.core.summary import describe_change
from broadside.coordinator.studies.study import Conclusion, Staircase

# Longer times are given in minutes.
MINUTES_FROM_S = 120.0


def long_time(seconds: float | None) -> str:
    """Format a long time, in minutes from two minutes on."""
    if seconds is None:
        return formatting.UNKNOWN
    return f"{seconds / 60:.0f} min" if seconds >= MINUTES_FROM_S else f"{seconds:.0f} s"


def scaled_out(question: Staircase, scale_out: ScaleOut | None) -> Conclusion:
    """Return the conclusion for a scale-out study.

    Args:
        question: The question of the study.
        scale_out: Measured steps, or None if there are no seconds.
    """
    if scale_out is None:
        sentence = "the scale-out has no result: no hold has seconds; see the notes"
        return Conclusion(sentence=sentence)
    last = formatting.rate(scale_out.last_bits_per_second)
    if scale_out.overload_at is None:
        sentence = f"the device carried all of the load, {last} of payload at the end; offer more"
    elif not scale_out.steps:
        sentence = f"no capacity step was detected; the device stayed at {last} of payload"
    else:
        sentence = "; ".join(_grown(question, scale_out))
    more = (*_costs(scale_out), *_units(scale_out), *_down(scale_out))
    return Conclusion(sentence=sentence, scale_out=scale_out, notes=more)


def _grown(question: Staircase, scale_out: ScaleOut) -> Iterator[str]:
    first, last = scale_out.first_bits_per_second, scale_out.last_bits_per_second
    rates = f"from {formatting.rate(first)} to {formatting.rate(last)} of payload"
    yield f"{long_time(scale_out.took_s)} {rates}"
    unit = scale_out.unit_bits_per_second
    if unit is None:
        plural = "s" if len(scale_out.steps) > 1 else ""
        yield f"{len(scale_out.steps)} step{plural} that cannot show the size of a unit"
    else:
        half = scale_out.unit_half_width_bits_per_second
        count = max(1, round(((last or 0.0) - (first or 0.0)) / unit))
        name, size = formatting.unit_of(unit, formatting.RATES)
        width = "" if half is None else f" +- {formatting.number(half / size)}"
        plural = "s" if count > 1 else ""
        yield f"about {count} step{plural} of {formatting.number(unit / size)}{width} {name}"
    target = question.plan_bits_per_second
    units = None if target is None else scale_out.units_for(target, question.units_count)
    if target is not None and units is not None:
        yield f"pre-scale to {units} units for {formatting.rate(target)}"


def _costs(scale_out: ScaleOut) -> Iterator[str]:
    """Yield notes on the effects of the steps, and on the data that was used."""
    steps = scale_out.steps
    if not steps:
        return
    yield f"steps after {', '.join(_when(step) for step in steps)} of overload"
    lost = [step.retransmits_count for step in steps if step.retransmits_count is not None]
    longest = max((step.rtt_max_s or 0.0 for step in steps), default=0.0)
    broken = sum(step.broken_pairs_count for step in steps)
    short = [step.short_bytes for step in steps if step.short_bytes is not None]
    yield (
        f"around the steps: {formatting.count(sum(lost)) if lost else formatting.UNKNOWN} "
        f"retransmits more than usual, RTT up to {formatting.time(longest or None)}, "
        f"{formatting.size(sum(short)) if short else formatting.UNKNOWN} under the lower level, "
        f"{broken} pairs reset"
    )
    before, after = scale_out.units_before_count, scale_out.units_after_count
    if before is not None and after is not None:
        yield f"telemetry counted {formatting.number(before)} to {formatting.number(after)} units"
    sizes = [step for step in steps if step.counter_size_bits_per_second is not None]
    if sizes:
        sizes_text = ", ".join(formatting.rate(step.counter_size_bits_per_second) for step in sizes)
        yield f"steps in the device counter (IP layer): {sizes_text}"


def _units(scale_out: ScaleOut) -> Iterator[str]:
    """Yield notes on the units that translated addresses show."""
    before, after = scale_out.seen_before_count, scale_out.seen_after_count
    if before is None or after is None:
        return
    yield f"translated addresses show {before} to {after} units"
    rate = scale_out.seen_unit_bits_per_second
    if rate is not None:
        half = scale_out.seen_unit_half_width_bits_per_second
        width = "" if half is None else f" +- {formatting.rate(half)}"
        yield f"capacity of a unit by its own streams: {formatting.rate(rate)}{width} of payload"
    if scale_out.new_units:
        firsts = ", ".join(
            f"{unit.address} {unit.after_overload_s:.0f} s" for unit in scale_out.new_units
        )
        yield f"first stream on new units after the start of the overload: {firsts}"


def _when(step: CapacityStep) -> str:
    reach_s = (step.to_at - step.from_at).total_seconds() / 2
    marks = " (between two holds)" * step.in_pause + " (up to what was offered)" * step.capped
    return f"{step.after_overload_s:.0f} s +- {max(0.5, reach_s):.2g}{marks}"


def _down(scale_out: ScaleOut) -> Iterator[str]:
    scale_in = scale_out.scale_in
    if scale_in is not None:
        yield (
            f"scale-in, {scale_in.holds_count} holds: {scale_in.broken_pairs_count} pairs reset, "
            f"{scale_in.stalled_pairs_count} stalled, {formatting.size(scale_in.short_bytes)} short"
        )
        if scale_in.units_left:
            left = "; ".join(map(describe_change, scale_in.units_left))
            yield f"scale-in cut {scale_in.flows_cut_count} streams: {left}"
