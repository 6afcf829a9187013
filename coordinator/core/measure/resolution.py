"""Length of readings, and selection of a source to use for shape and scatter.

A reading is a mean for its time. If it is spread over several seconds, you cannot see the value for
a single second. So shape and scatter should be computed from readings that are short enough. We use
the receivers' readings if possible. If not, we use those from TCP senders, because all their bytes
arrive. To compute the shape, interfaces on TCP senders' hosts can be used too, if they counted this
test and nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.formulas.steady import (
    Stretch,
    correlated_mean,
    slowest_stretch,
    stretch_s,
)
from broadside.coordinator.core.measure.grid.align import Aligned
from broadside.coordinator.core.measure.grid.grid_rows import FlowSeconds, HostSeconds
from broadside.coordinator.core.measure.records.evidence import receiving_side
from broadside.exchange.messages import Side

# An engine's second is not exact. But if a reading takes 2 seconds, it is not a second.
SECOND_MAX_S: Final = 1.5
# Pairs with no more than this share of the bytes cannot hide a shortfall that the shape check
# should find (1.5 %).
HIDDEN_RATIO: Final = 0.01
# Share of an interface's bytes. If it only counted this test, the count can be lower than the
# payload or higher than the frames by this share. This is the same as two edge seconds in a window
# of 100 s.
HOST_RATIO: Final = 0.02
# If a part is twice as long as a reading, there is always a reading that is completely inside it.
READINGS_A_PART: Final = 2


def fleet_reading_s(reading_s: Floats, carried: Floats) -> float:
    """Return the maximum reading length for pairs that carry nearly all bytes.

    Args:
        reading_s: Reading length per pair in seconds. NaN without readings.
        carried: Bytes per pair.

    Returns:
        Seconds, or infinity when more than :data:`HIDDEN_RATIO` of the bytes has no readings.
    """
    total = float(carried.sum())
    if total <= 0:
        return math.inf
    length_s = np.where(np.isnan(reading_s), np.inf, reading_s)
    order = np.argsort(length_s, kind="stable")
    reached = np.cumsum(carried[order]) / total
    return float(length_s[order][int(np.argmax(reached >= 1 - HIDDEN_RATIO))])


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeScale:
    """Time resolution for a burst's records in its window.

    Attributes:
        receivers_s: The receivers' reading length in seconds.
        senders_s: The senders' reading length in seconds. It is infinity if they cannot be used.
        offset: Seconds from the planned start to the window.
    """

    receivers_s: float = math.inf
    senders_s: float = math.inf
    offset: int = 0

    @property
    def has_seconds(self) -> bool:
        """True if receivers recorded seconds."""
        return self.receivers_s <= SECOND_MAX_S

    def shows(self, part_s: float, reading_s: float) -> bool:
        """Return True if a fall can be seen in readings of this length.

        Args:
            part_s: How long the fall lasts, in seconds.
            reading_s: Reading length in seconds.
        """
        return READINGS_A_PART * reading_s <= part_s


def time_scale(flows: Sequence[FlowSeconds], span: slice, offset: int) -> TimeScale:
    """Return the time resolution for a burst in a window, using its coarsest flow.

    Datagrams can be lost. So from a UDP sender's seconds, you cannot see how much was received.

    Args:
        flows: The aligned flows.
        span: The window's cells.
        offset: Seconds from the planned start to the window.
    """
    receivers, senders = 0.0, 0.0
    for flow in flows:
        carried = flow.received_bytes[:, span].sum(axis=1)
        receivers = max(receivers, fleet_reading_s(flow.received_reading_s, carried))
        if np.isnan(flow.packets_count).all():
            complete = ~np.isnan(flow.sent_bytes[:, span]).any(axis=1)
            sent_s = np.where(complete, flow.sent_reading_s, np.nan)
            senders = max(senders, fleet_reading_s(sent_s, carried))
        else:
            senders = math.inf
    return TimeScale(receivers_s=receivers, senders_s=senders, offset=offset)


def sent_shape(flow: FlowSeconds, received: Floats, span: slice) -> Floats:
    """Return the senders' seconds in a window, scaled to received bytes.

    Args:
        flow: The aligned flow.
        received: Received bytes, with shape (pairs, cells).
        span: The window's cells.

    Returns:
        Bytes per second of all pairs, one value for each cell of ``span``.
    """
    sent: Floats = np.asarray(np.nansum(flow.sent_bytes[:, span], axis=0, dtype=np.float64))
    total = float(sent.sum())
    return sent * (float(received[:, span].sum()) / total) if total > 0 else sent


def means_of_readings(seconds: Floats, reading_s: float, offset: int) -> Floats:
    """Average seconds in blocks that are as long as a reading.

    Args:
        seconds: Values in a window, with each reading spread over its seconds.
        reading_s: Reading length in seconds.
        offset: Seconds from the start of the first reading to the window.

    Returns:
        One mean for each complete block, in the unit of ``seconds``.
    """
    if not math.isfinite(reading_s):
        return seconds[:0]
    size = max(1, math.ceil(reading_s - 0.5))
    first = -offset % size
    count = max(0, (len(seconds) - first) // size)
    blocks = seconds[first : first + count * size].reshape(count, size)
    return np.asarray(blocks.mean(axis=1))


def half_width(
    flows: Sequence[FlowSeconds], received: Sequence[Floats], span: slice, scale: TimeScale
) -> float:
    """Return half the 95 % interval for the total rate in a window, in bit/s.

    As the total is used to compute the interval, any correlation between flows is included.

    Args:
        flows: The aligned flows.
        received: Received bytes per flow, with shape (pairs, cells).
        span: The window's cells.
        scale: Time resolution for the flows.

    Returns:
        The half width, or NaN when it is unknown.
    """
    seconds = np.asarray(np.sum([cells[:, span].sum(axis=0) for cells in received], axis=0)) * 8
    if scale.has_seconds:
        return correlated_mean(seconds).half_width
    if scale.senders_s <= SECOND_MAX_S:
        return correlated_mean(_sent_shapes(flows, received, span) * 8).half_width
    readings = means_of_readings(seconds, scale.receivers_s, scale.offset)
    return correlated_mean(readings).half_width


def _sent_shapes(flows: Sequence[FlowSeconds], received: Sequence[Floats], span: slice) -> Floats:
    shapes = [sent_shape(flow, cells, span) for flow, cells in zip(flows, received, strict=True)]
    return np.asarray(np.sum(shapes, axis=0))


def host_shape(
    flow: FlowSeconds, host: HostSeconds, received: Floats, span: slice, wire_ratio: float
) -> Floats | None:
    """Return bytes from the senders' interfaces in a window, scaled to received bytes.

    Args:
        flow: The aligned flow.
        host: Hosts that sent the flow.
        received: Received bytes for the whole grid, with shape (pairs, cells).
        span: The window's cells.
        wire_ratio: Ethernet frame bytes divided by payload.

    Returns:
        Bytes per second, or ``None`` if the counters cannot be used. This is the case when they
        were not read often enough, when they did not count the test or also counted other traffic,
        and when datagrams may be lost.
    """
    carried = received[:, span].sum(axis=1)
    counted = np.asarray(host.nic_tx_bytes[:, span], np.float64)
    sums = counted.sum(axis=1)
    alone = (sums >= carried * (1 - HOST_RATIO)) & (sums <= carried * wire_ratio * (1 + HOST_RATIO))
    alone &= (carried > 0) & (READINGS_A_PART * host.reading_s <= stretch_s(counted.shape[1]))
    total = float(carried.sum())
    if not np.isnan(flow.packets_count).all() or total <= 0:
        return None
    if float(carried[~alone].sum()) > HIDDEN_RATIO * total:
        return None
    shape = counted[alone].sum(axis=0)
    return np.asarray(shape * (total / float(shape.sum())))


def _senders(aligned: Aligned) -> list[HostSeconds]:
    """Return the sending hosts for each flow."""
    return [
        aligned.client if receiving_side(flow.flow) is Side.SERVER else aligned.server
        for flow in aligned.flows
    ]


def slowest_part(
    aligned: Aligned,
    received: Sequence[Floats],
    span: slice,
    scale: TimeScale,
    wire_ratio: float = 1.0,
) -> Stretch | None:
    """Find the slowest part of a window.

    Args:
        aligned: The aligned burst.
        received: Received bytes per flow.
        span: The window's cells.
        scale: Time resolution for the flows.
        wire_ratio: Ethernet frame bytes divided by payload.

    Returns:
        The slowest part, or ``None`` if no source is fine enough.
    """
    fleet = np.asarray(np.sum([cells[:, span].sum(axis=0) for cells in received], axis=0))
    if scale.has_seconds:
        return slowest_stretch(fleet)
    part_s = stretch_s(len(fleet))
    reading_s = scale.receivers_s
    if scale.senders_s < reading_s and scale.shows(part_s, scale.senders_s):
        reading_s = scale.senders_s
        fleet = _sent_shapes(aligned.flows, received, span)
    elif not scale.shows(part_s, reading_s):
        shapes = [
            host_shape(flow, host, cells, span, wire_ratio)
            for flow, host, cells in zip(aligned.flows, _senders(aligned), received, strict=True)
        ]
        known = [shape for shape in shapes if shape is not None]
        if not known or len(known) < len(aligned.flows):
            return None
        return slowest_stretch(np.asarray(np.sum(known, axis=0)))
    readings = means_of_readings(fleet, reading_s, scale.offset)
    return slowest_stretch(fleet, readings, reading_s)
