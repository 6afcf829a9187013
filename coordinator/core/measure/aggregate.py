"""Rates and other values for the fleet, pairs and flows in an aligned burst."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats, Singles
from broadside.coordinator.core.measure.completeness import PAIR_FLOOR_RATIO, PairGrade
from broadside.coordinator.core.measure.formulas.certainty import (
    SKIP_S,
    ConfidenceSequence,
    batch_means,
    sequence_at_end,
)
from broadside.coordinator.core.measure.formulas.headers import Headers
from broadside.coordinator.core.measure.formulas.phases import Sustain, sustain_of
from broadside.coordinator.core.measure.formulas.quantiles import (
    column_quantiles,
    jain,
    quantiles,
)
from broadside.coordinator.core.measure.formulas.steady import cliff, ramp_s, slowest_stretch
from broadside.coordinator.core.measure.grid.align import CELL_FULL_RATIO, Aligned
from broadside.coordinator.core.measure.grid.grid_rows import FlowSeconds, HostSeconds
from broadside.coordinator.core.measure.grid.series import BurstSeries, FlowSeries
from broadside.coordinator.core.measure.latency import buffer_delay
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.measure.resolution import (
    TimeScale,
    half_width,
    slowest_part,
    time_scale,
)
from broadside.coordinator.core.run_spec import Burst, RunSpec
from broadside.coordinator.core.summary import (
    ByteSource,
    CliffSummary,
    FlowSummary,
    HostSummary,
    PairSummary,
    SecondState,
    Window,
    figure,
    instant,
)
from broadside.exchange.engines import pauses
from broadside.exchange.messages import Flow, FlowTotals, JobReport, ServerTest, pair_name

# Seconds. RFC 9411 recommends a sustain phase that is at least as long.
SUSTAIN_S: Final = 300
_STARTS_AT_ONCE: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """Result of ``aggregate`` for one burst.

    Attributes:
        window: Common window without the ramp, or ``None`` if the pairs share no second.
        flows: Summary per flow.
        pairs: Summary per pair.
        client: Summary for client hosts.
        server: Summary for server hosts.
        cliff: A fall in the rate that lasts to the end, if any.
        series: Values per second.
        received_half_width_bits_per_second: Half the 95 % interval of the fleet's rate. If its rate
            was certain and the burst was stopped, the interval includes the confidence sequence.
        sequence: Confidence sequence in bit/s for such a burst, otherwise None.
        worst_bits_per_second: Smallest mean for any possible window, see ``_worst``.
        peak_pair_bits_per_second: Largest rate for any pair in a single second.
    """

    window: Window | None
    flows: tuple[FlowSummary, ...]
    pairs: tuple[PairSummary, ...]
    client: HostSummary
    server: HostSummary
    cliff: CliffSummary | None
    series: BurstSeries
    received_half_width_bits_per_second: float | None
    sequence: ConfidenceSequence | None
    worst_bits_per_second: float | None
    peak_pair_bits_per_second: float | None


def sustain_cells(
    aligned: Aligned, burst: Burst, common: tuple[int, int] | None, sustain: Sustain | None
) -> tuple[int, int] | None:
    """Return the cells of a window that are in the sustain phase.

    Args:
        aligned: Burst on the grid.
        burst: Planned burst.
        common: Cells that all pairs share. None if there are none.
        sustain: The sustain phase. None if the load has no ramps.

    Returns:
        First cell and the cell after the last one. None if no cell is in the phase.
    """
    if common is None or sustain is None:
        return common
    start_s = burst.planned_start_at.timestamp() - aligned.grid.start_s
    first = max(common[0], math.ceil(start_s + sustain.from_s))
    stop = min(common[1], math.floor(start_s + sustain.to_s))
    return (first, stop) if stop > first else None


def common_window(aligned: Aligned, rows: Sequence[int], burst: Burst) -> tuple[int, int] | None:
    """Return the cells that all pairs share, without the omitted warm-up.

    The window starts when the last pair has reached its first full cell. It ends when the first
    pair has reached its last full cell. It will always be inside the planned burst. Gaps inside the
    window stay gaps, and their seconds should be treated as unknown, not as zero.

    Args:
        aligned: Burst on the grid.
        rows: Rows for the pairs to use.
        burst: Planned burst.

    Returns:
        First cell and end (exclusive), or ``None`` if the window is empty.
    """
    if not rows:
        return None
    planned_s = burst.planned_start_at.timestamp()
    first = math.ceil(planned_s + burst.omit_s) - aligned.grid.start_s
    stop = math.floor(burst.planned_end_at.timestamp()) - aligned.grid.start_s
    for flow in aligned.flows:
        full = flow.coverage[list(rows)] >= CELL_FULL_RATIO
        if not full.any(axis=1).all():
            return None
        first = max(first, int(full.argmax(axis=1).max()))
        stop = min(stop, full.shape[1] - int(full[:, ::-1].argmax(axis=1).max()))
    return (first, stop) if stop > first else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """Data and window of a burst, from which its values are computed.

    Attributes:
        span: Cells of the window, or None if there is no window.
        bound_s: Mean clock error bound of the pairs, in seconds.
    """

    aligned: Aligned
    grades: Sequence[PairGrade]
    headers: Headers
    span: slice | None
    scale: TimeScale
    bound_s: float


def aggregate(
    spec: RunSpec,
    burst: Burst,
    aligned: Aligned,
    grades: Sequence[PairGrade],
    headers: Headers,
) -> Aggregate:
    """Compute all values for a burst.

    Args:
        spec: Run specification. Its largest clock error is used for an unknown clock.
        burst: Planned burst.
        aligned: Burst on the grid.
        grades: Grades in the same order as ``aligned.pairs``.
        headers: Header overhead to use.

    Returns:
        Rates of the flows, results of the pairs in their order, and the load of the hosts.
    """
    measured = [row for row, grade in enumerate(grades) if grade.measured]
    seen = [row for row, grade in enumerate(grades) if grade.start_error_s is not None]
    common = common_window(aligned, measured or seen, burst)
    if all(flow.means_only for flow in aligned.flows):
        # When there are no seconds, a late pair only has a mean, and we cannot get its value for a
        # part of the time. So the window should only contain time that late pairs share too.
        common = common_window(aligned, seen, burst) or common
    # Ramps are outside the window, and no fault of a pair.
    sustain, shared = sustain_of(spec.traffic, spec.burst_s, burst.duration_s), common
    common = sustain_cells(aligned, burst, common, sustain)
    filled = [
        flow.received_bytes if common is None else _filled(flow, grades, slice(*common))
        for flow in aligned.flows
    ]
    fleet = np.sum([cells.sum(axis=0) for cells in filled], axis=0)
    span: slice | None = None
    window = None
    scale = TimeScale()
    if common is not None:
        # The ramps of the load are known, so none has to be found.
        cut = ramp_s(fleet[common[0] : common[1]]) if sustain is None else 0
        span = slice(common[0] + cut, common[1])
        planned_s = math.floor(burst.planned_start_at.timestamp())
        offset = aligned.grid.start_s + span.start - planned_s
        scale = time_scale(aligned.flows, span, offset)
        slowest = slowest_part(aligned, filled, span, scale, headers.wire_ratio)
        window = Window(
            start_at=instant(aligned.grid.start_s + span.start),
            end_at=instant(aligned.grid.start_s + span.stop),
            window_s=span.stop - span.start,
            common_s=common[1] - common[0],
            ramp_s=cut,
            covered_ratio=figure(_covered(aligned, measured or seen, span)) or 0.0,
            **_most_outside(aligned, measured or seen, shared or common),
            short=span.stop - span.start < SUSTAIN_S,
            ramp_bits_per_second=(
                figure(float(fleet[common[0] : span.start].mean()) * 8) if cut else None
            ),
            slowest_bits_per_second=None if slowest is None else figure(slowest.mean * 8),
            slowest_noise_bits_per_second=None if slowest is None else figure(slowest.noise * 8),
            slowest_from_s=None if slowest is None else slowest.at,
            slowest_s=None if slowest is None else slowest.length_s,
            slowest_proven_bits_per_second=(
                None if slowest is None else _slowest_proven(aligned, fleet, span)
            ),
            reading_s=None if scale.has_seconds else figure(round(scale.receivers_s, 1)),
        )
    bounds = np.nan_to_num(aligned.clock_bound_s[measured or seen], nan=spec.clock_bound_max_s)
    scope = _Scope(
        aligned=aligned,
        grades=grades,
        headers=headers,
        span=span,
        scale=scale,
        bound_s=float(bounds.mean()) if len(bounds) else spec.clock_bound_max_s,
    )
    flows = tuple(
        _flow(flow, cells, scope) for flow, cells in zip(aligned.flows, filled, strict=True)
    )
    pairs = _pairs(scope, filled, shared)
    half, sequence = _half_width(scope, filled, flows), None
    if burst.is_certain:
        sequence = _sequence(burst, aligned.grid.start_s, fleet * 8, common, scale)
        half = _with_sequence(half, flows, sequence)
    return Aggregate(
        window=window,
        flows=flows,
        pairs=pairs,
        client=_hosts(aligned.client, [pair.client_nic_ratio for pair in pairs], span),
        server=_hosts(aligned.server, [pair.server_nic_ratio for pair in pairs], span),
        # If readings are spread over seconds, we cannot use them to see when a fall happened. If
        # connections are held, each one has less payload after it was set up.
        cliff=None
        if span is None or not scale.has_seconds or pauses(spec.traffic)
        else _cliff(aligned, filled, measured, span),
        series=series_of(burst, aligned, span, sustain),
        received_half_width_bits_per_second=half,
        sequence=sequence,
        worst_bits_per_second=_worst(burst, aligned, spec.late_after_s, sustain),
        peak_pair_bits_per_second=figure(
            float(sum(flow.received_bytes.max(initial=0.0) for flow in aligned.flows)) * 8
        ),
    )


def _sequence(
    burst: Burst,
    grid_start_s: int,
    fleet: Floats,
    common: tuple[int, int] | None,
    scale: TimeScale,
) -> ConfidenceSequence | None:
    """Return the confidence sequence for the fleet's rate at the end of a burst.

    It starts at the planned start, and not at the end of the ramp, because the ramp is found from
    the values.

    Args:
        burst: Planned burst.
        grid_start_s: Epoch second of the first cell.
        fleet: Received bits per cell.
        common: Cells that all pairs share, or None.
        scale: Time resolution of the seconds.
    """
    first = math.ceil(burst.planned_start_at.timestamp() + burst.omit_s) - grid_start_s
    if common is None or common[0] > first + SKIP_S or not scale.has_seconds:
        return None
    return sequence_at_end(batch_means(fleet[first : common[1]]))


def _with_sequence(
    half: float | None, flows: Sequence[FlowSummary], sequence: ConfidenceSequence | None
) -> float | None:
    """Return a half width that includes the confidence sequence, or None if it is unknown."""
    rates = [flow.received_bits_per_second for flow in flows]
    if half is None or sequence is None or None in rates:
        return None
    rate = sum(rate for rate in rates if rate is not None)
    return figure(max(half, rate - sequence.low, sequence.high - rate))


def _filled(flow: FlowSeconds, grades: Sequence[PairGrade], common: slice) -> Floats:
    """Return received bytes, using a pair's mean in the window to fill its gaps.

    In a gap, the bytes are not known. But they cannot be zero, because the pair was running. Either
    this is known from its report, or there are seconds before and after the gap. Recorded bytes
    will not be changed, and this also applies to the stored series. See ``_worst`` for the value to
    use in a verdict when seconds are missing.
    """
    cover = flow.coverage[:, common]
    gaps = np.flatnonzero((cover < CELL_FULL_RATIO).any(axis=1) & (cover > 0).any(axis=1))
    if not len(gaps):
        return flow.received_bytes
    filled = flow.received_bytes.copy()
    for row in gaps.tolist():
        seen = cover[row].astype(np.float64)
        cells = filled[row, common]
        lacks = np.where(seen < CELL_FULL_RATIO, 1 - seen, 0.0)
        if not grades[row].ran:
            known = np.flatnonzero(seen)
            lacks[: known[0] + 1] = lacks[known[-1] :] = 0.0
        filled[row, common] = cells + cells.sum() / seen.sum() * lacks
    return filled


def _covered(aligned: Aligned, rows: Sequence[int], span: slice) -> float:
    """Return how much of the pairs' time in a window was recorded, as a ratio."""
    cover = [flow.coverage[list(rows), span].mean(dtype=np.float64) for flow in aligned.flows]
    return min(1.0, float(np.min(cover))) if rows else 0.0


