"""How busy the machine's cores were while a case ran."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

EVERY_S: Final = 1.0
_ALL: Final = "cpu"  # what the kernel calls all cores together


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """A core's time since it began, in the kernel's ticks."""

    busy: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Busiest:
    """Busy shares in the busiest stretch; None: there was none."""

    machine_ratio: float | None  # of all cores
    core_ratio: float | None  # of the fullest core, which a thread that moves leaves unseen


def read_spent(stat: str) -> Mapping[str, Spent]:
    """What ``/proc/stat`` says, by its own names: ``cpu``, ``cpu0``, ``cpu1``..."""
    spent = {}
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.startswith(_ALL):
            ticks = [int(field) for field in fields[:8]]
            idle = ticks[3] + ticks[4]  # and waiting for a disk
            spent[name] = Spent(busy=sum(ticks) - idle, total=sum(ticks))
    return spent


def busiest(readings: Sequence[Mapping[str, Spent]], over_count: int) -> Busiest:
    """The busiest stretch of so many readings, or of all where there are fewer."""
    length = min(over_count, len(readings) - 1)
    machine: list[float] = []
    core: list[float] = []
    for now, then in zip(readings[length:], readings, strict=False):
        for name in now.keys() & then.keys():
            total = now[name].total - then[name].total
            if total > 0:
                share = (now[name].busy - then[name].busy) / total
                (machine if name == _ALL else core).append(share)
    return Busiest(machine_ratio=max(machine, default=None), core_ratio=max(core, default=None))


class Watch:
    """Reads the kernel's counters every second while it is open."""

    def __init__(self) -> None:
        self._readings = [self._read()]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def busiest(self, over_s: int) -> Busiest:
        """The busiest stretch of so many seconds."""
        return busiest(self._readings, round(over_s / EVERY_S))

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            self._readings.append(self._read())

    @staticmethod
    def _read() -> Mapping[str, Spent]:
        return read_spent(Path("/proc/stat").read_text())
