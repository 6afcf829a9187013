"""Host counters beside a burst: bytes, packets and drops of interfaces, TCP retransmits, CPU.

The files of ``/proc`` are opened once and read again with ``pread`` (0.12 ms CPU a sample). The
network files are those of ``/proc/thread-self/net``, which belong to the network namespace of the
thread that opens them; ``/proc/net`` of a forked child would too, but says so less plainly.
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
LOOKS_MIN_COUNT: Final = 5  # looks at an egress queue: fewer are no share
LOOKS_EDGE_S: Final = 0.5  # s at either end of a test: queues fill at first, and drain at last
NICS_MAX_COUNT: Final = 16  # interfaces that are counted: a node of Kubernetes has hundreds


class CountersUnreadable(Exception):
    """A counter file is missing or not what the kernel documents; says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NicCounts:
    """Totals of one interface since it came up."""

    rx_bytes: int
    rx_packets_count: int
    tx_bytes: int
    tx_packets_count: int
    drops_count: int  # receive and transmit


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreTicks:
    """Totals of one core since boot, in clock ticks."""

    busy: int  # all but idle and waiting for I/O; stolen time counts as busy
    total: int
    taken: int = 0  # of the busy ones, those that a hypervisor took away


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTotals:
    """One reading of everything."""

    read_at_s: float  # epoch s
    nics: Mapping[str, NicCounts]  # by interface
    tcp_retransmits_count: int
    cores: tuple[CoreTicks, ...]
    filled: Mapping[str, bool] = field(default_factory=dict)  # by interface: its egress queue
    # holds packets


def parse_net_dev(text: str, nic: str | None = None) -> Mapping[str, NicCounts]:
    """Return the counters of the interfaces that have carried anything, and of ``nic``.

    In ``/proc/net/dev`` a line is an interface: eight receive columns, then eight transmit columns.
    At most :data:`NICS_MAX_COUNT` interfaces beside ``nic`` are counted.
    """
    found: dict[str, NicCounts] = {}
    for line in text.splitlines()[2:]:
        name, colon, columns = line.partition(":")
        name = name.strip()
        values = [int(value) for value in columns.split()]
        wanted = name == nic or ((values[0] or values[8]) and len(found) < NICS_MAX_COUNT)
        if colon and wanted:
            found[name] = NicCounts(
                rx_bytes=values[0],
                rx_packets_count=values[1],
                tx_bytes=values[8],
                tx_packets_count=values[9],
                drops_count=values[3] + values[11],
            )
    return found


def parse_retransmits(text: str) -> int:
    """``RetransSegs`` of the Tcp group in ``/proc/net/snmp`` (a line of names, one of values)."""
    groups = [line.split() for line in text.splitlines() if line.startswith("Tcp:")]
    if len(groups) == 2 and "RetransSegs" in groups[0]:
        return int(groups[1][groups[0].index("RetransSegs")])
    raise CountersUnreadable(f"{NET_SNMP}: no Tcp RetransSegs")


def parse_stat(text: str) -> tuple[CoreTicks, ...]:
    """The ``cpuN`` lines of ``/proc/stat``: user nice system idle iowait irq softirq steal ..

    The two guest columns after them are part of user and nice already (proc(5)).
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
    """Return what happened between two readings, by interface.

    Nothing is returned when no clock tick lies between them. A counter that went backwards (an
    interface made anew) counts from zero again; a core that was taken off or added is left out.
    """

    def since(before: int, now: int) -> int:
        return now - before if now >= before else now

    busy_ratios = []
    busy = total = taken = 0
    for before, now in zip(earlier.cores, later.cores, strict=False):
        core_total = now.total - before.total
        core_busy = min(max(now.busy - before.busy, 0), max(core_total, 0))
        if core_total > 0:  # idle time may step back by a tick (proc(5))
            busy, total = busy + core_busy, total + core_total
            taken += min(max(now.taken - before.taken, 0), core_busy)
            busy_ratios.append(core_busy / core_total)
    if not total:
        return {}
    nothing = NicCounts(
        rx_bytes=0, rx_packets_count=0, tx_bytes=0, tx_packets_count=0, drops_count=0
    )
    found = {}
    for name, nic in later.nics.items():
        was = earlier.nics.get(name, nothing)
        found[name] = HostSecond(
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
    return found


class HostCounters:
    """The host's counter files, kept open. A context manager."""

    def __init__(self, nic: str | None) -> None:
        """Open the files.

        Args:
            nic: An interface that is counted also while it carries nothing.

        Raises:
            CountersUnreadable: A file or that interface is missing.
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
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def read(self) -> HostTotals:
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
    """The host's latest seconds, counted all the time so that no burst has to start it."""

    def __init__(self, keep_s: float, nic: str | None = None) -> None:
        """Keep the newest seconds.

        Args:
            keep_s: How many.
            nic: The interface whose counters are returned where no other is asked for.
        """
        self._nic = nic
        self._seconds: deque[Mapping[str, HostSecond]] = deque(maxlen=math.ceil(keep_s))
        self._looks: deque[tuple[float, Mapping[str, bool]]] = deque(maxlen=math.ceil(keep_s))

    def keep(self, second: Mapping[str, HostSecond]) -> None:
        """Append a second, by interface."""
        self._seconds.append(second)

    def between(self, from_s: float, to_s: float, nic: str | None = None) -> tuple[HostSecond, ...]:
        """Return the seconds that lie wholly or partly between two epoch seconds.

        Args:
            from_s: Epoch s.
            to_s: Epoch s.
            nic: The interface whose counters are wanted; None for the host's own. A second in
                which there was no such interface is left out.
        """
        wanted = nic or self._nic
        found = (second.get(wanted or next(iter(second))) for second in self._seconds)
        return tuple(s for s in found if s and s.end_at_s > from_s and s.start_at_s < to_s)

    def look(self, at_s: float, filled: Mapping[str, bool]) -> None:
        """Append a look at the egress queues, by interface."""
        self._looks.append((at_s, filled))

    def egress_queued_ratio(
        self, from_s: float, to_s: float, nic: str | None = None
    ) -> float | None:
        """Return the share of looks between two epoch seconds that found a queue filled.

        Args:
            from_s: Epoch s.
            to_s: Epoch s.
            nic: The interface; None for the host's own.

        Returns:
            0..1; None where the queue was looked at less than :data:`LOOKS_MIN_COUNT` times.
        """
        wanted = nic or self._nic or ""
        looks = [
            filled[wanted]
            for at_s, filled in self._looks
            if from_s + LOOKS_EDGE_S < at_s < to_s - LOOKS_EDGE_S and wanted in filled
        ]
        return sum(looks) / len(looks) if len(looks) >= LOOKS_MIN_COUNT else None

    async def watch(self, counters: HostCounters) -> None:
        """Take a reading at every whole second of the wall clock, until cancelled."""
        earlier = counters.read()
        while True:
            await asyncio.sleep(1.0 - time.time() % 1.0)
            later = counters.read()
            self.look(later.read_at_s, later.filled)
            if later.read_at_s - earlier.read_at_s < 0.5:  # woken a hair before the second
                continue
            second = difference(earlier, later)
            if second:
                self.keep(second)
                earlier = later
