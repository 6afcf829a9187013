"""Settings in, a fabric out: the queue, the tables and the raw store that this deployment uses.

Adapters are imported when they are chosen, so that an agent on one host loads no Azure SDK.
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
from broadside.exchange.pacing import BEAT_SPREAD_S
from broadside.exchange.ports import ExchangeMisconfigured, JobQueue, RawStore, Table
from broadside.exchange.records import AgentRecords, Records
from broadside.exchange.troubles import TroubleLog, WriteRefusals

__all__ = ["Fabric", "FabricSettings", "environment_settings", "open_fabric"]

TABLES: Final = ("control", "results", "private")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A queue, three tables, what keeps raw output, and the records in them.

    Who may do what in which table: :mod:`broadside.exchange.records`.
    """

    queue: JobQueue
    control: Table
    results: Table
    private: Table
    raw: RawStore | None = None  # None: the table of results keeps it
    troubles: TroubleLog = field(default_factory=TroubleLog)  # what the adapters lived through
    receive_wait_s: float = 2.0  # that an idle agent's receive is to wait
    refusals: WriteRefusals = field(default_factory=WriteRefusals)  # of this process's own writes
    in_files: bool = False  # of this host, which somebody may remove
    # Set once the coordinator refuses this agent's credential: it was revoked.
    revoked: asyncio.Event = field(default_factory=asyncio.Event)
    beat_spread_s: float = 0.0  # within which agents tell a change that a whole fleet has at once
    records: Records = field(init=False)

    def __post_init__(self) -> None:
        records = Records(
            control=self.control, results=self.results, private=self.private, raw=self.raw
        )
        object.__setattr__(self, "records", records)  # one, which knows what it read

    @property
    def raw_store(self) -> RawStore:
        return self.raw or TableRaw(self.results)

    @property
    def agent_records(self) -> AgentRecords:
        """An agent's part: nothing of it touches the private table."""
        return AgentRecords(control=self.control, results=self.results, raw=self.raw)

    async def close(self) -> None:
        """Release all; locks held on messages are left to run out."""
        async with AsyncExitStack() as stack:
            for place in (self.raw, self.private, self.results, self.control, self.queue):
                if place is not None:
                    stack.push_async_callback(place.close)


def open_fabric(settings: FabricSettings | None = None) -> Fabric:
    """The fabric that ``settings`` (None: the environment's) name.

    Nothing is touched yet: files and connections open at the first call, which belongs after any
    fork. Raises :class:`~broadside.exchange.ports.ExchangeMisconfigured`.
    """
    if settings is None:
        settings = environment_settings()
    troubles = TroubleLog()
    raw: RawStore | None = None
    if settings.blobs_endpoint or settings.blobs_connection_string:
        raw = _azure("a blob account is set").open_raw(settings, troubles)
    match settings.fabric:
        case "embedded":
            from broadside.exchange.embedded.embedded_queue import EmbeddedQueue
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
                    lock_s=settings.queue_lock_s,
                    deliveries_max_count=settings.queue_deliveries_max_count,
                    duplicates_s=settings.queue_duplicates_s,
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


def _http(settings: FabricSettings, troubles: TroubleLog) -> Fabric:
    from broadside.exchange.http.coordinator_link import Link
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
    link = Link(credential, troubles)
    return Fabric(
        queue=HttpQueue(link),
        control=WatchedTable(link, "control"),
        results=HttpTable(link, "results"),
        private=HttpTable(link, "private"),
        raw=HttpRaw(link),
        troubles=troubles,
        revoked=link.revoked,
        receive_wait_s=30.0,  # jobs are pushed: asking again is a request for nothing
    )


def environment_settings() -> FabricSettings:
    """What ``BROADSIDE_...`` says. Raises
    :class:`~broadside.exchange.ports.ExchangeMisconfigured`."""
    try:
        return FabricSettings()
    except ValidationError as error:
        first = error.errors()[0]
        name = f"BROADSIDE_{'_'.join(map(str, first['loc'])).upper()}"
        raise ExchangeMisconfigured(f"{name}={first['input']}: {first['msg']}") from error


def _azure(asked_by: str) -> Any:
    """The Azure adapters, which an agent on one host never loads."""
    try:
        return importlib.import_module("broadside.exchange.azure.azure_fabric")
    except ModuleNotFoundError as error:
        raise ExchangeMisconfigured(
            f"{asked_by}: {error.name} is missing; {bring_extra('azure')}"
        ) from error
