"""Comparison of the device counter with its prediction.

The lag is estimated first (:mod:`broadside.coordinator.core.judge.reconciliation.lag`). Then the
level of other traffic is estimated
(:mod:`broadside.coordinator.core.judge.reconciliation.idle_level`) and subtracted. The bytes are
compared in every bin that a burst may have touched. If the bins inside the steady window give a
more certain result that agrees, it will be used instead. The relative difference is the residual.

The residual has a 95 % interval. It includes the errors from header size, counter noise, idle
level, lag, clocks and shared bins. If the lag is unknown, the residual is also unknown. There is
one exception: if the counter misses most of the fleet's bytes at every lag, the lag is not needed.

The traffic of a reference run does not cross the device. Its residual is the counted traffic above
the idle level, divided by the traffic of the fleet.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.judge.reconciliation.counter_bins import (
    CounterFactor,
    ExtraBytes,
    counter_factor,
    extra_bytes,
)
from broadside.coordinator.core.judge.reconciliation.device_fit import (
    FitBounds,
    counters_noise,
    fit_burst,
    relative_noise,
)
from broadside.coordinator.core.judge.reconciliation.device_prediction import (
    BurstShare,
    Conditions,
    DevicePrediction,
    sum_shares,
)
from broadside.coordinator.core.judge.reconciliation.idle_level import IdleLevel
from broadside.coordinator.core.judge.reconciliation.lag import Lag
from broadside.coordinator.core.judge.reconciliation.overlapping_bursts import Neighbour
from broadside.coordinator.core.judge.reconciliation.residual_causes import (
    DOUBT_FACTOR,
    DOUBT_FACTOR_OF_MANY,
    ForeignTraffic,
    Missing,
    Residual,
    causes,
    certain_declaration_error,
    counted_flows_only,
    has_unit_error,
    rescaled,
    scale_of,
    with_declaration,
)
from broadside.coordinator.core.measure.formulas.headers import (
    MSS_ASSUMED_BYTES,
    OVERHEAD_LESS_RATIO,
    OVERHEAD_MORE_RATIO,
    Headers,
    declared_headers,
)
from broadside.coordinator.core.measure.formulas.steady import stretch_s, t95
from broadside.coordinator.core.measure.grid.series import BurstMeasurement, BurstSeries
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.resolution import READINGS_A_PART
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import BurstSummary, Reconciliation, SecondState, figure
from broadside.exchange.messages import Protocol

# The firewall rate is computed from full bins only if there are at least this many.
FULL_BINS_MIN: Final = 3
# If the counter has a smaller share of the bytes, the residual can be reported without a lag.
ABSENT_RATIO: Final = 0.5
# Two estimates of the scale may differ by this ratio. Same value as
# residual_causes.HEADERS_RATIO.
SCALES_APART_RATIO: Final = 0.12
# Standard deviations in half a 95 % interval.
NORMAL_95: Final = 1.96
# The scatter between bins is estimated from this number of bins or more.
NOISE_BINS_MIN: Final = 5
# Bins below this share of the busiest bin's rate are not used for the scatter. They are at the
# edges of a burst and show the lag's error instead.
HALF_FULL_RATIO: Final = 0.5
# The scatter between bursts is estimated from this number of bursts or more.
SCATTER_BURSTS_MIN: Final = 3
# With this number of bursts or more, an outlier can be detected.
ODD_BURSTS_MIN: Final = 4
# Half width of the 95 % interval of a bin if there are too few bins to estimate it. Full bins in
# the published metric of the original test scatter by 1.3 %. This includes 0.6 % from reading
# values off the chart.
NOISE_ASSUMED_RATIO: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Values that are the same for all bursts of a reconciliation.

    Attributes:
        device_counter: Device counter.
        lag: Counter lag.
        overhead: Counted bytes per payload byte.
        idle: Level of other traffic. None if it is unknown.
        rejected_count: Number of bins with impossible values.
        clock_bound_s: Largest clock error of the hosts.
        neighbours: Ids of other runs with traffic through the same device.
        bypassed: True if the run must not cross the device.
        datagrams: True for UDP.
        busy_bytes: Bytes above the usual level in the whole counter.
        sent_bytes: Payload of all bursts.
        lags_scale: Counted bytes per payload byte if the lag is unknown, else 0.
    """

    device_counter: CounterRecord
    lag: Lag
    overhead: CounterFactor
    idle: IdleLevel | None
    rejected_count: int
    clock_bound_s: float
    neighbours: tuple[str, ...]
    bypassed: bool
    datagrams: bool
    busy_bytes: float
    sent_bytes: float
    lags_scale: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteComparison:
    """Comparison of a burst or run, counted bytes against predicted bytes.

    Attributes:
        basis: Bins that were used, ``rate`` for full bins in the window or ``bytes`` for all bins.
        counter_bytes: Counted bytes without the idle level.
        expected_bytes: Predicted bytes.
        residual_ratio: Counted bytes divided by predicted bytes, minus 1.
        below_ratio: Distance from the residual down to the lower end of its 95 % interval.
        above_ratio: Distance from the residual up to the upper end.
        extra_ratio: Part of ``below_ratio`` that is caused by bytes other than payload and headers.
        between_ratio: Uncertainty without errors that are the same for all bursts of the run.
        unrecorded_ratio: Uncertainty from bytes that the receivers may not have recorded.
    """

    basis: Literal["rate", "bytes"]
    counter_bytes: float
    expected_bytes: float
    residual_ratio: float
    below_ratio: float
    above_ratio: float
    extra_ratio: float
    between_ratio: float
    unrecorded_ratio: float

    @property
    def uncertainty_ratio(self) -> float:
        """Distance from the residual to the farther end of its interval."""
        return max(self.below_ratio, self.above_ratio)

    @property
    def noise_ratio(self) -> float:
        """Same as ``uncertainty_ratio``, but without the part that extra bytes cause."""
        return max(self.below_ratio - self.extra_ratio, self.above_ratio)