def _sent(flow: FlowSeconds, span: slice, ran: NDArray[np.bool_]) -> float | None:
    """Return the bytes sent in the window.

    If a pair was running, its mean will be used for unknown seconds.
    """
    cells = flow.sent_bytes[:, span]
    known = ~np.isnan(cells)
    if not known.any():
        return None
    # Seconds next to a gap are only partly known.
    complete = known.copy()
    complete[:, 1:] &= known[:, :-1]
    complete[:, :-1] &= known[:, 1:]
    counts = complete.sum(axis=1)
    filled = ran & (counts > 0)
    sums = np.where(np.where(filled[:, None], complete, known), cells, 0.0).sum(axis=1, dtype=float)
    return float((sums * np.where(filled, cells.shape[1] / np.maximum(counts, 1), 1.0)).sum())


def _flow(flow: FlowSeconds, filled: Floats, scope: _Scope) -> FlowSummary:
    aligned, grades, headers, scale = scope.aligned, scope.grades, scope.headers, scope.scale
    span = scope.span
    if span is None:
        return FlowSummary(flow=flow.flow)
    length_s = span.stop - span.start
    bytes_in = filled[:, span]
    bits = bytes_in.sum(axis=0) * 8
    received = float(bits.mean())
    # To see how the load changed, only recorded seconds can be used.
    moving = bytes_in[:, : None if scale.has_seconds else 0]
    seconds = bits[: moving.shape[1]]
    clock_half = received * _clock_ratio(scope.bound_s, length_s)
    pair_bits = bytes_in.sum(axis=1) * 8 / length_s
    on_time = np.array([grade.measured for grade in grades])
    rates = pair_bits[on_time if on_time.any() else flow.coverage[:, span].any(axis=1)]
    late = np.array([grade.state is SecondState.LATE for grade in grades])
    sent_bytes = _known_sum(flow.sent_bytes[:, span])
    sent_total = _sent(flow, span, np.array([grade.ran for grade in grades]))
    sent = None if sent_total is None else sent_total * 8 / length_s
    segments = None if sent_bytes is None else sent_bytes / headers.mss_bytes
    retransmits = _known_sum(flow.retransmits_count[:, span])
    rtt = flow.rtt_s[:, span]
    rtts = rtt[~np.isnan(rtt)].astype(np.float64)
    rtt_mean = float(rtts.mean()) if len(rtts) else None
    samples = rtts[: 0 if flow.means_only else None]
    idle_s = _idle_rtt(aligned.pairs)
    baseline = idle_s or _least_rtt(aligned.pairs, flow.flow, samples)
    lost, packets = flow.lost_count[:, span], flow.packets_count[:, span]
    p5, median, p95 = quantiles(seconds, (0.05, 0.5, 0.95))
    pair_p5, pair_median, pair_p95 = quantiles(rates, (0.05, 0.5, 0.95))
    rtt_median, rtt_p95, rtt_most = quantiles(samples, (0.5, 0.95, 1.0))
    caps = [pair.client_nic_bits_per_second for pair in aligned.pairs]
    return FlowSummary(
        flow=flow.flow,
        received_bits_per_second=figure(received),
        received_half_width_bits_per_second=None
        if flow.means_only
        else figure(math.hypot(half_width([flow], [filled], span, scale), clock_half)),
        ip_bits_per_second=figure(received * headers.ip_ratio),
        sent_bits_per_second=figure(sent),
        sent_pairs_count=_known_rows(flow.sent_bytes[:, span]),
        late_bits_per_second=figure(float(pair_bits[late].sum())) if late.any() else None,
        proven_ratio=_over(float(flow.proven_bytes[span].sum()), float(bytes_in.sum())),
        second_median_bits_per_second=median,
        second_p5_bits_per_second=p5,
        second_p95_bits_per_second=p95,
        second_cov_ratio=figure(_cov(seconds)),
        pair_mean_bits_per_second=figure(float(rates.mean())) if len(rates) else None,
        pair_median_bits_per_second=pair_median,
        pair_p5_bits_per_second=pair_p5,
        pair_p95_bits_per_second=pair_p95,
        pair_cov_ratio=figure(_cov(rates)),
        jain_ratio=figure(jain(rates)),
        share_movement_ratio=figure(_share_movement(moving[on_time])),
        retransmits_count=None if retransmits is None else round(retransmits),
        retransmit_ratio=_over(retransmits, segments),
        mss_bytes=headers.mss_bytes,
        tcp_efficiency_ratio=figure(tcp_efficiency(segments, retransmits)),
        rtt_mean_s=figure(rtt_mean),
        rtt_p50_s=rtt_median,
        rtt_p95_s=rtt_p95,
        rtt_max_s=figure(_most_rtt(aligned.pairs, flow.flow)) if flow.means_only else rtt_most,
        rtt_baseline_s=figure(baseline),
        rtt_baseline_how=None if idle_s is None else "idle",
        rtt_pairs_count=_known_rows(rtt),
        buffer_delay_ratio=figure(buffer_delay(rtt_mean, baseline)),
        transfer_time_ratio=figure(transfer_time_ratio(received, headers.wire_ratio, caps)),
        loss_ratio=_over(_known_sum(lost), _known_sum(packets)),
        loss_pairs_count=_known_rows(lost),
    )


