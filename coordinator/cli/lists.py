"""Lists: a table on a screen, JSON, or every field as a file of rows."""

import pkgutil
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from coordinator.cli.display import print_table
from coordinator.cli.options import print_json
from coordinator.cli.screen_text import write_bytes


class RowsFormat(StrEnum):
    CSV = "csv"
    JSON = "json"
    ARROW = "arrow"
    PARQUET = "parquet"

    @property
    def media_type(self) -> str:
        from coordinator.views.exports import Format

        return Format(self.value).media_type


RowsOption = Annotated[
    RowsFormat | None, typer.Option("--format", help="print every field of every row so")
]


def show_list(
    found: Sequence[BaseModel | Mapping[str, Any]],
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    *,
    of: str,
    none: str,
    form: RowsFormat | None,
    as_json: bool,
    spare: Sequence[str] = (),
    title: str = "",
    hidden: Collection[str] = (),
) -> None:
    """What was found: as ``columns`` and ``cells``, or all of it in the form that is asked for.

    ``of`` is the rows' type (``module:name``), which says a file's columns; fields that are
    ``hidden`` are in no form. For people ``none`` stands in place of a table without rows: that
    there is nothing, and what to do about it.
    """
    if form is None and not as_json and not cells:
        typer.echo(none)
        return
    if form is None and not as_json:
        print_table(title, columns, cells, spare=spare)
        return
    rows = [
        dict(row) if isinstance(row, Mapping) else row.model_dump(mode="json", exclude=set(hidden))
        for row in found
    ]
    if form in (None, RowsFormat.JSON):
        print_json(rows)
        return
    from coordinator.views.row_columns import cells_of, columns_of
    from coordinator.views.series_formats import render

    shown = [cell for cell in cells_of(pkgutil.resolve_name(of)) if cell.path[0] not in hidden]
    write_bytes(render(form.media_type, {}, columns_of(rows, shown)))
