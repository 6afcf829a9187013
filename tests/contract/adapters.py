"""The adapters that the contract suite runs on, and how a test, or its child, opens one.

To add an adapter, add an entry to :data:`ADAPTERS`. No case knows more of it than a :class:`Place`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from exchange.embedded import EmbeddedQueue, EmbeddedTable
from exchange.ports import JobQueue, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one test's queue and table are: all that another process needs to open them too."""

    adapter: str
    address: str
    lock_s: float  # s, the queue's lock time: as short as the adapter allows
    deliveries_max_count: int

    def open_queue(self) -> JobQueue:
        return ADAPTERS[self.adapter].open_queue(self)

    def open_table(self) -> Table:
        return ADAPTERS[self.adapter].open_table(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One pair of adapters: ``make`` gives a fresh, empty place."""

    make: Callable[[Path], Place]
    open_queue: Callable[[Place], JobQueue]
    open_table: Callable[[Place], Table]


def _embedded_place(tmp_path: Path) -> Place:
    address = str(tmp_path / "fabric")
    return Place(adapter="embedded", address=address, lock_s=0.8, deliveries_max_count=3)


def _embedded_queue(place: Place) -> JobQueue:
    return EmbeddedQueue(
        Path(place.address),
        lock_s=place.lock_s,
        deliveries_max_count=place.deliveries_max_count,
        duplicates_s=600,
        busy_s=30,
    )


def _embedded_table(place: Place) -> Table:
    return EmbeddedTable(Path(place.address), busy_s=30)


ADAPTERS = {
    "embedded": Adapter(
        make=_embedded_place, open_queue=_embedded_queue, open_table=_embedded_table
    ),
}