def _clock_ratio(bound_s: float, length_s: int) -> float:
    """Return the relative error for a rate that clock errors cause at both window edges."""
    return min(1.0, 2 * bound_s / length_s)


def _half_width(
    scope: _Scope, filled: Sequence[Floats], summaries: Sequence[FlowSummary]
) -> float | None:
    """Return half the 95 % interval for the fleet's rate in bit/s, or ``None`` if unknown.

    When there are several flows, their seconds will be added first. A pair uses the same clocks for
    all flows, so clock errors need to be added linearly and not in quadrature.
    """
    flows, span = scope.aligned.flows, scope.span
    if len(flows) == 1 or span is None or any(flow.means_only for flow in flows):
        return summaries[0].received_half_width_bits_per_second if len(flows) == 1 else None
    rates = [summary.received_bits_per_second or 0.0 for summary in summaries]
    clock_half = sum(rates) * _clock_ratio(scope.bound_s, span.stop - span.start)
    return figure(math.hypot(half_width(flows, filled, span, scope.scale), clock_half))


def _known_sum(cells: NDArray[np.floating]) -> float | None:
    """Add up the known cells, or return ``None`` if there are none."""
    return None if np.isnan(cells).all() else float(np.nansum(cells, dtype=np.float64))


def _known_rows(cells: NDArray[np.floating]) -> int:
    return int((~np.isnan(cells)).any(axis=1).sum())


