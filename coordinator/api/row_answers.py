"""Lists as JSON, CSV, Arrow or Parquet, whichever the caller accepts."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, get_origin

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from coordinator.views.row_columns import columns_of, flat
from coordinator.views.series_formats import JSON, chosen_format, render

ROWS: Final = "x-rows"


def rows_in(field: str) -> dict[str, str]:
    """``openapi_extra`` of a route whose answer has its rows in ``field``; "": in its values."""
    return {ROWS: field}


class RowsRoute(APIRoute):
    """A route that answers a list, or an object with rows in one field, also as a file of rows."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        field = (self.openapi_extra or {}).get(ROWS)
        if field is None and get_origin(self.response_model) is not Sequence:
            return handle

        async def in_wanted_form(request: Request) -> Response:
            media_type = chosen_format(request.headers.get("accept"))
            response = await handle(request)
            response.headers["Vary"] = "Accept"
            if media_type == JSON or response.status_code != 200:
                return response
            told = from_json(bytes(response.body))
            rows = told[field] if field else told.values() if field == "" else told
            response.body = render(media_type, {}, columns_of([flat(row) for row in rows]))
            response.headers["Content-Type"] = media_type
            response.headers["Content-Length"] = str(len(response.body))
            return response

        return in_wanted_form
