"""One page of a long list: how many, from where, and where the next one is."""

from typing import Annotated, Any, Final

from fastapi import Query, Request, Response

from coordinator.views.cursors import CURSOR_MAX_CHARS

Cursor = Annotated[
    str | None,
    Query(
        max_length=CURSOR_MAX_CHARS,
        description="where to go on: the `Next-Cursor` of the page before",
    ),
]


PAGED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "headers": {
            "Next-Cursor": {
                "description": "the cursor of the next page; left out on the last",
                "schema": {"type": "string"},
            },
            "Link": {
                "description": 'the next page\'s address, rel="next"',
                "schema": {"type": "string"},
            },
        }
    }
}
"""What a paged list's answer carries beside its items: ``responses=PAGED``."""


def name_next(request: Request, response: Response, cursor: str | None) -> None:
    """Say in the headers where the list goes on: ``Next-Cursor``, and RFC 8288's ``Link``."""
    if cursor is not None:
        url = request.url.include_query_params(cursor=cursor)
        response.headers["Next-Cursor"] = cursor
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
