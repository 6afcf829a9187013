from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel
from rich.console import Console

from broadside.coordinator.cli.summary_tables import print_summary
from broadside.coordinator.core.comparison.group_comparison import Group, compare, observe
from broadside.coordinator.core.formatting import MetricUnit
from broadside.coordinator.core.metrics import (
    ALL_METRICS,
    METRIC_BY_NAME,
    RECEIVED_HALF_WIDTH,
    MetricDefinition,
)
from broadside.coordinator.core.summary import BurstSummary, RunSummary
from broadside.coordinator.studies.conclude import result_of
from broadside.coordinator.studies.study import TrialResult
from broadside.coordinator.views.metric_rows import metric_rows
from broadside.coordinator.views.prometheus_metrics import METRICS, name_of
from broadside.coordinator.views.tables.run_tables import make_tables
from tests.planted import summarise
from tests.synthetic import Plant, fleet

ROOT = Path(__file__).parents[4]
NO_FIGURES = {
    "scale",
    "limit_bits_per_second",
    "target_bits_per_second",
    "real_target_bits_per_second",
}


@pytest.fixture(scope="module")
def summary() -> RunSummary:
    return summarise(fleet(Plant(pairs=3, bursts=3, seed=7)))


def leads_to_a_number(model: type[BaseModel], path: str) -> bool:
    """Return true if the dotted path leads to a number."""
    name, _, rest = path.partition(".")
    computed = getattr(model, name, None)
    kinds: list[Any]
    if isinstance(computed, property):
        kinds = [get_type_hints(computed.fget)["return"]]
    else:
        kinds = [model.model_fields[name].annotation]
    while any(get_args(kind) for kind in kinds):
        kinds = [part for kind in kinds for part in get_args(kind) or (kind,)]
    if not rest:
        return bool({int, float} & set(kinds))
    return any(
        leads_to_a_number(kind, rest)
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, BaseModel)
    )


@pytest.mark.parametrize("figure", ALL_METRICS, ids=lambda figure: figure.name)
def test_metric_path_leads_to_a_number(figure: MetricDefinition) -> None:
    if figure.path is not None:
        assert leads_to_a_number(BurstSummary, figure.path)
    stored = figure.stored or figure.name
    if stored.partition(".")[0] in RunSummary.model_fields:
        assert leads_to_a_number(RunSummary, stored)
    else:
        assert figure.aggregation is not None
    if figure.unit is MetricUnit.RATE:
        assert f"real_{figure.name}" in RunSummary.model_fields or "half_width" in figure.name


def test_every_number_of_run_summary_is_a_metric() -> None:
    numbers = {
        name
        for name, field in RunSummary.model_fields.items()
        if float in (get_args(field.annotation) or (field.annotation,))
    }
    assert {name.removeprefix("real_") for name in numbers - NO_FIGURES} <= METRIC_BY_NAME.keys()
    assert len({figure.short_name for figure in ALL_METRICS}) == len(ALL_METRICS)


@pytest.mark.parametrize("figure", ALL_METRICS, ids=lambda figure: figure.name)
def test_every_interface_shows_known_metrics(
    figure: MetricDefinition, summary: RunSummary, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = figure.of_run(summary)
    if value is None:
        assert figure.optional
        return
    monkeypatch.setenv("COLUMNS", "200")
    rows = {(row.label, row.measured) for row in metric_rows(summary)}
    console = Console(width=200)
    with console.capture() as captured:
        monkeypatch.setattr(
            "broadside.coordinator.cli.summary_tables.open_console", lambda: console
        )
        print_summary(summary)
    if figure.headline:
        assert (figure.label, figure.format(value)) in rows
        assert figure.label in captured.get()
    assert name_of(figure) in METRICS
    columns = {column.name: column.values for column in make_tables(summary, ())["summary"]}
    assert figure.stored or columns[figure.name][0] == pytest.approx(value)
    group = Group(name="a", observations=tuple(map(observe, summary.bursts)))
    compared = {metric.name for metric in compare(group, group).metrics}
    assert figure.short_name in compared or figure is RECEIVED_HALF_WIDTH


def test_trial_has_metrics_of_the_run_at_real_scale(summary: RunSummary) -> None:
    lab = summary.model_copy(update={"scale": 100.0})
    result = result_of(0, lab)
    for figure in ALL_METRICS:
        name = next(
            (n for n in (figure.name, figure.short_name) if n in TrialResult.model_fields), ""
        )
        if name:
            times = 100.0 if figure.unit is MetricUnit.RATE else 1.0
            value = figure.of_run(lab)
            assert getattr(result, name) == (None if value is None else value * times)


def test_few_files_use_the_received_rate_by_name() -> None:
    files = [
        path
        for folder in ("agent", "coordinator", "dashboards", "exchange", "lab")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".js") and "fleet_received_bits_per_second" in path.read_text()
    ]
    assert len(files) <= 9, files
