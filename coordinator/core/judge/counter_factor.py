"""Estimation of how many bytes a device counter counts per payload byte."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.measure.headers import (
    MSS_ASSUMED_BYTES,
    OVERHEAD_KNOWN_RATIO,
    OVERHEAD_LESS_RATIO,
    OVERHEAD_LESS_WIRE_RATIO,
    OVERHEAD_MORE_RATIO,
    OVERHEAD_MORE_WIRE_RATIO,
    Headers,
    acknowledged_max_ratio,
)
from broadside.coordinator.core.measure.series import BurstSeries
from broadside.exchange.messages import VXLAN_BYTES, Protocol

# If the layer is unknown, the overhead is estimated from this number of bursts or more.
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
    ledger: FirewallLedger, headers: Headers, seen_ratios: Sequence[float]
) -> CounterFactor:
    """Estimate the counted bytes per payload byte.

    If the layer of the counter is unknown, it counts between payload and frames. With three bursts
    or more, the median of their ratios is used if it is possible. Differences between bursts are
    then known better than the total.

    Args:
        ledger: Device counter, with the layer that it counts.
        headers: Header sizes and segment size.
        seen_ratios: Counted bytes divided by payload, for each burst.
    """
    less = more = headers.doubt_ratio
    if headers.assumed and ledger.layer == "ip":
        less, more = OVERHEAD_LESS_RATIO, OVERHEAD_MORE_RATIO
    elif headers.assumed:
        less, more = OVERHEAD_LESS_WIRE_RATIO, OVERHEAD_MORE_WIRE_RATIO
    how: Literal["recorded", "assumed", "fitted"] = "assumed" if headers.assumed else "recorded"
    between, layer, layer_low = more, 0.0, 0.0
    wire = headers.wire_ratio + (VXLAN_BYTES / MSS_ASSUMED_BYTES if ledger.vxlan else 0.0)
    match ledger.layer:
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
    ledger: FirewallLedger,
    headers: Headers,
    protocol: Protocol,
    acknowledged_ratio: float | None = None,
) -> ExtraBytes:
    """Estimate the extra bytes of one burst.

    Args:
        burst: Burst series, with sent bytes and retransmissions.
        ledger: Device counter, with its directions and layer. It also declares if lost bytes are
            counted.
        headers: Header sizes and segment size.
        protocol: Payload protocol.
        acknowledged_ratio: Upper limit of the measured bytes of acknowledgements per payload byte.
            None if not measured.
    """
    resent = resent_ratio(burst, headers, protocol)
    acknowledged = 0.0
    if protocol is Protocol.TCP and len(ledger.flows) > 1 and ledger.layer != "payload":
        wire = ledger.layer != "ip"
        acknowledged = acknowledged_max_ratio(headers, wire=wire, resent_ratio=resent)
        if acknowledged_ratio is not None:
            acknowledged = min(acknowledged, acknowledged_ratio)
        acknowledged /= headers.wire_ratio if wire else headers.ip_ratio
    return ExtraBytes(
        low_ratio=resent if ledger.counts_lost else 0.0,
        resent_ratio=0.0 if ledger.counts_lost is False else resent,
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
