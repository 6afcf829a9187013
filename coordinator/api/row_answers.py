"""Answers as JSON, CSV, Arrow or Parquet, whichever the caller accepts and there is."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, get_args, get_origin

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from broadside.coordinator.views.row_columns import cells_of, columns_of
from broadside.coordinator.views.series_formats import FORMATS, JSON, chosen_format, render

ROWS: Final = "x-rows"
FILE_CONTENT: Final[Mapping[str, Any]] = {"schema": {"type": "string", "format": "binary"}}
"""What an OpenAPI document says of a file in any form."""
_SELF: Final = "."


def rows_in(field: str) -> dict[str, str]:
    """``openapi_extra`` of a route whose answer has its rows in ``field`` (dotted); "": in its
    values; ".": it is one row itself."""
    return {ROWS: field}


class RowsRoute(APIRoute):
    """A route that answers a value; a list, or an object with rows in it, also as a file of rows.

    What it cannot make of what ``Accept`` names is 406, before anything is done.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.response_model is None or not self.path.startswith("/v1/"):
            return handle  # it makes its own forms; a probe of health is answered in any case
        field = (self.openapi_extra or {}).get(ROWS)
        row_type = _row_type(self.response_model, field)
        cells = () if row_type is None else cells_of(row_type)
        offered = tuple(FORMATS) if cells else (JSON,)

        async def in_wanted_form(request: Request) -> Response:
            media_type = chosen_format(request.headers.get("accept"), offered)
            response = await handle(request)
            response.headers["Vary"] = "Accept"
            if media_type == JSON or response.status_code != 200:
                return response
            rows = _rows(from_json(bytes(response.body)), field)
            response.body = render(media_type, {}, columns_of(rows, cells))
            response.headers["Content-Type"] = media_type
            response.headers["Content-Length"] = str(len(response.body))
            return response

        return in_wanted_form


def _row_type(answer: Any, field: str | None) -> Any:
    """What the type of an answer says that its rows are; None: it has none."""
    if field == _SELF:
        return answer
    if field is None:
        return get_args(answer)[0] if get_origin(answer) is Sequence else None
    if field == "":
        return get_args(answer)[1]
    for name in field.split("."):
        answer = answer.model_fields[name].annotation
    return get_args(answer)[0]


def _rows(told: Any, field: str | None) -> Sequence[Mapping[str, Any]]:
    if field == _SELF:
        return [told]
    if field == "":
        return list(told.values())
    for name in field.split(".") if field else ():
        told = told[name]
    rows: Sequence[Mapping[str, Any]] = told
    return rows
