"""Adapters for the contract suite, and functions to open one in a test or its child process.

To add an adapter, add an entry to :data:`QUEUES`, :data:`TABLES` or :data:`RAWS`. The test cases
use only :class:`Place`.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Generic, TypeVar
from uuid import uuid4

import certifi
import pytest

from broadside.exchange.azure.blob_storage import BlobAddress, BlobRaw
from broadside.exchange.azure.service_bus import ServiceBusAddress, ServiceBusQueue
from broadside.exchange.azure.table_storage import AzureTable, TableAddress
from broadside.exchange.azure.wire import Bounds
from broadside.exchange.documents import TableRaw
from broadside.exchange.embedded.embedded_queue import EmbeddedQueue, QueueRules
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.fabric import TABLES as TABLE_NAMES
from broadside.exchange.fabric import Fabric
from broadside.exchange.http.coordinator_client import CoordinatorClient
from broadside.exchange.http.credential import AgentCredential
from broadside.exchange.http.http_ports import HttpQueue, HttpRaw, HttpTable
from broadside.exchange.ports import JobQueue, RawStore, Table

_Port = TypeVar("_Port", covariant=True)

LOCK_S: Final = 3.0
_AUTHORITY: Final = certifi.contents().partition(ssl.PEM_FOOTER)[0] + ssl.PEM_FOOTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Location of the queue or table for one test. It can be opened from another process.

    Attributes:
        lock_s: Lock time for the queue. It needs to be longer than the pauses on a busy host.
    """

    adapter: str
    address: str
    lock_s: float
    deliveries_max_count: int

    def open_queue(self) -> JobQueue:
        return QUEUES[self.adapter].open(self)

    def open_table(self) -> Table:
        return TABLES[self.adapter].open(self)

    def open_raw(self) -> RawStore:
        return RAWS[self.adapter].open(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter(Generic[_Port]):
    """Pair of functions to set up an empty place (``make``) and to open it in any process
    (``open``)."""

    make: Callable[[pytest.FixtureRequest], Place]
    open: Callable[[Place], _Port]


def _embedded_place(request: pytest.FixtureRequest) -> Place:
    address = str(request.getfixturevalue("tmp_path") / "fabric")
    return Place(adapter="embedded", address=address, lock_s=LOCK_S, deliveries_max_count=3)


def _embedded_queue(place: Place) -> JobQueue:
    return EmbeddedQueue(
        Path(place.address),
        QueueRules(
            lock_s=place.lock_s, deliveries_max_count=place.deliveries_max_count, duplicates_s=600
        ),
        busy_s=30,
    )


def _embedded_table(place: Place) -> Table:
    return EmbeddedTable(Path(place.address), "results", busy_s=30)


def _servicebus_place(request: pytest.FixtureRequest) -> Place:
    broker = request.getfixturevalue("broker")
    name, lock_s, deliveries_max_count = f"q{uuid4().hex[:8]}", LOCK_S, 3
    broker.ask("create", queue=name, lock_s=lock_s, max_delivery_count=deliveries_max_count)
    return Place(
        adapter="servicebus",
        address=f"{name} {broker.connection_string}",
        lock_s=lock_s,
        deliveries_max_count=deliveries_max_count,
    )


def _servicebus_queue(place: Place) -> JobQueue:
    name, connection_string = place.address.split(" ", 1)
    address = ServiceBusAddress(queue=name, connection_string=connection_string)
    return ServiceBusQueue(address, bounds=Bounds(backoff_s=0.1))


def _azurite_place(request: pytest.FixtureRequest) -> Place:
    azurite = request.getfixturevalue("azurite")
    name = f"t{uuid4().hex[:8]}"
    azurite.create_tables(name)
    address = f"{name} {azurite.connection_string()}"
    return Place(adapter="azurite", address=address, lock_s=0, deliveries_max_count=0)


def _azure_table(place: Place) -> Table:
    name, connection_string = place.address.split(" ", 1)
    return AzureTable(TableAddress(table=name, connection_string=connection_string))


def _recorded_place(request: pytest.FixtureRequest) -> Place:
    recorded = request.getfixturevalue("recorded")
    name = f"r{uuid4().hex[:8]}"
    recorded.create(name)
    address = f"{name} {recorded.connection_string}"
    return Place(adapter="recorded", address=address, lock_s=0, deliveries_max_count=0)


def _container_place(request: pytest.FixtureRequest) -> Place:
    azurite = request.getfixturevalue("azurite")
    name = f"c{uuid4().hex[:8]}"
    azurite.create_container(name)
    address = f"{name} {azurite.connection_string()}"
    return Place(adapter="blob", address=address, lock_s=0, deliveries_max_count=0)


def _blob_raw(place: Place) -> RawStore:
    name, connection_string = place.address.split(" ", 1)
    return BlobRaw(BlobAddress(container=name, connection_string=connection_string))


def _http_place(request: pytest.FixtureRequest) -> Place:
    served = request.getfixturevalue("http_places")
    folder = request.getfixturevalue("tmp_path") / "served"
    place = Place(adapter="http", address=str(folder), lock_s=LOCK_S, deliveries_max_count=3)
    control, results, private = (EmbeddedTable(folder, name, busy_s=30) for name in TABLE_NAMES)
    fabric = Fabric(queue=_embedded_queue(place), control=control, results=results, private=private)
    secret = served.add(fabric)
    request.addfinalizer(lambda: served.remove(secret))
    return replace(place, address=f"{secret} {served.url} {folder}")


def _link(place: Place) -> CoordinatorClient:
    return http_link(*place.address.split(" ")[:2])


def http_link(secret: str, url: str) -> CoordinatorClient:
    """Return a link to a coordinator without TLS.

    It is set to trust a single authority. Otherwise all clients would need to read the hundreds
    of system authorities.
    """
    credential = AgentCredential(
        coordinators=(url,),
        authority=_AUTHORITY,
        agent_id="suite",
        role="client",
        secret=secret,
        issued_s=0.0,
    )
    return CoordinatorClient(credential)


class _ClosingTableRaw(TableRaw):
    """Raw store that also closes its table, because the table is not shared here."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._own = table

    async def close(self) -> None:
        await self._own.close()


def _embedded_fabric_of(place: Place) -> Place:
    """Return the embedded fabric used by the coordinator behind an ``http`` place."""
    return replace(place, adapter="embedded", address=place.address.split(" ")[2])


class _HttpQueue(HttpQueue):
    """Queue for an agent, with the methods that only a coordinator can use on its fabric."""

    def __init__(self, place: Place) -> None:
        super().__init__(_link(place))
        self._own = _embedded_queue(_embedded_fabric_of(place))
        for name in ("send", "cancel", "dead_letters", "resend", "purge", "counts"):
            setattr(self, name, getattr(self._own, name))

    async def close(self) -> None:
        await super().close()
        await self._own.close()


class _HttpTable(HttpTable):
    """Table for an agent, with the methods that only a coordinator can use on its fabric."""

    def __init__(self, place: Place) -> None:
        super().__init__(_link(place), "results")
        self._own = _embedded_table(_embedded_fabric_of(place))
        for name in ("replace", "next_partition", "delete_partition"):
            setattr(self, name, getattr(self._own, name))

    async def close(self) -> None:
        await super().close()
        await self._own.close()


class _HttpRaw(HttpRaw):
    """Raw store for an agent, with the methods that only a coordinator can use on its fabric."""

    def __init__(self, place: Place) -> None:
        super().__init__(_link(place))
        self._own = _ClosingTableRaw(_embedded_table(_embedded_fabric_of(place)))
        for name in ("read", "delete_folder"):
            setattr(self, name, getattr(self._own, name))

    async def close(self) -> None:
        await super().close()
        await self._own.close()


QUEUES: dict[str, Adapter[JobQueue]] = {
    "embedded": Adapter(make=_embedded_place, open=_embedded_queue),
    "http": Adapter(make=_http_place, open=_HttpQueue),
    "servicebus": Adapter(make=_servicebus_place, open=_servicebus_queue),
}
TABLES: dict[str, Adapter[Table]] = {
    "azurite": Adapter(make=_azurite_place, open=_azure_table),
    "embedded": Adapter(make=_embedded_place, open=_embedded_table),
    "http": Adapter(make=_http_place, open=_HttpTable),
    "recorded": Adapter(make=_recorded_place, open=_azure_table),
}
# Tables used only by coordinators. Agents connect over HTTP, and ``AgentPermissions`` will not let
# them use these tables.
COORDINATOR_TABLES: Final = sorted(TABLES.keys() - {"http"})
RAWS: dict[str, Adapter[RawStore]] = {
    "azurite": Adapter(make=_azurite_place, open=lambda at: _ClosingTableRaw(_azure_table(at))),
    "blob": Adapter(make=_container_place, open=_blob_raw),
    "embedded": Adapter(
        make=_embedded_place, open=lambda at: _ClosingTableRaw(_embedded_table(at))
    ),
    "http": Adapter(make=_http_place, open=_HttpRaw),
    "recorded": Adapter(make=_recorded_place, open=_blob_raw),
}
