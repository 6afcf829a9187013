"""CPU time of engines: what a payload cost at this end.

A process's own time (user and system, of itself and the children it waited for) is the kernel's
account of that process, and right on a shared host. It leaves out what the kernel did for it in
interrupts. The host's counters hold all of that, and everything else that ran.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broadside.exchange.engines.port import Reading
from broadside.exchange.messages import EngineReport, HostSecond

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTime:
    """One process as ``/proc/<pid>/stat`` shows it."""

    group_id: int
    cpu_s: float  # s, user and system, of itself and the children that it waited for


def parse_process_time(text: str) -> ProcessTime:
    """Fields 5 and 14 to 17 of ``/proc/<pid>/stat`` (proc(5)); the name may hold anything."""
    fields = text.rpartition(")")[2].split()
    return ProcessTime(group_id=int(fields[2]), cpu_s=sum(map(int, fields[11:15])) * _TICK_S)


def group_cpu_s(group_id: int) -> float:
    """CPU time so far of a process group that runs: a daemon and its workers."""
    total_s = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            found = parse_process_time(path.read_text(errors="replace"))
        except (OSError, ValueError, IndexError):  # it ended while we looked
            continue
        if found.group_id == group_id:
            total_s += found.cpu_s
    return total_s


def host_cpu_s(seconds: Iterable[HostSecond], from_s: float, to_s: float, cores: int) -> float:
    """CPU time of all cores between two epoch seconds, from the host's counters."""
    return cores * sum(
        second.cpu_busy_ratio
        * max(0.0, min(second.end_at_s, to_s) - max(second.start_at_s, from_s))
        for second in seconds
    )


def taken_ratio(seconds: Iterable[HostSecond]) -> float | None:
    """Of all cores' time in some seconds, what the hypervisor took; None: none tells."""
    taken_s = whole_s = 0.0
    for second in seconds:
        if second.cpu_taken_ratio is not None:
            lasted_s = second.end_at_s - second.start_at_s
            taken_s, whole_s = taken_s + second.cpu_taken_ratio * lasted_s, whole_s + lasted_s
    return taken_s / whole_s if whole_s else None


def with_cpu(reading: Reading, cpu_s: float | None) -> EngineReport:
    """The report with what this end's payload cost; without a byte nothing is said.

    The payload is all that the process moved, its warm-up included, as its CPU time is.
    """
    payload_bytes = sum(
        row.transferred_bytes for rows in reading.intervals.values() for row in rows
    )
    if cpu_s is None or not payload_bytes:
        return reading.report
    return reading.report.model_copy(update={"cpu_s": cpu_s, "cpu_payload_bytes": payload_bytes})
