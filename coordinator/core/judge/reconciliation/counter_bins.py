"""Bins of a device counter, cumulative curves, and counted bytes per payload byte."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal
from typing import Protocol as TypingProtocol

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.formulas.headers import (
    MSS_ASSUMED_BYTES,
    OVERHEAD_KNOWN_RATIO,
    OVERHEAD_LESS_RATIO,
    OVERHEAD_LESS_WIRE_RATIO,
    OVERHEAD_MORE_RATIO,
    OVERHEAD_MORE_WIRE_RATIO,
    Headers,
    acknowledged_max_ratio,
)
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.exchange.messages import VXLAN_BYTES, Protocol

# A device should not have a higher rate in bit/s. If the value is higher, the counter will have
# wrapped.
BITS_PER_SECOND_MAX: Final = 1e15


class PayloadSeconds(TypingProtocol):
    """Payload for each second on the UTC grid, starting at ``start_s`` (epoch s)."""

    @property
    def start_s(self) -> int: ...
    @property
    def received_bytes(self) -> Floats: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Cumulative bytes over time, linear between the knots and constant outside them.

    Attributes:
        at_s: Times of the knots, increasing (epoch s).
        total_bytes: Cumulative bytes at the knots.
    """

    at_s: Floats
    total_bytes: Floats

    def between(self, start_s: Floats, end_s: Floats) -> Floats:
        """Return how many bytes are in each interval.

        Args:
            start_s: Start of the intervals (epoch s).
            end_s: End of the intervals (epoch s), same shape.

        Returns:
            Bytes per interval, with the shape of ``start_s``. Partly covered bins count in
            proportion.
        """
        return np.interp(end_s, self.at_s, self.total_bytes) - np.interp(
            start_s, self.at_s, self.total_bytes
        )


def fleet_curve(bursts: Sequence[PayloadSeconds]) -> Curve:
    """Return one cumulative curve for all bursts, which may overlap and be in any order."""
    seconds = np.concatenate(
        [burst.start_s + np.arange(len(burst.received_bytes)) for burst in bursts]
    )
    amounts = np.concatenate([countable(burst.received_bytes) for burst in bursts])
    return seconds_curve(seconds, amounts)


def countable(amounts: Floats) -> Floats:
    """Replace unknown, negative and infinite numbers of bytes by 0."""
    return np.maximum(0.0, np.nan_to_num(amounts, nan=0.0, posinf=0.0, neginf=0.0))


