"""Views to use in tests of charts and reports."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.measure.grid.series import BurstMeasurement
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, ProbeColumn
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    Quantity,
    TelemetrySeries,
)
from broadside.coordinator.core.summary import BurstPart, RunSummary
from broadside.coordinator.views.charts import (
    BurstView,
    Chart,
    ChartEntry,
    RunView,
    draw_burst,
    draw_run,
)
from tests.planted import measure
from tests.synthetic import Fleet, Plant, fleet

FAULTY = Plant(bursts=4, late=1, null=1, killed=1, missing=1)


@functools.cache
def ended(plant: Plant = FAULTY) -> tuple[Fleet, Sequence[BurstMeasurement], RunSummary]:
    """Return a completed run. The target is set to the firewall cap."""
    run = fleet(plant, target_bits_per_second=180e9)
    run = replace(run, evidence=tuple(map(_probed, run.evidence)))
    measured = measure(run)
    return run, measured, summarise_run(run.plan, measured, run.device_counter, run.now)


def _probed(evidence: BurstEvidence) -> BurstEvidence:
    """Add probes to each pair, with 1 ms when idle and up to 7 ms under load."""
    burst = evidence.burst
    count = 10 * (burst.duration_s + 4)
    at_s = np.arange(count) / 10 - 2
    loaded = (at_s >= 0) & (at_s < burst.duration_s)

    def probes(index: int) -> ProbeColumn:
        rtt_s = np.where(loaded, 0.004 + index % 4 / 1000, 0.001)
        if index == 1:
            rtt_s[(at_s >= 5) & (at_s < 7)] = np.nan
        first_at_s = burst.planned_start_at.timestamp() - 2
        return ProbeColumn(first_at_s=first_at_s, every_s=0.1, rtt_s=rtt_s)

    return replace(
        evidence,
        pairs=tuple(
            replace(pair, probes=probes(pair.pair_index)) if pair.report else pair
            for pair in evidence.pairs
        ),
    )


def burst_view(plant: Plant = FAULTY, index: int = 0) -> BurstView:
    run, measured, summary = ended(plant)
    return BurstView(
        spec=run.plan.spec,
        summary=summary.bursts[index],
        series=measured[index].series,
        device_counter=run.device_counter,
    )


def counted(view: BurstView) -> BurstView:
    """Return the same burst with counts and times of connections."""
    full = np.ones(len(view.series.coverage_ratio))
    events = {"attempted": 100 * full, "established": 90 * full, "timed_out": 10 * full}
    events |= {"refused": 0 * full}
    for number, quantile in enumerate(("p50", "p99", "max"), 1):
        events[f"handshake_{quantile}_us"] = 1500 * number * full
    return replace(view, series=replace(view.series, events=events))


def mixed(view: BurstView) -> BurstView:
    """Return the same burst with a second part, of connections."""
    part = BurstPart(
        engine="connections",
        name="connections",
        part_index=1,
        summary=view.summary,
        start_at=view.summary.planned_start_at,
        received_bits_per_second=(None, 1e6, 2e6),
        open_count=(0, 400, 1200),
    )
    return replace(view, summary=view.summary.model_copy(update={"parts": (part,)}))


def telemetered(view: BurstView) -> BurstView:
    """Return the same burst with telemetry: CPU each 5 s, sessions as means over a minute."""
    start_s = view.series.start_s

    def series(quantity: Quantity, over_s: float, at_s: list[float]) -> TelemetrySeries:
        return TelemetrySeries(
            device="fw-a",
            source="rest",
            quantity=quantity,
            at_s=start_s + np.array(at_s),
            over_s=np.full(len(at_s), over_s),
            bound_s=np.zeros(len(at_s)),
            values=np.linspace(0.2, 0.8, len(at_s)) * (1 if quantity is Quantity.CPU else 1e5),
        )

    telemetry = DeviceTelemetry(
        devices=("fw-a",),
        series=(
            series(Quantity.CPU, 0, [5.0 * index for index in range(4)]),
            series(Quantity.SESSIONS, 60, [-5, 55]),
            series(Quantity.SENT, 0, [1, 6]),
            series(Quantity.DROPS, 0, []),
        ),
        read_at=view.summary.planned_end_at,
    )
    return replace(view, telemetry=telemetry)


def drawn(entry: ChartEntry) -> Chart:
    """Return a chart for the run or the first burst."""
    if entry.name == "device":
        return draw_burst(entry.name, telemetered(burst_view()))
    if entry.name == "parts":
        return draw_burst(entry.name, mixed(burst_view()))
    if entry.name.startswith("connection"):
        return draw_burst(entry.name, counted(burst_view()))
    if entry.kind == "burst":
        return draw_burst(entry.name, burst_view())
    return draw_run(entry.name, run_view())


def unseen(view: BurstView, first: int, stop: int) -> BurstView:
    """Return the same burst where these seconds are not measured."""
    coverage = view.series.coverage_ratio.copy()
    coverage[first:stop] = 0.0
    return replace(view, series=replace(view.series, coverage_ratio=coverage))


def run_view(plant: Plant = FAULTY) -> RunView:
    run, _, summary = ended(plant)
    return RunView(spec=run.plan.spec, summary=summary)
