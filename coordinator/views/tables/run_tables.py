"""Tables of seconds, pairs, bursts and the summary of a run. Pure.

Columns have the same names as in the API, with the unit in the name. The attributes ``unit`` and
``layer`` of a column repeat it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from itertools import zip_longest
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
    PhaseLatency,
    Reconciliation,
    RunSummary,
    Window,
)
from broadside.coordinator.views.metric_rows import layer_of
from broadside.coordinator.views.part_rows import parts_of
from broadside.coordinator.views.tables.table_columns import (
    CellType,
    ColumnSpec,
    columns_of,
    scalar_specs,
)
from broadside.exchange.messages import Flow

Tables = Mapping[str, Sequence[Column]]
TABLES: Final = ("seconds", "pairs", "bursts", "summary", "parts")
# Maximum number of columns in the table of seconds.
_COLUMNS_COUNT: Final = 15
_RECONCILIATION: Final = (
    *("lag_s", "overhead_ratio", "residual_ratio", "residual_uncertainty_ratio"),
)


def make_tables(summary: RunSummary, series: Sequence[BurstSeries]) -> Tables:
    """Return the tables of a run by name.

    Args:
        summary: The run's summary.
        series: Series of the bursts to include in the table of seconds.
    """
    computed = {
        metric.name: metric.of_run(summary)
        for metric in ALL_METRICS
        if not metric.stored and metric.name not in RunSummary.model_fields
    }
    # The rows of a mixed run name their part.
    listed = list(parts_of(summary)) or [("", burst) for burst in summary.bursts]
    pairs = [
        {"burst": burst.index + 1, "part": name, **pair.model_dump()}
        for name, burst in listed
        for pair in burst.pairs
    ]
    bursts = [
        {"part": name, **burst.model_dump(by_alias=True, exclude={"pairs", "parts"})}
        for name, burst in listed
    ]
    named = [_PART] if summary.part_names else []
    run = [{**summary.model_dump(exclude={"bursts"}), **computed}]
    run_specs = [*_with_completeness(RunSummary), *(_number(name) for name in computed)]
    layer = partial(_layer, summary)
    return {
        "seconds": _seconds(series),
        "pairs": columns_of(pairs, [*named, *_PAIR_SPECS], layer),
        "bursts": columns_of(bursts, [*named, *_BURST_SPECS], layer),
        "summary": columns_of(run, run_specs, layer),
        "parts": columns_of(list(_part_seconds(summary)), _PARTS, layer),
    }


def _part_seconds(summary: RunSummary) -> Iterator[Mapping[str, Any]]:
    """Yield the seconds of the other parts of a mixed run. ``seconds`` has those of the first."""
    for burst in summary.bursts:
        for part in burst.parts:
            rows = zip_longest(
                part.received_bits_per_second, part.connections_per_second, part.open_count
            )
            for second, (rate, established, count) in enumerate(rows):
                start_at = part.start_at or burst.planned_start_at
                yield {
                    "burst": burst.index + 1,
                    "part": part.name,
                    "at": start_at + timedelta(seconds=second),
                    "received_bits_per_second": rate,
                    "connections_per_second": established,
                    "open_count": count,
                }


def _number(*path: str, name: str | None = None) -> ColumnSpec:
    return ColumnSpec(name=name or "_".join(path), path=path, kind=CellType.FLOAT)


def _with_completeness(model: type[BaseModel]) -> list[ColumnSpec]:
    # The ratio is a field of the model itself, too.
    states = scalar_specs(Completeness, "completeness")[:-1]
    return [*scalar_specs(model), *(states if "completeness" in model.model_fields else ())]


def _latency(*path: str) -> list[ColumnSpec]:
    """Return the columns of the probes' round-trip times in each phase."""
    phases = [
        spec
        for phase in ("before", "during", "after")
        for spec in scalar_specs(PhaseLatency, *path, phase, prefix=f"latency_{phase}_")
    ]
    name = "latency_buffer_delay_ratio"
    return [*phases, _number(*path, "buffer_delay_ratio", name=name)]


_BURST: Final = ColumnSpec(name="burst", path=("burst",), kind=CellType.INTEGER)
_PART: Final = ColumnSpec(name="part", path=("part",), kind=CellType.TEXT)
_PARTS: Final = (
    _BURST,
    _PART,
    ColumnSpec(name="at", path=("at",), kind=CellType.TIME),
    _number("received_bits_per_second"),
    _number("connections_per_second"),
    _number("open_count"),
)
_PAIR_SPECS: Final = (_BURST, *_with_completeness(PairSummary), *_latency("latency"))
_BURST_SPECS: Final = (
    *_with_completeness(BurstSummary),
    *scalar_specs(Window, "window"),
    *(
        spec
        for spec in scalar_specs(Reconciliation, "reconciliation")
        if spec.path[1] in _RECONCILIATION
    ),
    *_latency("latency", "fleet"),
    *scalar_specs(Latency, "latency"),
)


def _seconds(series: Sequence[BurstSeries]) -> Sequence[Column]:
    """Return the fleet's metrics, with one row for each burst, flow and second."""
    if not series:
        return [replace(column, values=column.values[:0]) for column in _seconds([_unknown()])]
    events = sorted({name for burst in series for name in burst.events})
    parts = [fleet_table(burst, _resolution_s(burst), events) for burst in series]
    bursts = [burst.burst_index + 1 for burst in series]
    counts = [len(part[0].values) for part in parts]
    return [
        Column(name="burst", unit="number from 1", values=np.repeat(bursts, counts)),
        *(
            replace(column, values=np.concatenate([part[index].values for part in parts]))
            for index, column in enumerate(parts[0])
        ),
    ]


def _unknown() -> BurstSeries:
    """Return a series of one unknown second, to create the columns of an empty table."""
    unknown = np.full(1, np.nan)
    values: dict[str, Any] = dict.fromkeys((field.name for field in fields(FlowSeries)), unknown)
    values |= {"flow": Flow.UP, "pairs_bits_per_second": np.full((1, 1), np.nan, np.float32)}
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
        flows=(FlowSeries(**values),),
    )


def _resolution_s(series: BurstSeries) -> int:
    """Return the number of seconds in one row.

    It is 1 unless the burst has too many seconds for one table.
    """
    columns_count = _COLUMNS_COUNT + len(series.events)
    cells = len(series.coverage_ratio) * len(series.flows) * columns_count
    return max(1, -(-cells // CELLS_MAX_COUNT))


def _layer(summary: RunSummary, name: str) -> str | None:
    """Return the layer of a rate, or None for other columns."""
    if not name.endswith("_bits_per_second"):
        return None
    if "target" in name or name.startswith("limit"):
        return summary.target_layer
    metric = METRIC_BY_NAME.get(name.removeprefix("real_"))
    return Layer.PAYLOAD if metric is None else layer_of(metric.layer, summary)