def seconds_curve(seconds: Floats, amounts: Floats) -> Curve:
    """Return a cumulative curve for bytes in whole seconds.

    Args:
        seconds: Start of each second (epoch s). A second can occur several times.
        amounts: Bytes in each second.
    """
    unique, place = np.unique(seconds, return_inverse=True)
    summed = np.bincount(place, weights=amounts, minlength=len(unique))
    knots = np.empty(2 * len(unique))
    knots[0::2], knots[1::2] = unique, unique + 1
    totals = np.zeros(2 * len(unique))
    totals[1::2] = np.cumsum(summed)
    totals[2::2] = totals[1:-1:2]
    return Curve(at_s=knots, total_bytes=totals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Readable bins of a device counter, in time order and without overlap.

    Attributes:
        start_s: Start of the bins (epoch s).
        end_s: End of the bins (epoch s).
        bytes: Counted bytes.
        rejected_count: Number of bins with impossible values, for example negative, infinite or
            reversed.
    """

    start_s: Floats
    end_s: Floats
    bytes: Floats
    rejected_count: int = 0

    @property
    def width_s(self) -> Floats:
        return self.end_s - self.start_s

    def __len__(self) -> int:
        return len(self.start_s)

    def pick(self, chosen: NDArray[np.bool_]) -> "Bins":
        return Bins(
            start_s=self.start_s[chosen], end_s=self.end_s[chosen], bytes=self.bytes[chosen]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BinSums:
    """Bytes of a burst in each bin, in time order.

    Attributes:
        device_counter: Counted bytes.
        fleet: Predicted payload, in bytes.
        width: Bin length, in s.
        placed: Predicted payload at each trial lag in the lag interval, shape (bins, lags).
        earlier: Predicted payload if the fleet sent earlier by the remaining time error.
        later: Predicted payload if the fleet sent later by the remaining time error.
    """

    device_counter: Floats
    fleet: Floats
    width: Floats
    placed: Floats
    earlier: Floats
    later: Floats


def readable(device_counter: CounterRecord) -> Bins:
    """Return the usable bins of a counter.

    Unknown and impossible bins are skipped. The impossible ones are counted.
    """
    start, end, seen = device_counter.start_s, device_counter.end_s, device_counter.bytes
    order = np.argsort(start, kind="stable")
    start, end, seen = start[order], end[order], seen[order]
    with np.errstate(invalid="ignore"):
        placed = np.isfinite(start) & np.isfinite(end) & (end > start)
        possible = (seen >= 0) & (seen * 8 <= BITS_PER_SECOND_MAX * (end - start))
        reached = np.fmax.accumulate(np.where(placed, end, -np.inf))
        gap = np.ones(len(start), np.bool_)
        gap[1:] = start[1:] >= reached[:-1] - 1e-6
    known = placed & possible & gap
    rejected = int((~np.isnan(seen) & ~known).sum())
    return Bins(start_s=start[known], end_s=end[known], bytes=seen[known], rejected_count=rejected)


# If the layer is unknown, the overhead will be estimated from this number of bursts or more.
FITTED_BURSTS_MIN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterFactor:
    """Counted bytes per payload byte, with its uncertainty.

    Attributes:
        ratio: Counted bytes per payload byte.
        less_ratio: Relative 95 % error towards a smaller ratio.
        more_ratio: Relative 95 % error towards a larger ratio.
        how: Source of the ratio.
        between_ratio: Part of the error that can differ between the bursts of a run.
        layer_ratio: Largest relative distance to payload and to frames if the layer is unknown,
            else 0. It is a bound, so it is added to the interval in full and not in quadrature.
        layer_low_ratio: Same bound for the lower end. It is smaller, because a counter cannot count
            more than the frames.
    """

    ratio: float
    less_ratio: float
    more_ratio: float
    how: Literal["recorded", "assumed", "fitted"]
    between_ratio: float
    layer_ratio: float = 0.0
    layer_low_ratio: float = 0.0


def counter_factor(
    device_counter: CounterRecord, headers: Headers, seen_ratios: Sequence[float]
) -> CounterFactor:
    """Estimate the counted bytes per payload byte.

    If the layer of the counter is unknown, it will count between payload and frames. With three
    bursts or more, the median of their ratios is used if it is possible. Differences between bursts
    are then known better than the total.

    Args:
        device_counter: Device counter, with the layer that it counts.
        headers: Header sizes and segment size.
        seen_ratios: Counted bytes divided by payload, for each burst.

    Returns:
        The ratio (counted bytes / payload) with its interval, and the method that determined it.
    """
    less = more = headers.doubt_ratio
    if headers.assumed and device_counter.layer == "ip":
        less, more = OVERHEAD_LESS_RATIO, OVERHEAD_MORE_RATIO
    elif headers.assumed:
        less, more = OVERHEAD_LESS_WIRE_RATIO, OVERHEAD_MORE_WIRE_RATIO
    how: Literal["recorded", "assumed", "fitted"] = "assumed" if headers.assumed else "recorded"
    between, layer, layer_low = more, 0.0, 0.0
    wire = headers.wire_ratio + (VXLAN_BYTES / MSS_ASSUMED_BYTES if device_counter.vxlan else 0.0)
    match device_counter.layer:
        case "payload":
            ratio, how, less, more = 1.0, "recorded", OVERHEAD_KNOWN_RATIO, OVERHEAD_KNOWN_RATIO
        case "ip":
            ratio = headers.ip_ratio
        case "wire":
            ratio = wire
        case "unknown":
            ratio = float(np.median(seen_ratios)) if seen_ratios else 0.0
            if len(seen_ratios) >= FITTED_BURSTS_MIN and 1.0 <= ratio <= wire:
                how, between = "fitted", OVERHEAD_KNOWN_RATIO
            else:
                ratio = (1 + wire) / 2
            layer = max(ratio - 1, wire - ratio) / ratio
            layer_low = max(0.0, 1 - ratio / wire)
    return CounterFactor(
        ratio=ratio,
        less_ratio=less,
        more_ratio=more,
        how=how,
        between_ratio=between,
        layer_ratio=layer,
        layer_low_ratio=layer_low,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraBytes:
    """Bytes that a counter may include in addition to payload and headers.

    All values are relative to payload with headers.

    Attributes:
        low_ratio: Retransmitted or lost bytes that the counter certainly includes.
        resent_ratio: Retransmitted or lost bytes that the counter may include.
        acknowledged_ratio: Acknowledgements that the counter may include.
    """

    low_ratio: float = 0.0
    resent_ratio: float = 0.0
    acknowledged_ratio: float = 0.0

    @property
    def high_ratio(self) -> float:
        """Largest possible value."""
        return self.resent_ratio + self.acknowledged_ratio


def extra_bytes(
    burst: BurstSeries,
    device_counter: CounterRecord,
    headers: Headers,
    protocol: Protocol,
    acknowledged_ratio: float | None = None,
) -> ExtraBytes:
    """Estimate the extra bytes of one burst.

    Args:
        burst: Burst series, with sent bytes and retransmissions.
        device_counter: Device counter, with its directions and layer. It also declares if lost
            bytes are counted.
        headers: Header sizes and segment size.
        protocol: Payload protocol.
        acknowledged_ratio: Upper limit of the measured bytes of acknowledgements per payload byte.
            None if not measured.

    Returns:
        Bytes of retransmissions and acknowledgements per payload byte, with their lower limit.
    """
    resent = resent_ratio(burst, headers, protocol)
    acknowledged = 0.0
    if (
        protocol is Protocol.TCP
        and len(device_counter.flows) > 1
        and device_counter.layer != "payload"
    ):
        wire = device_counter.layer != "ip"
        acknowledged = acknowledged_max_ratio(headers, wire=wire, resent_ratio=resent)
        if acknowledged_ratio is not None:
            acknowledged = min(acknowledged, acknowledged_ratio)
        acknowledged /= headers.wire_ratio if wire else headers.ip_ratio
    return ExtraBytes(
        low_ratio=resent if device_counter.counts_lost else 0.0,
        resent_ratio=0.0 if device_counter.counts_lost is False else resent,
        acknowledged_ratio=acknowledged,
    )


def resent_ratio(burst: BurstSeries, headers: Headers, protocol: Protocol) -> float:
    """Return the retransmitted (TCP) or lost (UDP) bytes per payload byte.

    Values that were not recorded are counted as 0.

    Args:
        burst: Burst series.
        headers: Header sizes and segment size.
        protocol: Payload protocol.
    """
    received = sum(float(np.nansum(flow.received_bytes)) for flow in burst.flows)
    sent = sum(float(np.nansum(flow.sent_bytes)) for flow in burst.flows)
    if received <= 0 or sent <= 0:
        return 0.0
    if protocol is Protocol.UDP:
        return max(0.0, sent / received - 1)
    segments = sum(float(np.nansum(flow.retransmits_count)) for flow in burst.flows)
    return max(0.0, segments) * headers.mss_bytes / sent
