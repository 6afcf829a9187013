"""A run as four tables: its seconds, its pairs, its bursts, and its summary. Pure.

Columns are named as in the API, so a name carries its unit; ``unit`` and ``layer`` say it again.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import numpy as np
from pydantic import BaseModel

from coordinator.core.figures import FIGURE, FIGURES, Layer
from coordinator.core.measure.second_table import CELLS_MAX_COUNT, Column, fleet_table
from coordinator.core.measure.series import BurstSeries
from coordinator.core.summary import BurstSummary, PathLatency, RunSummary
from coordinator.views.row_columns import columns_of

Tables = Mapping[str, Sequence[Column]]
TABLES: Final = ("seconds", "pairs", "bursts", "summary")

_FIELDS: Final = RunSummary.model_fields.keys()
_COLUMNS_COUNT: Final = 15  # of the table of seconds, at most


def make_tables(summary: RunSummary, series: Sequence[BurstSeries]) -> Tables:
    """The tables of a run; ``series`` of the bursts whose seconds are wanted."""
    return {
        "seconds": _seconds(series),
        "pairs": columns_of(
            [
                {"burst": burst.index + 1, **_flat(pair), **_latency(pair.latency)}
                for burst in summary.bursts
                for pair in burst.pairs
            ],
            _layer,
        ),
        "bursts": columns_of([_burst(burst) for burst in summary.bursts], _layer),
        "summary": columns_of([_flat(summary) | _unstored(summary)], _layer),
    }


def _unstored(summary: RunSummary) -> dict[str, Any]:
    """Figures that a summary has no field for."""
    names = [each.name for each in FIGURES if not each.stored]
    return {name: FIGURE[name].of_run(summary) for name in names if name not in _FIELDS}


def _seconds(series: Sequence[BurstSeries]) -> Sequence[Column]:
    """Fleet figures, a row a burst, flow and second."""
    if not series:
        return ()
    parts = [fleet_table(burst, _step_s(burst)) for burst in series]
    numbers = np.concatenate(
        [
            np.full(len(part[0].values), burst.burst_index + 1)
            for burst, part in zip(series, parts, strict=True)
        ]
    )
    return [
        Column(name="burst", unit="number from 1", values=numbers),
        *(
            Column(
                name=column.name,
                unit=column.unit,
                layer=column.layer,
                values=np.concatenate([part[place].values for part in parts]),
            )
            for place, column in enumerate(parts[0])
        ),
    ]


def _step_s(series: BurstSeries) -> int:
    """One second, or for bursts of many hours as many as one table carries (see `known_s`)."""
    cells = len(series.coverage_ratio) * len(series.flows) * _COLUMNS_COUNT
    return max(1, -(-cells // CELLS_MAX_COUNT))


def _burst(burst: BurstSummary) -> dict[str, Any]:
    """A burst's figures on one row, its reconciliation's among them."""
    held = burst.reconciliation
    said = {"burst": burst.index + 1, **_flat(burst)}
    del said["index"]
    if burst.window is not None:
        said |= {f"window_{name}": value for name, value in _flat(burst.window).items()}
    said |= {
        f"reconciliation_{name}": None if held is None else getattr(held, name)
        for name in ("lag_s", "overhead_ratio", "residual_ratio", "residual_uncertainty_ratio")
    }
    seen = burst.latency
    if seen is not None:
        said |= _latency(seen.fleet)
        said |= {f"latency_{name}": value for name, value in _flat(seen).items()}
    return said


def _latency(path: PathLatency | None) -> dict[str, Any]:
    """Round trips of probes, phase by phase; nothing without probes."""
    if path is None:
        return {}
    said = {
        f"latency_{phase}_{name}": value
        for phase in ("before", "during", "after")
        for name, value in _flat(getattr(path, phase)).items()
    }
    return said | {"latency_buffer_delay_ratio": path.buffer_delay_ratio}


def _flat(value: BaseModel) -> dict[str, Any]:
    """A value's plain fields; completeness by its states; lists and other values are left out."""
    flat: dict[str, Any] = {}
    for name in type(value).model_fields:
        inner = getattr(value, name)
        if name == "completeness":
            flat |= {f"completeness_{key}": part for key, part in inner.model_dump().items()}
        elif inner is None or isinstance(inner, bool | int | float | str | StrEnum | datetime):
            flat[name] = inner
    flat.pop("completeness_completeness_ratio", None)
    return flat


def _layer(name: str) -> str | None:
    if not name.endswith("_bits_per_second"):
        return None
    if "target" in name:
        return "the target's"
    known = FIGURE.get(name.removeprefix("real_"))
    return Layer.PAYLOAD if known is None else known.layer
