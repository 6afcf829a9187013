"""Measures that engines report in addition to bytes, combined for all pairs in a burst.

Examples are requests, success, latency, jitter and CPU time. To get a quantile for all pairs, their
buckets need to be added first. It would be wrong to average the pairs' quantiles.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from broadside.coordinator.core.measure.grid.align import Aligned
from broadside.coordinator.core.measure.records.evidence import PairEvidence, receiving_side
from broadside.coordinator.core.summary import (
    CpuCost,
    MeasureSummary,
    SilentStream,
    TakenCpu,
    figure,
    instant,
)
from broadside.exchange.engines.buckets import add_counts
from broadside.exchange.messages import (
    SILENT_STREAMS_MAX_COUNT,
    Aggregation,
    Distribution,
    EngineReport,
    Flow,
    Measure,
    Side,
    pair_name,
)

QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))


def find(measures: Iterable[MeasureSummary], name: str) -> MeasureSummary | None:
    """Return the measure with this name.

    Args:
        measures: Measures to search.
        name: Name to look for.

    Returns:
        The first measure with the name. None if the engine did not report it.
    """
    return next((measure for measure in measures if measure.name == name), None)


def measure_pairs(aligned: Aligned) -> tuple[MeasureSummary, ...]:
    """Combine the measures from all pairs and both ends, sorted by name."""
    values: dict[str, list[tuple[int, Measure]]] = {}
    spread: dict[str, list[tuple[int, Distribution]]] = {}
    for row, pair in enumerate(aligned.pairs):
        known = pair.engines
        for measure in [m for end in known for m in end.measures] + _jitters(known):
            values.setdefault(measure.name, []).append((row, measure))
        for one in (item for end in known for item in end.distributions):
            spread.setdefault(one.name, []).append((row, one))
    results = [
        MeasureSummary(
            name=name,
            value=figure(_combined([measure for _, measure in reported])) or 0.0,
            unit=reported[0][1].unit,
            pairs_count=len({row for row, _ in reported}),
        )
        for name, reported in values.items()
    ]
    for name, parts in spread.items():
        pairs_count = len({row for row, _ in parts})
        results += [
            MeasureSummary(
                name=f"{name}_{label}",
                value=figure(value) or 0.0,
                unit=parts[0][1].unit,
                pairs_count=pairs_count,
            )
            for label, value in quantiles_of([one for _, one in parts])
        ]
    return tuple(sorted(results, key=lambda measure: measure.name))


def _jitters(ends: Sequence[EngineReport]) -> list[Measure]:
    """Return the mean jitter per flow, using the first end that reports it."""
    results: dict[str, Measure] = {}
    for total in (total for end in ends for total in end.totals):
        if total.jitter_s is not None:
            name = f"jitter_{total.flow.value}"
            results.setdefault(
                name, Measure(name=name, value=total.jitter_s, unit="s", combine=Aggregation.MEAN)
            )
    return list(results.values())


def _combined(measures: Sequence[Measure]) -> float:
    values, weights = [m.value for m in measures], [m.weight for m in measures]
    return measures[0].combine.of(values, weights)


def quantiles_of(parts: Sequence[Distribution]) -> list[tuple[str, float]]:
    """Return nearest-rank quantiles and the maximum, by name.

    The value of a quantile is the geometric middle of its bucket.

    Args:
        parts: One or more distributions of the same quantity, whose counts are added.
    """
    resolution, counts = add_counts(parts)
    largest = max(part.max for part in parts)
    total = sum(counts.values())
    results = []
    for label, quantile in QUANTILES:
        rank, seen = math.ceil(quantile * total), 0
        for bucket, count in counts.items():
            seen += count
            if seen >= rank:
                results.append((label, min(largest, 2 ** ((bucket + 0.5) / resolution))))
                break
    return [*results, ("max", largest)]


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

    Returns:
        CPU time per payload, in CPU-seconds per gigabyte. None if no report has CPU time and
        payload.
    """
    cpu_s, payload_bytes, pairs_count = 0.0, 0, 0
    hosts: dict[str, list[float | None]] = {}
    for agent_id, report in ends:
        if report is None:
            continue
        reported = report.cpu_s is not None and bool(report.cpu_payload_bytes)
        # A host's CPU time is for all its pairs, so we need to know the payload for all of them.
        hosts.setdefault(agent_id, []).append(report.host_cpu_s if reported else None)
        if reported:
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
    """Return CPU time taken by hypervisors, using the maximum per host.

    Returns:
        Ratios of CPU time (0 to 1) over the hosts. None if no host measures it.
    """
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


def find_silent_streams(aligned: Aligned) -> tuple[SilentStream, ...]:
    """Find the longest silences for all pairs, in time order."""
    results = [
        stream
        for pair in aligned.pairs
        for flow in (part.flow for part in aligned.flows)
        for stream in _silences(pair, flow)
    ]
    selected = sorted(results, key=lambda stream: -stream.duration_s)[:SILENT_STREAMS_MAX_COUNT]
    return tuple(
        sorted(selected, key=lambda stream: (stream.from_at, stream.pair, stream.client_port or 0))
    )


def _silences(pair: PairEvidence, flow: Flow) -> Iterator[SilentStream]:
    receiver = receiving_side(flow)
    for side in sorted(Side, key=lambda side: side is not receiver):
        holder = pair.report if side is Side.CLIENT else pair.server_test
        if holder is None or holder.engine is None or holder.first_data_at is None:
            continue
        zero_s = holder.first_data_at.timestamp() - pair.clock_fixes[side][0]
        for stream in holder.engine.silent_streams:
            if stream.flow is flow:
                yield SilentStream(
                    pair=pair.name or pair_name(pair.pair_index),
                    flow=flow,
                    client_port=stream.client_port,
                    streams_count=holder.engine.streams_count,
                    from_at=instant(zero_s + stream.from_s),
                    duration_s=round(stream.to_s - stream.from_s, 3),
                )
        return
