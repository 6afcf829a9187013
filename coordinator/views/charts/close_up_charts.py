"""Charts of scale-out and drill studies, with the device's behaviour within a burst."""

from collections.abc import Sequence
from datetime import datetime

from broadside.coordinator.core.measure.experiments.scale_out import RateCurve
from broadside.coordinator.request_errors import NoChart
from broadside.coordinator.studies.study import Study
from broadside.coordinator.views.charts.figure import (
    Figure,
    Shape,
    Trace,
    Unit,
    frame,
    line,
    marks,
    rate_unit,
    upright,
)
from broadside.coordinator.views.charts.theme import Colour

# Minimum width of a marked time, relative to the axis.
_ACROSS_RATIO = 0.004


def scale_out(study: Study) -> Figure:
    """Return the payload rate over time, with each capacity step and its interval marked.

    Raises:
        NoChart: The study has no seconds yet.
    """
    found = None if study.conclusion is None else study.conclusion.scale_out
    if found is None or found.course is None:
        raise NoChart("chart scaleout: the study has no holds with seconds yet")
    zero_at = found.overload_at or found.course.start_at
    unit, traces, span_s = _course(found.course, zero_at)
    at = [step.after_overload_s for step in found.steps]
    if at:
        rates = [step.after_bits_per_second for step in found.steps]
        traces.append(marks("step", at, rates, Colour.MISSING, unit, size=9, symbol="x"))
    shapes = [
        _upright(_after(step.from_at, zero_at), _after(step.to_at, zero_at), span_s)
        for step in found.steps
    ]
    title = "s of overload (shaded: when each step was, 95 %)"
    return _framed("Capacity over time", title, unit.name, traces, shapes)


def drilled(study: Study) -> Figure:
    """Return the payload rate around the event, with the outage that the probes measured.

    Raises:
        NoChart: The study has no seconds yet.
    """
    found = None if study.conclusion is None else study.conclusion.drilled
    if found is None or found.course is None:
        raise NoChart("chart drill: the study has no burst with seconds yet")
    zero_at = found.event.started_at or found.event.planned_at
    unit, traces, span_s = _course(found.course, zero_at)
    top = max((dip.level_bits_per_second for dip in found.flows), default=0.0)
    if top:
        traces.append(line("the event", [0.0, 0.0], [0.0, top], Colour.TARGET, unit, dash="dash"))
    shapes = []
    if found.outage_from_at is not None and found.outage_s is not None:
        begun_s = _after(found.outage_from_at, zero_at)
        shapes = [_upright(begun_s, begun_s + found.outage_s, span_s)]
    title = "s from the event (shaded: the outage by probes)"
    return _framed("Payload around the event", title, unit.name, traces, shapes)


def _course(course: RateCurve, zero_at: datetime) -> tuple[Unit, list[Trace], float]:
    """Return the unit and the line of a rate over time, and its duration in s."""
    rates = list(course.bits_per_second)
    unit = rate_unit(rates)
    first_s = _after(course.start_at, zero_at)
    at = [first_s + course.every_s * (number + 0.5) for number in range(len(rates))]
    drawn = line("payload received", at, rates, Colour.FLEET, unit)
    return unit, [drawn], len(rates) * course.every_s


def _upright(from_s: float, to_s: float, span_s: float) -> Shape:
    """Return a shaded time range that is at least wide enough to be visible."""
    spare = max(0.0, _ACROSS_RATIO * span_s - (to_s - from_s)) / 2
    return upright(from_s - spare, to_s + spare, Colour.WINDOW)


def _framed(
    title: str, x_title: str, unit: str, traces: Sequence[Trace], shapes: Sequence[Shape]
) -> Figure:
    return frame(
        title, x_title, f"{unit}, payload at real scale", traces, shapes=shapes, hovermode="closest"
    )


def _after(at: datetime, zero_at: datetime) -> float:
    return (at - zero_at).total_seconds()
