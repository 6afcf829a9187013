"""Study routes. A study is a series of runs that answers one question."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import Query, Request, Response

from broadside.coordinator.api.dependencies import Caller, OptionalCancel, kept, routes
from broadside.coordinator.api.pages import PAGED, KeyCursor, name_next
from broadside.coordinator.api.report_routes import Accepted, AsFormat, as_report, report_answer
from broadside.coordinator.api.row_answers import rows_in
from broadside.coordinator.studies.runner import Studies
from broadside.coordinator.studies.study import Study, StudyRequest
from broadside.coordinator.views.charts import Theme
from broadside.coordinator.views.charts.study_charts import StudyChart, draw_study
from broadside.coordinator.views.report.study_report import StudyReport, build_study, study_html
from broadside.exchange.outage_log import utc_now

router = routes("studies", "/v1/studies")


There = Annotated[Studies, kept("studies")]


@router.post("", status_code=202)
async def create_study(
    request: StudyRequest, response: Response, studies: There, caller: Caller
) -> Study:
    """Store a study; its trials run one after another."""
    study = await studies.create(request.study(), by=caller.named(request.by))
    response.headers["Location"] = f"/v1/studies/{study.study_id}"
    return study


@router.get("", responses=PAGED)
async def list_studies(
    request: Request,
    response: Response,
    studies: There,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: KeyCursor = None,
) -> Sequence[Study]:
    """Studies, newest first."""
    found, following = await studies.newest(limit=limit, cursor=cursor)
    name_next(request, response, following)
    return found


@router.get("/{study_id}", openapi_extra=rows_in("results"))
async def read_study(study_id: str, studies: There) -> Study:
    """A study with its trials' results so far, and its conclusion once it has one."""
    return await studies.read(study_id)


@router.post("/{study_id}/abort", status_code=202)
@router.delete("/{study_id}", status_code=202, deprecated=True, name="cancel_study")
async def abort_study(
    study_id: str, studies: There, caller: Caller, request: OptionalCancel
) -> Study:
    """Stop a study and its running trial; the device goes back to its state of rest."""
    return await studies.cancel(study_id, by=caller.named(request.by), reason=request.reason)


@router.get("/{study_id}/charts/{name}")
async def read_study_chart(
    study_id: str, name: str, studies: There, theme: Theme = Theme.LIGHT
) -> StudyChart:
    """`sweep`, `modes` or `search` as a plotly figure, of the trials that are over."""
    return await asyncio.to_thread(draw_study, name, await studies.read(study_id), theme)


@router.get("/{study_id}/report", **as_report(StudyReport))
async def read_study_report(
    study_id: str, studies: There, format: AsFormat = None, accept: Accepted = None
) -> Response:
    """A study's answer, chart and trials as they stand: one file without scripts, or its values."""
    report = build_study(await studies.read(study_id), utc_now())
    return await report_answer(report, lambda: study_html(report), format, accept)
