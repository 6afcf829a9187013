"""Lists: a table on a screen, JSON, or every field as a file of rows."""

from collections.abc import Mapping, Sequence
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
    form: RowsFormat | None,
    as_json: bool,
    spare: Sequence[str] = (),
    title: str = "",
) -> None:
    """What was found: as ``columns`` and ``cells``, or all of it in the form that is asked for."""
    if form is None and not as_json:
        print_table(title, columns, cells, spare=spare)
        return
    rows = [dict(row) if isinstance(row, Mapping) else row.model_dump(mode="json") for row in found]
    if form in (None, RowsFormat.JSON):
        print_json(rows)
        return
    from coordinator.views.row_columns import columns_of, flat
    from coordinator.views.series_formats import render

    write_bytes(render(form.media_type, {}, columns_of([flat(row) for row in rows])))
