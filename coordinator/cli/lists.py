"""List output as a table, as JSON, or as a file with all fields."""

import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel

from broadside.coordinator.cli.display import print_table
from broadside.coordinator.cli.options import print_json
from broadside.coordinator.cli.screen_text import write_bytes

R = TypeVar("R", bound=BaseModel)


class RowsFormat(StrEnum):
    CSV = "csv"
    JSON = "json"
    ARROW = "arrow"
    PARQUET = "parquet"

    @property
    def media_type(self) -> str:
        from broadside.coordinator.views.exports import Format

        return Format(self.value).media_type


RowsOption = Annotated[
    RowsFormat | None, typer.Option("--format", help="print every field of every row so")
]


def show_list(
    found: Sequence[R],
    columns: Mapping[str, Callable[[R], str]],
    *,
    of: str,
    none: str,
    form: RowsFormat | None,
    as_json: bool,
    spare: Sequence[str] = (),
    hidden: Collection[str] = (),
    more: Callable[[R], Mapping[str, Any]] | None = None,
) -> None:
    """Print a list as a table of ``columns``, or with all fields in another format.

    Args:
        found: The rows to print.
        columns: Name and cell function for each table column.
        of: Row type (``module:name``). It defines the columns when a file is printed.
        none: Line to print when there are no rows.
        form: File format. If None, a table or JSON is printed.
        as_json: Set to True to print JSON.
        spare: Table columns to leave out first when there is not enough space.
        hidden: Fields that should never be printed.
        more: Function that returns additional JSON members of a row.
    """
    if form is None and not as_json:
        if not found:
            typer.echo(none)
            return
        cells = [[cell(row) for cell in columns.values()] for row in found]
        print_table("", list(columns), cells, spare=spare)
        return
    rows = [row.model_dump(mode="json", exclude=set(hidden)) for row in found]
    if more is not None:
        rows = [{**row, **more(one)} for row, one in zip(rows, found, strict=True)]
    print_rows(rows, form or RowsFormat.JSON, of=of, hidden=hidden)


def print_rows(
    rows: Sequence[Mapping[str, Any]], form: RowsFormat, *, of: str, hidden: Collection[str] = ()
) -> None:
    """Print rows with all fields except the hidden ones.

    Args:
        rows: The rows to print, in JSON form.
        form: File format to use.
        of: Row type (``module:name``).
        hidden: Fields that should never be printed.
    """
    if form is RowsFormat.JSON:
        print_json(rows)
        return
    from broadside.coordinator.views.row_columns import cells_of, columns_of
    from broadside.coordinator.views.series_formats import render

    shown = [cell for cell in cells_of(pkgutil.resolve_name(of)) if cell.path[0] not in hidden]
    write_bytes(render(form.media_type, {}, columns_of(rows, shown)))