def _over(part: float | None, complete: float | None) -> float | None:
    return None if part is None or not complete else figure(part / complete)


def _cov(values: Floats) -> float:
    """Return the coefficient of variation (sample standard deviation / mean).

    The result is NaN if there are fewer than two values or when there is no traffic.
    """
    if len(values) < 2 or values.mean() <= 0:
        return math.nan
    return float(values.std(ddof=1) / values.mean())


def tcp_efficiency(segments: float | None, retransmits: float | None) -> float | None:
    """Return (transmitted - retransmitted bytes) / transmitted bytes (RFC 6349, section 4.2).

    Args:
        segments: Segments with new payload, not including retransmissions. None if unknown.
        retransmits: Retransmitted segments. None if unknown.

    Returns:
        The ratio, or ``None`` if an argument is unknown.
    """
    if not segments or retransmits is None:
        return None
    return segments / (segments + retransmits)


def transfer_time_ratio(
    received_bits_per_second: float, wire_ratio: float, caps: Sequence[float | None]
) -> float | None:
    """Return actual / ideal TCP transfer time (RFC 6349, section 4.1).

    To get the ideal time, the clients' NIC limits are used, and the same headers are assumed.

    Args:
        received_bits_per_second: Measured rate of payload.
        wire_ratio: Ethernet frame bytes divided by payload.
        caps: NIC limits for all clients in bit/s. Use ``None`` when a limit is not known.

    Returns:
        The ratio, or ``None`` if a limit is unknown.
    """
    known = [cap for cap in caps if cap]
    if not known or len(known) < len(caps) or received_bits_per_second <= 0:
        return None
    return sum(known) / wire_ratio / received_bits_per_second


