"""Output of results in formats for programs."""

import json
import pkgutil
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any

import typer

from broadside.coordinator.cli.terminal_text import write_bytes


class OutputFormat(StrEnum):
    """Output format of a command.

    Attributes:
        TABLE: Text that fits into the terminal.
        WIDE: Text with all columns, however long a line is.
    """

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


def print_document(value: Any, output: str = OutputFormat.JSON) -> None:
    """Print a model or a JSON value as one document of JSON or YAML.

    Args:
        value: Pydantic model or JSON value.
        output: ``json`` or ``yaml``.
    """
    # By name, because pydantic is slow to import.
    dump = getattr(value, "model_dump_json", None)
    if dump is None:
        text = json.dumps(value, indent=2, ensure_ascii=False)
    else:
        text = dump(indent=2, by_alias=True)
    if output == OutputFormat.YAML:
        import yaml

        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        text = yaml.dump(json.loads(text), Dumper=dumper, sort_keys=False, allow_unicode=True)
        text = text.rstrip()
    typer.echo(text)


def print_rows(
    rows: Sequence[Any], output: str, *, model: str | None = None, hidden: Collection[str] = ()
) -> None:
    """Print rows as a CSV, Arrow or Parquet file.

    Args:
        rows: Models, or rows in JSON form.
        output: File format.
        model: Row type (``module:name``). Defaults to that of the first row; rows without a model
            have a column of text for each field.
        hidden: Fields that are never printed.
    """
    from broadside.coordinator.views.tables import Format
    from broadside.coordinator.views.tables.formats import render
    from broadside.coordinator.views.tables.table_columns import (
        column_specs,
        columns_of,
        text_specs,
    )
    from broadside.exchange.messages import Message

    first = next(iter(rows), None)
    if model is not None:
        specs = column_specs(pkgutil.resolve_name(model))
    elif isinstance(first, Message):
        specs = column_specs(type(first))
    else:
        specs = text_specs(rows)
    dumped = [row.answer_fields() if isinstance(row, Message) else row for row in rows]
    columns = columns_of(dumped, [spec for spec in specs if spec.path[0] not in hidden])
    write_bytes(render(Format(output).media_type, {}, columns))
