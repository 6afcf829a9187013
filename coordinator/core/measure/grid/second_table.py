"""Table with a burst's seconds at any resolution, using named columns.

Each row is a bin of whole seconds for a flow (and a pair), and there is a bin that starts at the
planned start. For a rate, the mean of all known seconds in a bin is used, and for a count, their
sum. Gaps will not be filled. If there is no known second in a bin, all values are NaN and not zero.
This module does no input or output.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.grid.event_rows import TIME_SUFFIX
from broadside.coordinator.core.measure.grid.series import BurstSeries, FlowSeries
from broadside.exchange.messages import Aggregation, Flow

# Maximum number of values in a table. If there are more, the table will be rejected.
CELLS_MAX_COUNT: Final = 500_000
# Number of significant digits, as in summaries.
_DIGITS: Final = 9


class TableTooLong(Exception):
    """The table has more cells than one response can contain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of a table, where NaN is unknown.

    Attributes:
        name: Column name.
        unit: Unit for the values.
        layer: Layer at which bytes were counted, if there are any.
        values: Value per row.
    """

    name: str
    unit: str
    layer: str | None = None
    values: NDArray[Any]


def fleet_table(
    series: BurstSeries, resolution_s: int, events: Sequence[str] | None = None
) -> Sequence[Column]:
    """Return fleet values, with a row per bin and flow.

    Args:
        series: The burst's series.
        resolution_s: Bin length in seconds.
        events: Names of the engine's events to add. By default, all that the series has.

    Raises:
        TableTooLong: If the table would have too many cells.
    """
    bins = _bins(series, resolution_s)
    recorded = series.coverage_ratio > 0
    names = tuple(series.events) if events is None else events
    per_flow = [
        _fleet_columns(series, flow, recorded) + _event_columns(series, flow, names)
        for flow in series.flows
    ]
    _check(bins.count * sum(map(len, per_flow)))
    columns = _keys(series, bins, repeats_count=1)
    for parts in zip(*per_flow, strict=True):
        values = np.concatenate(
            [_binned(part.values, bins, _aggregation(part.name)) for part in parts]
        )
        columns.append(replace(parts[0], values=_rounded(values)))
    return columns


def pair_table(
    series: BurstSeries, resolution_s: int, names: Sequence[str], pair_index: int | None
) -> Sequence[Column]:
    """Return received payload for pairs, with a row per bin, flow and pair.

    Args:
        series: The burst's series.
        resolution_s: Bin length in seconds.
        names: Names for all pairs.
        pair_index: The pair to return, or ``None`` to return all pairs.

    Raises:
        TableTooLong: If the table would have too many cells.
    """
    chosen = range(len(names)) if pair_index is None else [pair_index]
    bins = _bins(series, resolution_s)
    _check(bins.count * len(series.flows) * len(chosen))
    rates = [
        _binned(of_flow[index].astype(np.float64), bins, Aggregation.MEAN)
        for of_flow in series.pair_rates(len(names))
        for index in chosen
    ]
    labels = [names[index] for _ in series.flows for index in chosen]
    return [
        *_keys(series, bins, repeats_count=len(chosen)),
        Column(name="pair", unit="name", values=np.repeat(np.array(labels), bins.count)),
        Column(
            name="received_payload_bits_per_second",
            unit="bit/s",
            layer="payload",
            values=_rounded(np.concatenate(rates)),
        ),
    ]


# Columns for which the seconds in a bin are added. For all others, their mean is used.
_SUMS: Final = ("retransmits_count", "known_s")


def _fleet_columns(
    series: BurstSeries, flow: FlowSeries, recorded: NDArray[np.bool_]
) -> list[Column]:
    """Return the values for a flow. If a second has no record, its sums will be set to NaN."""
    # No sender has reported.
    unsent = (flow.sent_bytes == 0) & (flow.received_bytes > 0)

    def payload(name: str, rates: Floats) -> Column:
        name = f"{name}_payload_bits_per_second"
        return Column(name=name, unit="bit/s", layer="payload", values=rates)

    return [
        payload("received", np.where(recorded, flow.received_bytes * 8, np.nan)),
        payload("sent", np.where(recorded & ~unsent, flow.sent_bytes * 8, np.nan)),
        payload("proven", np.where(recorded, flow.proven_bytes * 8, np.nan)),
        payload("pair_p5", flow.pair_p5_bits_per_second),
        payload("pair_p50", flow.pair_p50_bits_per_second),
        payload("pair_p95", flow.pair_p95_bits_per_second),
        Column(
            name="retransmits_count",
            unit="segments",
            values=np.where(recorded, flow.retransmits_count, np.nan),
        ),
        Column(name="rtt_mean_s", unit="s", values=flow.rtt_mean_s),
        Column(name="coverage_ratio", unit="ratio", values=series.coverage_ratio),
        Column(name="client_cpu_ratio", unit="ratio", values=series.client_cpu_ratio),
        Column(name="server_cpu_ratio", unit="ratio", values=series.server_cpu_ratio),
        Column(name="known_s", unit="s", values=recorded.astype(np.float64)),
    ]


_EVENTS: Final = "connections_"


def _aggregation(name: str) -> Aggregation:
    """Return the rule that combines the seconds of a bin."""
    if name in _SUMS or (name.startswith(_EVENTS) and not name.endswith("open_count")):
        return Aggregation.SUM
    is_largest = name.endswith(("_p50_s", "_p99_s", "_max_s"))
    return Aggregation.MAX if is_largest else Aggregation.MEAN


def _event_columns(series: BurstSeries, flow: FlowSeries, names: Sequence[str]) -> list[Column]:
    """Return the events of the engine, which the rows of the flow "up" have.

    Times are the largest value of a pair.
    """
    unknown = np.full(len(series.coverage_ratio), np.nan)
    columns = []
    for name in names:
        values = series.events.get(name, unknown) if flow.flow is Flow.UP else unknown
        if name.endswith(TIME_SUFFIX):
            base = name.removesuffix(TIME_SUFFIX)
            columns.append(Column(name=f"{base}_s", unit="s", values=values / 1e6))
        else:
            column = f"{_EVENTS}{name}_count"
            columns.append(Column(name=column, unit="count", values=values))
    return columns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bins:
    """Division of seconds into bins.

    Attributes:
        resolution_s: Bin length in seconds.
        lead_s: Seconds in the first bin that are before the series.
        count: Number of bins.
    """

    resolution_s: int
    lead_s: int
    count: int


def _bins(series: BurstSeries, resolution_s: int) -> _Bins:
    before_s = math.floor(series.planned_start_s) - series.start_s
    lead_s = -before_s % resolution_s
    count = math.ceil((lead_s + len(series.coverage_ratio)) / resolution_s)
    return _Bins(resolution_s=resolution_s, lead_s=lead_s, count=count)


def _keys(series: BurstSeries, bins: _Bins, *, repeats_count: int) -> list[Column]:
    """Return columns with the start time and flow for each row."""
    count = bins.count
    starts = series.start_s - bins.lead_s + np.arange(count) * bins.resolution_s
    blocks = len(series.flows) * repeats_count
    at = np.tile(starts, blocks).astype("datetime64[s]")
    return [
        Column(name="at", unit="UTC", values=at),
        Column(
            name="from_start_s",
            unit="s",
            values=_rounded(np.tile(starts - series.planned_start_s, blocks)),
        ),
        Column(
            name="flow",
            unit="name",
            values=np.repeat([flow.flow.value for flow in series.flows], count * repeats_count),
        ),
        *(
            []
            if series.sustain is None
            else [
                Column(
                    name="phase",
                    unit="name",
                    values=np.tile(
                        [series.phase_at(at_s) for at_s in (starts - series.planned_start_s)],
                        blocks,
                    ),
                )
            ]
        ),
    ]


def _binned(values: Floats, bins: _Bins, how: Aggregation) -> Floats:
    """Return the mean, sum or maximum of known values per bin, with NaN if there are none."""
    padded = np.full(bins.count * bins.resolution_s, np.nan)
    padded[bins.lead_s : bins.lead_s + len(values)] = values
    cells = padded.reshape(bins.count, bins.resolution_s)
    known = (~np.isnan(cells)).sum(axis=1)
    if how is Aggregation.MAX:
        return np.where(known > 0, np.nan_to_num(cells, nan=-np.inf).max(axis=1), np.nan)
    sums = np.nansum(cells, axis=1)
    divisor = known if how is Aggregation.MEAN else 1
    return np.where(known > 0, sums / np.maximum(divisor, 1), np.nan)


def _rounded(values: Floats) -> Floats:
    """Round to nine significant digits, to remove rounding errors from packing."""
    known = np.isfinite(values) & (values != 0)
    size = np.zeros_like(values)
    size[known] = np.floor(np.log10(np.abs(values[known])))
    factor = 10.0 ** (_DIGITS - 1 - size)
    return np.where(known, np.round(values * factor) / factor, values)


def _check(cells_count: int) -> None:
    if cells_count > CELLS_MAX_COUNT:
        raise TableTooLong(
            f"resolution_s: {cells_count} values; the limit is {CELLS_MAX_COUNT}; use a coarser "
            "resolution, or one pair"
        )