def _share_movement(bytes_in: Floats) -> float:
    """Return the variance of the sum divided by the sum of the variances.

    It will be 1 when pairs are independent. It will be near 0 when a pair gets the rate that
    another one loses. This can be caused by a device that limits the total.
    """
    if len(bytes_in) < 2 or bytes_in.shape[1] < 4:
        return math.nan
    single = float(bytes_in.var(axis=1, ddof=1).sum())
    return float(bytes_in.sum(axis=0).var(ddof=1)) / single if single > 0 else math.nan


def _idle_rtt(pairs: Sequence[PairEvidence]) -> float | None:
    """Return the mean idle RTT in seconds.

    The result is ``None`` when a pair with a report has no idle RTT.
    """
    reports = [pair.report for pair in pairs if pair.report is not None]
    known = [report.idle_rtt.least_s for report in reports if report.idle_rtt is not None]
    return sum(known) / len(known) if known and len(known) == len(reports) else None


def _least_rtt(pairs: Sequence[PairEvidence], flow: Flow, rtt_s: Floats) -> float | None:
    """Return the smallest RTT in the engine's totals or seconds, in seconds."""
    reported = [totals.rtt_min_s for totals in _totals(pairs, flow) if totals.rtt_min_s]
    if len(rtt_s):
        reported.append(float(rtt_s.min()))
    return min(reported, default=None)


def _most_rtt(pairs: Sequence[PairEvidence], flow: Flow) -> float | None:
    """Return the largest RTT in the engine's totals, in seconds."""
    return max((t.rtt_max_s for t in _totals(pairs, flow) if t.rtt_max_s), default=None)


def _totals(pairs: Sequence[PairEvidence], flow: Flow) -> Iterator[FlowTotals]:
    for pair in pairs:
        for engine in pair.engines:
            yield from (totals for totals in engine.totals if totals.flow is flow)


