"""Seconds as rows, which tests write down, turned into the columns that the core reads."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from coordinator.core.measure.columns import (
    Floats,
    HostColumns,
    Singles,
    TrackColumns,
    disjoint_host,
    disjoint_track,
)
from exchange.messages import HostSecond, Interval, Track


def _singles(values: Iterable[float | None], count: int) -> Singles:
    return np.fromiter((np.nan if value is None else value for value in values), np.float32, count)


def track_columns(track: Track) -> TrackColumns:
    """A track's rows by :func:`disjoint_track`."""
    rows: Sequence[Interval] = track.intervals
    count = len(rows)
    return disjoint_track(
        TrackColumns(
            side=track.side,
            flow=track.flow,
            first_data_at_s=track.first_data_at_s,
            start_s=np.fromiter((row.start_s for row in rows), np.float64, count),
            end_s=np.fromiter((row.end_s for row in rows), np.float64, count),
            transferred_bytes=np.fromiter(
                (row.transferred_bytes for row in rows), np.float64, count
            ),
            omitted=np.fromiter((row.omitted for row in rows), np.bool_, count),
            retransmits_count=_singles((row.retransmits_count for row in rows), count),
            rtt_s=_singles((row.rtt_s for row in rows), count),
            cwnd_bytes=_singles((row.cwnd_bytes for row in rows), count),
            packets_count=_singles((row.packets_count for row in rows), count),
            lost_count=_singles((row.lost_count for row in rows), count),
        )
    )


def host_columns(host: Sequence[HostSecond]) -> HostColumns:
    """A host's rows; repeated ones count once."""
    count = len(host)

    def column(read: Callable[[HostSecond], float]) -> Floats:
        return np.fromiter((read(row) for row in host), np.float64, count)

    return disjoint_host(
        HostColumns(
            start_at_s=column(lambda row: row.start_at_s),
            end_at_s=column(lambda row: row.end_at_s),
            nic_rx_bytes=column(lambda row: row.nic_rx_bytes),
            nic_tx_bytes=column(lambda row: row.nic_tx_bytes),
            drops_count=column(lambda row: row.nic_drops_count).astype(np.float32),
            cpu_busy_ratio=column(lambda row: row.cpu_busy_ratio).astype(np.float32),
            cpu_busiest_core_ratio=column(lambda row: row.cpu_busiest_core_ratio).astype(
                np.float32
            ),
        )
    )


def track_rows(columns: TrackColumns) -> Track:
    """The other way round, for what is to be stored."""

    def count(values: Singles, row: int) -> int | None:
        return None if np.isnan(values[row]) else int(values[row])

    return Track(
        side=columns.side,
        flow=columns.flow,
        first_data_at_s=columns.first_data_at_s,
        intervals=tuple(
            Interval(
                start_s=float(columns.start_s[row]),
                end_s=float(columns.end_s[row]),
                transferred_bytes=int(columns.transferred_bytes[row]),
                retransmits_count=count(columns.retransmits_count, row),
                rtt_s=None if np.isnan(columns.rtt_s[row]) else float(columns.rtt_s[row]),
                cwnd_bytes=count(columns.cwnd_bytes, row),
            )
            for row in range(len(columns))
        ),
    )


def host_rows(columns: HostColumns) -> tuple[HostSecond, ...]:
    """The other way round, for what is to be stored; what columns lack is zero."""
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
