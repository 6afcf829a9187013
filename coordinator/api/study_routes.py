"""Study routes. A study is a series of runs that answers one question."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import Depends, Query, Response

from broadside.coordinator.api.chart_responses import AsDrawing, as_chart
from broadside.coordinator.api.dependencies import Caller, OptionalCancel, app_state, make_router
from broadside.coordinator.api.pagination import PAGED, KeyCursor, Links, PageLimit
from broadside.coordinator.api.report_responses import Accepted, AsFormat, as_report, report_answer
from broadside.coordinator.api.tabular_responses import rows_at
from broadside.coordinator.studies.runner import Studies
from broadside.coordinator.studies.study import Study, StudyRequest
from broadside.coordinator.views.charts.study_charts import StudyChart, draw_study
from broadside.coordinator.views.report.study_report import StudyReport, build_study, study_html
from broadside.exchange.outage_log import utc_now

router = make_router("studies", "/v1/studies")


AllStudies = Annotated[Studies, app_state("studies")]


@router.post("", status_code=202)
async def create_study(
    request: StudyRequest, response: Response, studies: AllStudies, caller: Caller
) -> Study:
    """Create a study. Its trials run one after another."""
    study = await studies.create(request.study(), by=caller.named(request.by))
    response.headers["Location"] = f"/v1/studies/{study.study_id}"
    return study


def _study_filter(
    kind: Annotated[
        str | None, Query(max_length=20, description="kind of the question, such as sweep")
    ] = None,
    by: Annotated[
        str | None, Query(max_length=200, description="name of who created the study")
    ] = None,
) -> Callable[[Study], bool]:
    def fits(study: Study) -> bool:
        return kind in (None, study.spec.question.kind) and by in (None, study.created_by)

    return fits


@router.get("", responses=PAGED)
async def list_studies(
    links: Links,
    studies: AllStudies,
    fits: Annotated[Callable[[Study], bool], Depends(_study_filter)],
    limit: PageLimit = 50,
    cursor: KeyCursor = None,
) -> Sequence[Study]:
    """List studies, newest first."""
    page, following = await studies.newest(limit=limit, cursor=cursor, fits=fits)
    links.name_next(following)
    return page


@router.get("/{study_id}", openapi_extra=rows_at("results"))
async def read_study(study_id: str, studies: AllStudies) -> Study:
    """Return a study.

    It has the results of its trials so far, and its conclusion when finished.
    """
    return await studies.read(study_id)


@router.post("/{study_id}/abort", status_code=202)
async def abort_study(
    study_id: str, studies: AllStudies, caller: Caller, request: OptionalCancel
) -> Study:
    """Stop a study and its running trial. The device returns to its idle state."""
    return await studies.cancel(study_id, by=caller.named(request.by), reason=request.reason)


@router.get("/{study_id}/charts/{name}", **as_chart(StudyChart))
async def read_study_chart(
    study_id: str, name: str, studies: AllStudies, drawing: AsDrawing
) -> Response:
    """Return a chart of the finished trials.

    The names are `sweep`, `modes`, `search`, `scaleout` and `drill`.
    """
    study = await studies.read(study_id)
    return await drawing.answer(await asyncio.to_thread(draw_study, name, study))


@router.get("/{study_id}/report", **as_report(StudyReport))
async def read_study_report(
    study_id: str, studies: AllStudies, format: AsFormat = None, accept: Accepted = None
) -> Response:
    """Return the report of a study.

    It has the conclusion, chart and trials, and is one HTML file or JSON.
    """
    report = build_study(await studies.read(study_id), utc_now())
    return await report_answer(report, lambda: study_html(report), format, accept)
