"""Time scale of readings: how long they are, and what can be told from them.

A reading is a mean over its length. Spread over the seconds of a grid it says nothing of a single
second, so shape and scatter are taken from what is fine enough to show them: receivers' readings,
else the senders' of TCP, whose bytes all arrive. The shape alone is also taken from the interfaces
of TCP senders' hosts, where these counted the test and nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.grid_rows import FlowSeconds, HostSeconds
from broadside.coordinator.core.measure.steady import (
    Stretch,
    correlated_mean,
    slowest_stretch,
    stretch_s,
)

# Engines' seconds are not exact; a reading of 2 s is none.
SECOND_MAX_S: Final = 1.5
# Pairs that carry no more than this hide no shortfall that the shape check looks for (1.5 %).
HIDDEN_RATIO: Final = 0.01
# Of an interface's bytes: what it may count less than the payload, or more than the frames, so that
# it still counted this test alone: two seconds' edges of a window of 100 s.
HOST_RATIO: Final = 0.02
# A part that is twice as long as a reading holds one that lies wholly inside, whatever its phase.
READINGS_A_PART: Final = 2


def fleet_reading_s(reading_s: Floats, carried: Floats) -> float:
    """Return the reading length at or under which pairs carry nearly all bytes.

    Args:
        reading_s: Length of each pair's readings; NaN where there are none.
        carried: Bytes of each pair.

    Returns:
        Seconds; infinite where more than :data:`HIDDEN_RATIO` of the bytes has no readings.
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
    """How finely the flows of a burst were recorded over its window.

    Attributes:
        receivers_s: Length of the receivers' readings.
        senders_s: Length of the senders' readings; infinite where they cannot stand for receivers.
        offset: Seconds from the planned instant to the window.
    """

    receivers_s: float = math.inf
    senders_s: float = math.inf
    offset: int = 0

    @property
    def has_seconds(self) -> bool:
        """Whether receivers recorded seconds."""
        return self.receivers_s <= SECOND_MAX_S

    def shows(self, part_s: float, reading_s: float) -> bool:
        """Whether readings of this length show a fall that lasts for ``part_s``."""
        return READINGS_A_PART * reading_s <= part_s


def time_scale(flows: Sequence[FlowSeconds], span: slice, offset: int) -> TimeScale:
    """Return the time scale of a burst's flows over a window; the coarsest flow decides.

    Datagrams are lost on the way, so that UDP senders' seconds say nothing of what arrived.

    Args:
        flows: The aligned flows.
        span: The window's cells.
        offset: Seconds from the planned instant to the window.
    """
    receivers, senders = 0.0, 0.0
    for flow in flows:
        carried = flow.received_bytes[:, span].sum(axis=1)
        receivers = max(receivers, fleet_reading_s(flow.received_reading_s, carried))
        if np.isnan(flow.packets_count).all():
            whole = ~np.isnan(flow.sent_bytes[:, span]).any(axis=1)
            sent_s = np.where(whole, flow.sent_reading_s, np.nan)
            senders = max(senders, fleet_reading_s(sent_s, carried))
        else:
            senders = math.inf
    return TimeScale(receivers_s=receivers, senders_s=senders, offset=offset)


def sent_shape(flow: FlowSeconds, received: Floats, span: slice) -> Floats:
    """Return the senders' seconds of a window, scaled to what arrived in it."""
    sent: Floats = np.asarray(np.nansum(flow.sent_bytes[:, span], axis=0, dtype=np.float64))
    total = float(sent.sum())
    return sent * (float(received[:, span].sum()) / total) if total > 0 else sent


def means_of_readings(seconds: Floats, reading_s: float, offset: int) -> Floats:
    """Return means over blocks as long as a reading.

    Args:
        seconds: Values of a window, each reading spread over its seconds.
        reading_s: Length of a reading.
        offset: Seconds from the start of the first reading to the window.
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
    """Return half of the 95 % interval of the flows' sum over a window, in bit/s; NaN: unknown.

    The interval is taken of the sum's own seconds, so that flows may correlate in any way.
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
    """Return what senders' interfaces counted in a window's seconds, scaled to what arrived.

    None where they were not read often enough, did not count the test, or other traffic, too, or
    where datagrams may have been lost on the way.

    Args:
        flow: The aligned flow.
        host: The hosts that sent it.
        received: What arrived, of the whole grid; shape (pairs, cells).
        span: The window's cells.
        wire_ratio: Bytes of frames for a byte of payload.
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


def slowest_part(
    flows: Sequence[FlowSeconds],
    received: Sequence[Floats],
    span: slice,
    scale: TimeScale,
    hosts: Sequence[HostSeconds] = (),
    wire_ratio: float = 1.0,
) -> Stretch | None:
    """Return the slowest part of a window that lasts; None where no source is fine enough.

    Args:
        flows: The aligned flows.
        received: What arrived, by flow.
        span: The window's cells.
        scale: How finely the flows were recorded.
        hosts: The hosts that sent each flow.
        wire_ratio: Bytes of frames for a byte of payload.
    """
    fleet = np.asarray(np.sum([cells[:, span].sum(axis=0) for cells in received], axis=0))
    if scale.has_seconds:
        return slowest_stretch(fleet)
    part_s = stretch_s(len(fleet))
    reading_s = scale.receivers_s
    if scale.senders_s < reading_s and scale.shows(part_s, scale.senders_s):
        reading_s = scale.senders_s
        fleet = _sent_shapes(flows, received, span)
    elif not scale.shows(part_s, reading_s):
        shapes = [
            host_shape(flow, host, cells, span, wire_ratio)
            for flow, host, cells in zip(flows, hosts, received, strict=False)
        ]
        known = [shape for shape in shapes if shape is not None]
        if not known or len(known) < len(flows):
            return None
        return slowest_stretch(np.asarray(np.sum(known, axis=0)))
    readings = means_of_readings(fleet, reading_s, scale.offset)
    return slowest_stretch(fleet, readings, reading_s)
