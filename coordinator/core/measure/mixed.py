"""Measurement of mixed runs, in which pairs send different traffic.

Each part is measured as a burst of its own, with its specification and its pairs.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.grid.series import BurstMeasurement, BurstSeries
from broadside.coordinator.core.measure.records.evidence import BurstEvidence
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import BurstPart, figure, instant

# Longest burst with the seconds of its parts in the summary, in seconds.
SECONDS_MAX_COUNT: Final = 3600


def _seconds(series: BurstSeries, values: Floats) -> tuple[float | None, ...]:
    """Return the values of each second, or nothing for a long burst."""
    if series.duration_s > SECONDS_MAX_COUNT:
        return ()
    return tuple(figure(value) for value in values.tolist())


def part_of(name: str, engine: str, number: int, measured: BurstMeasurement) -> BurstPart:
    """Return the result of a part with its seconds.

    Args:
        name: Name of the part.
        engine: Engine of the part.
        number: Index of the part.
        measured: The measured burst of its pairs.
    """
    series = measured.series
    none = np.zeros(0)
    known = np.where(series.coverage_ratio > 0, series.received_bytes * 8, np.nan)
    return BurstPart(
        engine=engine,
        name=name,
        part_index=number,
        summary=measured.summary,
        start_at=instant(series.start_s),
        received_bits_per_second=_seconds(series, known),
        connections_per_second=_seconds(series, series.events.get("established", none)),
        open_count=_seconds(series, series.events.get("open", none)),
    )


def part_evidence(plan: Plan, evidence: BurstEvidence) -> Iterator[tuple[Plan, BurstEvidence]]:
    """Yield the plan and the evidence of each part.

    Rows that belong to no pair are with the first one.

    Args:
        plan: The plan of the run.
        evidence: Evidence for all pairs of a burst.
    """
    for number, part in enumerate(plan.parts):
        indices = {pair.index for pair in part.pairs}
        pairs = tuple(pair for pair in evidence.pairs if pair.pair_index in indices)
        part_records = replace(evidence, pairs=pairs)
        yield (
            part,
            replace(part_records, foreign_tests=(), foreign_rows=()) if number else part_records,
        )


def measure_parts(plan: Plan, evidence: BurstEvidence, now: datetime) -> BurstMeasurement:
    """Measure a burst, with a part for each other traffic of a mixed run.

    Args:
        plan: The plan.
        evidence: Evidence for all pairs of the burst.
        now: Current time. It is used to see if more reports can be expected.

    Returns:
        The measurement of the first part. Its summary contains the results of all other parts.
    """
    if not plan.spec.mix:
        return measure_burst(plan.spec, evidence, now)
    measured = [
        measure_burst(part.spec, part_records, now)
        for part, part_records in part_evidence(plan, evidence)
    ]
    names = plan.spec.part_names
    parts = tuple(
        part_of(names[number], part.traffic.engine, number, measured[number])
        for number, part in enumerate(plan.spec.parts)
        if number
    )
    first = measured[0]
    return replace(first, summary=first.summary.model_copy(update={"parts": parts}))
