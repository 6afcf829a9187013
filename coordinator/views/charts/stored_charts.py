"""Read the chart input of stored runs."""

import asyncio
from dataclasses import replace

from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.request_errors import BurstNotOver, RunNotOver, UnknownBurst
from broadside.coordinator.runs.reading_store import read_telemetry
from broadside.coordinator.runs.run_documents import read_counter, read_measured, read_run_summary
from broadside.coordinator.views.charts.catalogue import Chart, draw_burst, draw_run, kind_of
from broadside.coordinator.views.charts.inputs import BurstView, RunView
from broadside.exchange.records import Records


async def read_burst_view(records: Records, plan: Plan, burst_index: int) -> BurstView:
    """Read the chart input of one burst, with its verdict if the run is finished.

    Args:
        records: Stored records.
        plan: The run's plan.
        burst_index: Burst index, starting at 0.

    Returns:
        Summary, seconds and device counter. The summary has a verdict only if the run has one.

    Raises:
        UnknownBurst: The burst does not exist.
        BurstNotOver: The burst is not over.
    """
    count = len(plan.bursts)
    if not 0 <= burst_index < count:
        raise UnknownBurst(plan.run_id, burst_index, count)
    measured, summary, device_counter = await asyncio.gather(
        read_measured(records, plan.run_id, burst_index),
        read_run_summary(records, plan.run_id),
        read_counter(records, plan.run_id),
    )
    if measured is None:
        raise BurstNotOver(f"burst {burst_index + 1} of run {plan.run_id} is not over yet")
    evaluated = [] if summary is None else [b for b in summary.bursts if b.index == burst_index]
    chosen = evaluated[0] if evaluated else measured.summary
    # Summaries of runs with many pairs do not contain the pairs.
    if not chosen.pairs:
        chosen = chosen.model_copy(update={"pairs": measured.summary.pairs})
    return BurstView(
        spec=plan.spec,
        summary=chosen,
        series=measured.series,
        device_counter=device_counter,
    )


async def read_run_view(records: Records, plan: Plan) -> RunView | None:
    """Read the chart input of a run, without seconds.

    Args:
        records: Records to read from.
        plan: Plan of the run.

    Returns:
        The summary with the specification. None if the run is not finished.
    """
    summary = await read_run_summary(records, plan.run_id)
    return None if summary is None else RunView(spec=plan.spec, summary=summary)


async def draw_stored(records: Records, plan: Plan, name: str, burst_index: int | None) -> Chart:
    """Draw a chart of a stored burst or run.

    Args:
        records: Records to use for access to the tables.
        plan: Plan of the run.
        name: Name of the chart.
        burst_index: Index of the burst, starting from 0. If None, the first burst will be used for
            a chart of a burst, and the complete run for other charts.

    Returns:
        The chart with its data. Its title has the run and the time of the burst.

    Raises:
        NoChart: There is no such chart, or it has no data.
        UnknownBurst: The burst does not exist.
        BurstNotOver: The burst is not over.
        RunNotOver: The run is not finished.
    """
    if kind_of(name) == "burst" or burst_index is not None:
        index = burst_index or 0
        view = await read_burst_view(records, plan, index)
        if name == "device":
            # Before the verdict, only the readings of the burst are stored.
            telemetry = await read_telemetry(records, plan.run_id)
            telemetry = telemetry or await read_telemetry(records, plan.run_id, index)
            view = replace(view, telemetry=telemetry)
        chart = await asyncio.to_thread(draw_burst, name, view)
        return _dated(chart, plan, f"burst {index + 1}, ", plan.bursts[index])
    run = await read_run_view(records, plan)
    if run is None:
        raise RunNotOver(plan.run_id)
    chart = await asyncio.to_thread(draw_run, name, run)
    return _dated(chart, plan, "", plan.bursts[0])


def _dated(chart: Chart, plan: Plan, prefix: str, burst: Burst) -> Chart:
    """Add run and date to the chart's title, because an image is often shown without its page."""
    source = f"{plan.run_id}, {prefix}{burst.planned_start_at:%Y-%m-%d %H:%M} UTC"
    figure = replace(chart.figure, title=f"{chart.figure.title}: {source}")
    return chart.model_copy(update={"figure": figure})
