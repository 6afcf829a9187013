"""Text for the conclusion of a scale-out study or a drill. Pure."""

from collections.abc import Iterator
from datetime import datetime

from broadside.coordinator.core import formatting
from broadside.coordinator.core.measure.experiments.drill import DrillResult, ExecutedEvent
from broadside.coordinator.core.measure.experiments.scale_out import CapacityStep, ScaleOut
from broadside.coordinator.studies.study import Conclusion, Staircase

# Longer times are given in minutes.
MINUTES_FROM_S = 120.0


def long_time(seconds: float | None) -> str:
    """Format a long time, in minutes from two minutes on."""
    if seconds is None:
        return formatting.UNKNOWN
    return f"{seconds / 60:.0f} min" if seconds >= MINUTES_FROM_S else f"{seconds:.0f} s"


def scaled_out(question: Staircase, found: ScaleOut | None) -> Conclusion:
    """Return the conclusion for a scale-out study.

    Args:
        question: The question of the study.
        found: Measured steps, or None if there are no seconds.
    """
    if found is None:
        sentence = "the scale-out cannot answer: no hold has seconds; see the notes"
        return Conclusion(sentence=sentence)
    last = formatting.rate(found.last_bits_per_second)
    if found.overload_at is None:
        sentence = f"all that was offered was carried, {last} of payload at the end; offer more"
    elif not found.steps:
        sentence = f"no step of capacity was found; the device stayed at {last} of payload"
    else:
        sentence = "; ".join(_grown(question, found))
    more = (*_costs(found), *_down(found))
    return Conclusion(sentence=sentence, scale_out=found, notes=more)


def _grown(question: Staircase, found: ScaleOut) -> Iterator[str]:
    first, last = found.first_bits_per_second, found.last_bits_per_second
    rates = f"from {formatting.rate(first)} to {formatting.rate(last)} of payload"
    yield f"{long_time(found.took_s)} {rates}"
    unit = found.unit_bits_per_second
    if unit is None:
        yield f"{len(found.steps)} steps, of which none shows a unit's size"
        return
    half = found.unit_half_width_bits_per_second
    count = max(1, round(((last or 0.0) - (first or 0.0)) / unit))
    name, size = formatting.unit_of(unit, formatting.RATES)
    width = "" if half is None else f" +- {formatting.number(half / size)}"
    plural = "s" if count > 1 else ""
    yield f"about {count} step{plural} of {formatting.number(unit / size)}{width} {name}"
    target = question.plan_bits_per_second
    units = None if target is None else found.units_for(target, question.units_count)
    if target is not None and units is not None:
        yield f"pre-scale to {units} units for {formatting.rate(target)}"


def _costs(found: ScaleOut) -> Iterator[str]:
    """Yield notes on the effects of the steps, and on the data that was used."""
    steps = found.steps
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
    before, after = found.units_before_count, found.units_after_count
    if before is not None and after is not None:
        yield f"a witness counted {formatting.number(before)} to {formatting.number(after)} units"
    sizes = [step for step in steps if step.ledger_size_bits_per_second is not None]
    if sizes:
        said = ", ".join(formatting.rate(step.ledger_size_bits_per_second) for step in sizes)
        yield f"by the firewall's own count (IP layer) the steps were {said}"


def _when(step: CapacityStep) -> str:
    reach_s = (step.to_at - step.from_at).total_seconds() / 2
    marks = " (between two holds)" * step.in_pause + " (up to what was offered)" * step.capped
    return f"{step.after_overload_s:.0f} s +- {max(0.5, reach_s):.2g}{marks}"


def _down(found: ScaleOut) -> Iterator[str]:
    cut = found.scale_in
    if cut is not None:
        yield (
            f"on the way down, {cut.holds_count} holds: {cut.broken_pairs_count} pairs reset, "
            f"{cut.stalled_pairs_count} stalled, {formatting.size(cut.short_bytes)} short"
        )


# Drill --------------------------------------------------------------------------------------------


def drilled(event: ExecutedEvent | None, found: DrillResult | None) -> Conclusion:
    """Return the conclusion for a drill.

    Args:
        event: The event of the drill, or None if it was not started.
        found: Measured effects, or None if there is no data for the burst.
    """
    if event is None or event.started_at is None:
        why = "its instant never came" if event is None else event.problem or "no reason is known"
        return Conclusion(sentence=f"the event was not carried out: {why}")
    if found is None:
        sentence = "the drill cannot answer: nothing is stored of its burst; see the notes"
        return Conclusion(sentence=sentence)
    parts = [_outage(found), *_payload(found), *_sessions(found)]
    more = (_event(event), *_limits(found))
    return Conclusion(sentence="; ".join(parts), drilled=found, notes=more)


