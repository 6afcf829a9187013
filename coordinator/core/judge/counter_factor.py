"""Bytes that a device counter counts for a byte of payload."""

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

FITTED_BURSTS_MIN: Final = 3  # bursts from which an unknown layer's overhead is fitted


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterFactor:
    ratio: float
    less_ratio: float  # by which it may be off, 95 %
    more_ratio: float
    how: Literal["recorded", "assumed", "fitted"]
    between_ratio: float  # of its uncertainty: what bursts of one run may differ by
    layer_ratio: float = 0.0  # to either side of what a ledger of unknown layer may count: a
    # bound, which stands beside the interval and not in its root of squares
    layer_low_ratio: float = 0.0  # of it, at the low end: frames are the most that it may count


def counter_factor(
    ledger: FirewallLedger, headers: Headers, seen_ratios: Sequence[float]
) -> CounterFactor:
    """The ledger's bytes for a byte of payload; ``seen_ratios`` are what bursts show.

    A ledger of unknown layer counts something between payload and frames: with three bursts or
    more their median stands for it, and bursts are told apart more surely than the whole.
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
    """What a counter counts beside payload and headers, as shares of these.

    Attributes:
        low_ratio: At least: bytes sent again or lost, where the counter is known to count them.
        resent_ratio: Such bytes that it may count.
        acknowledged_ratio: Acknowledgements that it may count.
    """

    low_ratio: float = 0.0
    resent_ratio: float = 0.0
    acknowledged_ratio: float = 0.0

    @property
    def high_ratio(self) -> float:
        """At most."""
        return self.resent_ratio + self.acknowledged_ratio


def extra_bytes(
    burst: BurstSeries,
    ledger: FirewallLedger,
    headers: Headers,
    protocol: Protocol,
    acknowledged_ratio: float | None = None,
) -> ExtraBytes:
    """Return the extra bytes of one burst.

    Args:
        burst: Its series, with retransmissions and with what was sent.
        ledger: The counter: its directions, its layer, and whether it counts what is lost.
        headers: Header sizes and segment size.
        protocol: Protocol of the payload.
        acknowledged_ratio: Measured bytes of acknowledgements for a byte of payload, at most;
            None: not measured.
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
    """Return the bytes sent again (TCP) or lost (UDP) for a byte of received payload.

    What was not recorded counts as none.
    """
    received = sum(float(np.nansum(flow.received_bytes)) for flow in burst.flows)
    sent = sum(float(np.nansum(flow.sent_bytes)) for flow in burst.flows)
    if received <= 0 or sent <= 0:
        return 0.0
    if protocol is Protocol.UDP:
        return max(0.0, sent / received - 1)
    segments = sum(float(np.nansum(flow.retransmits_count)) for flow in burst.flows)
    return max(0.0, segments) * headers.mss_bytes / sent
