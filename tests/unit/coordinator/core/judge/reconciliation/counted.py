"""Comparison of series with a counter, for tests."""

from collections.abc import Sequence
from typing import Any

from broadside.coordinator.core.judge.reconciliation.device_prediction import Conditions
from broadside.coordinator.core.judge.reconciliation.reconcile import CountedBurst
from broadside.coordinator.core.judge.reconciliation.reconcile import reconcile as compare
from broadside.coordinator.core.judge.reconciliation.residual_causes import Missing
from broadside.coordinator.core.measure.formulas.headers import Headers
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.summary import Reconciliation


def reconcile(
    series: Sequence[BurstSeries],
    device_counter: CounterRecord,
    headers: Headers,
    missing: Sequence[Missing],
    *,
    acknowledged: float | None = None,
    **conditions: Any,
) -> tuple[Reconciliation, tuple[Reconciliation, ...]]:
    """Compare the counter with bursts that have these series and missing records."""
    bursts = [
        CountedBurst(series=item, missing=gone, acknowledged=acknowledged)
        for item, gone in zip(series, missing, strict=True)
    ]
    return compare(bursts, device_counter, headers, Conditions(**conditions))
