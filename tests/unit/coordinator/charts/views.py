"""Synthetic runs as charts and reports see them."""

import functools
from collections.abc import Sequence

from coordinator.charts import BurstView, RunView
from coordinator.core.summary import MeasuredBurst, RunSummary, summarise_run
from tests.planted import measure
from tests.synthetic import Fleet, Plant, fleet

FAULTY = Plant(bursts=4, late=1, null=1, killed=1, missing=1)


@functools.cache
def ended(plant: Plant = FAULTY) -> tuple[Fleet, Sequence[MeasuredBurst], RunSummary]:
    """A run that is over, with its target at the firewall's cap."""
    made = fleet(plant, target_bits_per_second=180e9)
    measured = measure(made)
    return made, measured, summarise_run(made.plan, measured, made.ledger, made.now)


def burst_view(plant: Plant = FAULTY, index: int = 0) -> BurstView:
    made, measured, summary = ended(plant)
    return BurstView(
        spec=made.plan.spec,
        summary=summary.bursts[index],
        series=measured[index].series,
        ledger=made.ledger,
    )


def run_view(plant: Plant = FAULTY) -> RunView:
    made, _, summary = ended(plant)
    return RunView(spec=made.plan.spec, summary=summary)
