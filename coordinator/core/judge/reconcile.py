"""Comparison of the device counter with its prediction.

The lag is estimated first (:mod:`broadside.coordinator.core.judge.lag`). Then the level of other
traffic is estimated (:mod:`broadside.coordinator.core.judge.idle_level`) and subtracted. The bytes
are compared in every bin that a burst may have touched. If the bins inside the steady window give a
more certain result that agrees, it is used instead. The relative difference is the residual.

The residual has a 95 % interval. It includes the errors from header size, counter noise, idle
level, lag, clocks and shared bins. If the lag is unknown, the residual is also unknown. There is
one exception: if the counter misses most of the fleet's bytes at every lag, the lag is not needed.

The traffic of a reference run does not cross the device. Its residual is the counted traffic above
the idle level, divided by the traffic of the fleet.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from broadside.coordinator.core.judge.burst_share import BurstShare
from broadside.coordinator.core.judge.byte_comparison import (
    Comparison,
    RunComparison,
    compare_bytes,
    scatter_of_bursts,
)
from broadside.coordinator.core.judge.counter_bins import readable
from broadside.coordinator.core.judge.counter_factor import (
    ExtraBytes,
    counter_factor,
    extra_bytes,
)
from broadside.coordinator.core.judge.device_fit import (
    FitBounds,
    counters_noise,
    fit_burst,
    relative_noise,
)
from broadside.coordinator.core.judge.device_prediction import (
    DevicePrediction,
    Neighbour,
    sum_shares,
)
from broadside.coordinator.core.judge.idle_level import IdleLevel
from broadside.coordinator.core.judge.lag import Lag
from broadside.coordinator.core.judge.residual_cause import (
    DOUBT_FACTOR,
    DOUBT_FACTOR_OF_MANY,
    Missing,
    causes,
)
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.measure.headers import (
    Headers,
)
from broadside.coordinator.core.measure.resolution import READINGS_A_PART
from broadside.coordinator.core.measure.series import BurstSeries
from broadside.coordinator.core.summary import Reconciliation, figure
from broadside.exchange.messages import Protocol

__all__ = ["Neighbour", "reconcile"]

# The firewall rate is computed from full bins only if there are at least this many.
FULL_BINS_MIN: Final = 3
# If the counter has a smaller share of the bytes, the residual can be reported without a lag.
ABSENT_RATIO: Final = 0.5
# Two estimates of the scale may differ by this ratio. Same value as
# declaration_error.HEADERS_RATIO.
SCALES_APART_RATIO: Final = 0.12
# Standard deviations in half a 95 % interval.
NORMAL_95: Final = 1.96


def reconcile(
    bursts: Sequence[BurstSeries],
    ledger: FirewallLedger,
    headers: Headers,
    missing: Sequence[Missing],
    *,
    clock_bound_s: float = 0.0,
    neighbours: Sequence[Neighbour] = (),
    absent: Sequence[tuple[float, float]] = (),
    bypassed: bool = False,
    parts_s: Sequence[int | None] = (),
    protocol: Protocol = Protocol.TCP,
    acknowledged: Sequence[float | None] = (),
    readings_s: Sequence[float] = (),
) -> tuple[Reconciliation, tuple[Reconciliation, ...]]:
    """Compare the counter with a run and with each of its bursts, using one lag for all.

    The bytes of ``neighbours`` are subtracted first. If two bursts share a bin, it is divided
    between them by the expected bytes. Every sequence except ``neighbours`` and ``absent`` has one
    element per burst.

    Args:
        bursts: Series of the measured bursts.
        ledger: Device counter.
        headers: Header sizes, to convert payload to counted bytes.
        missing: Missing records.
        clock_bound_s: Largest clock error of the hosts.
        neighbours: Bursts of other runs through the same device.
        absent: Start and end (epoch s) of planned bursts that are not in ``bursts``.
        bypassed: True if the run must not cross the device.
        parts_s: How long the slowest part to search for is. None to skip the search.
        protocol: Payload protocol.
        acknowledged: Measured bytes of acknowledgements per payload byte. None if not measured.
        readings_s: How long a reading of the receivers is. Default 1 s.

    Returns:
        The reconciliation for the run, and one for each burst in the given order.
    """
    bins = readable(ledger)
    device = DevicePrediction(
        bursts,
        ledger,
        headers,
        bins,
        neighbours,
        absent,
        clock_bound_s,
        max((each.largest_ratio for each in missing), default=1.0),
    )
    lag = device.lag if device.lag.known else device.crossing_lag()
    shares = [device.share(k, lag) for k in range(len(bursts))]
    bins_a_burst = [share.bins_count for share in shares if share.bins_count]
    idle = device.idle(lag, round(np.median(bins_a_burst)) if bins_a_burst else 1)
    noise = relative_noise(
        [share.parts for share in shares], 0.0 if idle is None else idle.bytes_per_s
    )
    if idle is not None:
        shares = [
            replace(share, near_bytes_per_s=device.beside_burst(k, share, lag, idle, noise))
            for k, share in enumerate(shares)
        ]
    ratios = _ratios(shares, idle)
    held = RunComparison(
        ledger=ledger,
        lag=lag,
        overhead=counter_factor(ledger, headers, ratios),
        idle=idle,
        rejected_count=bins.rejected_count,
        clock_bound_s=clock_bound_s,
        neighbours=tuple(sorted({each.run_id for each in neighbours if each.received_bytes.any()})),
        bypassed=bypassed,
        datagrams=protocol is Protocol.UDP,
        busy_bytes=device.busy_bytes(lag),
        sent_bytes=sum(share.total_bytes for share in shares),
        lags_scale=0.0 if device.lag.known else device.lag.scale,
    )
    extras = [
        extra_bytes(burst, ledger, headers, protocol, measured)
        for burst, measured in zip(bursts, acknowledged or [None] * len(bursts), strict=True)
    ]
    of_mean, of_one = scatter_of_bursts(ratios)
    scatter = _counters_scatter(device, lag, readings_s or [1.0] * len(shares))
    whole = _account(
        held,
        sum_shares(shares),
        *_summed(shares, extras, missing),
        DOUBT_FACTOR,
        whole=True,
        scatter_ratio=of_mean,
    )
    one = len(shares) == 1
    doubt = DOUBT_FACTOR if one else DOUBT_FACTOR_OF_MANY
    each = [
        _account(held, share, extra, part, doubt, whole=one, scatter_ratio=of_one).model_copy(
            update=_slowest(held, share, part_s, scatter)
            | _fit(held, share, extra, noise, reading_s)
        )
        for share, extra, part, part_s, reading_s in zip(
            shares,
            extras,
            missing,
            parts_s or [None] * len(shares),
            readings_s or [1.0] * len(shares),
            strict=True,
        )
    ]
    return whole, tuple(each)


def _ratios(shares: Sequence[BurstShare], idle: IdleLevel | None) -> list[float]:
    """Return the ratio of counted bytes to payload for each burst that has payload."""
    level = 0.0 if idle is None else idle.bytes_per_s
    return [
        (share.ledger_bytes - level * share.width_s) / share.fleet_bytes
        for share in shares
        if share.fleet_bytes > 0
    ]


def _summed(
    shares: Sequence[BurstShare], extras: Sequence[ExtraBytes], missing: Sequence[Missing]
) -> tuple[ExtraBytes, Missing]:
    """Combine the extra bytes and the missing records of all bursts."""
    payloads = [share.fleet_bytes for share in shares]
    extra = ExtraBytes(
        low_ratio=_weighted([each.low_ratio for each in extras], payloads),
        resent_ratio=_weighted([each.resent_ratio for each in extras], payloads),
        acknowledged_ratio=_weighted([each.acknowledged_ratio for each in extras], payloads),
    )
    gone = Missing(
        pairs_count=sum(part.pairs_count for part in missing),
        share_ratio=_weighted([m.share_ratio for m in missing], payloads),
        planned_pairs_count=sum(part.planned_pairs_count for part in missing),
        largest_ratio=max((part.largest_ratio for part in missing), default=1.0),
    )
    return extra, gone


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    total = sum(weights)
    return sum(v * w for v, w in zip(values, weights, strict=True)) / total if total else 0.0


def _account(
    held: RunComparison,
    share: BurstShare,
    extra: ExtraBytes,
    missing: Missing,
    doubt_factor: float,
    *,
    whole: bool,
    scatter_ratio: float,
) -> Reconciliation:
    idle, unknown = held.idle, max(0.0, _unknown_ratio(share))
    base = _common_fields(held, share)
    if share.fleet_bytes <= 0 or share.bins_count == 0 or idle is None:
        return Reconciliation.model_validate(base)
    below, above = (idle.mean_below, idle.mean_above) if whole else (idle.below, idle.above)
    found = _surest(compare_bytes(held, share, extra, (below, above), scatter_ratio))
    absent = (
        found.residual_ratio + found.uncertainty_ratio < -ABSENT_RATIO
        # The bytes must not be in other bins of the counter either.
        and held.busy_bytes < ABSENT_RATIO * held.sent_bytes
        and unknown < ABSENT_RATIO
    )
    if not (held.lag.known or held.bypassed or absent):
        return Reconciliation.model_validate(base | {"lags_scale_ratio": _lags_scale_ratio(held)})
    level = idle.bytes_per_s
    named = causes(
        found.residual_ratio,
        found.noise_ratio if whole else found.between_ratio,
        missing=missing,
        foreign_ratio=_foreign_ratio(
            idle, below, share.width_s / (share.fleet_bytes * held.overhead.ratio)
        ),
        foreign_bits_per_second=level * 8,
        unknown_ratio=unknown,
        doubt_factor=doubt_factor,
    )
    return Reconciliation.model_validate(
        base
        | _compared_fields(found)
        | _device_rate(share, level)
        | {"causes": () if held.bypassed else named}
    )


def _unknown_ratio(share: BurstShare) -> float:
    """Return the share of the payload that is not in a known bin."""
    return 1 - share.fleet_bytes / share.total_bytes if share.total_bytes > 0 else 0.0


def _common_fields(held: RunComparison, share: BurstShare) -> dict[str, object]:
    """Return the fields that do not depend on the comparison of bytes."""
    ledger, lag, overhead, idle = held.ledger, held.lag, held.overhead, held.idle
    return {
        "source": ledger.source,
        "layer": ledger.layer,
        "grain_s": ledger.grain_s,
        "lag_s": figure(round(lag.lag_s, 2) + 0.0) if lag.known else None,
        "lag_uncertainty_s": figure(lag.uncertainty_s) if lag.known else None,
        "lag_drift_s": figure(lag.drift_s) or 0.0,
        "overhead_ratio": figure(overhead.ratio),
        "overhead_how": overhead.how,
        "layer_ratio": figure(overhead.layer_ratio),
        "layer_low_ratio": figure(overhead.layer_low_ratio) if overhead.layer_ratio else None,
        "unknown_ratio": figure(max(0.0, _unknown_ratio(share))) or 0.0,
        "baseline_bits_per_second": None if idle is None else figure(idle.bytes_per_s * 8),
        "baseline_uncertainty_bits_per_second": (
            None if idle is None else figure(max(idle.below, idle.above) * 8)
        ),
        "baseline_how": None if idle is None else idle.how,
        "unplanned_bytes": figure(idle.unplanned_bytes) or None if idle is not None else None,
        "full_bins_count": len(share.full.ledger),
        "rejected_bins_count": held.rejected_count,
        "neighbours": held.neighbours,
        "bypassed": held.bypassed,
        "basis": "bytes",
    }


def _surest(comparisons: Sequence[Comparison]) -> Comparison:
    """Return the comparison of all bins, or a more certain one that agrees with it."""
    found, *surer = comparisons
    for other in surer:
        apart = abs(other.residual_ratio - found.residual_ratio)
        agrees = apart <= other.uncertainty_ratio + found.unheard_ratio
        if agrees and other.uncertainty_ratio < found.uncertainty_ratio:
            found = other
    return found


def _lags_scale_ratio(held: RunComparison) -> float | None:
    """Return the ratio of counted to expected bytes if several lags fit.

    None if the total of the counter does not agree with this ratio.
    """
    expected = held.sent_bytes * held.overhead.ratio
    if held.lags_scale <= 0 or held.busy_bytes <= 0 or expected <= 0:
        return None
    scale = held.lags_scale / held.overhead.ratio
    apart = abs(math.log(scale * expected / held.busy_bytes))
    return figure(scale) if apart <= math.log1p(SCALES_APART_RATIO) else None


def _compared_fields(found: Comparison) -> dict[str, object]:
    return {
        "basis": found.basis,
        "firewall_bytes": figure(found.ledger_bytes),
        "expected_bytes": figure(found.expected_bytes),
        "residual_ratio": figure(found.residual_ratio),
        "residual_uncertainty_ratio": figure(found.uncertainty_ratio),
        "extra_ratio": figure(found.extra_ratio) or 0.0,
        "residual_low_ratio": figure(found.residual_ratio - found.below_ratio),
        "residual_high_ratio": figure(found.residual_ratio + found.above_ratio),
    }


def _device_rate(share: BurstShare, level: float) -> dict[str, object]:
    """Return the device rate from its full bins.

    If there are too few, the fleet's rate is multiplied by counted bytes / fleet bytes.

    Args:
        share: Bytes of the burst in the counter.
        level: Background traffic, in bytes/s.
    """
    rates = np.zeros(0)
    if len(share.full.ledger) >= FULL_BINS_MIN:
        rates = share.full.ledger * 8 / share.full.width
        rate = float(share.full.ledger.sum()) * 8 / float(share.full.width.sum())
    else:
        net = (share.ledger_bytes - level * share.width_s) / share.fleet_bytes
        rate = share.fleet_bytes_per_s * 8 * net + level * 8
    mean = float(rates.mean()) if len(rates) else 0.0
    return {
        "firewall_bits_per_second": figure(rate),
        "crossed_bits_per_second": figure(rate - level * 8),
        "ledger_cov_ratio": figure(float(rates.std(ddof=1)) / mean) if mean > 0 else None,
    }


def _slowest(
    held: RunComparison, share: BurstShare, part_s: int | None, scatter_ratio: float
) -> dict[str, float | int | None]:
    """Return the fields for the slowest part of a window, from the device bins.

    The reported rate is the highest rate that the fleet can have sent through the device. So only
    traffic that is certainly not from the fleet is subtracted, and the smallest header size is
    used. The noise is estimated from the counter, or from the steps between bins if that gives
    less. Changes in the fleet's own rate are not counter noise.

    Args:
        held: Values for all bursts.
        share: Bytes of the burst in the counter.
        part_s: Length of a part. None to skip the search.
        scatter_ratio: Relative standard deviation of a bin from the counter noise. NaN if
            unknown.
    """
    overhead, idle, grain_s = held.overhead, held.idle, held.ledger.grain_s
    if part_s is None or not held.lag.known or READINGS_A_PART * grain_s > part_s:
        return {}
    full = share.full
    if float(full.width.sum()) < 2 * part_s or held.bypassed:
        return {}
    level = 0.0 if idle is None else max(0.0, idle.bytes_per_s - idle.below)
    least = overhead.ratio * (1 - overhead.less_ratio - overhead.layer_ratio)
    payload = (full.ledger - level * full.width) * 8 / least
    bits = np.concatenate(([0.0], np.cumsum(payload)))
    at_s = np.concatenate(([0.0], np.cumsum(full.width)))
    first_s = np.concatenate((at_s, at_s - part_s))
    first_s = first_s[(first_s >= 0) & (first_s + part_s <= at_s[-1] + 1e-6)]
    rates = (np.interp(first_s + part_s, at_s, bits) - np.interp(first_s, at_s, bits)) / part_s
    steps = np.abs(np.diff(payload / full.width))
    noise = 1.4826 * float(np.median(steps)) / math.sqrt(2)
    own_noise = scatter_ratio * float(rates.mean())
    return {
        "slowest_bits_per_second": figure(float(rates.min())),
        "slowest_noise_bits_per_second": figure(
            float(np.fmin(noise, own_noise)) / math.sqrt(part_s / grain_s)
        ),
        "slowest_s": part_s,
    }


def _counters_scatter(device: DevicePrediction, lag: Lag, readings_s: Sequence[float]) -> float:
    """Return the relative standard deviation that counter noise adds to a bin, NaN if unknown."""
    blocks = [device.blocks(k, lag, reading_s) for k, reading_s in enumerate(readings_s)]
    bins = max(1.0, max(readings_s) / device.grain_s)
    return counters_noise([each for each in blocks if len(each[0])]) * math.sqrt(bins)


def _fit(
    held: RunComparison, share: BurstShare, extra: ExtraBytes, noise: float, reading_s: float
) -> dict[str, float | None]:
    """Return the fields that describe how well the counter follows the burst over time."""
    if held.bypassed or not held.lag.known or held.idle is None or share.fleet_bytes <= 0:
        return {}
    under_way = 0.0 if held.datagrams else share.tail_bytes / share.total_bytes
    bounds = FitBounds(
        flat_ratio=extra.resent_ratio + under_way + share.unseen_bytes / share.fleet_bytes,
        reading_s=reading_s,
        bend_ratio=extra.acknowledged_ratio,
        idle_bytes=max(held.idle.below, held.idle.above) * share.width_s / NORMAL_95,
    )
    found = fit_burst(share.parts, held.idle.bytes_per_s, noise, bounds)
    if found is None:
        return {}
    return {
        "fit_distance_ratio": figure(found.distance_ratio),
        "fit_limit_ratio": figure(found.limit_ratio),
    }


def _foreign_ratio(idle: IdleLevel, below: float, s_per_byte: float) -> float | None:
    """Return the ratio of other steady traffic to expected bytes, or None if it can be zero."""
    sure = idle.how != "bounded" and idle.bytes_per_s > below
    return idle.bytes_per_s * s_per_byte if sure else None
