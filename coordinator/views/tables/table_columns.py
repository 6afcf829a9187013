"""Conversion of typed rows to columns. Pure.

The columns and their types depend only on the row type, not on the rows. The name of a nested field
begins with the names of its parents. A list becomes one text column, and so does a mapping with
names from the user.
"""

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import numpy as np
from numpy.typing import NDArray
from pydantic import AwareDatetime, BaseModel
from pydantic_core import to_json

from broadside.coordinator.core.measure.grid.second_table import Column

# Unit by name suffix.
_UNITS: Final = (
    ("_bits_per_second", "bit/s"),
    ("_s", "s"),
    ("_ratio", "ratio"),
    ("_count", "count"),
    ("_bytes", "B"),
    ("_usd", "USD"),
    ("_at", "UTC"),
)


_PLAIN: Final = (bool, int, float, str, datetime)


class CellType(StrEnum):
    """Type of the values in a column."""

    TEXT = "text"
    TIME = "time"
    INTEGER = "integer"
    FLOAT = "float"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """Column definition.

    Attributes:
        name: Column name.
        path: Field names that lead to the value in a row.
        kind: Type of the values.
    """

    name: str
    path: tuple[str, ...]
    kind: CellType


def column_specs(row_type: Any) -> Sequence[ColumnSpec]:
    """Return the columns of a row type, which is a model or a union of models."""
    specs: dict[str, ColumnSpec] = {}
    for spec in _specs(row_type, ()):
        known = specs.setdefault(spec.name, spec)
        # The members of the union have different types for this column.
        if known.kind is not spec.kind:
            specs[spec.name] = replace(spec, kind=CellType.TEXT)
    return list(specs.values())


def scalar_specs(model: type[BaseModel], *path: str, prefix: str | None = None) -> list[ColumnSpec]:
    """Return a column for each field of a model that contains a plain value.

    Args:
        model: Type of the object at ``path``.
        path: Field names that lead to the object in a row.
        prefix: Prefix of the column names. Defaults to the names in ``path``.
    """
    prefix = "".join(f"{name}_" for name in path) if prefix is None else prefix
    return [
        ColumnSpec(name=prefix + name, path=(*path, name), kind=_kind(members))
        for name, info in _fields(model)
        if (members := list(_members(info.annotation)))
        and all(isinstance(member, type) and issubclass(member, _PLAIN) for member in members)
    ]


def text_specs(rows: Sequence[Mapping[str, Any]], *path: str) -> list[ColumnSpec]:
    """Return a column of text for each plain value of rows without a type.

    Args:
        rows: Rows as parsed JSON.
        path: Field names that lead to the rows.
    """
    specs = []
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if row.get(name) is not None]
        if values and all(isinstance(value, Mapping) for value in values):
            specs += text_specs(values, *path, name)
        else:
            at = (*path, name)
            specs.append(ColumnSpec(name="_".join(at), path=at, kind=CellType.TEXT))
    return specs


def columns_of(
    rows: Sequence[Mapping[str, Any]],
    specs: Sequence[ColumnSpec],
    layer_of: Callable[[str], str | None] = lambda _: None,
) -> Sequence[Column]:
    """Convert rows to columns. A missing value is unknown.

    Args:
        rows: Rows as parsed JSON.
        specs: Columns to create.
        layer_of: Function that returns the layer of a column by its name, or None.

    Returns:
        One column for each of ``specs``, with as many values as rows.
    """
    return [
        Column(
            name=spec.name,
            unit=_unit(spec.name),
            layer=layer_of(spec.name),
            values=_values([_value(row, spec.path) for row in rows], spec.kind),
        )
        for spec in specs
    ]


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """Yield the fields with their names in answers."""
    for name, info in model.model_fields.items():
        yield info.serialization_alias or name, info


def _specs(annotation: Any, path: tuple[str, ...]) -> Iterator[ColumnSpec]:
    members = list(_members(annotation))
    models = [
        member for member in members if isinstance(member, type) and issubclass(member, BaseModel)
    ]
    for model in models:
        for name, info in _fields(model):
            yield from _specs(info.annotation, (*path, name))
    if models:
        return
    if len(members) == 1 and get_origin(members[0]) in (Mapping, dict):
        key, value = get_args(members[0])
        if isinstance(key, type) and issubclass(key, StrEnum):
            for member in key:
                yield from _specs(value, (*path, member.value))
            return
    yield ColumnSpec(name="_".join(path), path=path, kind=_kind(members))


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the types of a value, without annotations and without None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    elif origin is Literal:
        yield from {type(member) for member in get_args(annotation)}
    elif annotation is not type(None):
        yield datetime if annotation is AwareDatetime else annotation


def _kind(members: Sequence[Any]) -> CellType:
    plain = {member for member in members if isinstance(member, type)}
    if len(plain) < len(set(members)):
        return CellType.TEXT
    if plain and all(issubclass(member, datetime) for member in plain):
        return CellType.TIME
    if plain == {int}:
        return CellType.INTEGER
    return CellType.FLOAT if plain and plain <= {int, float} else CellType.TEXT


def _value(row: Any, path: Sequence[str]) -> Any:
    for name in path:
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


def _values(cells: Sequence[Any], kind: CellType) -> NDArray[Any]:
    match kind:
        case CellType.TIME:
            return np.array([_instant(cell) for cell in cells], "datetime64[ms]")
        case CellType.INTEGER:
            unknown = [cell is None for cell in cells]
            return np.ma.array([cell or 0 for cell in cells], np.int64, mask=unknown)
        case CellType.FLOAT:
            return np.array([np.nan if cell is None else float(cell) for cell in cells], np.float64)
        case CellType.TEXT:
            return np.array([_text(cell) for cell in cells], np.str_)


def _instant(cell: Any) -> datetime | None:
    at = datetime.fromisoformat(cell) if isinstance(cell, str) else cell
    return None if at is None else at.replace(tzinfo=None)


def _text(cell: Any) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    if isinstance(cell, list) and all(isinstance(member, str) for member in cell):
        return "; ".join(cell)
    return to_json(cell).decode()


def _unit(name: str) -> str:
    if name == "burst":
        return "number from 1"
    return next((unit for ending, unit in _UNITS if name.endswith(ending)), "name")
