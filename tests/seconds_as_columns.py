"""Conversion of seconds between rows, which tests write, and columns, which the core reads."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.measure.records.columns import (
    HostColumns,
    IntervalColumns,
    disjoint_host,
    disjoint_track,
)
from broadside.exchange.messages import Flow, HostSecond, Interval, Side, Track

_INSTANTS: Final = ("start_s", "end_s", "transferred_bytes")
_COUNTS: Final = ("retransmits_count", "cwnd_bytes", "packets_count", "lost_count")
# Columns with NaN for unknown values.
_KNOWN: Final = (*_COUNTS, "rtt_s")
# Column name, with the name and type in a row.
_HOST: Final = {
    **{name: (name, np.float64) for name in ("start_at_s", "end_at_s")},
    **{name: (name, np.float64) for name in ("nic_rx_bytes", "nic_tx_bytes")},
    "drops_count": ("nic_drops_count", np.float32),
    **{name: (name, np.float32) for name in ("cpu_busy_ratio", "cpu_busiest_core_ratio")},
}


def _column(rows: Iterable[object], name: str, kind: type) -> NDArray[Any]:
    values = [getattr(row, name) for row in rows]
    return np.array([np.nan if value is None else value for value in values], kind)


def track_columns(track: Track) -> IntervalColumns:
    """Return a track's rows as columns by :func:`disjoint_track`."""
    rows = track.intervals
    columns: dict[str, Any] = {name: _column(rows, name, np.float64) for name in _INSTANTS}
    columns |= {name: _column(rows, name, np.float32) for name in _KNOWN}
    return disjoint_track(
        IntervalColumns(
            side=track.side,
            flow=track.flow,
            first_data_at_s=track.first_data_at_s,
            omitted=_column(rows, "omitted", np.bool_),
            **columns,
        )
    )


def told_track(
    side: Side,
    flow: Flow,
    first_data_at_s: float,
    bounds_s: NDArray[np.float64],
    transferred_bytes: NDArray[np.float64],
    known: Mapping[str, NDArray[Any]],
) -> IntervalColumns:
    """Return engine values between neighbouring bounds, with NaN for unknown ones."""
    unknown = np.full(len(transferred_bytes), np.nan, np.float32)
    columns: dict[str, Any] = {
        name: known[name].astype(np.float32) if name in known else unknown for name in _KNOWN
    }
    return IntervalColumns(
        side=side,
        flow=flow,
        first_data_at_s=first_data_at_s,
        start_s=bounds_s[:-1],
        end_s=bounds_s[1:],
        transferred_bytes=transferred_bytes,
        omitted=np.zeros(len(transferred_bytes), np.bool_),
        **columns,
    )


def host_columns(host: Sequence[HostSecond]) -> HostColumns:
    """Return a host's rows as columns, with repeated rows counted once."""
    columns = {name: _column(host, *reported) for name, reported in _HOST.items()}
    return disjoint_host(HostColumns(**columns))


def track_rows(columns: IntervalColumns) -> Track:
    """Return columns as rows for storage."""
    rows = []
    for row in range(len(columns)):
        fields = {name: float(getattr(columns, name)[row]) for name in (*_INSTANTS, *_KNOWN)}
        known: dict[str, Any] = {name: None if np.isnan(v) else v for name, v in fields.items()}
        complete = {name: int(known[name]) for name in _COUNTS if known[name] is not None}
        complete["transferred_bytes"] = int(known["transferred_bytes"])
        rows.append(Interval(**(known | complete)))
    return Track(
        side=columns.side,
        flow=columns.flow,
        first_data_at_s=columns.first_data_at_s,
        intervals=tuple(rows),
    )


def host_rows(columns: HostColumns) -> tuple[HostSecond, ...]:
    """Return columns as rows for storage, with zero for missing columns."""
    return tuple(
        HostSecond(
            start_at_s=float(columns.start_at_s[row]),
            end_at_s=float(columns.end_at_s[row]),
            nic_rx_bytes=int(columns.nic_rx_bytes[row]),
            nic_tx_bytes=int(columns.nic_tx_bytes[row]),
            nic_rx_packets_count=0,
            nic_tx_packets_count=0,
            nic_drops_count=int(columns.drops_count[row]),
            tcp_retransmits_count=0,
            cpu_busy_ratio=float(columns.cpu_busy_ratio[row]),
            cpu_busiest_core_ratio=float(columns.cpu_busiest_core_ratio[row]),
        )
        for row in range(len(columns))
    )
