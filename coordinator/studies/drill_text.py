"""Text for the conclusion of a drill. Pure."""

from collections.abc import Iterator
from datetime import datetime

from broadside.coordinator.core import formatting
from broadside.coordinator.core.measure.experiments.drill import DrillResult, ExecutedEvent
from broadside.coordinator.studies.study import Conclusion


def drilled(event: ExecutedEvent | None, result: DrillResult | None) -> Conclusion:
    """Return the conclusion for a drill.

    Args:
        event: The event of the drill, or None if it was not started.
        result: Measured effects, or None if there is no data for the burst.
    """
    if event is None or event.started_at is None:
        why = "its time was not reached" if event is None else event.problem or "no reason is known"
        return Conclusion(sentence=f"the event was not carried out: {why}")
    if result is None:
        sentence = "the drill has no result: no data of its burst is stored; see the notes"
        return Conclusion(sentence=sentence)
    parts = [_outage(result), *_payload(result), *_sessions(result)]
    more = (_event(event), *_limits(result))
    return Conclusion(sentence="; ".join(parts), drilled=result, notes=more)


def _outage(result: DrillResult) -> str:
    if result.outage_s is None:
        return "the outage is unknown: there were no probes"
    if not result.outages or result.outage_from_at is None:
        limit = formatting.time(None if result.resolution_s is None else 3 * result.resolution_s)
        return f"probes of {result.probed_count} pairs detected no outage of {limit} or more"
    worst, count = result.outages[0], result.outages_count
    usual = result.outages[len(result.outages) // 2]
    longest = f" (the longest {worst.outage_s * 1e3:.0f} ms)" if count > 1 else ""
    begun = result.event.started_at or result.event.planned_at
    after_s = (result.outage_from_at - begun).total_seconds()
    least = "at least " * (not usual.over)
    return (
        f"the device was out for {least}{result.outage_s * 1e3:.0f} ms "
        f"+- {usual.resolution_s * 1e3:.0f} by the probes of {count} of "
        f"{result.probed_count} pairs{longest}, from {_clock(result.outage_from_at)} UTC on, "
        f"{after_s:.2f} s after the event began"
    )


def _payload(result: DrillResult) -> Iterator[str]:
    for dip in result.flows:
        flow = f" {dip.flow.value}" if len(result.flows) > 1 else ""
        if dip.back_after_s == 0.0:
            yield f"payload{flow} did not fall"
            continue
        back = (
            "did not reach 95 % again before the burst ended"
            if dip.back_after_s is None
            else f"reached 95 % again after {dip.back_after_s:.1f} s"
        )
        yield (
            f"payload{flow} fell from {formatting.rate(dip.level_bits_per_second)} to "
            f"{formatting.rate(dip.lowest_bits_per_second)} and {back}, "
            f"{formatting.size(dip.short_bytes)} short"
        )
    if result.tcp_s is not None and result.back_after_s:
        counts = [
            dip.retransmits_count for dip in result.flows if dip.retransmits_count is not None
        ]
        retransmits = f", with {formatting.count(sum(counts))} retransmits in all" if counts else ""
        yield f"{result.tcp_s:.1f} s of it were the recovery of TCP{retransmits}"


def _sessions(result: DrillResult) -> Iterator[str]:
    again = (
        ""
        if result.opened_again_count is None or not result.cut_count
        else f", {result.opened_again_count} of them opened again"
    )
    more = f" and {len(result.cut_pairs) - 3} more" if len(result.cut_pairs) > 3 else ""
    of = f" (of {', '.join(result.cut_pairs[:3])}{more})" if result.cut_pairs else ""
    begun = result.event.started_at or result.event.planned_at
    after_s = [
        f"{max(0.0, (at - begun).total_seconds()):.0f}"
        for at in (result.cut_from_at, result.cut_to_at)
        if at is not None
    ]
    when = f" {' to '.join(dict.fromkeys(after_s))} s after the event began" if after_s else ""
    yield f"{result.cut_count} of {result.sessions_count} sessions were cut{of}{when}{again}"
    for dip in result.flows[:1]:
        # If all sessions were cut, there are no seconds to compute the ratio from, and it needs to
        # be 0.
        left = 0.0 if result.cut_count == result.sessions_count > 0 else dip.old_ratio
        old, new = formatting.ratio(left, 0), formatting.ratio(dip.new_ratio, 0)
        yield f"afterwards old sessions carry {old} of the earlier level and new ones {new}"


def _event(event: ExecutedEvent) -> str:
    ended = "had not ended at the end of the run" if event.ended_at is None else ""
    if event.ended_at is not None and event.started_at is not None:
        ended = f"took {formatting.time((event.ended_at - event.started_at).total_seconds())}"
    ended += "" if event.exit_code is None else f", exit {event.exit_code}"
    output = f": {event.output}" if event.output else ""
    problem = f" ({event.problem})" if event.problem else ""
    at = formatting.UNKNOWN if event.started_at is None else _clock(event.started_at)
    return f"event at {at} UTC {ended}{output}{problem}"


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


def _limits(result: DrillResult) -> Iterator[str]:
    if result.resolution_s is not None:
        yield (
            f"the resolution is {formatting.time(result.resolution_s)} for outages (between "
            "probes) and 1 s for payload; the time of the event is by the coordinator's clock, "
            "other times are by the fleet's clocks"
        )
    if result.touched_count:
        names = ", ".join(result.touched_pairs[:10])
        yield f"the payload of {result.touched_count} pairs fell: {names}"