def reconcile_run(
    spec: RunSpec,
    bursts: Sequence[BurstMeasurement],
    device_counter: CounterRecord,
    neighbours: Sequence[Neighbour] = (),
    absent: Sequence[tuple[float, float]] = (),
) -> tuple[Reconciliation, tuple[Reconciliation, ...]]:
    """Compare the counter with a run and with each of its bursts.

    If the unit of the counter seems to be wrong, the counter is first scaled to the expected bytes.

    Args:
        spec: Specification for the run.
        bursts: Measured bursts in time order.
        device_counter: Device counter.
        neighbours: Bursts of other runs through the same device.
        absent: Start and end (epoch s) of planned bursts that are not in ``bursts``.

    Returns:
        The reconciliation for the run, and one for each burst.
    """
    summaries = [burst.summary for burst in bursts]

    def compare(counter: CounterRecord) -> tuple[Reconciliation, tuple[Reconciliation, ...]]:
        return reconcile(
            [_counted_burst(burst, device_counter) for burst in bursts],
            counter,
            _headers(spec, summaries, device_counter),
            Conditions(
                clock_bound_s=max(summary.clock_bound_max_s or 0.0 for summary in summaries),
                neighbours=neighbours,
                absent=absent,
                bypassed=spec.bypasses_device,
                protocol=spec.traffic.protocol,
            ),
        )

    run, parts = compare(device_counter)
    if has_unit_error(run) and (scale := scale_of(device_counter, run)):
        # We cannot fit the lag and the idle level if the counter has the wrong unit.
        scaled_run, scaled_parts = compare(
            replace(device_counter, bytes=device_counter.bytes / scale)
        )
        scaled_run = rescaled(scaled_run, scale)
        if certain_declaration_error(scaled_run, summaries) is not None:
            run, parts = scaled_run, tuple(rescaled(part, scale) for part in scaled_parts)
    return with_declaration(run, device_counter, summaries), tuple(
        with_declaration(part, device_counter, [summary])
        for part, summary in zip(parts, summaries, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedBurst:
    """Burst to compare with the counter.

    Attributes:
        series: Measured series of the burst.
        missing: Missing records.
        part_s: How long the slowest part to search for is. None to skip the search.
        acknowledged: Measured bytes of acknowledgements per payload byte. None if not measured.
        reading_s: How long a reading of the receivers is, in s.
    """

    series: BurstSeries
    missing: Missing
    part_s: int | None = None
    acknowledged: float | None = None
    reading_s: float = 1.0


def _counted_burst(burst: BurstMeasurement, device_counter: CounterRecord) -> CountedBurst:
    summary = burst.summary
    return CountedBurst(
        series=counted_flows_only(burst.series, device_counter),
        missing=_missing(summary),
        part_s=_part_s(summary, device_counter),
        acknowledged=summary.acknowledged_ratio,
        reading_s=_reading_s(summary),
    )


def _headers(
    spec: RunSpec, bursts: Sequence[BurstSummary], device_counter: CounterRecord
) -> Headers:
    """Return the header sizes from the first burst that recorded them.

    If no burst recorded them, use the sizes that were declared for the counter (TCP only).
    Otherwise use assumed sizes.
    """
    first = next((burst for burst in bursts if not burst.headers_assumed), bursts[0])
    declared = declared_headers(
        mss_bytes=device_counter.mss_bytes, mtu_bytes=device_counter.mtu_bytes
    )
    if declared is not None and first.headers_assumed and spec.traffic.protocol is Protocol.TCP:
        return declared
    sizes = [flow.mss_bytes for flow in first.flows if flow.mss_bytes]
    return Headers(
        ip_ratio=first.header_ratio,
        wire_ratio=first.wire_ratio,
        assumed=first.headers_assumed,
        how=first.header_how,
        mss_bytes=sizes[0] if sizes else MSS_ASSUMED_BYTES,
    )


def _part_s(burst: BurstSummary, device_counter: CounterRecord) -> int | None:
    """Return how long the parts to compare with the device counter are, in s.

    None if the counter does not count all flows, or if the burst has no window.
    """
    window = burst.window
    if window is None or len(burst.flows) > len(device_counter.flows):
        return None
    return stretch_s(window.window_s)


def _reading_s(burst: BurstSummary) -> float:
    """Return how long a reading of the receivers is, in s. The default is 1 s."""
    window = burst.window
    return 1.0 if window is None or window.reading_s is None else window.reading_s


def _missing(burst: BurstSummary) -> Missing:
    """Return the missing records of pairs that may have sent traffic."""
    seconds = burst.completeness
    silent_s = seconds.null_s + seconds.abandoned_s + seconds.lost_s
    measured_s = seconds.measured_s + seconds.late_s
    rates = [
        pair.received_bits_per_second or 0.0
        for pair in burst.pairs
        if pair.state is SecondState.MEASURED
    ]
    mean = sum(rates) / len(rates) if rates else 0.0
    return Missing(
        pairs_count=sum(
            pair.state in (SecondState.NULL, SecondState.ABANDONED, SecondState.LOST)
            for pair in burst.pairs
        ),
        share_ratio=silent_s / measured_s if measured_s else 0.0,
        planned_pairs_count=burst.pairs_planned,
        largest_ratio=max(rates) / mean if mean > 0 else 1.0,
    )


def reconcile(
    bursts: Sequence[CountedBurst],
    device_counter: CounterRecord,
    headers: Headers,
    conditions: Conditions,
) -> tuple[Reconciliation, tuple[Reconciliation, ...]]:
    """Compare the counter with a run and with each of its bursts, using one lag for all.

    The bytes of other runs are subtracted first. If two bursts share a bin, it will be divided
    between them by the expected bytes.

    Args:
        bursts: Measured bursts.
        device_counter: Device counter.
        headers: Header sizes, to convert payload to counted bytes.
        conditions: Conditions of the run.

    Returns:
        The reconciliation for the run, and one for each burst in the given order.
    """
    missing = [burst.missing for burst in bursts]
    device = DevicePrediction(
        [burst.series for burst in bursts],
        device_counter,
        headers,
        conditions,
        max((item.largest_ratio for item in missing), default=1.0),
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
    stored = RunComparison(
        device_counter=device_counter,
        lag=lag,
        overhead=counter_factor(device_counter, headers, ratios),
        idle=idle,
        rejected_count=device.bins.rejected_count,
        clock_bound_s=conditions.clock_bound_s,
        neighbours=tuple(
            sorted(
                {item.run_id for item in conditions.neighbours if item.run_id and item.has_traffic}
            )
        ),
        bypassed=conditions.bypassed,
        datagrams=conditions.protocol is Protocol.UDP,
        busy_bytes=device.busy_bytes(lag),
        sent_bytes=sum(share.total_bytes for share in shares),
        lags_scale=0.0 if device.lag.known else device.lag.scale,
    )
    extras = [
        extra_bytes(burst.series, device_counter, headers, conditions.protocol, burst.acknowledged)
        for burst in bursts
    ]
    of_mean, of_one = scatter_of_bursts(ratios)
    scatter = _counters_scatter(device, lag, [burst.reading_s for burst in bursts])
    complete = _account(
        stored,
        sum_shares(shares),
        *_summed(shares, extras, missing),
        _Scatter(whole=True, ratio=of_mean, doubt_factor=DOUBT_FACTOR),
    )
    one = len(shares) == 1
    doubt = DOUBT_FACTOR if one else DOUBT_FACTOR_OF_MANY
    between = _Scatter(whole=one, ratio=of_one, doubt_factor=doubt)
    item = [
        _account(stored, share, extra, burst.missing, between).model_copy(
            update=_slowest(stored, share, burst.part_s, scatter)
            | _fit(stored, share, extra, noise, burst.reading_s)
        )
        for share, extra, burst in zip(shares, extras, bursts, strict=True)
    ]
    return complete, tuple(item)


def _ratios(shares: Sequence[BurstShare], idle: IdleLevel | None) -> list[float]:
    """Return the ratio of counted bytes to payload for each burst that has payload."""
    level = 0.0 if idle is None else idle.bytes_per_s
    return [
        (share.counter_bytes - level * share.width_s) / share.fleet_bytes
        for share in shares
        if share.fleet_bytes > 0
    ]


def _summed(
    shares: Sequence[BurstShare], extras: Sequence[ExtraBytes], missing: Sequence[Missing]
) -> tuple[ExtraBytes, Missing]:
    """Combine the extra bytes and the missing records of all bursts."""
    payloads = [share.fleet_bytes for share in shares]
    extra = ExtraBytes(
        low_ratio=_weighted([item.low_ratio for item in extras], payloads),
        resent_ratio=_weighted([item.resent_ratio for item in extras], payloads),
        acknowledged_ratio=_weighted([item.acknowledged_ratio for item in extras], payloads),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scatter:
    """Scatter of the compared bytes.

    Attributes:
        whole: True for the mean of all bursts, False for one of several bursts.
        ratio: Relative half width from the scatter between bursts. NaN if unknown.
        doubt_factor: The residual needs a cause if it is larger than this number of uncertainties.
    """

    whole: bool
    ratio: float
    doubt_factor: float


def _account(
    compared: RunComparison,
    share: BurstShare,
    extra: ExtraBytes,
    missing: Missing,
    scatter: _Scatter,
) -> Reconciliation:
    idle, unknown = compared.idle, max(0.0, _unknown_ratio(share))
    base = _common_fields(compared, share)
    if share.fleet_bytes <= 0 or share.bins_count == 0 or idle is None:
        return Reconciliation.model_validate(base)
    below, above = (idle.mean_below, idle.mean_above) if scatter.whole else (idle.below, idle.above)
    result = _surest(compare_bytes(compared, share, extra, (below, above), scatter.ratio))
    absent = (
        result.residual_ratio + result.uncertainty_ratio < -ABSENT_RATIO
        # The bytes should not be in other bins of the counter either.
        and compared.busy_bytes < ABSENT_RATIO * compared.sent_bytes
        and unknown < ABSENT_RATIO
    )
    if not (compared.lag.known or compared.bypassed or absent):
        return Reconciliation.model_validate(
            base | {"lags_scale_ratio": _lags_scale_ratio(compared)}
        )
    level = idle.bytes_per_s
    named = causes(
        Residual(
            ratio=result.residual_ratio,
            uncertainty_ratio=result.noise_ratio if scatter.whole else result.between_ratio,
            doubt_factor=scatter.doubt_factor,
        ),
        missing,
        ForeignTraffic(
            ratio=_foreign_ratio(
                idle, below, share.width_s / (share.fleet_bytes * compared.overhead.ratio)
            ),
            bits_per_second=level * 8,
        ),
        unknown,
    )
    return Reconciliation.model_validate(
        base
        | _compared_fields(result)
        | _device_rate(share, level)
        | {"causes": () if compared.bypassed else named}
    )


def _unknown_ratio(share: BurstShare) -> float:
    """Return the share of the payload that is not in a known bin."""
    return 1 - share.fleet_bytes / share.total_bytes if share.total_bytes > 0 else 0.0


def _common_fields(compared: RunComparison, share: BurstShare) -> dict[str, object]:
    """Return the fields that do not depend on the comparison of bytes."""
    device_counter, lag, overhead, idle = (
        compared.device_counter,
        compared.lag,
        compared.overhead,
        compared.idle,
    )
    return {
        "source": device_counter.source,
        "layer": device_counter.layer,
        "grain_s": device_counter.grain_s,
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
        "full_bins_count": len(share.full.device_counter),
        "rejected_bins_count": compared.rejected_count,
        "overlapping_run_ids": compared.neighbours,
        "bypassed": compared.bypassed,
        "basis": "bytes",
    }


def _surest(comparisons: Sequence[ByteComparison]) -> ByteComparison:
    """Return the comparison of all bins, or a more certain one that agrees with it."""
    result, *surer = comparisons
    for other in surer:
        gap = abs(other.residual_ratio - result.residual_ratio)
        agrees = gap <= other.uncertainty_ratio + result.unrecorded_ratio
        if agrees and other.uncertainty_ratio < result.uncertainty_ratio:
            result = other
    return result


def _lags_scale_ratio(compared: RunComparison) -> float | None:
    """Return the ratio of counted to expected bytes if several lags fit.

    None if the total of the counter does not agree with this ratio.
    """
    expected = compared.sent_bytes * compared.overhead.ratio
    if compared.lags_scale <= 0 or compared.busy_bytes <= 0 or expected <= 0:
        return None
    scale = compared.lags_scale / compared.overhead.ratio
    gap = abs(math.log(scale * expected / compared.busy_bytes))
    return figure(scale) if gap <= math.log1p(SCALES_APART_RATIO) else None


def _compared_fields(outcome: ByteComparison) -> dict[str, object]:
    return {
        "basis": outcome.basis,
        "firewall_bytes": figure(outcome.counter_bytes),
        "expected_bytes": figure(outcome.expected_bytes),
        "residual_ratio": figure(outcome.residual_ratio),
        "residual_uncertainty_ratio": figure(outcome.uncertainty_ratio),
        "extra_ratio": figure(outcome.extra_ratio) or 0.0,
        "residual_low_ratio": figure(outcome.residual_ratio - outcome.below_ratio),
        "residual_high_ratio": figure(outcome.residual_ratio + outcome.above_ratio),
    }


def _device_rate(share: BurstShare, level: float) -> dict[str, object]:
    """Return the device rate from its full bins.

    If there are too few, the fleet's rate is multiplied by counted bytes / fleet bytes.

    Args:
        share: Bytes of the burst in the counter.
        level: Background traffic, in bytes/s.
    """
    rates = np.zeros(0)
    if len(share.full.device_counter) >= FULL_BINS_MIN:
        rates = share.full.device_counter * 8 / share.full.width
        rate = float(share.full.device_counter.sum()) * 8 / float(share.full.width.sum())
    else:
        net = (share.counter_bytes - level * share.width_s) / share.fleet_bytes
        rate = share.fleet_bytes_per_s * 8 * net + level * 8
    mean = float(rates.mean()) if len(rates) else 0.0
    return {
        "firewall_bits_per_second": figure(rate),
        "crossed_bits_per_second": figure(rate - level * 8),
        "counter_cov_ratio": figure(float(rates.std(ddof=1)) / mean) if mean > 0 else None,
    }


def _slowest(
    compared: RunComparison, share: BurstShare, part_s: int | None, scatter_ratio: float
) -> dict[str, float | int | None]:
    """Return the fields for the slowest part of a window, from the device bins.

    The reported rate is the highest rate that the fleet can have sent through the device. So only
    traffic that is certainly not from the fleet is subtracted, and the smallest header size is
    used. The noise is estimated from the counter, or from the steps between bins if that gives
    less. Changes in the fleet's own rate are not counter noise.

    Args:
        compared: Values for all bursts.
        share: Bytes of the burst in the counter.
        part_s: Length of a part. None to skip the search.
        scatter_ratio: Relative standard deviation of a bin from the counter noise. NaN if
            unknown.
    """
    overhead, idle, grain_s = compared.overhead, compared.idle, compared.device_counter.grain_s
    if part_s is None or not compared.lag.known or READINGS_A_PART * grain_s > part_s:
        return {}
    full = share.full
    if float(full.width.sum()) < 2 * part_s or compared.bypassed:
        return {}
    level = 0.0 if idle is None else max(0.0, idle.bytes_per_s - idle.below)
    least = overhead.ratio * (1 - overhead.less_ratio - overhead.layer_ratio)
    payload = (full.device_counter - level * full.width) * 8 / least
    bits = np.concatenate(([0.0], np.cumsum(payload)))
    at_s = np.concatenate(([0.0], np.cumsum(full.width)))
    first_s = np.concatenate((at_s, at_s - part_s))
    first_s = first_s[(first_s >= 0) & (first_s + part_s <= at_s[-1] + 1e-6)]
    rates = (np.interp(first_s + part_s, at_s, bits) - np.interp(first_s, at_s, bits)) / part_s
    steps = np.abs(np.diff(payload / full.width))
    noise = 1.4826 * float(np.median(steps)) / math.sqrt(2)
    local_noise = scatter_ratio * float(rates.mean())
    return {
        "slowest_bits_per_second": figure(float(rates.min())),
        "slowest_noise_bits_per_second": figure(
            float(np.fmin(noise, local_noise)) / math.sqrt(part_s / grain_s)
        ),
        "slowest_s": part_s,
    }


def _counters_scatter(device: DevicePrediction, lag: Lag, readings_s: Sequence[float]) -> float:
    """Return the relative standard deviation that counter noise adds to a bin, NaN if unknown."""
    blocks = [device.blocks(k, lag, reading_s) for k, reading_s in enumerate(readings_s)]
    bins = max(1.0, max(readings_s) / device.grain_s)
    return counters_noise([block for block in blocks if len(block[0])]) * math.sqrt(bins)


def _fit(
    compared: RunComparison, share: BurstShare, extra: ExtraBytes, noise: float, reading_s: float
) -> dict[str, float | None]:
    """Return the fields that describe how well the counter follows the burst over time."""
    if (
        compared.bypassed
        or not compared.lag.known
        or compared.idle is None
        or share.fleet_bytes <= 0
    ):
        return {}
    under_method = 0.0 if compared.datagrams else share.tail_bytes / share.total_bytes
    bounds = FitBounds(
        flat_ratio=extra.resent_ratio + under_method + share.unseen_bytes / share.fleet_bytes,
        reading_s=reading_s,
        bend_ratio=extra.acknowledged_ratio,
        idle_bytes=max(compared.idle.below, compared.idle.above) * share.width_s / NORMAL_95,
    )
    result = fit_burst(share.parts, compared.idle.bytes_per_s, noise, bounds)
    if result is None:
        return {}
    return {
        "fit_distance_ratio": figure(result.distance_ratio),
        "fit_limit_ratio": figure(result.limit_ratio),
    }


def _foreign_ratio(idle: IdleLevel, below: float, s_per_byte: float) -> float | None:
    """Return the ratio of other steady traffic to expected bytes, or None if it can be zero."""
    sure = idle.how != "bounded" and idle.bytes_per_s > below
    return idle.bytes_per_s * s_per_byte if sure else None


def scatter_of_bursts(ratios: Sequence[float]) -> tuple[float, float]:
    """Return how much the ratio of counted bytes to payload varies between bursts.

    With four bursts or more, the scatter of a single burst is estimated from the median absolute
    deviation. An outlier then cannot hide itself by increasing the scatter.

    Args:
        ratios: Counted bytes divided by payload, for each burst.

    Returns:
        Relative half widths of the 95 % interval for the mean of all bursts and for a single burst.
        Both are NaN if there are fewer than three bursts.
    """
    count = len(ratios)
    if count < SCATTER_BURSTS_MIN:
        return math.nan, math.nan
    array = np.array(ratios)
    # If the device was bypassed, the mean will be near 0, and we cannot use it as a scale. So we
    # use at least 1, because one byte of payload should be counted as one byte or more.
    size = max(1.0, abs(float(array.mean()))) / t95(count - 1)
    spread = float(array.std(ddof=1))
    if count >= ODD_BURSTS_MIN:
        spread = 1.4826 * float(np.median(np.abs(array - np.median(array))))
    return (
        float(array.std(ddof=1)) / math.sqrt(count) / size,
        spread / size,
    )


def _bins_noise(net: Floats, fleet: Floats, width: Floats, *, trades: bool) -> float:
    """Return the relative half width of the 95 % interval for a sum of bins.

    It is estimated from the scatter of the bins with more than half the rate of the busiest bin.
    NaN if there are too few of them.

    With ``trades`` all bins of a burst are added, so bytes that move to a neighbouring bin do not
    change the sum. The first autocovariance, which is negative for such bins, is then added to the
    variance. The variance is at least that of one bin, because bytes can still move at the two
    outer edges. Bins next to a bin that is not busy are left out if enough others remain. Only the
    bytes that they gained or lost in total are added.
    """
    busy = fleet > HALF_FULL_RATIO * width * float((fleet / width).max(initial=0.0))
    edges = np.zeros(len(net), np.bool_)
    if trades:
        walled = np.concatenate(([False], busy, [False]))
        inside = busy & walled[:-2] & walled[2:]
        if inside.sum() >= NOISE_BINS_MIN:
            busy, edges = inside, ~inside
    count = int(busy.sum())
    if count < NOISE_BINS_MIN:
        return math.nan
    scale = float(net[busy].sum() / fleet[busy].sum())
    off = net[busy] / fleet[busy] - scale
    alone = float((off**2).sum()) * count / (count - 1)
    traded = 2 * float((off[1:] * off[:-1]).sum()) if trades else 0.0
    error = math.sqrt(max(alone + traded, alone / count)) / count
    stored = float((net - scale * fleet)[edges].sum() / fleet.sum())
    return math.hypot(error * t95(count - 1), stored) / max(1.0, scale)


def compare_bytes(
    compared: RunComparison,
    share: BurstShare,
    extra: ExtraBytes,
    idle_ends: tuple[float, float],
    scatter_ratio: float,
) -> list[ByteComparison]:
    """Compare the bytes in all bins, and in the full bins if there are enough.

    All bins together also include bytes that were in flight when the receivers stopped. There are
    at most as many as the difference between sent and received bytes. Half of this difference is
    added to the prediction.

    Full bins do not have this error, but there are fewer of them. If the lag changes during the
    burst, it will change all of them in the same direction. The caller uses them only if they agree
    with the comparison of all bins.

    Args:
        compared: Values for all bursts.
        share: Bytes of the burst in the counter.
        extra: Bytes that the counter may include in addition to payload and headers.
        idle_ends: Distances from the idle level to both ends of its interval, in bytes/s.
        scatter_ratio: Relative half width from the scatter between bursts. NaN if unknown.

    Returns:
        The comparison of all bins, followed by that of the full bins if there are enough.
    """
    errors = _Errors(idle_ends=idle_ends, scatter_ratio=scatter_ratio)
    results = [_compared(compared, share, extra, errors, rate=False)]
    if len(share.full.fleet) >= NOISE_BINS_MIN:
        results.append(_compared(compared, share, extra, errors, rate=True))
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class _Errors:
    """Errors of the idle level (bytes/s below and above) and of the scatter between bursts."""

    idle_ends: tuple[float, float]
    scatter_ratio: float


def _compared(
    compared: RunComparison,
    share: BurstShare,
    extra: ExtraBytes,
    errors: _Errors,
    *,
    rate: bool,
) -> ByteComparison:
    overhead = compared.overhead
    level = 0.0 if compared.idle is None else compared.idle.bytes_per_s
    # UDP bytes that were not received count as lost, not as in flight.
    half_tail = 0.0 if compared.datagrams else share.tail_bytes / share.total_bytes / 2
    parts = share.full if rate else share.parts
    width = float(parts.width.sum())
    fleet = float(parts.fleet.sum()) * (1 if rate else 1 + half_tail)
    expected = fleet * overhead.ratio * (1 + extra.low_ratio)
    net = parts.device_counter - level * parts.width
    crossed = float(net.sum()) / expected
    missing = 0.0 if rate else math.hypot(share.unseen_bytes / share.fleet_bytes, half_tail)
    unsure = math.hypot(
        _noise(net, share, errors.scatter_ratio, rate=rate),
        compared.clock_bound_s / max(1.0, width),
        0.0 if rate else share.unsure_ratio(level),
        missing,
    )
    # In a reference run few bytes cross the device. Errors that are proportional to these bytes
    # become smaller. The errors of the idle level and of other runs do not.
    shrinks = min(1.0, abs(crossed)) if compared.bypassed else 1.0
    # Packets in other runs can have any size (see OVERHEAD_LESS_RATIO).
    beside = share.beside_bytes / share.fleet_bytes
    below, above = (
        math.hypot(unsure, item) * shrinks for item in (overhead.more_ratio, overhead.less_ratio)
    )
    layer = overhead.layer_ratio * shrinks
    idle_below, idle_above = (item * width / expected for item in errors.idle_ends)
    lasting = share.near_bytes_per_s * width / expected - idle_above
    lasting = 0.0 if compared.bypassed else max(0.0, lasting)
    shared = compared.idle is not None and compared.idle.how != "quiet"
    residual, surplus = _residual(crossed, extra, bypassed=compared.bypassed)
    return ByteComparison(
        basis="rate" if rate else "bytes",
        counter_bytes=float(net.sum()),
        expected_bytes=expected,
        residual_ratio=residual,
        below_ratio=math.hypot(below, idle_above, beside * OVERHEAD_MORE_RATIO)
        + overhead.layer_low_ratio * shrinks
        + lasting
        + surplus,
        above_ratio=math.hypot(above, idle_below, beside * OVERHEAD_LESS_RATIO) + layer,
        extra_ratio=surplus,
        between_ratio=math.hypot(
            unsure,
            overhead.between_ratio,
            0.0 if shared else max(idle_below, idle_above),
            beside * OVERHEAD_MORE_RATIO,
        ),
        unrecorded_ratio=missing,
    )


def _residual(crossed: float, extra: ExtraBytes, *, bypassed: bool) -> tuple[float, float]:
    """Return the residual, and how far extra bytes can move its lower end down.

    If extra bytes can explain a surplus, it is not part of the residual. A deficit is computed with
    the lowest number of bytes that the counter may include, and its lower end with the highest
    number.
    """
    most = (1 + extra.high_ratio) / (1 + extra.low_ratio)
    if bypassed:
        return crossed, crossed - crossed / most
    residual = crossed - min(max(crossed, 1.0), most)
    return residual, residual - (crossed / most - 1)


def _noise(net: Floats, share: BurstShare, scatter_ratio: float, *, rate: bool) -> float:
    """Return the relative half width of the 95 % interval for a sum of bins.

    It is estimated from the scatter between bursts or between bins. If both are unknown, a value
    will be assumed.
    """
    if not (rate or math.isnan(scatter_ratio)):
        return scatter_ratio
    parts = share.full if rate else share.parts
    noise = _bins_noise(net, parts.fleet, parts.width, trades=not rate)
    return NOISE_ASSUMED_RATIO / math.sqrt(max(1, share.bins_count)) if math.isnan(noise) else noise
