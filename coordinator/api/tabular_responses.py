"""Responses with rows as JSON, CSV, Arrow or Parquet, selected by ``Accept``."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, get_args, get_origin

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from broadside.coordinator.views.tables.formats import FORMATS, JSON, chosen_format, render
from broadside.coordinator.views.tables.table_columns import column_specs, columns_of

ROWS: Final = "x-rows"
FILE_CONTENT: Final[Mapping[str, Any]] = {"schema": {"type": "string", "format": "binary"}}
"""OpenAPI content for a file in any format."""
_SELF: Final = "."


def rows_at(field: str) -> dict[str, str]:
    """Return the ``openapi_extra`` of a route, with the location of the rows in its response.

    Args:
        field: Dotted name of the field with the rows. "" if the rows are the values of a mapping,
            "." if the response is a single row.
    """
    return {ROWS: field}


class TabularRoute(APIRoute):
    """Route whose response is also available as a table if it has rows.

    If ``Accept`` names only unsupported types, the response is 406 and the endpoint is not called.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.response_model is None or not self.path.startswith("/v1/"):
            # These routes choose the format themselves. Health probes are answered in any case.
            return handle
        field = (self.openapi_extra or {}).get(ROWS)
        row_type = _row_type(self.response_model, field)
        cells = () if row_type is None else column_specs(row_type)
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
    """Return the row type of a response type, or None if it has no rows."""
    if field == _SELF:
        return answer
    if field is None:
        return get_args(answer)[0] if get_origin(answer) is Sequence else None
    if field == "":
        return get_args(answer)[1]
    for name in field.split("."):
        answer = answer.model_fields[name].annotation
    return get_args(answer)[0]


def _rows(value: Any, field: str | None) -> Sequence[Mapping[str, Any]]:
    if field == _SELF:
        return [value]
    if field == "":
        return list(value.values())
    for name in field.split(".") if field else ():
        value = value[name]
    rows: Sequence[Mapping[str, Any]] = value
    return rows
