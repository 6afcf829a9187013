"""Table with a burst's seconds at any resolution, using named columns.

Each row is a bin of whole seconds for a flow (and a pair), and there is a bin that starts at the
planned start. For a rate, the mean of all known seconds in a bin is used, and for a count, their
sum. Gaps will not be filled. If there is no known second in a bin, all values are NaN and not zero.
This module does no input or output.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.series import BurstSeries, FlowSeries

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


def fleet_table(series: BurstSeries, resolution_s: int) -> Sequence[Column]:
    """Return fleet values, with a row per bin and flow.

    Args:
        series: The burst's series.
        resolution_s: Bin length in seconds.

    Raises:
        TableTooLong: If the table would have too many cells.
    """
    flows = series.flows
    bins = _bins(series, resolution_s)
    _check(bins.count * len(flows) * len(_FLEET))
    heard = series.coverage_ratio > 0
    per_flow = [_fleet_figures(series, flow, heard) for flow in flows]
    figures = {
        name: np.concatenate([_binned(part[name], bins, how) for part in per_flow])
        for name, _, _, how in _FLEET
    }
    return [
        *_keys(series, bins, repeats_count=1),
        *(
            Column(name=name, unit=unit, layer=layer, values=_rounded(figures[name]))
            for name, unit, layer, _ in _FLEET
        ),
    ]


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
        _binned(of_flow[index].astype(np.float64), bins, "mean")
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


# Name, unit, layer, and how to combine seconds in a bin.
_FLEET: Final = (
    ("received_payload_bits_per_second", "bit/s", "payload", "mean"),
    ("sent_payload_bits_per_second", "bit/s", "payload", "mean"),
    ("proven_payload_bits_per_second", "bit/s", "payload", "mean"),
    ("pair_p5_payload_bits_per_second", "bit/s", "payload", "mean"),
    ("pair_p50_payload_bits_per_second", "bit/s", "payload", "mean"),
    ("pair_p95_payload_bits_per_second", "bit/s", "payload", "mean"),
    ("retransmits_count", "segments", None, "sum"),
    ("rtt_mean_s", "s", None, "mean"),
    ("coverage_ratio", "ratio", None, "mean"),
    ("client_cpu_ratio", "ratio", None, "mean"),
    ("server_cpu_ratio", "ratio", None, "mean"),
    ("known_s", "s", None, "sum"),
)


def _fleet_figures(
    series: BurstSeries, flow: FlowSeries, heard: NDArray[np.bool_]
) -> dict[str, Floats]:
    """Return the values for a flow. If a second has no record, its sums are set to NaN."""
    # No sender has reported.
    unsent = (flow.sent_bytes == 0) & (flow.received_bytes > 0)
    return {
        "received_payload_bits_per_second": np.where(heard, flow.received_bytes * 8, np.nan),
        "sent_payload_bits_per_second": np.where(heard & ~unsent, flow.sent_bytes * 8, np.nan),
        "proven_payload_bits_per_second": np.where(heard, flow.proven_bytes * 8, np.nan),
        "pair_p5_payload_bits_per_second": flow.pair_p5_bits_per_second,
        "pair_p50_payload_bits_per_second": flow.pair_p50_bits_per_second,
        "pair_p95_payload_bits_per_second": flow.pair_p95_bits_per_second,
        "retransmits_count": np.where(heard, flow.retransmits_count, np.nan),
        "rtt_mean_s": flow.rtt_mean_s,
        "coverage_ratio": series.coverage_ratio,
        "client_cpu_ratio": series.client_cpu_ratio,
        "server_cpu_ratio": series.server_cpu_ratio,
        "known_s": heard.astype(np.float64),
    }


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
    ]


def _binned(values: Floats, bins: _Bins, how: str) -> Floats:
    """Return the mean or sum of known values per bin, with NaN if there are none."""
    padded = np.full(bins.count * bins.resolution_s, np.nan)
    padded[bins.lead_s : bins.lead_s + len(values)] = values
    cells = padded.reshape(bins.count, bins.resolution_s)
    known = (~np.isnan(cells)).sum(axis=1)
    sums = np.nansum(cells, axis=1)
    divisor = known if how == "mean" else 1
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
            f"resolution_s: {cells_count} figures, over {CELLS_MAX_COUNT}; ask for a coarser "
            "resolution, or for one pair"
        )