def _means(cells: Singles, axis: int) -> Floats:
    """Average known cells along an axis, with NaN if there are none."""
    known = ~np.isnan(cells)
    counts = known.sum(axis=axis)
    sums = np.where(known, cells, 0.0).sum(axis=axis, dtype=np.float64)
    means = np.full(len(sums), np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def _row_means(cells: Singles, span: slice) -> Floats:
    """Average the known cells in each row of the window."""
    return _means(cells[:, span], 1)


def _sums(cells: NDArray[np.floating], axis: int) -> Floats:
    """Add up known cells along an axis, with NaN if there are none."""
    sums = np.nansum(cells, axis=axis, dtype=np.float64)
    return np.where(np.isnan(cells).all(axis=axis), np.nan, sums)


def _pairs(
    scope: _Scope, filled: Sequence[Floats], common: tuple[int, int] | None
) -> tuple[PairSummary, ...]:
    aligned, figures = scope.aligned, {}
    if scope.span is not None and common is not None:
        figures = _pair_figures(
            aligned, filled, scope.headers, scope.span, has_seconds=scope.scale.has_seconds
        )
        figures |= _outside_ratio(aligned, common)
    summaries = []
    for row, (pair, grade) in enumerate(zip(aligned.pairs, scope.grades, strict=True)):
        test, claim, report = pair.server_test, pair.claim, pair.report
        offset = pair.ends_offset
        summaries.append(
            PairSummary(
                pair=pair.name or pair_name(pair.pair_index),
                pair_index=pair.pair_index,
                client_agent_id=report.agent_id if report else claim.agent_id if claim else None,
                server_agent_id=test.agent_id if test else None,
                state=grade.state,
                reason=grade.reason,
                completeness_ratio=grade.completeness.completeness_ratio,
                start_error_s=figure(grade.start_error_s),
                clock_bound_s=figure(float(aligned.clock_bound_s[row])),
                basis=max((flow.basis[row] for flow in aligned.flows), key=list(ByteSource).index),
                joined_by=pair.joined_by,
                ends_offset_s=None if offset is None else figure(offset.offset_s),
                ends_offset_bound_s=None if offset is None else figure(offset.bound_s),
                client_vm_size=pair.client_vm_size,
                server_vm_size=pair.server_vm_size,
                rtt_idle_s=figure(report.idle_rtt.least_s) if report and report.idle_rtt else None,
                client_egress_queued_ratio=_egress_queued(report),
                server_egress_queued_ratio=_egress_queued(test),
                **{name: figure(float(values[row])) for name, values in figures.items()},
            )
        )
    return tuple(summaries)


def _egress_queued(end: JobReport | ServerTest | None) -> float | None:
    return None if end is None or end.engine is None else figure(end.engine.egress_queued_ratio)


def _pair_figures(
    aligned: Aligned, filled: Sequence[Floats], headers: Headers, span: slice, *, has_seconds: bool
) -> dict[str, Floats]:
    """Return all pair values in the window by field name, see ``PairSummary``.

    To get a host's egress, its counter and its payload in frames are compared, and the larger value
    is used. A counter above segmentation offload does not include all segment headers.
    """
    length_s = span.stop - span.start
    unknown = np.full(len(aligned.pairs), np.nan)
    seen = np.any([flow.coverage[:, span].any(axis=1) for flow in aligned.flows], axis=0)
    per_second = np.sum([cells[:, span] for cells in filled], axis=0)
    received = np.where(seen, per_second.sum(axis=1) * 8 / length_s, np.nan)
    total = float(np.nansum(received))
    cov = unknown.copy()
    if length_s > 1 and has_seconds:
        means = per_second.mean(axis=1)
        np.divide(per_second.std(axis=1, ddof=1), means, out=cov, where=means > 0)
    lead = aligned.flows[0]
    lowest = np.where(np.isnan(lead.rtt_s[:, span]), np.inf, lead.rtt_s[:, span]).min(axis=1)
    if lead.means_only:
        none = unknown[:0]
        reported = [_least_rtt([pair], lead.flow, none) for pair in aligned.pairs]
        lowest = np.array(reported, dtype=np.float64)
    sent = _row_sums([flow.sent_bytes for flow in aligned.flows], span)
    retransmits = _row_sums([flow.retransmits_count for flow in aligned.flows], span)
    figures = {
        "received_bits_per_second": received,
        "sent_bits_per_second": sent * 8 / length_s,
        "share_ratio": received / total if total > 0 else unknown,
        "cov_ratio": cov,
        "retransmits_count": np.rint(retransmits),
        "rtt_mean_s": _row_means(lead.rtt_s, span),
        # Infinity is used when it is not known.
        "rtt_min_s": lowest,
        "cwnd_bytes": _row_means(lead.cwnd_bytes, span),
    }
    for side, host, caps, current in (
        ("client", aligned.client, [p.client_nic_bits_per_second for p in aligned.pairs], Flow.UP),
        (
            "server",
            aligned.server,
            [p.server_nic_bits_per_second for p in aligned.pairs],
            Flow.DOWN,
        ),
    ):
        cap = np.array([known or math.nan for known in caps])
        figures[f"{side}_cpu_ratio"] = _row_means(host.cpu_busy_ratio, span)
        figures[f"{side}_core_ratio"] = _row_means(host.cpu_busiest_core_ratio, span)
        framed = unknown.copy()
        for flow in aligned.flows:
            if flow.flow is current:
                payload = flow.received_bytes[:, span].sum(axis=1, dtype=np.float64) / length_s
                framed = np.where(flow.coverage[:, span].any(axis=1), payload, np.nan)
        egress = np.fmax(_row_means(host.nic_tx_bytes, span), framed * headers.wire_ratio)
        figures[f"{side}_nic_ratio"] = egress * 8 / cap
    return figures


def _row_sums(matrices: Sequence[NDArray[np.floating]], span: slice) -> Floats:
    """Add up the known cells in each row of the window, with NaN if there are none."""
    return _sums(np.concatenate([matrix[:, span] for matrix in matrices], axis=1), 1)


def _hosts(
    host: HostSeconds, nic_ratios: Sequence[float | None], span: slice | None
) -> HostSummary:
    if span is None:
        return HostSummary()
    cpu = _row_means(host.cpu_busy_ratio, span)
    known = cpu[~np.isnan(cpu)]
    fullest = figure(max((ratio for ratio in nic_ratios if ratio is not None), default=None))
    if not len(known):
        return HostSummary(nic_max_ratio=fullest)
    return HostSummary(
        cpu_mean_ratio=figure(float(known.mean())),
        cpu_max_ratio=figure(float(known.max())),
        core_max_ratio=figure(float(np.nanmax(_row_means(host.cpu_busiest_core_ratio, span)))),
        nic_max_ratio=fullest,
        drops_count=round(float(np.nansum(host.drops_count))),
        hosts_count=len(known),
    )


def _cliff(
    aligned: Aligned, filled: Sequence[Floats], measured: Sequence[int], span: slice
) -> CliffSummary | None:
    """Return a lasting fall, using only pairs that ran to the end.

    A pair that stopped should not be reported as a fall.
    """
    rows = list(measured)
    results = cliff(np.sum([cells[rows, span].sum(axis=0) for cells in filled], axis=0))
    if results is None:
        return None
    return CliffSummary(
        at=instant(aligned.grid.start_s + span.start + results.at),
        before_bits_per_second=figure(results.before * 8) or 0.0,
        after_bits_per_second=figure(results.after * 8) or 0.0,
    )


def _slowest_proven(aligned: Aligned, fleet: Floats, span: slice) -> float | None:
    """Return the slowest part's rate in bit/s, using only receivers' seconds.

    The result is ``None`` if all of the fleet's seconds are from receivers.
    """
    proven = np.sum([flow.proven_bytes for flow in aligned.flows], axis=0)[span]
    if np.allclose(proven, fleet[span]):
        return None
    slowest = slowest_stretch(proven)
    return None if slowest is None else figure(slowest.mean * 8)


def _worst(
    burst: Burst, aligned: Aligned, late_after_s: float, sustain: Sustain | None = None
) -> float | None:
    """Return the smallest mean from receivers' seconds for any possible common window.

    The common window may be different if other pairs are recorded. So this value is for all windows
    that could have been used. When new rows are added, it can only increase. So if it is used for a
    pass, the pass cannot be caused by missing rows. A common window will start no later than half
    the burst (ramp rule) plus the start tolerance. It will not end before the time at which a
    measured pair may end.
    """
    proven = np.sum([flow.proven_bytes for flow in aligned.flows], axis=0)
    first = math.ceil(burst.planned_start_at.timestamp() + burst.omit_s) - aligned.grid.start_s
    stop = math.floor(burst.planned_end_at.timestamp()) - aligned.grid.start_s
    first, stop = sustain_cells(aligned, burst, (first, stop), sustain) or (first, first)
    planned = proven[max(0, first) : stop]
    count = len(planned)
    latest_start = math.ceil(count / 2 + late_after_s) + 1
    earliest_stop = max(latest_start + 1, math.floor(PAIR_FLOOR_RATIO * count - late_after_s) - 1)
    if count < 2 or earliest_stop > count:
        return None
    if not planned.any():
        return 0.0
    sums = np.concatenate(([0.0], np.cumsum(planned)))
    starts = np.arange(latest_start + 1)[:, None]
    stops = np.arange(earliest_stop, count + 1)
    # A burst may run for a day and have half a billion windows. So only some starts are computed at
    # a time.
    least = min(
        float(((sums[stops] - sums[some]) / (stops - some)).min())
        for some in np.split(starts, range(_STARTS_AT_ONCE, len(starts), _STARTS_AT_ONCE))
    )
    return figure(least * 8)


def series_of(
    burst: Burst, aligned: Aligned, span: slice | None = None, sustain: Sustain | None = None
) -> BurstSeries:
    """Return the series for a burst, with a value per second.

    Args:
        burst: Planned burst.
        aligned: Burst on the grid.
        span: Window used for the reported rate, or ``None`` if there is no window.
        sustain: The sustain phase, or ``None`` if the load has no ramps.
    """
    covered = np.min([flow.coverage for flow in aligned.flows], axis=0)
    return BurstSeries(
        burst_index=burst.index,
        start_s=aligned.grid.start_s,
        planned_start_s=burst.planned_start_at.timestamp(),
        duration_s=burst.duration_s,
        omit_s=burst.omit_s,
        window=None if span is None else (span.start, span.stop),
        coverage_ratio=covered.mean(axis=0, dtype=np.float64),
        client_cpu_ratio=_means(aligned.client.cpu_busy_ratio, 0),
        server_cpu_ratio=_means(aligned.server.cpu_busy_ratio, 0),
        flows=tuple(_flow_series(flow) for flow in aligned.flows),
        events=aligned.events,
        sustain=None if sustain is None else (sustain.from_s, sustain.to_s),
    )


def _flow_series(flow: FlowSeconds) -> FlowSeries:
    rates = (flow.received_bytes * 8).astype(np.float32)
    rates[flow.coverage <= 0] = np.nan
    # The bytes are spread evenly, so you will not get the real rate for a second.
    if flow.means_only:
        rates = rates[:0]
    p5, p50, p95 = column_quantiles(rates, (0.05, 0.5, 0.95))
    return FlowSeries(
        flow=flow.flow,
        received_bytes=flow.received_bytes.sum(axis=0),
        sent_bytes=_sums(flow.sent_bytes, 0),
        proven_bytes=flow.proven_bytes,
        pair_p5_bits_per_second=p5,
        pair_p50_bits_per_second=p50,
        pair_p95_bits_per_second=p95,
        retransmits_count=_sums(flow.retransmits_count, 0),
        rtt_mean_s=_means(flow.rtt_s[: 0 if flow.means_only else None], 0),
        pairs_bits_per_second=rates,
    )


def _outside_s(aligned: Aligned, common: tuple[int, int]) -> Floats:
    """Return how many recorded seconds are outside the window, per pair.

    Args:
        aligned: The aligned burst.
        common: The window's cells, [from, before).
    """
    span = slice(*common)
    recorded = [flow.engine_coverage.sum(axis=1, dtype=np.float64) for flow in aligned.flows]
    inside = [flow.coverage[:, span].sum(axis=1, dtype=np.float64) for flow in aligned.flows]
    return np.asarray(np.maximum(0.0, np.max(np.subtract(recorded, inside), axis=0)))


def _outside_ratio(aligned: Aligned, common: tuple[int, int]) -> dict[str, Floats]:
    """Return the share of recorded seconds outside the window, by field name.

    Args:
        aligned: The aligned burst.
        common: The window's cells, [from, before).

    Returns:
        An array with a value per pair. It is NaN if the pair has no seconds.
    """
    recorded = np.max([flow.engine_coverage.sum(axis=1) for flow in aligned.flows], axis=0)
    share = np.full(len(recorded), np.nan)
    if not all(flow.means_only for flow in aligned.flows):
        np.divide(_outside_s(aligned, common), recorded, out=share, where=recorded > 0)
    return {"outside_ratio": share}


def _most_outside(aligned: Aligned, rows: Sequence[int], common: tuple[int, int]) -> dict[str, Any]:
    """Return summary fields for the pair that has the most seconds outside the window.

    If there are only means, the result is empty. Such a mean is for the whole test and does not
    depend on the window.

    Args:
        aligned: The aligned burst.
        rows: Rows for the pairs to compare.
        common: The window's cells, [from, before).
    """
    if not rows or all(flow.means_only for flow in aligned.flows):
        return {}
    lost = _outside_s(aligned, common)
    worst = max(rows, key=lambda row: lost[row])
    pair = aligned.pairs[worst]
    if (most_s := round(float(lost[worst]))) == 0:
        return {}
    return {"outside_s": most_s, "outside_pair": pair.name or pair_name(pair.pair_index)}
