"""Charts of sweep, mode, search, scale-out and drill studies."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from broadside.coordinator.core import formatting
from broadside.coordinator.core.measure.experiments.scale_out import RateCurve
from broadside.coordinator.request_errors import NoChart
from broadside.coordinator.studies.leak_curve import leak_curve
from broadside.coordinator.studies.search import loss_ratio
from broadside.coordinator.studies.study import (
    AB,
    Inspection,
    Matrix,
    Search,
    SearchLoad,
    Study,
    Sweep,
    TrialResult,
)
from broadside.coordinator.studies.trials import planned_trials
from broadside.coordinator.views.charts.catalogue import UnknownChart
from broadside.coordinator.views.charts.figure import (
    PERCENT,
    ChartAxis,
    ChartSeries,
    Dash,
    DisplayUnit,
    Figure,
    bar_series,
    line_series,
    numbers,
    point_series,
    rate_unit,
)
from broadside.coordinator.views.charts.theme import Colour
from broadside.exchange.messages import Message

_LINE_COLOURS: Final = (Colour.FLEET, Colour.OTHER, Colour.SENT)
_DEVICE_COLOURS: Final = (*_LINE_COLOURS, Colour.TARGET)
_DASHES: Final[Sequence[Dash]] = ("solid", "dash", "dot")
# Maximum length of all tick labels together, which fits on a phone.
_LABELS_MAX_CHARS: Final = 54
_LOAD_UNITS: Final = {
    SearchLoad.CONNECTIONS: DisplayUnit(name="connections/s", size=1),
    SearchLoad.HELD: DisplayUnit(name="held connections", size=1),
}
# Minimum width of a shaded time, relative to the axis.
_SPAN_MIN_RATIO: Final = 0.004


class StudyChart(Message):
    """Chart of a study with its data.

    Attributes:
        name: Name of the chart.
        title: Title of the chart.
        description: Description of the chart in one sentence.
        figure: Data of the chart.
    """

    name: str
    title: str
    description: str
    figure: Figure


def draw_study(name: str, study: Study) -> StudyChart:
    """Return a chart of a study.

    Args:
        name: Chart name.
        study: Study to draw.

    Raises:
        NoChart: The study has no data for this chart.
        UnknownChart: There is no chart with this name.
    """
    if name not in STUDY_CHARTS:
        raise UnknownChart(f"chart {name!r}: unknown chart; charts: {', '.join(STUDY_CHARTS)}")
    title, description, draw = STUDY_CHARTS[name]
    return StudyChart(name=name, title=title, description=description, figure=draw(study))


def chart_of(study: Study) -> str:
    """Return the name of the chart for the type of a study."""
    question = study.spec.question
    return "modes" if isinstance(question, AB | Matrix) else question.kind


def _wrong_chart(name: str, study: Study) -> NoChart:
    kind = study.spec.question.kind
    return NoChart(f"chart {name}: the study is a {kind}; use {chart_of(study)}")


def _complete_trials(study: Study) -> Sequence[TrialResult]:
    """Return the trials that the conclusion is based on."""
    floor = study.spec.spec.objective.coverage_floor_ratio
    results = [result for result in study.results if result.is_complete(floor)]
    if not results:
        raise NoChart("study: no complete trial has a rate yet")
    return results


def sweep(study: Study) -> Figure:
    """Return the payload rate over the first field, with a line for each value of the second.

    Raises:
        NoChart: The study is not a sweep.
    """
    question = study.spec.question
    if not isinstance(question, Sweep):
        raise _wrong_chart("sweep", study)
    axis, *others = question.axes
    trials = planned_trials(question)
    rates: dict[tuple[str, float], list[float | None]] = defaultdict(list)
    for result in _complete_trials(study):
        trial = trials[result.index]
        value = trial.overrides[axis.field]
        x = float(value) if axis.is_numeric else 1.0 + axis.values.index(value)
        other = ", ".join(f"{field.field} = {trial.overrides[field.field]}" for field in others)
        rates[other, x].append(result.received_bits_per_second)
    groups: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for (other, x), repeated in rates.items():
        groups[other].append((x, _mean(repeated)))
    unit = rate_unit([rate for points in groups.values() for _, rate in points])
    drawn: list[ChartSeries] = []
    for number, (other, points) in enumerate(groups.items()):
        points.sort()
        draw = line_series if axis.is_numeric else bar_series
        drawn.append(
            draw(
                other or "payload received",
                [x for x, _ in points],
                [rate for _, rate in points],
                _LINE_COLOURS[number % len(_LINE_COLOURS)],
                unit,
                dash=_DASHES[number // len(_LINE_COLOURS) % len(_DASHES)],
            )
        )
    knees = study.conclusion.knees if study.conclusion is not None else ()
    if knees:
        values = [knee.value for knee in knees]
        heights = [knee.received_bits_per_second for knee in knees]
        drawn.append(
            point_series("knee", values, heights, Colour.MISSING, unit, size=11, symbol="cross")
        )
    title, y_title = f"Payload over {axis.field}", f"{unit.name}, payload at real scale"
    if not axis.is_numeric:
        return _by_name(title, axis.field, [(str(v), "") for v in axis.values], y_title, drawn)
    return Figure(
        title=title, x=ChartAxis(title=axis.field), y=ChartAxis(title=y_title), series=drawn
    )


def inspection(study: Study) -> Figure:
    """Return the leaked share of the canaries over the offered load, with its interval.

    Raises:
        NoChart: The study does not measure inspection, or no complete trial has canaries.
    """
    if not isinstance(study.spec.question, Inspection):
        raise _wrong_chart("inspection-under-load", study)
    points = leak_curve(_complete_trials(study)).points
    if not points:
        raise NoChart("study: no complete trial has canaries yet")
    unit = rate_unit([point.offered_bits_per_second for point in points])
    loads = [point.offered_bits_per_second / unit.size for point in points]
    return Figure(
        title="Leaked share over the offered load",
        x=ChartAxis(title=f"{unit.name}, offered payload at real scale"),
        y=ChartAxis(title="% of the forbidden canaries"),
        series=[
            line_series(label, loads, values, colour, PERCENT, dash=dash)
            for label, values, colour, dash in (
                ("leaked", [p.leak_ratio for p in points], Colour.FLEET, "solid"),
                (
                    "lower end",
                    [p.leak_low_ratio for p in points],
                    Colour.OTHER,
                    "dot",
                ),
                (
                    "upper end",
                    [p.leak_high_ratio for p in points],
                    Colour.OTHER,
                    "dot",
                ),
            )
        ],
    )


def modes(study: Study) -> Figure:
    """Return the payload of each mode relative to the best mode, and the CPU use of the hosts.

    Raises:
        NoChart: The study compares no modes.
    """
    question = study.spec.question
    if not isinstance(question, AB | Matrix):
        raise _wrong_chart("modes", study)
    trials = planned_trials(question)
    grouped: dict[str, list[TrialResult]] = {trial.mode or "": [] for trial in trials}
    for result in _complete_trials(study):
        grouped[trials[result.index].mode or ""].append(result)
    if any(result.devices for results in grouped.values() for result in results):
        return _by_device(grouped)
    means = [_mean([r.received_bits_per_second for r in results]) for results in grouped.values()]
    best = max(mean for mean in means if mean is not None)
    shares = [None if mean is None else mean / best for mean in means]
    clients = [_mean([r.client_cpu_ratio for r in results]) for results in grouped.values()]
    servers = [_mean([r.server_cpu_ratio for r in results]) for results in grouped.values()]
    return _by_name(
        f"Payload and CPU by mode (100 %: {formatting.rate(best)} payload)",
        "mode",
        [(name, formatting.rate(mean)) for name, mean in zip(grouped, means, strict=True)],
        "% of the best payload; % CPU utilization",
        [
            bar_series(name, range(1, len(grouped) + 1), values, colour, PERCENT)
            for name, values, colour in (
                ("payload", shares, Colour.FLEET),
                ("CPU of clients", clients, Colour.SENT),
                ("CPU of servers", servers, Colour.OTHER),
            )
            if any(value is not None for value in values)
        ],
    )


def _by_device(grouped: Mapping[str, Sequence[TrialResult]]) -> Figure:
    """Return payload and CPU use of each device in each mode.

    Payload is relative to the total of all devices in the best mode.
    """
    devices = dict.fromkeys(
        load.device for results in grouped.values() for result in results for load in result.devices
    )
    sums = [_mean([r.received_bits_per_second for r in results]) for results in grouped.values()]
    best = max(total for total in sums if total is not None)
    x = range(1, len(grouped) + 1)
    drawn: list[ChartSeries] = []
    for number, device in enumerate(devices):
        loads = [
            [load for result in results for load in result.devices if load.device == device]
            for results in grouped.values()
        ]
        rates = [_mean([load.received_bits_per_second for load in group]) for group in loads]
        shares = [None if rate is None else rate / best for rate in rates]
        cpus = [_mean([load.cpu_ratio for load in group]) for group in loads]
        colour = _DEVICE_COLOURS[number % len(_DEVICE_COLOURS)]
        for quantity, values in (("payload", shares), ("CPU", cpus)):
            if any(value is not None for value in values):
                # The CPU bars of a device have the colour of its payload bars.
                hatch = "up" if quantity == "CPU" else None
                name = f"{device}, {quantity}"
                drawn.append(bar_series(name, x, values, colour, PERCENT, hatch=hatch))
    return _by_name(
        f"Payload and CPU of each device by mode (100 %: {formatting.rate(best)} payload)",
        "mode, and the payload of all devices",
        [(name, formatting.rate(rate)) for name, rate in zip(grouped, sums, strict=True)],
        "% of the best payload; % CPU utilization",
        drawn,
    )


def search(study: Study) -> Figure:
    """Return the received rate or connections at each offered load, and which met the thresholds.

    Raises:
        NoChart: The study is not a search.
    """
    question = study.spec.question
    if not isinstance(question, Search):
        raise _wrong_chart("search", study)
    measured = {
        SearchLoad.BITS: "received_bits_per_second",
        SearchLoad.CONNECTIONS: "connections_per_second",
        SearchLoad.HELD: "connections_held_count",
    }[question.load]
    groups: dict[bool, list[tuple[float, float | None]]] = {True: [], False: []}
    for result in _complete_trials(study):
        offer = result.offered
        if offer is not None:
            lost = loss_ratio(question, study.spec.spec, result, offer)
            is_met = lost <= question.shortfall_max_ratio
            groups[is_met].append((offer, getattr(result, measured)))
    offers = [offer for points in groups.values() for offer, _ in points]
    is_bits = question.load is SearchLoad.BITS
    unit = rate_unit(offers) if is_bits else _LOAD_UNITS[question.load]
    ends = [0.0, max(offers)]
    x = numbers(ends, unit.size)
    drawn = [
        line_series(
            "offered rate" if is_bits else "offered", x, ends, Colour.TARGET, unit, dash="dash"
        )
    ]
    for is_met, name, colour, symbol in (
        (True, "thresholds met", Colour.FLEET, "circle"),
        (False, "thresholds not met", Colour.MISSING, "cross"),
    ):
        points = sorted(groups[is_met])
        if points:
            x = numbers([offer for offer, _ in points], unit.size)
            y = [received for _, received in points]
            drawn.append(point_series(name, x, y, colour, unit, size=9, symbol=symbol))
    payload, received = (", payload", "received") if is_bits else ("", "established")
    return Figure(
        title="Received rate over offered rate" if is_bits else "Connections over offered load",
        x=ChartAxis(title=f"{unit.name}{payload} offered at real scale"),
        y=ChartAxis(title=f"{unit.name}{payload} {received} at real scale"),
        series=drawn,
    )


def scale_out(study: Study) -> Figure:
    """Return the payload rate over time, with each capacity step and its interval marked.

    Raises:
        NoChart: The study has no seconds yet.
    """
    result = None if study.conclusion is None else study.conclusion.scale_out
    if result is None or result.rate_curve is None:
        raise NoChart("chart scaleout: the study has no measured seconds yet")
    zero_at = result.overload_at or result.rate_curve.start_at
    spans = [
        ((step.from_at - zero_at).total_seconds(), (step.to_at - zero_at).total_seconds())
        for step in result.steps
    ]
    x = [step.after_overload_s for step in result.steps]
    rates = [step.after_bits_per_second for step in result.steps]
    unit = rate_unit(result.rate_curve.bits_per_second)
    marks = [point_series("step", x, rates, Colour.MISSING, unit, size=9, symbol="cross")]
    x_title = "s since the overload (shaded: 95 % interval of each step)"
    figure = _over_time("Capacity over time", x_title, result.rate_curve, zero_at, spans)
    figure.series.extend(marks if x else [])
    return figure


def drill(study: Study) -> Figure:
    """Return the payload rate around the event, with the outage that the probes measured.

    Raises:
        NoChart: The study has no seconds yet.
    """
    result = None if study.conclusion is None else study.conclusion.drilled
    if result is None or result.rate_curve is None:
        raise NoChart("chart drill: the study has no measured seconds yet")
    zero_at = result.event.started_at or result.event.planned_at
    top = max((dip.level_bits_per_second for dip in result.flows), default=0.0)
    unit = rate_unit(result.rate_curve.bits_per_second)
    event = line_series("event", [0.0, 0.0], [0.0, top], Colour.TARGET, unit, dash="dash")
    spans = []
    if result.outage_from_at is not None and result.outage_s is not None:
        first_s = (result.outage_from_at - zero_at).total_seconds()
        spans = [(first_s, first_s + result.outage_s)]
    x_title = "s since the event (shaded: outage measured by probes)"
    figure = _over_time("Payload around the event", x_title, result.rate_curve, zero_at, spans)
    figure.series.extend([event] if top else [])
    return figure


def _over_time(
    title: str,
    x_title: str,
    curve: RateCurve,
    zero_at: datetime,
    spans: Sequence[tuple[float, float]],
) -> Figure:
    """Return a rate over time, with spans that are wide enough to be visible."""
    rates = list(curve.bits_per_second)
    unit = rate_unit(rates)
    first_s = (curve.start_at - zero_at).total_seconds()
    x = [first_s + curve.every_s * (number + 0.5) for number in range(len(rates))]
    least_s = _SPAN_MIN_RATIO * len(rates) * curve.every_s
    margins_s = [max(0.0, least_s - (last - first)) / 2 for first, last in spans]
    return Figure(
        title=title,
        x=ChartAxis(title=x_title),
        y=ChartAxis(title=f"{unit.name}, payload at real scale"),
        series=[line_series("payload received", x, rates, Colour.FLEET, unit)],
        spans=[
            (first - margin_s, last + margin_s)
            for (first, last), margin_s in zip(spans, margins_s, strict=True)
        ],
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _by_name(
    title: str,
    x_title: str,
    names: Sequence[tuple[str, str]],
    y_title: str,
    drawn: list[ChartSeries],
) -> Figure:
    """Return bars by name, with a note below each name. Long names are replaced by numbers."""
    longest = max(len(text) for pair in names for text in pair)
    labels = None
    if longest * len(names) <= _LABELS_MAX_CHARS:
        labels = [[text for text in pair if text] for pair in names]
    else:
        numbered = (f"{n} = {' '.join(pair).strip()}" for n, pair in enumerate(names, 1))
        x_title = f"{x_title}: {', '.join(numbered)}"
    return Figure(
        title=title,
        x=ChartAxis(title=x_title, is_integer=True, labels=labels),
        y=ChartAxis(title=y_title),
        series=drawn,
    )


STUDY_CHARTS: Final[Mapping[str, tuple[str, str, Callable[[Study], Figure]]]] = {
    "sweep": ("Sweep", "Payload over the values of a field, with the knee marked.", sweep),
    "modes": ("Modes", "Payload and CPU utilization in each mode of the device.", modes),
    "search": (
        "Search",
        "Received rate at each offered rate, and whether the thresholds were met.",
        search,
    ),
    "scaleout": ("Scale-out", "Capacity steps of the device under load.", scale_out),
    "inspection-under-load": (
        "Inspection under load",
        "Leaked share of forbidden canaries at each offered load, with its exact interval.",
        inspection,
    ),
    "drill": ("Drill", "Payload around the event, and the outage that followed.", drill),
}
