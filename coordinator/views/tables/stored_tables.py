"""Tables of a stored run or burst as one file."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from broadside.coordinator.core.measure.grid.second_table import Column, fleet_table, pair_table
from broadside.coordinator.request_errors import BurstNotOver, UnknownPair
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.run_documents import complete_summary, read_series
from broadside.coordinator.views.burst_responses import plan_with_burst, summary_of
from broadside.coordinator.views.tables.formats import Format, render, write
from broadside.coordinator.views.tables.run_tables import make_tables


async def export_run(
    coordinator: Coordinator, run_id: str, format: Format, table: str = "seconds"
) -> bytes:
    """Return the tables of a stored run as one file.

    Args:
        coordinator: Coordinator to read the run from.
        run_id: Id of the run to export.
        format: Format of the file.
        table: Name of the table to export, if the format can only contain a single table.

    Raises:
        UnknownRun: The run does not exist.
        RunNotOver: The run is not finished.
    """
    records = coordinator.fabric.records
    plan = await coordinator.stored.read_plan(run_id)
    summary = await complete_summary(records, run_id, await summary_of(coordinator, run_id))
    wanted = plan.bursts if format.is_single_file or table == "seconds" else ()
    read = [await read_series(records, run_id, burst.index) for burst in wanted]
    series = [burst for burst in read if burst is not None]
    head = {
        "run_id": run_id,
        "scenario": summary.scenario,
        "verdict": summary.verdict.value,
        "scale": summary.scale,
        "computed_at": summary.computed_at.isoformat(),
    }

    def work() -> bytes:
        tables = dict(make_tables(summary, series))
        if format.is_single_file and not summary.part_names:
            del tables["parts"]
        return write(format, head, tables, table, summary)

    return await asyncio.to_thread(work)


class SecondsOf(StrEnum):
    """Owner of the seconds in a table."""

    FLEET = "fleet"
    PAIR = "pair"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesQuery:
    """Seconds of a burst to return.

    Attributes:
        burst_index: Burst index, starting at 0.
        resolution_s: Number of seconds to combine in a row.
        of: Fleet or pairs. None selects the fleet, or pairs if ``pair`` is given.
        pair: Name or number of one pair. None selects all pairs.
    """

    burst_index: int
    resolution_s: int = 1
    of: SecondsOf | None = None
    pair: str | None = None


async def series_body(
    coordinator: Coordinator,
    run_id: str,
    query: SeriesQuery,
    media_type: str,
) -> bytes:
    """Return the seconds of a burst as a file.

    Args:
        coordinator: The coordinator with the run.
        run_id: The run's id.
        query: Seconds to return.
        media_type: One of ``formats.FORMATS``.

    Raises:
        UnknownRun: The run does not exist.
        UnknownBurst: The burst does not exist in this run.
        UnknownPair: The pair does not exist, or a pair is given for the fleet.
        BurstNotOver: The burst is not over.
        NotAcceptable: The format is not available.
    """
    burst_index, resolution_s, pair = query.burst_index, query.resolution_s, query.pair
    plan = await plan_with_burst(coordinator, run_id, burst_index)
    names = [planned.name for planned in plan.pairs]
    index = None if pair is None else _pair_index(run_id, pair, names)
    if pair is not None and query.of is SecondsOf.FLEET:
        raise UnknownPair(
            f"pair {pair}: the fleet's seconds have no pairs; set of=pair, or omit it"
        )
    of = query.of or (SecondsOf.FLEET if pair is None else SecondsOf.PAIR)
    series = await read_series(coordinator.fabric.records, run_id, burst_index)
    if series is None:
        raise BurstNotOver(f"burst {burst_index + 1} of run {run_id} is not finished")
    window = series.window
    at = [None, None] if window is None else [_instant(series.start_s + edge) for edge in window]
    head: dict[str, Any] = {
        "run_id": run_id,
        "burst": series.burst_index + 1,
        "planned_start_at": plan.bursts[burst_index].planned_start_at,
        "resolution_s": resolution_s,
        "of": of.value,
        "window_from_at": at[0],
        "window_before_at": at[1],
    }

    def work() -> bytes:
        columns: Sequence[Column] = (
            fleet_table(series, resolution_s)
            if of is SecondsOf.FLEET
            else pair_table(series, resolution_s, names, index)
        )
        return render(media_type, head, columns)

    return await asyncio.to_thread(work)


def _pair_index(run_id: str, pair: str, names: Sequence[str]) -> int:
    indices = {key: i for i, name in enumerate(names) for key in (name, str(i + 1))}
    if pair not in indices:
        raise UnknownPair(f"pair {pair}: not in run {run_id}, which has {names[0]} to {names[-1]}")
    return indices[pair]


def _instant(epoch_s: int) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)
