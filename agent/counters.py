"""Host counters beside a burst for interfaces, TCP retransmits and CPU.

The files of ``/proc`` are opened once and read again with ``pread`` (0.12 ms CPU time for each
sample). The network files are in ``/proc/thread-self/net``. They belong to the thread's network
namespace when they are opened. ``/proc/net`` in a forked child would be the same, but this is more
explicit.
"""

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

from broadside.agent.egress_queue import filled_queues
from broadside.exchange.messages import HostSecond

READ_MAX_BYTES: Final = 1 << 20
NET_DEV: Final = "/proc/thread-self/net/dev"
NET_SNMP: Final = "/proc/thread-self/net/snmp"
STAT: Final = "/proc/stat"
# Minimum number of egress queue samples to get a ratio.
LOOKS_MIN_COUNT: Final = 5
# Seconds to ignore at the start and the end of a test, when queues fill and drain.
LOOKS_EDGE_S: Final = 0.5
# Maximum number of interfaces to count. A Kubernetes node can have hundreds.
NICS_MAX_COUNT: Final = 16


class CountersUnreadable(Exception):
    """A counter file is missing or has an unexpected format. The message names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NicCounts:
    """Totals for an interface since it was created.

    ``drops_count`` is for receive and transmit.
    """

    rx_bytes: int
    rx_packets_count: int
    tx_bytes: int
    tx_packets_count: int
    drops_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreTicks:
    """Totals for a core since boot, in clock ticks.

    Attributes:
        busy: All ticks except idle and waiting for I/O. Stolen time counts as busy.
        total: All ticks.
        taken: Ticks in ``busy`` that were taken by a hypervisor.
    """

    busy: int
    total: int
    taken: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTotals:
    """A single reading with all counters.

    Attributes:
        read_at_s: Unix timestamp for the reading.
        nics: Counters by interface.
        tcp_retransmits_count: Retransmitted TCP segments since boot.
        cores: Clock ticks for each core.
        filled: True for each interface with packets in its egress queue.
    """

    read_at_s: float
    nics: Mapping[str, NicCounts]
    tcp_retransmits_count: int
    cores: tuple[CoreTicks, ...]
    filled: Mapping[str, bool] = field(default_factory=dict)


def parse_net_dev(text: str, nic: str | None = None) -> Mapping[str, NicCounts]:
    """Parse the counters for interfaces that have carried traffic, and for ``nic``.

    In ``/proc/net/dev`` each line is an interface with eight receive columns and eight transmit
    columns. At most :data:`NICS_MAX_COUNT` interfaces are returned in addition to ``nic``.

    Args:
        text: Text from ``/proc/net/dev``.
        nic: Interface that is returned even without traffic. None adds none.

    Returns:
        Counts by interface.
    """
    counts: dict[str, NicCounts] = {}
    for line in text.splitlines()[2:]:
        name, colon, columns = line.partition(":")
        name = name.strip()
        values = [int(value) for value in columns.split()]
        wanted = name == nic or ((values[0] or values[8]) and len(counts) < NICS_MAX_COUNT)
        if colon and wanted:
            counts[name] = NicCounts(
                rx_bytes=values[0],
                rx_packets_count=values[1],
                tx_bytes=values[8],
                tx_packets_count=values[9],
                drops_count=values[3] + values[11],
            )
    return counts


def parse_retransmits(text: str) -> int:
    """Return ``RetransSegs`` for the Tcp group in ``/proc/net/snmp``.

    A group has a line with names and a line with values.

    Raises:
        CountersUnreadable: The value is missing.
    """
    groups = [line.split() for line in text.splitlines() if line.startswith("Tcp:")]
    if len(groups) == 2 and "RetransSegs" in groups[0]:
        return int(groups[1][groups[0].index("RetransSegs")])
    raise CountersUnreadable(f"{NET_SNMP}: no Tcp RetransSegs")


def parse_stat(text: str) -> tuple[CoreTicks, ...]:
    """Parse the ``cpuN`` lines of ``/proc/stat``.

    The columns are user, nice, system, idle, iowait, irq, softirq and steal. The two guest columns
    after them are already part of user and nice (proc(5)).

    Raises:
        CountersUnreadable: There are no such lines.
    """
    cores = []
    for line in text.splitlines():
        name, _, columns = line.partition(" ")
        if name.startswith("cpu") and name != "cpu":
            ticks = [int(tick) for tick in columns.split()[:8]]
            total = sum(ticks)
            busy = total - ticks[3] - ticks[4]
            cores.append(CoreTicks(busy=busy, total=total, taken=sum(ticks[7:])))
    if not cores:
        raise CountersUnreadable(f"{STAT}: no cpu lines")
    return tuple(cores)


def difference(earlier: HostTotals, later: HostTotals) -> Mapping[str, HostSecond]:
    """Return the change between two readings, by interface.

    The result is empty if there is no clock tick between the readings. If a counter decreases, the
    interface was created again and its new value is the change. A core that was added or removed is
    ignored.

    Args:
        earlier: First reading.
        later: Second reading.

    Returns:
        Counters of the second that ended, by interface.
    """

    def since(before: int, now: int) -> int:
        return now - before if now >= before else now

    busy_ratios = []
    busy = total = taken = 0
    for before, now in zip(earlier.cores, later.cores, strict=False):
        core_total = now.total - before.total
        core_busy = min(max(now.busy - before.busy, 0), max(core_total, 0))
        # The idle time may decrease by a tick (proc(5)).
        if core_total > 0:
            busy, total = busy + core_busy, total + core_total
            taken += min(max(now.taken - before.taken, 0), core_busy)
            busy_ratios.append(core_busy / core_total)
    if not total:
        return {}
    nothing = NicCounts(
        rx_bytes=0, rx_packets_count=0, tx_bytes=0, tx_packets_count=0, drops_count=0
    )
    counts = {}
    for name, nic in later.nics.items():
        was = earlier.nics.get(name, nothing)
        counts[name] = HostSecond(
            start_at_s=earlier.read_at_s,
            end_at_s=later.read_at_s,
            nic_rx_bytes=since(was.rx_bytes, nic.rx_bytes),
            nic_tx_bytes=since(was.tx_bytes, nic.tx_bytes),
            nic_rx_packets_count=since(was.rx_packets_count, nic.rx_packets_count),
            nic_tx_packets_count=since(was.tx_packets_count, nic.tx_packets_count),
            nic_drops_count=since(was.drops_count, nic.drops_count),
            tcp_retransmits_count=since(earlier.tcp_retransmits_count, later.tcp_retransmits_count),
            cpu_busy_ratio=busy / total,
            cpu_busiest_core_ratio=max(busy_ratios),
            cpu_taken_ratio=taken / total,
        )
    return counts


class HostCounterReader:
    """Open counter files on this host. To be used as a context manager."""

    def __init__(self, nic: str | None) -> None:
        """Open the files.

        Args:
            nic: Interface that is counted even without traffic.

        Raises:
            CountersUnreadable: A file or the interface is missing.
        """
        self._nic = nic
        self._files: dict[str, int] = {}
        try:
            for path in (NET_DEV, NET_SNMP, STAT):
                self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if nic is not None and nic not in self.read().nics:
                raise CountersUnreadable(f"{NET_DEV}: no interface {nic}; set BROADSIDE_AGENT_NIC")
        except OSError as error:
            self.close()
            raise CountersUnreadable(f"{error.filename}: {error.strerror}") from None
        except CountersUnreadable:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def read(self) -> HostTotals:
        """Read all counters now."""
        dev, snmp, stat = (
            os.pread(self._files[path], READ_MAX_BYTES, 0).decode()
            for path in (NET_DEV, NET_SNMP, STAT)
        )
        filled: Mapping[str, bool] = {}
        with suppress(OSError):
            filled = filled_queues()
        return HostTotals(
            filled=filled,
            read_at_s=time.time(),
            nics=parse_net_dev(dev, self._nic),
            tcp_retransmits_count=parse_retransmits(snmp),
            cores=parse_stat(stat),
        )


class HostLog:
    """Host counters for the latest seconds.

    They are counted all the time, so a burst does not need to start it.
    """

    def __init__(self, retention_s: float, nic: str | None = None) -> None:
        """Create an empty log.

        Args:
            retention_s: Number of seconds to keep.
            nic: Interface that is returned by default.
        """
        self._nic = nic
        self._seconds: deque[Mapping[str, HostSecond]] = deque(maxlen=math.ceil(retention_s))
        self._looks: deque[tuple[float, Mapping[str, bool]]] = deque(maxlen=math.ceil(retention_s))

    def add(self, second: Mapping[str, HostSecond]) -> None:
        """Add the values for a second, by interface."""
        self._seconds.append(second)

    def between(self, from_s: float, to_s: float, nic: str | None = None) -> tuple[HostSecond, ...]:
        """Return the seconds that overlap an interval.

        Args:
            from_s: Unix timestamp to start from.
            to_s: Unix timestamp to stop at.
            nic: Interface to return, or None for the default. Seconds without this interface are
                omitted.

        Returns:
            Seconds in ascending order.
        """
        wanted = nic or self._nic
        counts = (second.get(wanted or next(iter(second))) for second in self._seconds)
        return tuple(s for s in counts if s and s.end_at_s > from_s and s.start_at_s < to_s)

    def sample(self, at_s: float, filled: Mapping[str, bool]) -> None:
        """Add a sample for the egress queues.

        Args:
            at_s: Unix timestamp for the sample.
            filled: True for each interface with packets in its queue.
        """
        self._looks.append((at_s, filled))

    def egress_queued_ratio(
        self, from_s: float, to_s: float, nic: str | None = None
    ) -> float | None:
        """Return how often the egress queue was filled in an interval.

        Args:
            from_s: Unix timestamp to start from.
            to_s: Unix timestamp to stop at.
            nic: Interface, or None for the default.

        Returns:
            A ratio from 0 to 1, or None with fewer than :data:`LOOKS_MIN_COUNT` samples.
        """
        wanted = nic or self._nic or ""
        samples = [
            filled[wanted]
            for at_s, filled in self._looks
            if from_s + LOOKS_EDGE_S < at_s < to_s - LOOKS_EDGE_S and wanted in filled
        ]
        return sum(samples) / len(samples) if len(samples) >= LOOKS_MIN_COUNT else None

    async def watch(self, counters: HostCounterReader) -> None:
        """Take a reading on every full second, until cancelled."""
        earlier = counters.read()
        while True:
            await asyncio.sleep(1.0 - time.time() % 1.0)
            later = counters.read()
            self.sample(later.read_at_s, later.filled)
            # The task woke up slightly before the second.
            if later.read_at_s - earlier.read_at_s < 0.5:
                continue
            second = difference(earlier, later)
            if second:
                self.add(second)
                earlier = later
