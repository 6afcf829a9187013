"""Measures that engines report in addition to bytes, combined for all pairs in a burst.

Examples are requests, success, latency, jitter and CPU time. To get a quantile for all pairs, their
buckets need to be added first. It would be wrong to average the pairs' quantiles.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from broadside.coordinator.core.measure.align import Aligned
from broadside.coordinator.core.summary import CpuCost, MeasureSummary, TakenCpu, figure
from broadside.exchange.messages import (
    BUCKET_RATIO,
    Combine,
    Distribution,
    EngineReport,
    Measure,
    Side,
)

QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))


def find(measures: Iterable[MeasureSummary], name: str) -> MeasureSummary | None:
    """Return the measure with this name, or ``None`` if there is none.

    Args:
        measures: Measures to search.
        name: Name to look for.
    """
    return next((measure for measure in measures if measure.name == name), None)


def measure_pairs(aligned: Aligned) -> tuple[MeasureSummary, ...]:
    """Combine the measures from all pairs and both ends, sorted by name."""
    told: dict[str, list[tuple[int, Measure]]] = {}
    spread: dict[str, list[tuple[int, Distribution]]] = {}
    for row, pair in enumerate(aligned.pairs):
        known = pair.engines
        for measure in [m for end in known for m in end.measures] + _jitters(known):
            told.setdefault(measure.name, []).append((row, measure))
        for one in (each for end in known for each in end.distributions):
            spread.setdefault(one.name, []).append((row, one))
    found = [
        MeasureSummary(
            name=name,
            value=figure(_combined([measure for _, measure in said])) or 0.0,
            unit=said[0][1].unit,
            pairs_count=len({row for row, _ in said}),
        )
        for name, said in told.items()
    ]
    for name, parts in spread.items():
        pairs_count = len({row for row, _ in parts})
        found += [
            MeasureSummary(
                name=f"{name}_{label}",
                value=figure(value) or 0.0,
                unit=parts[0][1].unit,
                pairs_count=pairs_count,
            )
            for label, value in _quantiles([one for _, one in parts])
        ]
    return tuple(sorted(found, key=lambda measure: measure.name))


def _jitters(ends: Sequence[EngineReport]) -> list[Measure]:
    """Return the mean jitter per flow, using the first end that reports it."""
    found: dict[str, Measure] = {}
    for total in (total for end in ends for total in end.totals):
        if total.jitter_s is not None:
            name = f"jitter_{total.flow.value}"
            found.setdefault(
                name, Measure(name=name, value=total.jitter_s, unit="s", combine=Combine.MEAN)
            )
    return list(found.values())


def _combined(measures: Sequence[Measure]) -> float:
    values = [measure.value for measure in measures]
    match measures[0].combine:
        case Combine.SUM:
            return math.fsum(values)
        case Combine.MAX:
            return max(values)
        case Combine.MEAN:
            weight = math.fsum(measure.weight for measure in measures)
            if not weight:
                return math.fsum(values) / len(values)
            return math.fsum(m.value * m.weight for m in measures) / weight


def _quantiles(parts: Sequence[Distribution]) -> list[tuple[str, float]]:
    """Return the maximum, and nearest-rank quantiles using a bucket's geometric middle."""
    counts: dict[int, int] = {}
    for part in parts:
        for bucket, count in part.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
    largest = max(part.max for part in parts)
    total = sum(counts.values())
    found = []
    for label, quantile in QUANTILES:
        rank, seen = math.ceil(quantile * total), 0
        for bucket in sorted(counts):
            seen += counts[bucket]
            if seen >= rank:
                found.append((label, min(largest, BUCKET_RATIO ** (bucket + 0.5))))
                break
    return [*found, ("max", largest)]


def cpu_cost(aligned: Aligned, side: Side) -> CpuCost | None:
    """Return the CPU cost, as the sum of CPU times divided by the sum of payloads.

    Args:
        aligned: Burst with its pairs' reports.
        side: Side to use.

    Returns:
        The cost, or ``None`` if no pair reported both values.
    """
    if side is Side.CLIENT:
        reports = [pair.report for pair in aligned.pairs if pair.report is not None]
        return cost_of((report.agent_id, report.engine) for report in reports)
    tests = [pair.server_test for pair in aligned.pairs if pair.server_test is not None]
    return cost_of((test.agent_id, test.engine) for test in tests)


def cost_of(ends: Iterable[tuple[str, EngineReport | None]]) -> CpuCost | None:
    """Return the CPU cost for engine reports.

    If there are twice as many equal pairs, the cost will be the same. This is true when they run on
    new hosts, and also when they run on the same hosts.

    Args:
        ends: Engine reports, each with the agent on its host.
    """
    cpu_s, payload_bytes, pairs_count = 0.0, 0, 0
    hosts: dict[str, list[float | None]] = {}
    for agent_id, report in ends:
        if report is None:
            continue
        told = report.cpu_s is not None and bool(report.cpu_payload_bytes)
        # A host's CPU time is for all its pairs, so we need to know the payload for all of them.
        hosts.setdefault(agent_id, []).append(report.host_cpu_s if told else None)
        if told:
            cpu_s += report.cpu_s or 0.0
            payload_bytes += report.cpu_payload_bytes or 0
            pairs_count += 1
    if not pairs_count:
        return None
    return CpuCost(
        cpu_s_per_gigabyte=figure(cpu_s / payload_bytes * 1e9) or 0.0,
        host_cpu_s_per_gigabyte=_of_hosts(hosts.values(), payload_bytes),
        pairs_count=pairs_count,
    )


def taken_cpu(aligned: Aligned) -> TakenCpu | None:
    """Return CPU time taken by hypervisors, using the maximum per host."""
    hosts: dict[str, float] = {}
    for pair in aligned.pairs:
        for end in (pair.report, pair.server_test):
            engine = None if end is None else end.engine
            if end is None or engine is None or engine.host_taken_ratio is None:
                continue
            hosts[end.agent_id] = max(hosts.get(end.agent_id, 0.0), engine.host_taken_ratio)
    if not hosts:
        return None
    worst = max(hosts, key=lambda host: (hosts[host], host))
    return TakenCpu(
        hosts_count=len(hosts),
        mean_ratio=figure(sum(hosts.values()) / len(hosts)) or 0.0,
        worst_ratio=figure(hosts[worst]) or 0.0,
        worst_host=worst,
    )


def _of_hosts(hosts: Iterable[list[float | None]], payload_bytes: int) -> float | None:
    """Return the hosts' CPU cost, using the longest time per host.

    The result is ``None`` if an end did not report its time.
    """
    total_s = 0.0
    for times in hosts:
        known = [time_s for time_s in times if time_s is not None]
        if len(known) < len(times):
            return None
        total_s += max(known)
    return figure(total_s / payload_bytes * 1e9)
