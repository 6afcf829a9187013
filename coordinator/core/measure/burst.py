"""Computation of a burst summary from its records.

There is no device counter, bottleneck or verdict yet. We only need the agents' records, so this can
run as soon as a burst is over. Then all you need to compute a verdict is this result (values and
packed series) and the device counter. So a long run will never have more than a single burst's rows
in memory.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import numpy as np

from broadside.coordinator.core.documented_limits import DOCUMENTED
from broadside.coordinator.core.long_run_checks import silent_controls_count
from broadside.coordinator.core.measure.acknowledgements import Acknowledgements
from broadside.coordinator.core.measure.aggregate import Aggregate, aggregate
from broadside.coordinator.core.measure.completeness import PairGrade, clock_fields, combine, grade
from broadside.coordinator.core.measure.consistency_checks import ConsistencyChecker
from broadside.coordinator.core.measure.disruptions import find_disruptions
from broadside.coordinator.core.measure.engine_metrics import (
    cpu_cost,
    find_silent_streams,
    measure_pairs,
    taken_cpu,
)
from broadside.coordinator.core.measure.experiments.canary import find_canary
from broadside.coordinator.core.measure.formulas.certainty import ALPHA
from broadside.coordinator.core.measure.formulas.headers import (
    Headers,
    sctp_headers,
    tcp_headers,
    udp_headers,
)
from broadside.coordinator.core.measure.formulas.phases import sustain_of
from broadside.coordinator.core.measure.grid.align import Aligned, Alignment
from broadside.coordinator.core.measure.grid.series import BurstMeasurement
from broadside.coordinator.core.measure.latency import find_latency
from broadside.coordinator.core.measure.outages import outages
from broadside.coordinator.core.measure.records.clock_readings import clock_troubles
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.measure.requested_vs_effective import find_setting_differences
from broadside.coordinator.core.measure.units import find_units
from broadside.coordinator.core.run_spec import RunSpec, due_at
from broadside.coordinator.core.summary import BurstSummary, EarlyEnd, SecondState, Units, figure
from broadside.exchange.engines import scaled
from broadside.exchange.messages import Protocol, Side

# How many foreign rows to list in the summary.
FOREIGN_ROWS_MAX_COUNT: Final = 20


def measure_burst(spec: RunSpec, evidence: BurstEvidence, now: datetime) -> BurstMeasurement:
    """Align, grade and aggregate a burst's records.

    Args:
        spec: Run specification.
        evidence: The burst's evidence.
        now: Current time. It is used to see if more reports can be expected.

    Returns:
        The summary of the burst, and its series per second. The verdict is added later.
    """
    evidence = _with_nic_limits(evidence, spec.scale)
    packet = _headers(spec, evidence.in_order)
    aligned, checks = _align_and_check(spec, evidence, packet)
    grades = grade(evidence, aligned, spec.late_after_s, now)
    rates = aggregate(spec, evidence.burst, aligned, grades, packet)
    latency, by_pair = find_latency(
        evidence.burst,
        {pair.pair_index: pair.probes for pair in aligned.pairs if pair.probes is not None},
        sustain_of(spec.traffic, spec.burst_s, evidence.burst.duration_s),
    )
    # If a clock moved during the burst, we do not know its error at the start.
    steady = [
        grade
        for pair, grade in zip(aligned.pairs, grades, strict=True)
        if not any(clock_troubles(pair, spec.clock_bound_max_s))
    ]
    completeness = combine(grade.completeness for grade in grades)
    bounds = aligned.clock_bound_s[~np.isnan(aligned.clock_bound_s)]
    summary = BurstSummary(
        index=evidence.burst.index,
        planned_start_at=evidence.burst.planned_start_at,
        planned_end_at=evidence.burst.planned_end_at,
        duration_s=evidence.burst.duration_s,
        pairs_planned=len(grades),
        pairs_measured=sum(grade.measured for grade in grades),
        completeness_ratio=completeness.completeness_ratio,
        completeness=completeness,
        proven_ratio=figure(_proven(grades)) or 0.0,
        null_pairs=_names(rates, SecondState.NULL),
        late_pairs=_names(rates, SecondState.LATE),
        missing_pairs=_names(
            rates, SecondState.MISSED, SecondState.REFUSED, SecondState.ABANDONED, SecondState.LOST
        ),
        window=rates.window,
        fleet_received_bits_per_second=_sum(
            [flow.received_bits_per_second for flow in rates.flows]
        ),
        fleet_received_half_width_bits_per_second=rates.received_half_width_bits_per_second,
        fleet_sent_bits_per_second=_sum([flow.sent_bits_per_second for flow in rates.flows]),
        fleet_ip_bits_per_second=_sum([flow.ip_bits_per_second for flow in rates.flows]),
        header_ratio=figure(packet.ip_ratio) or 1.0,
        header_how=packet.how,
        wire_ratio=figure(packet.wire_ratio) or 1.0,
        headers_assumed=packet.assumed,
        clock_bound_max_s=figure(float(bounds.max())) if len(bounds) else None,
        worst_bits_per_second=rates.worst_bits_per_second,
        peak_pair_bits_per_second=rates.peak_pair_bits_per_second,
        flows=rates.flows,
        client=rates.client,
        server=rates.server,
        cliff=rates.cliff,
        silent_streams=find_silent_streams(aligned),
        silent_controls_count=silent_controls_count(
            spec, evidence.burst, [pair.report for pair in aligned.pairs if pair.report is not None]
        ),
        outages=outages(evidence),
        late_reports_count=sum(
            pair.report is not None and pair.report.delivered_at is not None
            for pair in evidence.pairs
        ),
        measures=measure_pairs(aligned),
        differences=find_setting_differences(
            scaled(spec.traffic, spec.scale), evidence.burst.longest_s, aligned
        ),
        foreign_tests=evidence.foreign_tests,
        foreign_rows=evidence.foreign_rows[:FOREIGN_ROWS_MAX_COUNT],
        foreign_rows_count=len(evidence.foreign_rows),
        client_cpu=cpu_cost(aligned, Side.CLIENT),
        server_cpu=cpu_cost(aligned, Side.SERVER),
        taken_cpu=taken_cpu(aligned),
        latency=latency,
        early_end=_early_end(evidence, rates),
        units=_units(spec, aligned, rates),
        canary=find_canary(
            spec.traffic.canary,
            evidence.burst,
            {pair.pair_index: pair.canary for pair in aligned.pairs if pair.canary is not None},
            rates.series,
        ),
        pairs=tuple(
            pair.model_copy(
                update={
                    "latency": by_pair.get(pair.pair_index),
                    # If the start was computed from recorded starts, there is no planned time to
                    # compare to.
                    "start_error_s": pair.start_error_s
                    if evidence.start_known or pair.state is SecondState.LATE
                    else None,
                }
            )
            for pair in rates.pairs
        ),
        **checks,
        **clock_fields(aligned, grades, spec.clock_bound_max_s),
        **_start_errors(steady if evidence.start_known else ()),
        **find_disruptions(
            spec, evidence.burst, aligned, grades, over=now >= due_at(evidence.burst)
        ),
    )
    return BurstMeasurement(summary=summary, series=rates.series)


def _align_and_check(
    spec: RunSpec, evidence: BurstEvidence, packet: Headers
) -> tuple[Aligned, dict[str, Any]]:
    """Align all pairs block by block, and compare their records to each other.

    Returns:
        The aligned burst, and the results of the comparison as summary fields.
    """
    traffic = spec.traffic
    alignment = Alignment(evidence, traffic.direction)
    checker = ConsistencyChecker(scaled(traffic, spec.scale), packet, spec.clock_bound_max_s)
    acknowledged = Acknowledgements(evidence.burst, traffic.protocol, traffic.direction)
    for block in evidence.blocks():
        acknowledged.add(block)
        alignment.add(block)
        checker.add(block)
    return alignment.done(), {
        "acknowledged_ratio": figure(acknowledged.done(packet)),
        "contradictions": checker.done(),
    }


def _headers(spec: RunSpec, pairs: Sequence[PairEvidence]) -> Headers:
    reports = [pair.report for pair in pairs if pair.report is not None]
    tests = [pair.server_test for pair in pairs if pair.server_test is not None]
    engines = [report.engine for report in reports if report.engine is not None]
    # During a burst, there are no reports.
    claimed = [p.claim.mss_bytes for p in pairs if p.claim and p.claim.mss_bytes]
    mtu_bytes = min((p.nic_mtu_bytes for p in pairs if p.nic_mtu_bytes), default=None)
    ipv6 = any(":" in test.endpoint.address for test in tests)
    vxlan = spec.traffic.encapsulation is not None
    if spec.traffic.protocol is Protocol.UDP:
        reported = (engine.block_bytes for engine in engines if engine.block_bytes)
        block_bytes = spec.traffic.block_bytes or next(reported, None)
        return udp_headers(block_bytes, mtu_bytes=mtu_bytes, ipv6=ipv6, vxlan=vxlan)
    if spec.traffic.protocol is Protocol.SCTP:
        return sctp_headers(mtu_bytes=mtu_bytes, ipv6=ipv6)
    return tcp_headers(
        [engine.mss_bytes for engine in engines]
        or claimed
        or [test.engine.mss_bytes for test in tests],
        requested_mss_bytes=spec.traffic.mss_bytes,
        mtu_bytes=mtu_bytes,
        ipv6=ipv6,
        vxlan=vxlan,
    )


def _early_end(evidence: BurstEvidence, rates: Aggregate) -> EarlyEnd | None:
    """Return the early end of a burst, or None if it had its planned duration."""
    burst = evidence.burst
    if burst.end is None:
        return None
    sequence, reports = rates.sequence, [pair.report for pair in evidence.pairs]
    stops = [r.stopped_at for r in reports if r is not None and r.stopped_at is not None]
    return EarlyEnd(
        cause=burst.end.cause,
        reason=burst.end.reason,
        decided_at=burst.end.decided_at,
        planned_s=burst.longest_s,
        stop_spread_s=figure((max(stops) - min(stops)).total_seconds()) if stops else None,
        error_ratio=ALPHA if burst.is_certain else None,
        low_bits_per_second=None if sequence is None else figure(sequence.low),
        high_bits_per_second=None if sequence is None else figure(sequence.high),
        saved_usd=figure(burst.end.saved_usd),
    )


def _units(spec: RunSpec, aligned: Aligned, rates: Aggregate) -> Units | None:
    """Return the units of the device, or None if the addresses are unknown.

    A client that uses several own addresses claims only one of them.
    """
    if spec.traffic.options.get("source_addresses", "one") != "one":
        return None
    window, traffic = rates.window, scaled(spec.traffic, spec.scale)
    paced = traffic.stream_bits_per_second
    return find_units(
        aligned,
        None if window is None else (window.start_at.timestamp(), window.end_at.timestamp()),
        paced,
    )


def _start_errors(grades: Iterable[PairGrade]) -> dict[str, float | None]:
    """Return spread, maximum and 99th percentile (nearest rank) of start errors in seconds.

    Only pairs on time are used. If there are none, the result is empty.
    """
    errors = sorted(
        grade.start_error_s
        for grade in grades
        if grade.start_error_s is not None and not grade.completeness.late_s
    )
    if not errors:
        return {}
    return {
        "start_spread_s": figure(errors[-1] - errors[0]),
        "start_error_max_s": figure(errors[-1]),
        "start_error_p99_s": figure(errors[math.ceil(0.99 * len(errors)) - 1]),
    }


def _proven(grades: Sequence[PairGrade]) -> float:
    """Return the share of planned pair-seconds that receivers recorded themselves.

    Only pairs on time are counted.
    """
    if not grades:
        return 0.0
    return sum(0.0 if grade.completeness.late_s else grade.proven_ratio for grade in grades) / len(
        grades
    )


def _names(rates: Aggregate, *states: SecondState) -> tuple[str, ...]:
    return tuple(pair.pair for pair in rates.pairs if pair.state in states)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return figure(sum(known)) if known and len(known) == len(values) else None


def _with_nic_limits(evidence: BurstEvidence, scale: float) -> BurstEvidence:
    """Add NIC limits by VM size for hosts that did not report a limit."""

    def limit(pair: PairEvidence, end: str) -> float | None:
        reported: float | None = getattr(pair, f"{end}_nic_bits_per_second")
        documented = DOCUMENTED.of_vm(getattr(pair, f"{end}_vm_size"))
        return reported if reported is not None or documented is None else documented / scale

    pairs = tuple(
        replace(
            pair,
            client_nic_bits_per_second=limit(pair, "client"),
            server_nic_bits_per_second=limit(pair, "server"),
        )
        for pair in evidence.pairs
    )
    return replace(evidence, pairs=pairs)
