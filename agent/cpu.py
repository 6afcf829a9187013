"""CPU time used for the payload on this host.

A process's CPU time (user and system, with the children that it waited for) is correct on a shared
host. It does not include kernel work in interrupts. The host's counters include that, but also all
other programs.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broadside.exchange.engines.port import EngineResult
from broadside.exchange.messages import EngineReport, HostSecond

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTime:
    """Values for a process from ``/proc/<pid>/stat``.

    Attributes:
        group_id: Process group.
        cpu_s: User and system time in seconds, for the process and the children that it waited for.
    """

    group_id: int
    cpu_s: float


def parse_process_time(text: str) -> ProcessTime:
    """Parse fields 5 and 14 to 17 of ``/proc/<pid>/stat`` (proc(5)).

    The process name before these fields can contain any character.
    """
    fields = text.rpartition(")")[2].split()
    return ProcessTime(group_id=int(fields[2]), cpu_s=sum(map(int, fields[11:15])) * _TICK_S)


def group_cpu_s(group_id: int) -> float:
    """Return the CPU time used so far by a running process group in seconds.

    For a daemon, this includes its workers.
    """
    elapsed_s = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            process_time = parse_process_time(path.read_text(errors="replace"))
        except (OSError, ValueError, IndexError):
            # The process ended in the meantime.
            continue
        if process_time.group_id == group_id:
            elapsed_s += process_time.cpu_s
    return elapsed_s


def host_cpu_s(seconds: Iterable[HostSecond], from_s: float, to_s: float, cores: int) -> float:
    """Return the CPU time for all cores in an interval, based on the host counters.

    Args:
        seconds: Host counters per second.
        from_s: Unix timestamp to start from.
        to_s: Unix timestamp to stop at.
        cores: Number of cores.
    """
    return cores * sum(
        second.cpu_busy_ratio
        * max(0.0, min(second.end_at_s, to_s) - max(second.start_at_s, from_s))
        for second in seconds
    )


def taken_ratio(seconds: Iterable[HostSecond]) -> float | None:
    """Return the CPU time share taken by the hypervisor, or None if it is unknown."""
    taken_s = elapsed_s = 0.0
    for second in seconds:
        if second.cpu_taken_ratio is not None:
            lasted_s = second.end_at_s - second.start_at_s
            taken_s, elapsed_s = taken_s + second.cpu_taken_ratio * lasted_s, elapsed_s + lasted_s
    return taken_s / elapsed_s if elapsed_s else None


def with_cpu(reading: EngineResult, cpu_s: float | None) -> EngineReport:
    """Return the report with CPU time and payload set.

    The payload includes the warm-up, as the CPU time does. Without payload, the report is returned
    unchanged.

    Args:
        reading: Measurements to use.
        cpu_s: CPU time used, or None if it is unknown.
    """
    payload_bytes = sum(
        row.transferred_bytes for rows in reading.intervals.values() for row in rows
    )
    if cpu_s is None or not payload_bytes:
        return reading.report
    return reading.report.model_copy(update={"cpu_s": cpu_s, "cpu_payload_bytes": payload_bytes})
