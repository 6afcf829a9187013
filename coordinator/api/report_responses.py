"""Responses with a report, as one HTML page or as JSON."""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final

from fastapi import Header, Query, Response

from broadside.coordinator.views.tables.formats import JSON, chosen_format
from broadside.exchange.messages import Message

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_HTML: Final = "text/html"
VARY_ACCEPT: Final = {"Vary": "Accept"}


class ReportFormat(StrEnum):
    """Format of a report."""

    HTML = "html"
    JSON = "json"


def as_report(model: type[Message]) -> dict[str, Any]:
    """Return the route arguments for a response that is a page, or the ``model`` as JSON."""
    page = {"text/html": {"schema": {"type": "string"}}}
    return {
        "response_class": Response,
        "responses": {200: {"description": "The report", "model": model, "content": page}},
    }


AsFormat = Annotated[
    ReportFormat | None, Query(description="default: HTML, or JSON if `Accept` allows only JSON")
]
Accepted = Annotated[str | None, Header(include_in_schema=False)]


async def report_answer(
    report: Message, page: Callable[[], str], format: ReportFormat | None, accept: str | None
) -> Response:
    """Return a report as JSON or as a page.

    Args:
        report: Report to return.
        page: Function that builds the HTML page. It runs in a worker thread.
        format: Requested format. None to choose it by ``accept``.
        accept: Value of the ``Accept`` header. None accepts all.
    """
    media_type = chosen_format(accept, (_HTML, JSON)) if format is None else None
    if media_type == JSON or format is ReportFormat.JSON:
        return Response(report.answer_json(), media_type=JSON, headers=VARY_ACCEPT)
    return Response(
        await asyncio.to_thread(page),
        media_type=_HTML,
        headers={"Content-Security-Policy": _POLICY, **VARY_ACCEPT},
    )
