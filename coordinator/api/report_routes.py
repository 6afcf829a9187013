"""Routes that return a finished run as a file, either a report or tables."""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final

from fastapi import Header, Query, Response

from broadside.coordinator.api.dependencies import Service, routes
from broadside.coordinator.api.estimate_routes import There
from broadside.coordinator.api.row_answers import FILE_CONTENT
from broadside.coordinator.views.exports import Format
from broadside.coordinator.views.exports.stored_tables import export_run
from broadside.coordinator.views.report.build import build
from broadside.coordinator.views.report.document import Report
from broadside.coordinator.views.report.render import html
from broadside.coordinator.views.report.stored_source import gather
from broadside.coordinator.views.series_formats import FILE, JSON, chosen_format
from broadside.exchange.messages import Message, RunId

router = routes("reports")


class ReportFormat(StrEnum):
    HTML = "html"
    JSON = "json"


class TableName(StrEnum):
    SECONDS = "seconds"
    PAIRS = "pairs"
    BURSTS = "bursts"
    SUMMARY = "summary"


def as_report(model: type[Message]) -> dict[str, Any]:
    """Return the route arguments for a response that is a page, or the ``model`` as JSON."""
    page = {"text/html": {"schema": {"type": "string"}}}
    return {
        "response_class": Response,
        "responses": {200: {"description": "The report", "model": model, "content": page}},
    }


AsFormat = Annotated[
    ReportFormat | None, Query(description="default: HTML, or JSON where only that is accepted")
]
Accepted = Annotated[str | None, Header(include_in_schema=False)]


@router.get("/runs/{run_id}/report", **as_report(Report))
async def read_report(
    run_id: RunId,
    coordinator: Service,
    budgets: There,
    format: AsFormat = None,
    accept: Accepted = None,
) -> Response:
    """The report of a run that is over: one file without scripts or addresses, or its values."""
    source = await gather(
        coordinator.fabric.records, run_id, coordinator.now(), lambda: budgets.read(run_id)
    )
    report = await asyncio.to_thread(build, source)
    return await report_answer(report, lambda: html(report, source), format, accept)


async def report_answer(
    report: Message, page: Callable[[], str], format: ReportFormat | None, accept: str | None
) -> Response:
    """Return a report as JSON or as a page.

    Args:
        report: Report to return.
        page: Function that builds the HTML page. It runs in a worker thread.
        format: Requested format. None to choose it by ``accept``.
        accept: Value of the ``Accept`` header.
    """
    media_type = chosen_format(accept, (_HTML, JSON)) if format is None else None
    if media_type == JSON or format is ReportFormat.JSON:
        return Response(report.model_dump_json(), media_type=JSON, headers=_VARY)
    return Response(
        await asyncio.to_thread(page),
        media_type=_HTML,
        headers={"Content-Security-Policy": _POLICY, **_VARY},
    )


_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_HTML: Final = "text/html"
_VARY: Final = {"Vary": "Accept"}


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
async def read_export(
    run_id: RunId,
    coordinator: Service,
    format: Annotated[
        Format | None, Query(description="default: what `Accept` asks for, else JSON")
    ] = None,
    accept: Accepted = None,
    table: Annotated[
        TableName,
        Query(description="csv, parquet and arrow hold one, the others all"),
    ] = TableName.SECONDS,
) -> Response:
    """A run's seconds, pairs, bursts and summary as tables; unknown is empty, never zero."""
    media_type = None
    if format is None:
        kinds = {kind.media_type: kind for kind in (Format.JSON, *Format)} | {FILE: Format.JSON}
        media_type = chosen_format(accept, tuple(kinds))
        format = kinds[media_type]
    body = await export_run(coordinator, run_id, format, table.value)
    name = run_id if format.whole else f"{run_id}-{table.value}"
    return Response(
        body,
        media_type=media_type or format.media_type,
        headers={
            "Content-Disposition": f'attachment; filename="{name}.{format.value}"',
            **_VARY,
        },
    )
