"""Routes that return a finished run as a file, either a report or tables."""

import asyncio
from enum import StrEnum
from typing import Annotated

from fastapi import Query, Response

from broadside.coordinator.api.dependencies import CurrentCoordinator, app_state, make_router
from broadside.coordinator.api.report_responses import (
    VARY_ACCEPT,
    Accepted,
    AsFormat,
    as_report,
    report_answer,
)
from broadside.coordinator.api.tabular_responses import FILE_CONTENT
from broadside.coordinator.runs.budgets import Budgets
from broadside.coordinator.views.report.build import build
from broadside.coordinator.views.report.document import Report
from broadside.coordinator.views.report.render import html
from broadside.coordinator.views.report.stored_source import gather
from broadside.coordinator.views.tables import Format
from broadside.coordinator.views.tables.formats import FILE, JSON, chosen_format
from broadside.coordinator.views.tables.stored_tables import export_run
from broadside.exchange.messages import RunId

router = make_router("reports")


class TableName(StrEnum):
    """Name of a table that can be downloaded."""

    SECONDS = "seconds"
    PAIRS = "pairs"
    UNITS = "units"
    BURSTS = "bursts"
    SUMMARY = "summary"
    PARTS = "parts"


@router.get("/runs/{run_id}/report", **as_report(Report))
async def read_run_report(
    run_id: RunId,
    coordinator: CurrentCoordinator,
    budgets: Annotated[Budgets, app_state("budgets")],
    format: AsFormat = None,
    accept: Accepted = None,
) -> Response:
    """Return the report of a finished run.

    It is one HTML file without scripts or links, or JSON.
    """
    source = await gather(
        coordinator.fabric.records, run_id, coordinator.now(), lambda: budgets.read(run_id)
    )
    report = await asyncio.to_thread(build, source)
    return await report_answer(report, lambda: html(report, source), format, accept)


@router.get(
    "/runs/{run_id}/export",
    response_class=Response,
    responses={
        200: {
            "content": {
                FILE: FILE_CONTENT,
                **{kind.media_type: FILE_CONTENT for kind in Format if kind is not Format.JSON},
                JSON: {"schema": {"type": "object"}},
            }
        }
    },
)
async def read_run_export(
    run_id: RunId,
    coordinator: CurrentCoordinator,
    format: Annotated[
        Format | None, Query(description="default: chosen by `Accept`, otherwise JSON")
    ] = None,
    accept: Accepted = None,
    table: Annotated[
        TableName,
        Query(description="table for csv, parquet or arrow; other formats have all"),
    ] = TableName.SECONDS,
) -> Response:
    """Return seconds, pairs, bursts, summary and parts of a run as tables. Unknown is empty."""
    media_type = None
    if format is None:
        kinds = {kind.media_type: kind for kind in (Format.JSON, *Format)} | {FILE: Format.JSON}
        media_type = chosen_format(accept, tuple(kinds))
        format = kinds[media_type]
    body = await export_run(coordinator, run_id, format, table.value)
    name = run_id if format.is_single_file else f"{run_id}-{table.value}"
    return Response(
        body,
        media_type=media_type or format.media_type,
        headers={
            "Content-Disposition": f'attachment; filename="{name}.{format.value}"',
            **VARY_ACCEPT,
        },
    )