def _outage(found: DrillResult) -> str:
    if found.outage_s is None:
        return "the outage is unknown: nobody probed"
    if not found.outages or found.outage_from_at is None:
        limit = formatting.time(None if found.resolution_s is None else 3 * found.resolution_s)
        return f"probes of {found.probed_count} pairs saw no outage of {limit} or more"
    worst, count = found.outages[0], found.outages_count
    usual = found.outages[len(found.outages) // 2]
    longest = f" (the longest {worst.outage_s * 1e3:.0f} ms)" if count > 1 else ""
    begun = found.event.started_at or found.event.planned_at
    after_s = (found.outage_from_at - begun).total_seconds()
    least = "at least " * (not usual.over)
    return (
        f"the device was out for {least}{found.outage_s * 1e3:.0f} ms "
        f"+- {usual.resolution_s * 1e3:.0f} by the probes of {count} of "
        f"{found.probed_count} pairs{longest}, from {_clock(found.outage_from_at)} UTC on, "
        f"{after_s:.2f} s after the event began"
    )


def _payload(found: DrillResult) -> Iterator[str]:
    for dip in found.flows:
        where = f" {dip.flow.value}" if len(found.flows) > 1 else ""
        if dip.back_after_s == 0.0:
            yield f"payload{where} did not fall"
            continue
        back = (
            "was not back at 95 % by the burst's end"
            if dip.back_after_s is None
            else f"was back at 95 % after {dip.back_after_s:.1f} s"
        )
        yield (
            f"payload{where} fell from {formatting.rate(dip.level_bits_per_second)} to "
            f"{formatting.rate(dip.lowest_bits_per_second)} and {back}, "
            f"{formatting.size(dip.short_bytes)} short"
        )
    if found.tcp_s is not None and found.back_after_s:
        counts = [dip.retransmits_count for dip in found.flows if dip.retransmits_count is not None]
        told = f", with {formatting.count(sum(counts))} retransmits in all" if counts else ""
        yield f"{found.tcp_s:.1f} s of it were TCP's own recovery{told}"


def _sessions(found: DrillResult) -> Iterator[str]:
    again = (
        ""
        if found.opened_again_count is None or not found.cut_count
        else f", {found.opened_again_count} of them opened again"
    )
    more = f" and {len(found.cut_pairs) - 3} more" if len(found.cut_pairs) > 3 else ""
    of = f" (of {', '.join(found.cut_pairs[:3])}{more})" if found.cut_pairs else ""
    begun = found.event.started_at or found.event.planned_at
    after_s = [
        f"{max(0.0, (at - begun).total_seconds()):.0f}"
        for at in (found.cut_from_at, found.cut_to_at)
        if at is not None
    ]
    when = f" {' to '.join(dict.fromkeys(after_s))} s after the event began" if after_s else ""
    yield f"{found.cut_count} of {found.sessions_count} sessions were cut{of}{when}{again}"
    for dip in found.flows[:1]:
        # If all sessions were cut, there are no seconds to compute the ratio from, and it must be
        # 0.
        left = 0.0 if found.cut_count == found.sessions_count > 0 else dip.old_ratio
        old, new = formatting.ratio(left, 0), formatting.ratio(dip.new_ratio, 0)
        yield f"of the level before, old sessions carry {old} and new ones {new}"


def _event(event: ExecutedEvent) -> str:
    ended = "had not ended with the run" if event.ended_at is None else ""
    if event.ended_at is not None and event.started_at is not None:
        ended = f"took {formatting.time((event.ended_at - event.started_at).total_seconds())}"
    ended += "" if event.exit_code is None else f", exit {event.exit_code}"
    said = f": {event.said}" if event.said else ""
    problem = f" ({event.problem})" if event.problem else ""
    at = formatting.UNKNOWN if event.started_at is None else _clock(event.started_at)
    return f"event at {at} UTC {ended}{said}{problem}"


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


def _limits(found: DrillResult) -> Iterator[str]:
    if found.resolution_s is not None:
        yield (
            f"an outage is known to {formatting.time(found.resolution_s)}, the spacing of the "
            "probes, payload to the second; the event is dated by the coordinator's clock, the "
            "rest by the fleet's"
        )
    if found.touched_count:
        names = ", ".join(found.touched_pairs[:10])
        yield f"the payload of {found.touched_count} pairs fell: {names}"
