"""What a payload cost in CPU time, at each end: CPU-seconds a gigabyte (10^9 bytes) of payload."""

from collections.abc import Iterable

from coordinator.core.measure.align import Aligned
from coordinator.core.summary import CpuCost, figure
from exchange.messages import EngineReport, Side


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


def _of_hosts(hosts: Iterable[list[float | None]], payload_bytes: int) -> float | None:
    """Each host once, by the longest of its pairs' times; None where an end does not tell."""
    total_s = 0.0
    for times in hosts:
        known = [time_s for time_s in times if time_s is not None]
        if len(known) < len(times):
            return None
        total_s += max(known)
    return figure(total_s / payload_bytes * 1e9)
