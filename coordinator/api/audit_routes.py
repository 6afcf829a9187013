"""Audit log route."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query, Request, Response

from broadside.coordinator.api.dependencies import kept, routes
from broadside.coordinator.api.pages import PAGED, AuditCursor, name_next
from broadside.coordinator.auth.audit import Audit, AuditRow

router = routes("audit")


@router.get("/audit", responses=PAGED)
async def list_audit(
    request: Request,
    response: Response,
    audit: Annotated[Audit, kept("audit")],
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: AuditCursor = None,
) -> Sequence[AuditRow]:
    """Writes, newest first, of the last two years."""
    rows, following = await audit.read(datetime.now(UTC), limit=limit, cursor=cursor)
    name_next(request, response, following)
    return rows
