"""Bytes that a device counter counts for a byte of payload."""

import math
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
)
from broadside.exchange.messages import VXLAN_BYTES

FITTED_BURSTS_MIN: Final = 3  # bursts from which an unknown layer's overhead is fitted
ACKNOWLEDGED_RATIO: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterFactor:
    ratio: float
    less_ratio: float  # by which it may be off, 95 %
    more_ratio: float
    how: Literal["recorded", "assumed", "fitted"]
    between_ratio: float  # of its uncertainty: what bursts of one run may differ by
    layer_ratio: float = 0.0  # to either side of what a ledger of unknown layer may count: a
    # bound, which stands beside the interval and not in its root of squares


def counter_factor(
    ledger: FirewallLedger, headers: Headers, seen_ratios: Sequence[float]
) -> CounterFactor:
    """The ledger's bytes for a byte of payload; ``seen_ratios`` are what bursts show.

    A ledger of unknown layer counts something between payload and frames: with three bursts or
    more their median stands for it, and bursts are told apart more surely than the whole.
    """
    less = more = OVERHEAD_KNOWN_RATIO
    if headers.assumed and ledger.layer == "ip":
        less, more = OVERHEAD_LESS_RATIO, OVERHEAD_MORE_RATIO
    elif headers.assumed:
        less, more = OVERHEAD_LESS_WIRE_RATIO, OVERHEAD_MORE_WIRE_RATIO
    if len(ledger.flows) > 1:
        less, more = (math.hypot(each, ACKNOWLEDGED_RATIO) for each in (less, more))
    how: Literal["recorded", "assumed", "fitted"] = "assumed" if headers.assumed else "recorded"
    between, layer = more, 0.0
    wire = headers.wire_ratio + (VXLAN_BYTES / MSS_ASSUMED_BYTES if ledger.vxlan else 0.0)
    match ledger.layer:
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
    return CounterFactor(
        ratio=ratio,
        less_ratio=less,
        more_ratio=more,
        how=how,
        between_ratio=between,
        layer_ratio=layer,
    )
