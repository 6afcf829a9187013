"""Tables of seconds, pairs, bursts and the summary of a run. Pure.

Columns have the same names as in the API, with the unit in the name. The attributes ``unit`` and
``layer`` of a column repeat it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np
from pydantic import BaseModel

from broadside.coordinator.core.measure.grid.second_table import (
    CELLS_MAX_COUNT,
    Column,
    fleet_table,
)
from broadside.coordinator.core.measure.grid.series import BurstSeries, FlowSeries
from broadside.coordinator.core.metrics import ALL_METRICS, METRIC_BY_NAME, Layer
from broadside.coordinator.core.summary import (
    BurstSummary,
    Completeness,
    Latency,
    PairSummary,
    PathLatency,
    PhaseLatency,
    RunSummary,
    Window,
)
from broadside.coordinator.views.row_columns import Cell, Kind, columns_of, scalars_of
from broadside.exchange.messages import Flow

Tables = Mapping[str, Sequence[Column]]
TABLES: Final = ("seconds", "pairs", "bursts", "summary")

_FIELDS: Final = RunSummary.model_fields.keys()
# Maximum number of columns in the table of seconds.
_COLUMNS_COUNT: Final = 15


def make_tables(summary: RunSummary, series: Sequence[BurstSeries]) -> Tables:
    """Return the tables of a run by name.

    Args:
        summary: The run's summary.
        series: Series of the bursts to include in the table of seconds.
    """
    return {
        "seconds": _seconds(series),
        "pairs": columns_of(
            [
                {"burst": burst.index + 1, **_flat(pair), **_latency(pair.latency)}
                for burst in summary.bursts
                for pair in burst.pairs
            ],
            [_BURST, *_parts(PairSummary), *_LATENCY],
            _layer,
        ),
        "bursts": columns_of([_burst(burst) for burst in summary.bursts], _BURSTS, _layer),
        "summary": columns_of(
            [_flat(summary) | _unstored(summary)],
            [*_parts(RunSummary), *(_number(name) for name in _unstored(summary))],
            _layer,
        ),
    }


def _number(name: str) -> Cell:
    return Cell(name=name, path=(name,), kind=Kind.NUMBER)


def _parts(model: type[BaseModel]) -> Sequence[Cell]:
    """Return the columns for a row made by :func:`_flat`."""
    states = scalars_of(Completeness, "completeness_")
    known = states[:-1] if "completeness" in model.model_fields else ()
    return [*scalars_of(model), *known]


def _unstored(summary: RunSummary) -> dict[str, Any]:
    """Return metrics that are computed and not stored in the summary."""
    names = [each.name for each in ALL_METRICS if not each.stored]
    return {name: METRIC_BY_NAME[name].of_run(summary) for name in names if name not in _FIELDS}


def _seconds(series: Sequence[BurstSeries]) -> Sequence[Column]:
    """Return the fleet's metrics, with one row for each burst, flow and second."""
    if not series:
        blank = _seconds([_blank()])
        return [replace(column, values=column.values[:0]) for column in blank]
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


def _blank() -> BurstSeries:
    """Return a series of one unknown second, to create the columns of an empty table."""
    unknown = np.full(1, np.nan)
    known: dict[str, Any] = dict.fromkeys((each.name for each in fields(FlowSeries)), unknown)
    known |= {"flow": Flow.UP, "pairs_bits_per_second": np.full((1, 1), np.nan, np.float32)}
    return BurstSeries(
        burst_index=0,
        start_s=0,
        planned_start_s=0.0,
        duration_s=1,
        omit_s=0,
        window=None,
        coverage_ratio=np.zeros(1),
        client_cpu_ratio=unknown,
        server_cpu_ratio=unknown,
        flows=(FlowSeries(**known),),
    )


def _step_s(series: BurstSeries) -> int:
    """Return the number of seconds in one row.

    It is 1 unless the burst has too many seconds for one table.
    """
    cells = len(series.coverage_ratio) * len(series.flows) * _COLUMNS_COUNT
    return max(1, -(-cells // CELLS_MAX_COUNT))


def _burst(burst: BurstSummary) -> dict[str, Any]:
    """Return the row of a burst, including its reconciliation."""
    held = burst.reconciliation
    said = {"burst": burst.index + 1, **_flat(burst)}
    del said["index"]
    if burst.window is not None:
        said |= {f"window_{name}": value for name, value in _flat(burst.window).items()}
    said |= {
        f"reconciliation_{name}": None if held is None else getattr(held, name) for name in _HELD
    }
    seen = burst.latency
    if seen is not None:
        said |= _latency(seen.fleet)
        said |= {f"latency_{name}": value for name, value in _flat(seen).items()}
    return said


def _latency(path: PathLatency | None) -> dict[str, Any]:
    """Return the round-trip times of the probes in each phase. Empty without probes."""
    if path is None:
        return {}
    said = {
        f"latency_{phase}_{name}": value
        for phase in _PHASES
        for name, value in _flat(getattr(path, phase)).items()
    }
    return said | {"latency_buffer_delay_ratio": path.buffer_delay_ratio}


def _flat(value: BaseModel) -> dict[str, Any]:
    """Return the plain fields of a model, and its completeness by state."""
    flat = {cell.name: getattr(value, cell.name) for cell in scalars_of(type(value))}
    if (states := getattr(value, "completeness", None)) is not None:
        flat |= {f"completeness_{key}": part for key, part in states.model_dump().items()}
    return flat


_PHASES: Final = ("before", "during", "after")
_HELD: Final = ("lag_s", "overhead_ratio", "residual_ratio", "residual_uncertainty_ratio")
_BURST: Final = Cell(name="burst", path=("burst",), kind=Kind.WHOLE)
_LATENCY: Final = (
    *(cell for phase in _PHASES for cell in scalars_of(PhaseLatency, f"latency_{phase}_")),
    _number("latency_buffer_delay_ratio"),
)
_BURSTS: Final = (
    _BURST,
    *(cell for cell in _parts(BurstSummary) if cell.name != "index"),
    *scalars_of(Window, "window_"),
    *(_number(f"reconciliation_{name}") for name in _HELD),
    *_LATENCY,
    *scalars_of(Latency, "latency_"),
)


def _layer(name: str) -> str | None:
    if not name.endswith("_bits_per_second"):
        return None
    if "target" in name:
        return "the target's"
    known = METRIC_BY_NAME.get(name.removeprefix("real_"))
    return Layer.PAYLOAD if known is None else known.layer
