"""Rate and scatter of earlier bursts of a device, for estimates."""

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Final

from broadside.coordinator.core.plan.early_stop_estimate import DeviceHistory
from broadside.coordinator.core.run_spec import Plan, RunSpec
from broadside.coordinator.runs.run_documents import read_series
from broadside.exchange.records import Records

# Newest runs that are looked at, and bursts that are used.
RUNS_MAX_COUNT: Final = 200
BURSTS_MAX_COUNT: Final = 10
# Shortest window of a burst in seconds, to know the correlation.
WINDOW_MIN_S: Final = 20
# Bursts from which the scatter between bursts is known.
BETWEEN_MIN_COUNT: Final = 3


async def read_history(
    records: Records, read_plan: Callable[[str], Awaitable[Plan]], spec: RunSpec
) -> DeviceHistory | None:
    """Return the newest bursts with the same device, pairs and traffic.

    Args:
        records: Records to use for access to the tables.
        read_plan: Returns the plan of a stored run.
        spec: The specification to compare with.

    Returns:
        Medians of their rate in bit/s, scatter and correlation. None if there is no such burst.
    """
    values: list[tuple[float, float, float]] = []
    async for header in records.private.list_runs(limit=RUNS_MAX_COUNT):
        if len(values) >= BURSTS_MAX_COUNT:
            break
        outcome = header.outcome
        if outcome is None or outcome.cancelled or dict(header.device) != dict(spec.device):
            continue
        plan = await read_plan(header.run_id)
        if not _is_same(plan.spec, spec):
            continue
        for burst in plan.bursts[: BURSTS_MAX_COUNT - len(values)]:
            series = await read_series(records, header.run_id, burst.index, with_pairs=False)
            if series is not None and series.window is not None:
                fleet = series.received_bytes[slice(*series.window)] * 8.0
                known = await asyncio.to_thread(_scatter, fleet.tolist())
                values += [] if known is None else [known]
    if not values:
        return None
    rates, scatters, correlations = zip(*values, strict=True)
    return DeviceHistory(
        bursts_count=len(values),
        payload_bits_per_second=median(rates),
        scatter_ratio=median(scatters),
        correlation=median(correlations),
        between_ratio=_between(rates),
    )


def _is_same(one: RunSpec, other: RunSpec) -> bool:
    return (one.pairs_count, one.traffic, one.mix, one.scale) == (
        other.pairs_count,
        other.traffic,
        other.mix,
        other.scale,
    )


def _between(rates: Sequence[float]) -> float | None:
    """Return the standard deviation between bursts relative to the mean, or None if unknown.

    It is computed from the differences of neighbours (von Neumann 1941), because a study compares
    neighbours too. A change from one day to another does not increase it.

    Args:
        rates: Rate of each burst in order of time, or in the reverse order.
    """
    if len(rates) < BETWEEN_MIN_COUNT:
        return None
    squares = [(later - earlier) ** 2 for earlier, later in itertools.pairwise(rates)]
    return math.sqrt(sum(squares) / len(squares) / 2) * len(rates) / sum(rates)


def _scatter(seconds: list[float]) -> tuple[float, float, float] | None:
    """Return mean, relative standard deviation and correlation, or None if there are too few."""
    count = len(seconds)
    mean = sum(seconds) / max(1, count)
    if count < WINDOW_MIN_S or mean <= 0:
        return None
    off = [value - mean for value in seconds]
    squares = sum(value * value for value in off)
    products = sum(a * b for a, b in itertools.pairwise(off))
    correlation = 0.0 if not squares else min(0.95, max(0.0, products / squares))
    return mean, (squares / (count - 1)) ** 0.5 / mean, correlation
