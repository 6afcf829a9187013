"""One run as each output shows its rate: the same layer, the same scale, in the same words.

The fleet records payload, the target is at the IP layer or is payload, and the device counts
Ethernet frames. The run is in a lab with a scale.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from broadside.coordinator.cli.result_commands import _received
from broadside.coordinator.cli.summary_tables import print_summary
from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.grid.series import BurstMeasurement
from broadside.coordinator.core.metrics import LAYER_LABELS, Layer, layer_label, received_at
from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.notices.announcer import Notice
from broadside.coordinator.notices.webhook import body_of
from broadside.coordinator.runs.comparison_groups import Run, compare_runs
from broadside.coordinator.runs.listing import _Rates, outcome_of
from broadside.coordinator.runs.requests import CompareRequest, Selection
from broadside.coordinator.studies.conclude import result_of
from broadside.coordinator.views.charts import BurstView, RunView, draw_burst, draw_run
from broadside.coordinator.views.markdown import verdict_markdown
from broadside.coordinator.views.metric_rows import metric_rows
from broadside.coordinator.views.page_labels import page_labels
from broadside.coordinator.views.report.build import headline
from broadside.coordinator.views.report.study_tables import study_tables
from broadside.coordinator.views.tables.run_tables import make_tables
from broadside.exchange.records import RunHeader
from tests.synthetic import Fleet, Plant, fleet
from tests.unit.coordinator.studies.samples import SWEEP, study

SCALE = 100.0
LAYERS = (Layer.IP, Layer.PAYLOAD)
PLANT = Plant(pairs=4, bursts=3, burst_s=20, period_s=40, layer="wire")


@cache
def run_at(layer: Layer) -> tuple[Fleet, tuple[BurstMeasurement, ...], RunSummary]:
    """Return a run of the lab with its target at this layer."""
    made = fleet(PLANT, target_bits_per_second=20e9)
    objective = made.plan.spec.objective.model_copy(
        update={"layer": layer, "target_bits_per_second": 20e9 * SCALE}
    )
    update = {"objective": objective, "scale": SCALE}
    spec = made.plan.spec.model_copy(update=update)
    made = replace(made, plan=made.plan.model_copy(update={"spec": spec}))
    bursts = tuple(measure_burst(spec, part, made.now) for part in made.evidence)
    return made, bursts, summarise_run(made.plan, bursts, made.device_counter, made.now)


def rate_at(layer: Layer) -> str:
    """Return the measured rate of the run as text. It differs by layer."""
    return formatting.rate(received_at(layer).of_run(run_at(layer)[2]))


def header_of(summary: RunSummary) -> RunHeader:
    return RunHeader(
        run_id=summary.run_id,
        scenario=summary.scenario,
        created_at=datetime(2026, 11, 20, tzinfo=UTC),
        created_by="tests",
        outcome=outcome_of(summary, cancelled=False),
    )


def on_terminal(summary: RunSummary) -> str:
    stream = StringIO()
    with redirect_stdout(stream):
        print_summary(summary)
    return stream.getvalue()


def in_comparison(layer: Layer) -> str:
    made, _, summary = run_at(layer)
    run = Run(plan=made.plan, summary=summary, fleet=())
    chosen = Selection(run_ids=(summary.run_id,))
    return compare_runs(CompareRequest(a=chosen, b=chosen), [run], [run]).sentence


# Texts that begin with the rate of the run, or have it in their headline
TEXTS: Mapping[str, Callable[[Layer], str]] = {
    "list of runs": lambda layer: _received(header_of(run_at(layer)[2])),
    "report": lambda layer: headline(run_at(layer)[2]),
    "markdown": lambda layer: verdict_markdown(run_at(layer)[2]).split("\n\n")[3],
    "compare": in_comparison,
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", TEXTS)
def test_headline_has_the_rate_at_the_layer_of_the_objective(name: str, layer: Layer) -> None:
    text = TEXTS[name](layer)
    other = next(one for one in LAYERS if one is not layer)
    assert rate_at(layer) in text
    assert layer_label(layer) in text
    assert layer_label(other) not in text
    # The scale is named, and a rate at real scale is called so.
    assert f"lab at 1:{SCALE:g}" in text
    real = formatting.rate(SCALE * (received_at(layer).of_run(run_at(layer)[2]) or 0.0))
    assert real not in text or f"{real} at real scale" in text


@pytest.mark.parametrize("layer", LAYERS)
def test_first_row_of_metrics_is_the_target_and_the_second_is_the_rate(layer: Layer) -> None:
    target, received, *others = metric_rows(run_at(layer)[2])
    assert (target.label, target.layer) == ("target", layer_label(layer))
    assert (received.label, received.layer) == ("fleet received", layer_label(layer))
    assert received.measured == rate_at(layer)
    assert {row.layer for row in others} <= {"", *LAYER_LABELS.values()}
    counter = next(row for row in others if row.label == "device counter")
    assert counter.layer == "Ethernet frames"


@pytest.mark.parametrize("layer", LAYERS)
def test_terminal_names_the_layer_in_its_tables_and_findings(layer: Layer) -> None:
    text = on_terminal(run_at(layer)[2])
    assert f"received, {layer_label(layer)}" in text
    assert rate_at(layer) in text
    assert "Ethernet frames" in text
    assert not re.search(r"\bip layer|payload layer|wire layer", text)


@pytest.mark.parametrize("layer", LAYERS)
def test_charts_have_the_layer_in_title_and_axis(layer: Layer) -> None:
    made, bursts, summary = run_at(layer)
    run_view = RunView(spec=made.plan.spec, summary=summary)
    burst_view = BurstView(
        spec=made.plan.spec,
        series=bursts[0].series,
        summary=summary.bursts[0],
        device_counter=made.device_counter,
    )
    for chart in (draw_run("bursts", run_view), draw_burst("throughput", burst_view)):
        shown = chart.figure
        assert layer_label(layer) in shown.y.title
        assert f"lab at 1:{SCALE:g}, as measured" in shown.title


@pytest.mark.parametrize("layer", LAYERS)
def test_machine_readable_outputs_name_the_same_layer_and_scale(layer: Layer) -> None:
    summary = run_at(layer)[2]
    value = received_at(layer).of_run(summary)
    header = header_of(summary)
    data = json.loads(body_of(Notice(header=header, summary=summary)))["data"]
    assert (data["layer"], data["scale"]) == (layer.value, SCALE)
    assert data["received_bits_per_second"] == value
    assert data["target_bits_per_second"] == pytest.approx(20e9)
    assert header.outcome is not None
    assert (header.outcome.target_layer, header.outcome.scale) == (layer, SCALE)
    columns = {column.name: column for column in make_tables(summary, [])["summary"]}
    for name in ("target_bits_per_second", "limit_bits_per_second", received_at(layer).name):
        assert columns[name].layer == layer, name
    assert columns["firewall_bits_per_second"].layer == "wire"
    assert columns["scale"].values[0] == SCALE


@pytest.mark.parametrize("layer", LAYERS)
def test_outputs_over_several_runs_are_at_real_scale(layer: Layer) -> None:
    _, _, summary = run_at(layer)
    value = received_at(layer).of_run(summary) or 0.0
    rates = _Rates()
    rates.add(outcome_of(summary, cancelled=False))
    spread = rates.spread()
    assert spread is not None
    assert spread.layer is layer
    assert spread.mean_bits_per_second == pytest.approx(value * SCALE)
    trial = result_of(0, summary)
    assert trial.received_at(layer)[0] == pytest.approx(value * SCALE)
    assert trial.received_at(layer)[1] is layer
    shown = study(SWEEP, [trial])
    objective = shown.spec.spec.objective.model_copy(update={"layer": layer})
    spec = shown.spec.spec.model_copy(update={"objective": objective})
    shown = shown.model_copy(update={"spec": shown.spec.model_copy(update={"spec": spec})})
    table = next(iter(study_tables(shown)))
    assert "at real scale" in (table.title or "")
    assert f"received, {layer_label(layer)}" in table.columns
    assert formatting.rate(value * SCALE) in table.rows[0]


def test_runs_with_different_layers_are_aggregated_as_payload() -> None:
    rates = _Rates()
    for layer in LAYERS:
        rates.add(outcome_of(run_at(layer)[2], cancelled=False))
    spread = rates.spread()
    assert spread is not None
    assert (spread.layer, spread.runs_count) == (Layer.PAYLOAD, 2)


def test_findings_name_layers_in_these_words() -> None:
    def sentences() -> Iterator[str]:
        for layer in LAYERS:
            yield from (finding.sentence for finding in run_at(layer)[2].findings)

    texts = [text for text in sentences() if "layer" in text or "payload" in text]
    assert texts
    assert not [text for text in texts if re.search(r"\bip layer|payload layer|wire layer", text)]


def test_page_takes_names_of_layers_from_the_coordinator() -> None:
    web = Path(__file__).parents[4] / "dashboards" / "web"
    local = [
        f"{path.name}: {line.strip()}"
        for path in sorted(web.glob("*.js"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if "IP layer" in line and not line.lstrip().startswith("//")
    ]
    assert local == []


def test_page_has_the_same_names_of_layers() -> None:
    line = next(text for text in page_labels().splitlines() if text.startswith("export const LAY"))
    assert json.loads(line.partition("= ")[2].rstrip(";")) == LAYER_LABELS
