"""Conversion of typed rows to columns for table files. Pure.

The columns and their types depend only on the row type, not on the rows. The name of a nested field
begins with the names of its parents. A list becomes one text column, and so does a mapping with
names from the user.
"""

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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


class Kind(StrEnum):
    """Type of the cells in a column."""

    TEXT = "text"
    INSTANT = "instant"
    WHOLE = "whole"
    NUMBER = "number"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Column definition.

    Attributes:
        name: Column name.
        path: Field names that lead to the cell in a row.
        kind: Cell type.
    """

    name: str
    path: tuple[str, ...]
    kind: Kind


def cells_of(row_type: Any) -> Sequence[Cell]:
    """Return the columns of a row type, which is a model or a union of models."""
    found: dict[str, Cell] = {}
    for cell in _cells(row_type, ()):
        known = found.setdefault(cell.name, cell)
        # The members of the union have different types for this column.
        if known.kind is not cell.kind:
            found[cell.name] = Cell(name=cell.name, path=cell.path, kind=Kind.TEXT)
    return list(found.values())


def scalars_of(model: type[BaseModel], before: str = "") -> Sequence[Cell]:
    """Return a column for each plain field of a model, for flat rows.

    Args:
        model: Type of the rows.
        before: Prefix for all column names.
    """
    return [
        Cell(name=before + name, path=(before + name,), kind=_kind(members))
        for name, info in model.model_fields.items()
        if (members := list(_members(info.annotation)))
        and all(isinstance(each, type) and issubclass(each, _PLAIN) for each in members)
    ]


def columns_of(
    rows: Sequence[Mapping[str, Any]],
    cells: Sequence[Cell],
    layer_of: Callable[[str], str | None] = lambda _: None,
) -> Sequence[Column]:
    """Convert rows to columns. A cell that a row lacks is unknown.

    Args:
        rows: Rows as parsed JSON.
        cells: Columns to create.
        layer_of: Function that returns the layer of a column by its name, or None.
    """
    return [
        Column(
            name=cell.name,
            unit=_unit(cell.name),
            layer=layer_of(cell.name),
            values=_values([_value(row, cell.path) for row in rows], cell.kind),
        )
        for cell in cells
    ]


def _cells(annotation: Any, path: tuple[str, ...]) -> Iterator[Cell]:
    members = list(_members(annotation))
    models = [each for each in members if isinstance(each, type) and issubclass(each, BaseModel)]
    for model in models:
        for name, info in model.model_fields.items():
            yield from _cells(info.annotation, (*path, name))
    if models:
        return
    if len(members) == 1 and get_origin(members[0]) in (Mapping, dict):
        key, value = get_args(members[0])
        if isinstance(key, type) and issubclass(key, StrEnum):
            for each in key:
                yield from _cells(value, (*path, each.value))
            return
    yield Cell(name="_".join(path), path=path, kind=_kind(members))


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the types of a value, without annotations and without None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _members(each)
    elif origin is Literal:
        yield from {type(each) for each in get_args(annotation)}
    elif annotation is not type(None):
        yield datetime if annotation is AwareDatetime else annotation


def _kind(members: Sequence[Any]) -> Kind:
    plain = {each for each in members if isinstance(each, type)}
    if len(plain) < len(set(members)):
        return Kind.TEXT
    if plain and all(issubclass(each, datetime) for each in plain):
        return Kind.INSTANT
    if plain == {int}:
        return Kind.WHOLE
    return Kind.NUMBER if plain and plain <= {int, float} else Kind.TEXT


def _value(row: Any, path: Sequence[str]) -> Any:
    for name in path:
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


def _values(cells: Sequence[Any], kind: Kind) -> NDArray[Any]:
    match kind:
        case Kind.INSTANT:
            return np.array([_instant(cell) for cell in cells], "datetime64[ms]")
        case Kind.WHOLE:
            unknown = [cell is None for cell in cells]
            return np.ma.array([cell or 0 for cell in cells], np.int64, mask=unknown)
        case Kind.NUMBER:
            return np.array([np.nan if cell is None else float(cell) for cell in cells], np.float64)
        case Kind.TEXT:
            return np.array([_text(cell) for cell in cells], np.str_)


def _instant(cell: Any) -> datetime | None:
    at = datetime.fromisoformat(cell) if isinstance(cell, str) else cell
    return None if at is None else at.replace(tzinfo=None)


def _text(cell: Any) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    if isinstance(cell, list) and all(isinstance(each, str) for each in cell):
        return "; ".join(cell)
    return to_json(cell).decode()


def _unit(name: str) -> str:
    if name == "burst":
        return "number from 1"
    return next((unit for ending, unit in _UNITS if name.endswith(ending)), "name")
