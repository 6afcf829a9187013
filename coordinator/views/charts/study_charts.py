"""Charts of sweep, mode, search, scale-out and drill studies."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from broadside.coordinator.core import formatting
from broadside.coordinator.request_errors import NoChart
from broadside.coordinator.studies.search import loss_ratio
from broadside.coordinator.studies.study import AB, Matrix, Search, Study, Sweep, TrialResult
from broadside.coordinator.studies.trials import planned_trials
from broadside.coordinator.views.charts.catalogue import UnknownChart
from broadside.coordinator.views.charts.close_up_charts import drilled, scale_out
from broadside.coordinator.views.charts.figure import (
    PERCENT,
    Figure,
    Trace,
    bars,
    frame,
    line,
    marks,
    numbers,
    painted,
    rate_unit,
)
from broadside.coordinator.views.charts.theme import Colour, Theme
from broadside.exchange.messages import Message

_LINES: Final = (Colour.FLEET, Colour.OTHER, Colour.SENT)
_DEVICES: Final = (Colour.FLEET, Colour.OTHER, Colour.SENT, Colour.TARGET)
# Hatch of the CPU bars. The payload bars of the same device have none.
_CPU_HATCH: Final = "/"
# Maximum length of all tick labels together, which fits on a phone.
_LABELS_MAX_CHARS: Final = 54
_DASHES: Final = ("solid", "dash", "dot")


class StudyChart(Message):
    """A chart of a study, drawn."""

    name: str
    title: str
    # Description of the chart in one sentence.
    says: str
    theme: Theme
    # `data` and `layout` of plotly.
    figure: Mapping[str, Any]


def draw_study(name: str, study: Study, theme: Theme) -> StudyChart:
    """Draw a chart of a study.

    Args:
        name: Chart name.
        study: Study to draw.
        theme: Light or dark theme.

    Raises:
        NoChart: The study has no data for this chart.
        UnknownChart: There is no chart with this name.
    """
    if name not in STUDY_CHARTS:
        raise UnknownChart(f"chart {name!r}: no such chart; there are: {', '.join(STUDY_CHARTS)}")
    title, says, draw = STUDY_CHARTS[name]
    figure = painted(draw(study), theme)
    return StudyChart(name=name, title=title, says=says, theme=theme, figure=figure)


def chart_of(study: Study) -> str:
    """Return the name of the chart for the type of a study."""
    question = study.spec.question
    return "modes" if isinstance(question, AB | Matrix) else question.kind


def _measured(study: Study) -> Sequence[TrialResult]:
    """Return the trials that the conclusion is based on."""
    floor = study.spec.spec.objective.coverage_floor_ratio
    results = [each for each in study.results if each.is_whole(floor)]
    if not results:
        raise NoChart("study: no whole trial has a rate yet")
    return results


def sweep(study: Study) -> Figure:
    """Return the payload rate over the values of the first field.

    Each value of the second field has its own line or bars.
    """
    question = study.spec.question
    if not isinstance(question, Sweep):
        raise NoChart(f"chart sweep: the study is a {question.kind}; ask for {chart_of(study)}")
    axis, *others = question.axes
    trials = planned_trials(question)
    found: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for result in _measured(study):
        trial = trials[result.index]
        value = trial.overrides[axis.field]
        at = float(value) if axis.is_numeric else 1.0 + axis.values.index(value)
        other = ", ".join(f"{each.field} = {trial.overrides[each.field]}" for each in others)
        found[other].append((at, result.received_bits_per_second))
    unit = rate_unit([rate for points in found.values() for _, rate in points])
    traces: list[Trace] = []
    for number, (other, points) in enumerate(found.items()):
        points.sort()
        colour = _LINES[number % len(_LINES)]
        x, y = [at for at, _ in points], [rate for _, rate in points]
        drawn = (other or "payload received", x, y, colour, unit)
        if axis.is_numeric:
            dash = _DASHES[number // len(_LINES) % len(_DASHES)]
            traces.append(line(*drawn, dash=dash))
        else:
            traces.append(bars(*drawn))
    knees = study.conclusion.knees if study.conclusion is not None else ()
    if knees:
        values = [knee.value for knee in knees]
        rates = [knee.received_bits_per_second for knee in knees]
        traces.append(marks("knee", values, rates, Colour.MISSING, unit, size=11, symbol="x"))
    title, y_title = f"Payload over {axis.field}", f"{unit.name}, payload at real scale"
    if not axis.is_numeric:
        names = [(str(value), "") for value in axis.values]
        return _by_name(title, axis.field, names, y_title, traces)
    return frame(title, axis.field, y_title, traces, hovermode="closest")


def modes(study: Study) -> Figure:
    """Return the payload of each mode relative to the best mode, and the CPU use of the hosts."""
    question = study.spec.question
    if not isinstance(question, AB | Matrix):
        raise NoChart(f"chart modes: the study is a {question.kind}; ask for {chart_of(study)}")
    trials = planned_trials(question)
    grouped: dict[str, list[TrialResult]] = {trial.mode or "": [] for trial in trials}
    for result in _measured(study):
        grouped[trials[result.index].mode or ""].append(result)
    names = list(grouped)
    if any(result.devices for results in grouped.values() for result in results):
        return _by_device(grouped)
    means = [_mean([r.received_bits_per_second for r in results]) for results in grouped.values()]
    best = max(mean for mean in means if mean is not None)
    shares = [None if mean is None else mean / best for mean in means]
    clients = [_mean([r.client_cpu_ratio for r in results]) for results in grouped.values()]
    servers = [_mean([r.server_cpu_ratio for r in results]) for results in grouped.values()]
    shown = (
        ("payload", shares, Colour.FLEET),
        ("clients' CPU", clients, Colour.SENT),
        ("servers' CPU", servers, Colour.OTHER),
    )
    return _by_name(
        f"Payload and CPU by mode (100 %: {formatting.rate(best)} of payload)",
        "mode",
        [(name, formatting.rate(mean)) for name, mean in zip(names, means, strict=True)],
        "% of the best payload; % of cores busy",
        [
            bars(name, _places(names), values, colour, PERCENT)
            for name, values, colour in shown
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
    best = max(each for each in sums if each is not None)
    traces: list[Trace] = []
    for number, device in enumerate(devices):
        loads = [
            [load for result in results for load in result.devices if load.device == device]
            for results in grouped.values()
        ]
        rates = [_mean([load.received_bits_per_second for load in own]) for own in loads]
        shares = [None if rate is None else rate / best for rate in rates]
        cpus = [_mean([load.cpu_ratio for load in own]) for own in loads]
        colour = _DEVICES[number % len(_DEVICES)]
        for what, values, hatch in (("payload", shares, None), ("CPU", cpus, _CPU_HATCH)):
            if any(value is not None for value in values):
                name, places = f"{device}, {what}", _places(grouped)
                traces.append(bars(name, places, values, colour, PERCENT, hatch=hatch))
    return _by_name(
        f"Payload and CPU of each device by mode (100 %: {formatting.rate(best)} of payload)",
        "mode, and the payload of all devices in it",
        [(name, formatting.rate(rate)) for name, rate in zip(grouped, sums, strict=True)],
        "% of the most payload; % of CPU",
        traces,
    )


def search(study: Study) -> Figure:
    """Return the received rate at each offered rate, and which trials met the thresholds."""
    question = study.spec.question
    if not isinstance(question, Search):
        raise NoChart(f"chart search: the study is a {question.kind}; ask for {chart_of(study)}")
    kept: dict[bool, list[tuple[float, float | None]]] = {True: [], False: []}
    for result in _measured(study):
        offer = result.offered_bits_per_second
        if offer is None:
            continue
        lost = loss_ratio(question, study.spec.spec, result, offer)
        within = lost <= question.shortfall_max_ratio
        kept[within].append((offer, result.received_bits_per_second))
    offers = [offer for points in kept.values() for offer, _ in points]
    unit = rate_unit(offers)
    ends = [0.0, max(offers)]
    whole = numbers(ends, unit.size)
    traces = [line("all that was offered", whole, ends, Colour.TARGET, unit, dash="dash")]
    for within, name, colour, symbol in (
        (True, "kept the goals", Colour.FLEET, "circle"),
        (False, "did not", Colour.MISSING, "x"),
    ):
        points = sorted(kept[within])
        if points:
            x = numbers([offer for offer, _ in points], unit.size)
            y = [received for _, received in points]
            traces.append(marks(name, x, y, colour, unit, size=9, symbol=symbol))
    return frame(
        "Received over offered",
        f"{unit.name} of payload offered",
        f"{unit.name} of payload received",
        traces,
        hovermode="closest",
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _places(names: Iterable[str]) -> list[Any]:
    return [float(number) for number, _ in enumerate(names, 1)]


def _by_name(
    title: str,
    x_title: str,
    names: Sequence[tuple[str, str]],
    y_title: str,
    traces: Sequence[Trace],
) -> Figure:
    """Return bars by name, with a note below each name. Long names are replaced by numbers."""
    places = _places(name for name, _ in names)
    longest = max(len(text) for pair in names for text in pair)
    axis: dict[str, Any] = {"tickformat": "d", "dtick": 1}
    if longest * len(names) <= _LABELS_MAX_CHARS:
        axis = {"tickvals": places, "ticktext": ["<br>".join(filter(None, pair)) for pair in names]}
    else:
        said = (
            f"{place:g} = {' '.join(pair).strip()}"
            for place, pair in zip(places, names, strict=True)
        )
        x_title = f"{x_title}: {', '.join(said)}"
    return frame(title, x_title, y_title, traces, hovermode="closest", barmode="group", x_axis=axis)


STUDY_CHARTS: Final[Mapping[str, tuple[str, str, Callable[[Study], Figure]]]] = {
    "sweep": ("Sweep", "How the payload changes over a field, with the knee marked.", sweep),
    "modes": ("Modes", "What the device carries in each mode, and what it costs in CPU.", modes),
    "search": (
        "Search",
        "What came through at each offered rate, and which kept the goals.",
        search,
    ),
    "scaleout": ("Scale-out", "When a device grew under a load, and by how much.", scale_out),
    "drill": ("Drill", "What an event did to the payload, and the outage beside it.", drilled),
}
