"""A stored run's tables as one file."""

import asyncio

from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.run_documents import complete_summary, read_series
from broadside.coordinator.views.burst_answers import summary_of
from broadside.coordinator.views.exports.run_tables import make_tables
from broadside.coordinator.views.exports.table_files import Format, write


async def export_run(
    coordinator: Coordinator, run_id: str, format: Format, table: str = "seconds"
) -> bytes:
    """Return the tables of a stored run as one file.

    Formats with one table contain only the requested table.

    Raises:
        UnknownRun: The run does not exist.
        RunNotOver: The run is not finished.
    """
    records = coordinator.fabric.records
    plan = await coordinator.stored.read_plan(run_id)
    summary = await complete_summary(records, run_id, await summary_of(coordinator, run_id))
    wanted = plan.bursts if format.whole or table == "seconds" else ()
    read = [await read_series(records, run_id, burst.index) for burst in wanted]
    series = [burst for burst in read if burst is not None]
    head = {
        "run_id": run_id,
        "scenario": summary.scenario,
        "verdict": summary.verdict.value,
        "scale": summary.scale,
        "computed_at": summary.computed_at.isoformat(),
    }
    return await asyncio.to_thread(
        lambda: write(format, head, make_tables(summary, series), table, summary)
    )
