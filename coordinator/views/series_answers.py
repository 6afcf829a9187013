"""Seconds of a burst as a file, for the fleet or for each pair."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from broadside.coordinator.core.measure.grid.second_table import Column, fleet_table, pair_table
from broadside.coordinator.request_errors import BurstNotOver, UnknownPair
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.run_documents import read_series
from broadside.coordinator.views.burst_answers import plan_with_burst
from broadside.coordinator.views.series_formats import render


class Whose(StrEnum):
    """Whose seconds."""

    FLEET = "fleet"
    PAIR = "pair"


async def series_body(
    coordinator: Coordinator,
    run_id: str,
    burst_index: int,
    media_type: str,
    *,
    resolution_s: int = 1,
    of: Whose | None = None,
    pair: str | None = None,
) -> bytes:
    """Return the seconds of a burst as a file.

    Args:
        coordinator: The coordinator with the run.
        run_id: The run's id.
        burst_index: Burst index, starting at 0.
        media_type: One of ``series_formats.FORMATS``.
        resolution_s: Number of seconds to combine in a row.
        of: Fleet or pairs. None selects the fleet, or pairs if ``pair`` is given.
        pair: Name or number of one pair. None selects all pairs.

    Raises:
        UnknownRun: The run does not exist.
        UnknownBurst: The burst does not exist in this run.
        UnknownPair: The pair does not exist, or a pair is given for the fleet.
        BurstNotOver: The burst is not over.
        NotAcceptable: The format is not available.
    """
    plan = await plan_with_burst(coordinator, run_id, burst_index)
    names = [planned.name for planned in plan.pairs]
    index = None if pair is None else _pair_index(run_id, pair, names)
    if pair is not None and of is Whose.FLEET:
        raise UnknownPair(
            f"pair {pair}: the fleet's seconds have none; ask of=pair, or leave it out"
        )
    of = of or (Whose.FLEET if pair is None else Whose.PAIR)
    series = await read_series(coordinator.fabric.records, run_id, burst_index)
    if series is None:
        raise BurstNotOver(f"burst {burst_index} of run {run_id} is not over yet")
    window = series.window
    at = [None, None] if window is None else [_instant(series.start_s + edge) for edge in window]
    head: dict[str, Any] = {
        "run_id": run_id,
        "burst_index": series.burst_index,
        "planned_start_at": plan.bursts[burst_index].planned_start_at,
        "resolution_s": resolution_s,
        "of": of.value,
        "window_from_at": at[0],
        "window_before_at": at[1],
    }

    def rendered() -> bytes:
        columns: Sequence[Column] = (
            fleet_table(series, resolution_s)
            if of is Whose.FLEET
            else pair_table(series, resolution_s, names, index)
        )
        return render(media_type, head, columns)

    return await asyncio.to_thread(rendered)


def _pair_index(run_id: str, pair: str, names: Sequence[str]) -> int:
    called = {name: i for i, own in enumerate(names) for name in (own, str(i + 1))}
    if pair not in called:
        raise UnknownPair(f"pair {pair}: not in run {run_id}, which has {len(names)} pairs")
    return called[pair]


def _instant(epoch_s: int) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)
