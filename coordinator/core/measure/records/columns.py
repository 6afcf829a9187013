"""Records as columns, in which NaN means that a value is not known."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats, Singles
from broadside.exchange.messages import Flow, Side

# Seconds by which neighbouring intervals can overlap because they were rounded.
OVERLAP_S: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalColumns:
    """Seconds for a pair's flow, as recorded by either end.

    Rows are sorted by time and do not overlap. All columns have the same length. NaN means that a
    value is not known.

    Attributes:
        side: End that recorded the seconds.
        flow: Payload direction.
        first_data_at_s: Start of the engine's time, in epoch seconds by this end's clock.
        start_s: Row starts, in seconds by the engine's time.
        end_s: Row ends, in seconds by the engine's time.
        transferred_bytes: Payload per row.
        omitted: True for rows in the warm-up.
        retransmits_count: Retransmitted segments.
        rtt_s: Round-trip time.
        cwnd_bytes: Congestion window.
        packets_count: Datagrams.
        lost_count: Lost datagrams.
        impossible_count: How many rows were rejected. A row is rejected if it is negative, not a
            number, reversed, or if it overlaps another row.
        events: Values per row by name, if the engine counts other things than bytes.
    """

    side: Side
    flow: Flow
    first_data_at_s: float
    start_s: Floats
    end_s: Floats
    transferred_bytes: Floats
    omitted: NDArray[np.bool_]
    retransmits_count: Singles
    rtt_s: Singles
    cwnd_bytes: Singles
    packets_count: Singles
    lost_count: Singles
    impossible_count: int = 0
    events: Mapping[str, Floats] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_s)

    def rows(self, selection: NDArray[np.intp] | NDArray[np.bool_] | slice) -> "IntervalColumns":
        """Return a copy of the track with just the selected rows.

        Args:
            selection: Index, mask or slice to select rows.
        """
        return replace(
            self,
            events={name: values[selection] for name, values in self.events.items()},
            **{name: getattr(self, name)[selection] for name in _INTERVAL_COLUMNS},
        )

    def without_lead(self, lead_s: float) -> "IntervalColumns":
        """Return a server's track with its time moved to the client's first data.

        When a start gate is used, the server's clock can start before the client is allowed to
        send. No payload is sent until then. So if a reading starts before the first data, all its
        bytes belong to the time after it. The gate itself needs to send a byte, or a few datagrams
        that have no number. These bytes are added to the first reading.

        Args:
            lead_s: Seconds between the start of the server's clock and the first data.
        """
        if self.side is not Side.SERVER or lead_s <= 0:
            return self
        first = int(np.searchsorted(self.end_s, lead_s, side="right"))
        if first == len(self):
            return self
        selected = self.rows(slice(first, None))
        amounts = selected.transferred_bytes.astype(np.float64)
        amounts[0] += self.transferred_bytes[:first].sum()
        return replace(
            selected,
            first_data_at_s=selected.first_data_at_s + lead_s,
            start_s=np.maximum(selected.start_s - lead_s, 0.0),
            end_s=selected.end_s - lead_s,
            transferred_bytes=amounts,
        )


_INTERVAL_COLUMNS: Final = tuple(
    item.name
    for item in fields(IntervalColumns)
    if item.name not in ("side", "flow", "first_data_at_s", "impossible_count", "events")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostColumns:
    """Counters for a host, with rows sorted by time.

    Attributes:
        start_at_s: Row starts, in epoch seconds by this host's clock.
        end_at_s: Row ends, in epoch seconds by this host's clock.
        nic_rx_bytes: Bytes that the interface received.
        nic_tx_bytes: Bytes that the interface sent.
        drops_count: Dropped packets.
        cpu_busy_ratio: CPU use for all cores.
        cpu_busiest_core_ratio: CPU use for the busiest core.
    """

    start_at_s: Floats
    end_at_s: Floats
    nic_rx_bytes: Floats
    nic_tx_bytes: Floats
    drops_count: Singles
    cpu_busy_ratio: Singles
    cpu_busiest_core_ratio: Singles

    def __len__(self) -> int:
        return len(self.start_at_s)

    def rows(self, selection: NDArray[np.intp] | NDArray[np.bool_]) -> "HostColumns":
        """Return a copy with just the selected rows.

        Args:
            selection: Index or mask to select rows.
        """
        return replace(
            self, **{item.name: getattr(self, item.name)[selection] for item in fields(self)}
        )


_NONE: Final = np.empty(0)
_NO_SINGLES: Final = _NONE.astype(np.float32)
# To be used when a host has no counters.
NO_HOST: Final = HostColumns(
    start_at_s=_NONE,
    end_at_s=_NONE,
    nic_rx_bytes=_NONE,
    nic_tx_bytes=_NONE,
    drops_count=_NO_SINGLES,
    cpu_busy_ratio=_NO_SINGLES,
    cpu_busiest_core_ratio=_NO_SINGLES,
)


def disjoint_track(raw: IntervalColumns) -> IntervalColumns:
    """Return an engine's rows in time order, without duplicates and overlaps.

    If several rows have the same start, the longest will be used. If a row starts inside the
    previous row, it will be dropped, so that a repeated row is not counted twice. Impossible rows
    will be dropped and counted. Their seconds should be treated as unknown, not as zero.

    Some engines (iperf3) set their time to zero after the warm-up. In this case, later rows are
    moved so that the engine's time continues from the first byte.

    Args:
        raw: Rows as recorded by the engine.
    """
    impossible = ~(raw.end_s >= raw.start_s) | ~(raw.transferred_bytes >= 0)
    impossible |= ~np.isfinite(raw.start_s + raw.end_s + raw.transferred_bytes)
    if impossible.any():
        selected = raw.rows(~impossible)
        count = raw.impossible_count + int(impossible.sum())
        raw = replace(selected, impossible_count=count)
    start, end, omitted = raw.start_s, raw.end_s, raw.omitted
    if omitted.any() and not omitted.all():
        warm_up_s = end[omitted].max()
        if start[~omitted].min() < warm_up_s - OVERLAP_S:
            start = np.where(omitted, start, start + warm_up_s)
            end = np.where(omitted, end, end + warm_up_s)
    ordered = raw if start is raw.start_s else replace(raw, start_s=start, end_s=end)
    selection = _disjoint(start, end)
    if selection is None:
        return ordered
    return replace(
        ordered.rows(selection),
        impossible_count=ordered.impossible_count + _differing(ordered, selection),
    )


def _differing(ordered: IntervalColumns, selection: NDArray[np.intp]) -> int:
    """Count dropped rows that overlap a used row but are not a copy."""
    left = np.ones(len(ordered), np.bool_)
    left[selection] = False
    left &= ordered.end_s > ordered.start_s
    if not left.any() or not len(selection):
        return 0
    rows = np.flatnonzero(left)
    starts = ordered.start_s[selection]
    near = np.searchsorted(starts, ordered.start_s[rows] + OVERLAP_S, side="right") - 1
    nearest = selection[np.maximum(near, 0)]
    same = (
        (np.abs(ordered.start_s[rows] - ordered.start_s[nearest]) <= OVERLAP_S)
        & (np.abs(ordered.end_s[rows] - ordered.end_s[nearest]) <= OVERLAP_S)
        & (ordered.transferred_bytes[rows] == ordered.transferred_bytes[nearest])
    )
    return int((~same).sum())


def disjoint_host(raw: HostColumns) -> HostColumns:
    """Return a host's rows in time order, without duplicates and overlaps.

    Args:
        raw: Rows as recorded by the agent.
    """
    selection = _disjoint(raw.start_at_s, raw.end_at_s)
    return raw if selection is None else raw.rows(selection)


def _disjoint(start: Floats, end: Floats) -> NDArray[np.intp] | None:
    """Return an index for all valid rows in time order.

    A row is not valid if it is empty or repeated, or if it overlaps another row. The result is
    ``None`` when all rows are valid and sorted, so that no copy needs to be made.
    """
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
    selected: list[int] = []
    reached = -np.inf
    for row in order:
        if start[row] >= reached - OVERLAP_S:
            selected.append(int(row))
            reached = end[row]
    return np.asarray(selected, dtype=np.intp)
