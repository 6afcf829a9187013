"""Chart and report views of synthetic runs."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.measure.grid.series import BurstMeasurement
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, ProbeColumn
from broadside.coordinator.core.summary import RunSummary
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
    """Return an ended run with the firewall cap as target."""
    made = fleet(plant, target_bits_per_second=180e9)
    made = replace(made, evidence=tuple(map(_probed, made.evidence)))
    measured = measure(made)
    return made, measured, summarise_run(made.plan, measured, made.ledger, made.now)


def _probed(evidence: BurstEvidence) -> BurstEvidence:
    """Add probes with 1 ms idle, 4 to 7 ms under load and a loss spike of the second pair."""
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
    made, measured, summary = ended(plant)
    return BurstView(
        spec=made.plan.spec,
        summary=summary.bursts[index],
        series=measured[index].series,
        ledger=made.ledger,
    )


def drawn(entry: ChartEntry) -> Chart:
    """Return a chart of the run or of the first burst."""
    if entry.kind == "burst":
        return draw_burst(entry.name, burst_view())
    return draw_run(entry.name, run_view())


def unseen(view: BurstView, first: int, stop: int) -> BurstView:
    """Return the burst with some unmeasured seconds."""
    coverage = view.series.coverage_ratio.copy()
    coverage[first:stop] = 0.0
    return replace(view, series=replace(view.series, coverage_ratio=coverage))


def run_view(plant: Plant = FAULTY) -> RunView:
    made, _, summary = ended(plant)
    return RunView(spec=made.plan.spec, summary=summary)
