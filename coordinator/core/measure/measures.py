"""What engines tell beside bytes: requests, success, latency, jitter, CPU; over a burst's pairs.

A quantile over pairs is read from their added-up buckets, never averaged from theirs.
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
    """The measure of that name, or None."""
    return next((measure for measure in measures if measure.name == name), None)


def measure_pairs(aligned: Aligned) -> tuple[MeasureSummary, ...]:
    """The measures of every pair's two ends, in order of their names."""
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
    """The mean jitter of each flow's datagrams, as the first end that knows it says."""
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
    """Quantiles by the nearest rank, at the geometric middle of their buckets; and the largest."""
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
    """Sum of CPU times over sum of payloads; None where no pair told both."""
    if side is Side.CLIENT:
        reports = [pair.report for pair in aligned.pairs if pair.report is not None]
        return cost_of((report.agent_id, report.engine) for report in reports)
    tests = [pair.server_test for pair in aligned.pairs if pair.server_test is not None]
    return cost_of((test.agent_id, test.engine) for test in tests)


def cost_of(ends: Iterable[tuple[str, EngineReport | None]]) -> CpuCost | None:
    """The same of engines' reports, each with its host's agent.

    With twice as many equal pairs it is the same cost, whether on hosts of their own or on these.
    """
    cpu_s, payload_bytes, pairs_count = 0.0, 0, 0
    hosts: dict[str, list[float | None]] = {}
    for agent_id, report in ends:
        if report is None:
            continue
        told = report.cpu_s is not None and bool(report.cpu_payload_bytes)
        # A host's time holds all its pairs' work: without a pair's payload it says nothing.
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
    """What hypervisors took of the hosts, each by the most that one of its ends told."""
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
    """Each host once, by the longest of its pairs' times; None where an end does not tell."""
    total_s = 0.0
    for times in hosts:
        known = [time_s for time_s in times if time_s is not None]
        if len(known) < len(times):
            return None
        total_s += max(known)
    return figure(total_s / payload_bytes * 1e9)
