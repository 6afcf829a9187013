"""What a payload cost in CPU time, at each end: CPU-seconds a gigabyte (10^9 bytes) of payload."""

from collections.abc import Iterable, Sequence

from coordinator.core.aggregate import figure
from coordinator.core.align import Aligned
from exchange.messages import EngineReport, Message, Side


class CpuCost(Message):
    """One end's CPU time over its payload, over the pairs that told both."""

    cpu_s_per_gigabyte: float  # of the engine's own processes: user and system, no interrupts
    host_cpu_s_per_gigabyte: float | None = None  # of the whole hosts, where each is one agent's
    pairs_count: int


def per_gigabyte(cost: CpuCost | None) -> float | None:
    """What the engine's own processes took, where it is known."""
    return None if cost is None else cost.cpu_s_per_gigabyte


def cpu_cost(aligned: Aligned, side: Side) -> CpuCost | None:
    """Sum of CPU times over sum of payloads; None where no pair told both."""
    if side is Side.CLIENT:
        return cost_of(pair.report.engine for pair in aligned.pairs if pair.report is not None)
    return cost_of(pair.server_test.engine for pair in aligned.pairs if pair.server_test)


def cost_of(reports: Iterable[EngineReport | None]) -> CpuCost | None:
    """The same of engines' reports. With twice as many equal pairs it is the same cost."""
    told = [
        (report.cpu_s, report.cpu_payload_bytes, report.host_cpu_s)
        for report in reports
        if report is not None and report.cpu_s is not None and report.cpu_payload_bytes
    ]
    if not told:
        return None
    payload_bytes = sum(size or 0 for _, size, _ in told)
    hosts: Sequence[float] = [host_s for *_, host_s in told if host_s is not None]
    return CpuCost(
        cpu_s_per_gigabyte=figure(sum(cpu_s or 0.0 for cpu_s, *_ in told) / payload_bytes * 1e9)
        or 0.0,
        host_cpu_s_per_gigabyte=figure(sum(hosts) / payload_bytes * 1e9)
        if len(hosts) == len(told)
        else None,
        pairs_count=len(told),
    )
