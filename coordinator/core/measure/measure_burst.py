"""Computation of a burst summary from its records.

There is no device counter, bottleneck or verdict yet. We only need the agents' records, so this can
run as soon as a burst is over. Then all you need to compute a verdict is this result (values and
packed series) and the device counter. So a long run will never have more than a single burst's rows
in memory.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import numpy as np

from broadside.coordinator.core.judge.documented_limits import DOCUMENTED
from broadside.coordinator.core.live.status import due_at
from broadside.coordinator.core.measure.acknowledgements import Acknowledgements
from broadside.coordinator.core.measure.aggregate import Aggregate, aggregate
from broadside.coordinator.core.measure.align import Alignment
from broadside.coordinator.core.measure.asked import find_differences
from broadside.coordinator.core.measure.completeness import (
    PairGrade,
    combine,
    find_unsteady,
    grade,
    read_ratio,
    unread_s,
)
from broadside.coordinator.core.measure.cross_examination import CrossExamination
from broadside.coordinator.core.measure.disruptions import find_disruptions
from broadside.coordinator.core.measure.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.measure.headers import Headers, headers
from broadside.coordinator.core.measure.latency import find_latency
from broadside.coordinator.core.measure.measures import cpu_cost, measure_pairs, taken_cpu
from broadside.coordinator.core.measure.outages import outages
from broadside.coordinator.core.measure.series import MeasuredBurst
from broadside.coordinator.core.measure.silent_streams import find_silent_streams
from broadside.coordinator.core.measure.unsteady_clocks import clock_troubles
from broadside.coordinator.core.plan.endurance import silent_controls_count
from broadside.coordinator.core.plan.spec import RunSpec
from broadside.coordinator.core.summary import BurstSummary, State, figure
from broadside.exchange.engines import scaled
from broadside.exchange.messages import Side

# How many foreign rows to list in the summary.
FOREIGN_ROWS_MAX_COUNT: Final = 20


def measure_burst(spec: RunSpec, evidence: BurstEvidence, now: datetime) -> MeasuredBurst:
    """Align, grade and aggregate a burst's records.

    Args:
        spec: Run specification.
        evidence: The burst's evidence.
        now: Current time. It is used to see if more reports can be expected.
    """
    burst = evidence.burst
    evidence = _with_caps(evidence, spec.scale)
    sent = scaled(spec.traffic, spec.scale)
    overhead = _headers(spec, evidence.in_order)
    alignment = Alignment(evidence, spec.traffic.direction)
    examination = CrossExamination(sent, overhead, spec.clock_bound_max_s)
    acknowledged = Acknowledgements(burst, spec.traffic.protocol, spec.traffic.direction)
    for block in evidence.blocks():
        acknowledged.add(block)
        alignment.add(block)
        examination.add(block)
    aligned = alignment.done()
    grades = grade(evidence, aligned, spec.late_after_s, now)
    figures = aggregate(
        burst,
        aligned,
        grades,
        overhead,
        late_after_s=spec.late_after_s,
        clock_bound_max_s=spec.clock_bound_max_s,
    )
    completeness = combine(grade.completeness for grade in grades)
    broken = None
    if not all(flow.means_only for flow in aligned.flows):
        broken = find_disruptions(spec, burst, aligned, grades, over=now >= due_at(burst))
    latency, by_pair = find_latency(
        burst, {pair.pair_index: pair.probes for pair in aligned.pairs if pair.probes is not None}
    )
    # If a clock moved during the burst, we do not know its error at the start.
    held = [
        grade
        for pair, grade in zip(aligned.pairs, grades, strict=True)
        if not any(clock_troubles(pair, spec.clock_bound_max_s))
    ]
    spread, largest, p99 = _start_errors(held if evidence.start_known else ())
    bounds = aligned.clock_bound_s[~np.isnan(aligned.clock_bound_s)]
    received = _sum([flow.received_bits_per_second for flow in figures.flows])
    summary = BurstSummary(
        index=burst.index,
        planned_start_at=burst.planned_start_at,
        planned_end_at=burst.planned_end_at,
        duration_s=burst.duration_s,
        pairs_planned=len(grades),
        pairs_measured=sum(grade.measured for grade in grades),
        completeness_ratio=completeness.completeness_ratio,
        completeness=completeness,
        proven_ratio=figure(_proven(grades)) or 0.0,
        null_pairs=_named(figures, State.NULL),
        late_pairs=_named(figures, State.LATE),
        missing_pairs=_named(figures, State.MISSED, State.REFUSED, State.ABANDONED, State.LOST),
        window=figures.window,
        fleet_received_bits_per_second=received,
        fleet_received_half_width_bits_per_second=figures.received_half_width_bits_per_second,
        fleet_sent_bits_per_second=_sum([flow.sent_bits_per_second for flow in figures.flows]),
        fleet_ip_bits_per_second=_sum([flow.ip_bits_per_second for flow in figures.flows]),
        header_ratio=figure(overhead.ip_ratio) or 1.0,
        header_how=overhead.how,
        wire_ratio=figure(overhead.wire_ratio) or 1.0,
        headers_assumed=overhead.assumed,
        acknowledged_ratio=figure(acknowledged.done(overhead)),
        start_spread_s=figure(spread),
        start_error_max_s=figure(largest),
        start_error_p99_s=figure(p99),
        clock_bound_max_s=figure(float(bounds.max())) if len(bounds) else None,
        worst_bits_per_second=figures.worst_bits_per_second,
        peak_pair_bits_per_second=figures.peak_pair_bits_per_second,
        flows=figures.flows,
        client=figures.client,
        server=figures.server,
        cliff=figures.cliff,
        availability=broken.availability if broken else None,
        disruptions=broken.disruptions if broken else (),
        disruptions_count=broken.disruptions_count if broken else 0,
        silent_streams=find_silent_streams(aligned),
        silent_controls_count=silent_controls_count(
            spec, burst, [pair.report for pair in aligned.pairs if pair.report is not None]
        ),
        outages=outages(evidence),
        late_reports_count=sum(
            pair.report is not None and pair.report.delivered_at is not None
            for pair in evidence.pairs
        ),
        measures=measure_pairs(aligned),
        differences=find_differences(sent, evidence.burst.duration_s, aligned),
        contradictions=examination.done(),
        strays=evidence.strays,
        foreign_rows=evidence.foreign_rows[:FOREIGN_ROWS_MAX_COUNT],
        foreign_rows_count=len(evidence.foreign_rows),
        unsteady_clocks=find_unsteady(aligned, grades, spec.clock_bound_max_s),
        clocks_read_ratio=figure(read_ratio(aligned, grades)),
        clocks_unread_s=unread_s(aligned, grades, spec.clock_bound_max_s),
        client_cpu=cpu_cost(aligned, Side.CLIENT),
        server_cpu=cpu_cost(aligned, Side.SERVER),
        taken_cpu=taken_cpu(aligned),
        latency=latency,
        pairs=tuple(
            pair.model_copy(
                update={
                    "latency": by_pair.get(pair.pair_index),
                    # If the start was computed from recorded starts, there is no planned time to
                    # compare to.
                    "start_error_s": pair.start_error_s
                    if evidence.start_known or pair.state is State.LATE
                    else None,
                }
            )
            for pair in figures.pairs
        ),
    )
    return MeasuredBurst(summary=summary, series=figures.series)


def _headers(spec: RunSpec, pairs: Sequence[PairEvidence]) -> Headers:
    reports = [pair.report for pair in pairs if pair.report is not None]
    tests = [pair.server_test for pair in pairs if pair.server_test is not None]
    engines = [report.engine for report in reports if report.engine is not None]
    return headers(
        spec.traffic.protocol,
        [engine.mss_bytes for engine in engines] or [test.engine.mss_bytes for test in tests],
        asked_mss_bytes=spec.traffic.mss_bytes,
        mtu_bytes=min((p.nic_mtu_bytes for p in pairs if p.nic_mtu_bytes), default=None),
        block_bytes=spec.traffic.block_bytes
        or next((engine.block_bytes for engine in engines if engine.block_bytes), None),
        ipv6=any(":" in test.endpoint.address for test in tests),
        vxlan=spec.traffic.encapsulation is not None,
    )


def _start_errors(
    grades: Sequence[PairGrade],
) -> tuple[float | None, float | None, float | None]:
    """Return spread, maximum and 99th percentile (nearest rank) for start errors in seconds.

    Only pairs on time are used. If there are none, all values are ``None``.
    """
    errors = sorted(
        grade.start_error_s
        for grade in grades
        if grade.start_error_s is not None and not grade.completeness.late_s
    )
    if not errors:
        return None, None, None
    return errors[-1] - errors[0], errors[-1], errors[math.ceil(0.99 * len(errors)) - 1]


def _proven(grades: Sequence[PairGrade]) -> float:
    """Return the share of planned pair-seconds that receivers recorded themselves.

    Only pairs on time are counted.
    """
    if not grades:
        return 0.0
    return sum(0.0 if grade.completeness.late_s else grade.proven_ratio for grade in grades) / len(
        grades
    )


def _named(figures: Aggregate, *states: State) -> tuple[str, ...]:
    return tuple(pair.pair for pair in figures.pairs if pair.state in states)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return figure(sum(known)) if known and len(known) == len(values) else None


def _with_caps(evidence: BurstEvidence, scale: float) -> BurstEvidence:
    """Add NIC limits by VM size for hosts that did not report a limit."""

    def cap(said: float | None, size: str | None) -> float | None:
        known = DOCUMENTED.of_vm(size)
        return said if said is not None or known is None else known / scale

    return replace(
        evidence,
        pairs=tuple(
            replace(
                pair,
                client_nic_bits_per_second=cap(
                    pair.client_nic_bits_per_second, pair.client_vm_size
                ),
                server_nic_bits_per_second=cap(
                    pair.server_nic_bits_per_second, pair.server_vm_size
                ),
            )
            for pair in evidence.pairs
        ),
    )
