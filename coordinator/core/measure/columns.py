"""Seconds of one end as columns: rows sorted by time, never overlapping; NaN is unknown."""

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.exchange.messages import Flow, Side

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

OVERLAP_S: Final = 1e-3  # s by which neighbouring intervals may overlap through rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackColumns:
    """One flow of one pair as one end saw it: rows sorted by time, never overlapping.

    All columns have one length. NaN is unknown.
    """

    side: Side
    flow: Flow
    first_data_at_s: float  # epoch s of engine time zero, by that end's clock
    start_s: Floats  # s of engine time
    end_s: Floats  # s
    transferred_bytes: Floats
    omitted: NDArray[np.bool_]
    retransmits_count: Singles
    rtt_s: Singles
    cwnd_bytes: Singles
    packets_count: Singles
    lost_count: Singles
    impossible_count: int = 0  # rows left out: negative, no number, reversed, over another

    def __len__(self) -> int:
        return len(self.start_s)

    def rows(self, keep: NDArray[np.intp] | NDArray[np.bool_] | slice) -> "TrackColumns":
        """The same track with some of its rows."""
        return replace(self, **{name: getattr(self, name)[keep] for name in _TRACK_COLUMNS})

    def without_lead(self, lead_s: float) -> "TrackColumns":
        """Return a server's track whose engine time begins with its client's first data.

        The start gate lets a server's clock run ahead of its client. Nothing is sent until then, so
        the bytes of a reading that reaches over the first data belong behind it. What the gate
        itself sent (a byte, or a few datagrams without a number) goes to the first reading.

        Args:
            lead_s: Seconds for which the server's clock ran before the first data.
        """
        if self.side is not Side.SERVER or lead_s <= 0:
            return self
        first = int(np.searchsorted(self.end_s, lead_s, side="right"))
        if first == len(self):
            return self
        kept = self.rows(slice(first, None))
        amounts = kept.transferred_bytes.astype(np.float64)
        amounts[0] += self.transferred_bytes[:first].sum()
        return replace(
            kept,
            first_data_at_s=kept.first_data_at_s + lead_s,
            start_s=np.maximum(kept.start_s - lead_s, 0.0),
            end_s=kept.end_s - lead_s,
            transferred_bytes=amounts,
        )


_TRACK_COLUMNS: Final = tuple(
    item.name
    for item in fields(TrackColumns)
    if item.name not in ("side", "flow", "first_data_at_s", "impossible_count")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostColumns:
    """One host's counters over time: rows sorted by time."""

    start_at_s: Floats  # epoch s, by that host's clock
    end_at_s: Floats
    nic_rx_bytes: Floats
    nic_tx_bytes: Floats
    drops_count: Singles
    cpu_busy_ratio: Singles
    cpu_busiest_core_ratio: Singles

    def __len__(self) -> int:
        return len(self.start_at_s)

    def rows(self, keep: NDArray[np.intp] | NDArray[np.bool_]) -> "HostColumns":
        """The same host with some of its rows."""
        return replace(self, **{item.name: getattr(self, item.name)[keep] for item in fields(self)})


_NONE: Final = np.empty(0)
_NO_SINGLES: Final = _NONE.astype(np.float32)
NO_HOST: Final = HostColumns(  # nothing is known of a host's counters
    start_at_s=_NONE,
    end_at_s=_NONE,
    nic_rx_bytes=_NONE,
    nic_tx_bytes=_NONE,
    drops_count=_NO_SINGLES,
    cpu_busy_ratio=_NO_SINGLES,
    cpu_busiest_core_ratio=_NO_SINGLES,
)


def disjoint_track(raw: TrackColumns) -> TrackColumns:
    """Columns as an engine's rows came, put in order.

    Rows are sorted; of rows with one start the longest stands; a row that begins inside its
    predecessor is dropped, so a repeated row never counts twice. Rows that cannot be true are left
    out and counted: their seconds are unknown, never zero. Where an engine restarts its
    time after its warm-up (iperf3 does), the later rows are moved behind the omitted ones, so
    that engine time runs on from the first byte.
    """
    impossible = ~(raw.end_s >= raw.start_s) | ~(raw.transferred_bytes >= 0)
    impossible |= ~np.isfinite(raw.start_s + raw.end_s + raw.transferred_bytes)
    if impossible.any():
        kept = raw.rows(~impossible)
        count = raw.impossible_count + int(impossible.sum())
        raw = replace(kept, impossible_count=count)
    start, end, omitted = raw.start_s, raw.end_s, raw.omitted
    if omitted.any() and not omitted.all():
        warm_up_s = end[omitted].max()
        if start[~omitted].min() < warm_up_s - OVERLAP_S:
            start = np.where(omitted, start, start + warm_up_s)
            end = np.where(omitted, end, end + warm_up_s)
    ordered = raw if start is raw.start_s else replace(raw, start_s=start, end_s=end)
    keep = _disjoint(start, end)
    if keep is None:
        return ordered
    return replace(
        ordered.rows(keep),
        impossible_count=ordered.impossible_count + _differing(ordered, keep),
    )


def _differing(ordered: TrackColumns, keep: NDArray[np.intp]) -> int:
    """How many rows lie over one that was kept and are no copy of it."""
    left = np.ones(len(ordered), np.bool_)
    left[keep] = False
    left &= ordered.end_s > ordered.start_s
    if not left.any() or not len(keep):
        return 0
    rows = np.flatnonzero(left)
    starts = ordered.start_s[keep]
    near = np.searchsorted(starts, ordered.start_s[rows] + OVERLAP_S, side="right") - 1
    stands = keep[np.maximum(near, 0)]
    same = (
        (np.abs(ordered.start_s[rows] - ordered.start_s[stands]) <= OVERLAP_S)
        & (np.abs(ordered.end_s[rows] - ordered.end_s[stands]) <= OVERLAP_S)
        & (ordered.transferred_bytes[rows] == ordered.transferred_bytes[stands])
    )
    return int((~same).sum())


def disjoint_host(raw: HostColumns) -> HostColumns:
    """Columns as a host's rows came, put in order; repeated rows count once."""
    keep = _disjoint(raw.start_at_s, raw.end_at_s)
    return raw if keep is None else raw.rows(keep)


def _disjoint(start: Floats, end: Floats) -> NDArray[np.intp] | None:
    """Indices of rows in time order, without empty, repeated and overlapping ones; None where
    the rows are so already, and need no copy."""
    if (
        (end > start).all()
        and (start[1:] > start[:-1]).all()
        and (start[1:] >= np.maximum.accumulate(end)[:-1] - OVERLAP_S).all()
    ):
        return None
    order = np.lexsort((-end, start))
    order = order[end[order] > start[order]]
    if len(order) < 2:
        return order
    reach = np.maximum.accumulate(end[order])
    if (start[order][1:] >= reach[:-1] - OVERLAP_S).all():
        return order
    kept: list[int] = []
    reached = -np.inf
    for row in order:
        if start[row] >= reached - OVERLAP_S:
            kept.append(int(row))
            reached = end[row]
    return np.asarray(kept, dtype=np.intp)
