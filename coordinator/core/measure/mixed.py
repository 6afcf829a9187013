"""Measurement of mixed runs, in which pairs send different traffic.

Each part is measured as a burst of its own, with its specification and its pairs.
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.grid.series import BurstMeasurement, BurstSeries
from broadside.coordinator.core.measure.records.evidence import BurstEvidence
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import BurstPart, figure, instant

# Longest burst with the seconds of its parts in the summary, in seconds.
SECONDS_MAX_COUNT: Final = 3600


def _rates(series: BurstSeries) -> tuple[float | None, ...]:
    """Return the payload rate of each second, or nothing for a long burst."""
    if series.duration_s > SECONDS_MAX_COUNT:
        return ()
    known = np.where(series.coverage_ratio > 0, series.received_bytes * 8, np.nan)
    return tuple(figure(rate) for rate in known.tolist())


def measure_parts(plan: Plan, evidence: BurstEvidence, now: datetime) -> BurstMeasurement:
    """Measure a burst, with a part for each other traffic of a mixed run.

    Args:
        plan: The plan.
        evidence: Evidence for all pairs of the burst.
        now: Current time. It is used to see if more reports can be expected.
    """
    if not plan.spec.mix:
        return measure_burst(plan.spec, evidence, now)
    measured = []
    for number, part in enumerate(plan.parts):
        indices = {pair.index for pair in part.pairs}
        pairs = tuple(pair for pair in evidence.pairs if pair.pair_index in indices)
        own = replace(evidence, pairs=pairs)
        if number:
            own = replace(own, foreign_tests=(), foreign_rows=())
        measured.append(measure_burst(part.spec, own, now))
    parts = [
        BurstPart(
            engine=one.traffic.engine,
            part_index=number,
            summary=result.summary,
            start_at=instant(result.series.start_s),
            received_bits_per_second=_rates(result.series),
        )
        for number, (one, result) in enumerate(zip(plan.spec.parts, measured, strict=True))
        if number
    ]
    first = measured[0]
    return replace(first, summary=first.summary.model_copy(update={"parts": tuple(parts)}))
