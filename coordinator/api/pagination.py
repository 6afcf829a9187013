"""Pagination of long lists."""

from typing import Annotated, Any, Final

from fastapi import Depends, Query, Request, Response
from pydantic import WithJsonSchema

from broadside.coordinator.auth.audit import AUDIT_CURSOR

_CURSOR: Final = "`Next-Cursor` of the previous page"

KeyCursor = Annotated[str | None, Query(pattern=r"^[A-Za-z0-9._-]{1,200}$", description=_CURSOR)]
CountCursor = Annotated[
    int | None,
    Query(ge=0, le=999_999_999, description=_CURSOR),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]{1,9}$"}),
]
# The same for all lists.
PageLimit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items")]
SequenceCursor = Annotated[
    int | None,
    Query(ge=0, lt=1 << 63, description=_CURSOR),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]{1,18}$"}),
]
AuditCursor = Annotated[str | None, Query(pattern=AUDIT_CURSOR, description=_CURSOR)]

PAGED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "headers": {
            "Next-Cursor": {
                "description": "cursor of the next page; absent on the last page",
                "schema": {"type": "string"},
            },
            "Link": {
                "description": 'address of the next page, rel="next"',
                "schema": {"type": "string"},
            },
        }
    }
}
"""Response headers for a paged list, for ``responses=PAGED``."""


def name_next(request: Request, response: Response, cursor: str | int | None) -> None:
    """Set the headers ``Next-Cursor`` and ``Link`` (RFC 8288) for the next page.

    Args:
        request: Request for this page.
        response: Response that gets the headers.
        cursor: Start of the next page. None on the last page.
    """
    if cursor is not None:
        url = request.url.include_query_params(cursor=cursor)
        response.headers["Next-Cursor"] = str(cursor)
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'


class PageLinks:
    """Response headers for a page, as a dependency of a route."""

    def __init__(self, request: Request, response: Response) -> None:
        self._request, self._response = request, response

    def name_next(self, cursor: str | int | None) -> None:
        """Set the headers for the next page. ``None`` means that this is the last page."""
        name_next(self._request, self._response, cursor)


class CountPage(PageLinks):
    """Page of a list that is numbered from 0, with the query parameters of the request."""

    def __init__(
        self,
        request: Request,
        response: Response,
        limit: PageLimit = 100,
        cursor: CountCursor = None,
    ) -> None:
        super().__init__(request, response)
        self.limit, self.cursor = limit, cursor or 0


Links = Annotated[PageLinks, Depends()]
Page = Annotated[CountPage, Depends()]
