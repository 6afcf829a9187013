"""The route of what was changed over the API."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from coordinator.api.conditional import ConditionalRoute
from coordinator.api.pages import PAGED, AuditCursor, name_next
from coordinator.api.problems import PROBLEMS
from coordinator.auth.audit import Audit, AuditRow

router = APIRouter(prefix="/v1", responses=PROBLEMS, tags=["audit"], route_class=ConditionalRoute)


@router.get("/audit", responses=PAGED)
async def list_audit(
    request: Request,
    response: Response,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: AuditCursor = None,
) -> Sequence[AuditRow]:
    """Writes, newest first, of the last two years."""
    audit: Audit = request.app.state.audit
    rows, following = await audit.read(datetime.now(UTC), limit=limit, cursor=cursor)
    name_next(request, response, following)
    return rows
