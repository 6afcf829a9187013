"""Rows of named values as columns, of which a file of any format is made. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from coordinator.core.measure.second_table import Column

_UNITS: Final = (  # how a name ends, the unit
    ("_bits_per_second", "bit/s"),
    ("_s", "s"),
    ("_ratio", "ratio"),
    ("_count", "count"),
    ("_bytes", "B"),
    ("_usd", "USD"),
    ("_at", "UTC"),
)


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a JSON list as plain cells: what is nested gets its parents' names in front, lists
    are text, and instants are instants."""
    return dict(_cells(row, ""))


def _cells(row: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        name = before + key
        if isinstance(value, Mapping):
            yield from _cells(value, f"{name}_")
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):
            yield name, "; ".join(value)
        elif isinstance(value, list):
            yield name, to_json(value).decode()
        elif isinstance(value, str) and name.endswith("_at"):
            yield name, datetime.fromisoformat(value)
        else:
            yield name, value


def columns_of(
    rows: Sequence[Mapping[str, Any]], layer_of: Callable[[str], str | None] = lambda _: None
) -> Sequence[Column]:
    """A column for every name that a row has; a cell that a row lacks is unknown."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [
        Column(
            name=name,
            unit=_unit(name),
            layer=layer_of(name),
            values=_values([row.get(name) for row in rows]),
        )
        for name in names
    ]


def _values(cells: Sequence[Any]) -> NDArray[Any]:
    """One column; what no row knows is a column of unknown figures."""
    known = [cell for cell in cells if cell is not None]
    if any(isinstance(cell, datetime) for cell in known):
        return np.array(
            [None if at is None else at.replace(tzinfo=None) for at in cells], "datetime64[ms]"
        )
    if any(isinstance(cell, str | bool) for cell in known):
        return np.array(["" if cell is None else str(cell) for cell in cells])
    if len(known) == len(cells) and all(isinstance(cell, int) for cell in known):
        return np.array(cells, np.int64)
    return np.array([np.nan if cell is None else float(cell) for cell in cells])


def _unit(name: str) -> str:
    if name == "burst":
        return "number from 1"
    return next((unit for ending, unit in _UNITS if name.endswith(ending)), "name")
