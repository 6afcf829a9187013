"""Create the queue, tables and raw store of a deployment from its settings.

We only import adapters when they are needed. For example, if you use the embedded fabric, the Azure
SDK will not be loaded.
"""

import asyncio
import importlib
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import ValidationError

from broadside.exchange.documents import TableRaw
from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.installation import bring_extra
from broadside.exchange.outage_log import OutageLog, WriteRefusals
from broadside.exchange.pacing import BEAT_SPREAD_S
from broadside.exchange.ports import ExchangeMisconfigured, JobQueue, RawStore, Table
from broadside.exchange.records import AgentRecords, Records

__all__ = ["Fabric", "FabricSettings", "environment_settings", "open_fabric"]

TABLES: Final = ("control", "results", "private")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Queue, three tables, raw store and records of one deployment.

    :mod:`broadside.exchange.records` lists who may read and write each table.

    Attributes:
        queue: The queue of jobs.
        control: The table with plans and control rows.
        results: The table with presences, claims, reports and seconds.
        private: The table that agents cannot read or write.
        raw: The store for raw engine output. If it is None, the ``results`` table is used.
        troubles: Log of the outages that the adapters detected.
        receive_wait_s: How long an idle agent waits in one receive call, in seconds.
        refusals: Log of the writes that the storage of this process rejected.
        in_files: True if the tables are files on this host, which a user can delete.
        revoked: Event that is set when the coordinator rejects this agent's credential as revoked.
        beat_spread_s: If a change affects the whole fleet, agents spread their heartbeats over
            this time, in seconds.
        records: The records in the three tables.
    """

    queue: JobQueue
    control: Table
    results: Table
    private: Table
    raw: RawStore | None = None
    troubles: OutageLog = field(default_factory=OutageLog)
    receive_wait_s: float = 2.0
    refusals: WriteRefusals = field(default_factory=WriteRefusals)
    in_files: bool = False
    revoked: asyncio.Event = field(default_factory=asyncio.Event)
    beat_spread_s: float = 0.0
    records: Records = field(init=False)

    def __post_init__(self) -> None:
        records = Records(
            control=self.control, results=self.results, private=self.private, raw=self.raw
        )
        # We should create it only once, because it caches the rows that it has read.
        object.__setattr__(self, "records", records)

    @property
    def raw_store(self) -> RawStore:
        """Return the raw store. Without ``raw`` it uses the ``results`` table."""
        return self.raw or TableRaw(self.results)

    @property
    def agent_records(self) -> AgentRecords:
        """Return the records that an agent uses, without access to the private table."""
        return AgentRecords(control=self.control, results=self.results, raw=self.raw)

    async def close(self) -> None:
        """Close all connections. Locks on messages are not released, but they expire."""
        async with AsyncExitStack() as stack:
            for place in (self.raw, self.private, self.results, self.control, self.queue):
                if place is not None:
                    stack.push_async_callback(place.close)


def open_fabric(settings: FabricSettings | None = None) -> Fabric:
    """Create the fabric for the given settings.

    This function opens no file and no connection. The first call on the fabric does, so if you need
    to fork, you should do it before that call.

    Args:
        settings: The settings of the fabric. If None, they will be read from the environment.

    Raises:
        ExchangeMisconfigured: A setting is missing or invalid.
    """
    if settings is None:
        settings = environment_settings()
    troubles = OutageLog()
    raw: RawStore | None = None
    if settings.blobs_endpoint or settings.blobs_connection_string:
        raw = _azure("a blob account is set").open_raw(settings, troubles)
    match settings.fabric:
        case "embedded":
            from broadside.exchange.embedded.embedded_queue import EmbeddedQueue, QueueRules
            from broadside.exchange.embedded.embedded_table import EmbeddedTable

            refusals = WriteRefusals()
            control, results, private = (
                EmbeddedTable(
                    settings.data_dir, name, busy_s=settings.storage_wait_s, refusals=refusals
                )
                for name in TABLES
            )
            return Fabric(
                queue=EmbeddedQueue(
                    settings.data_dir,
                    QueueRules(
                        lock_s=settings.queue_lock_s,
                        deliveries_max_count=settings.queue_deliveries_max_count,
                        duplicates_s=settings.queue_duplicates_s,
                    ),
                    busy_s=settings.storage_wait_s,
                    refusals=refusals,
                ),
                control=control,
                results=results,
                private=private,
                raw=raw,
                troubles=troubles,
                refusals=refusals,
                in_files=True,
            )
        case "http":
            return _http(settings, troubles)
        case "azure":
            azure = _azure("BROADSIDE_FABRIC=azure")
            return Fabric(
                queue=azure.open_queue(settings, troubles),
                raw=raw,
                troubles=troubles,
                beat_spread_s=BEAT_SPREAD_S,
                **{name: azure.open_table(settings, name, troubles) for name in TABLES},
            )


def _http(settings: FabricSettings, troubles: OutageLog) -> Fabric:
    from broadside.exchange.http.coordinator_client import CoordinatorClient
    from broadside.exchange.http.credential import coordinator_addresses, load_credential
    from broadside.exchange.http.http_ports import HttpQueue, HttpRaw, HttpTable, WatchedTable

    path = settings.credential_file
    credential = None if path is None else load_credential(path)
    if credential is None:
        raise ExchangeMisconfigured(
            f"BROADSIDE_FABRIC=http: no credential{f' in {path}' if path else ''}: this host is "
            "not enrolled; run `broadside agent --join-file FILE --coordinator https://host:8443`"
        )
    if settings.coordinator is not None:
        credential = replace(credential, coordinators=coordinator_addresses(settings.coordinator))
    link = CoordinatorClient(credential, troubles)
    return Fabric(
        queue=HttpQueue(link),
        control=WatchedTable(link, "control"),
        results=HttpTable(link, "results"),
        private=HttpTable(link, "private"),
        raw=HttpRaw(link),
        troubles=troubles,
        revoked=link.revoked,
        # The coordinator pushes jobs, so we do not need short waits. They would only cause more
        # requests.
        receive_wait_s=30.0,
    )


def environment_settings() -> FabricSettings:
    """Read the settings from the ``BROADSIDE_...`` environment variables.

    Raises:
        ExchangeMisconfigured: A variable has an invalid value.
    """
    try:
        return FabricSettings()
    except ValidationError as error:
        first = error.errors()[0]
        name = f"BROADSIDE_{'_'.join(map(str, first['loc'])).upper()}"
        raise ExchangeMisconfigured(f"{name}={first['input']}: {first['msg']}") from error


def _azure(identity_name: str) -> Any:
    """Import the Azure adapters, which other fabrics do not need."""
    try:
        return importlib.import_module("broadside.exchange.azure.azure_fabric")
    except ModuleNotFoundError as error:
        raise ExchangeMisconfigured(
            f"{identity_name}: {error.name} is missing; {bring_extra('azure')}"
        ) from error
