"""Settings in, a fabric out: the queue, the table and the raw store that this deployment uses.

Adapters are imported when they are chosen, so that an agent on one host loads no Azure SDK.
"""

import importlib
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from exchange.fabric_settings import FabricSettings
from exchange.ports import ExchangeMisconfigured, JobQueue, RawStore, Table
from exchange.records import Records
from exchange.table_blobs import TableRaw
from exchange.troubles import TroubleLog

__all__ = ["Fabric", "FabricSettings", "open_fabric"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A queue, a table, what keeps raw output, and the records in them."""

    queue: JobQueue
    table: Table
    raw: RawStore | None = None  # None: the table keeps it
    troubles: TroubleLog = field(default_factory=TroubleLog)  # what the adapters lived through

    @property
    def raw_store(self) -> RawStore:
        return self.raw or TableRaw(self.table)

    @property
    def records(self) -> Records:
        return Records(self.table, self.raw)

    async def close(self) -> None:
        """Release all; locks held on messages are left to run out."""
        try:
            await self.queue.close()
        finally:
            try:
                await self.table.close()
            finally:
                if self.raw is not None:
                    await self.raw.close()


def open_fabric(settings: FabricSettings | None = None) -> Fabric:
    """The fabric that ``settings`` (None: the environment's) name.

    Nothing is touched yet: files and connections open at the first call, which belongs after any
    fork. Raises :class:`~exchange.ports.ExchangeMisconfigured`.
    """
    if settings is None:
        settings = _environment_settings()
    troubles = TroubleLog()
    raw: RawStore | None = None
    if settings.blobs_endpoint or settings.blobs_connection_string:
        raw = _azure("a blob account is set").open_raw(settings, troubles)
    match settings.fabric:
        case "embedded":
            from exchange.embedded.sqlite_fabric import EmbeddedQueue, EmbeddedTable

            return Fabric(
                queue=EmbeddedQueue(
                    settings.data_dir,
                    lock_s=settings.queue_lock_s,
                    deliveries_max_count=settings.queue_deliveries_max_count,
                    duplicates_s=settings.queue_duplicates_s,
                    busy_s=settings.storage_wait_s,
                ),
                table=EmbeddedTable(settings.data_dir, busy_s=settings.storage_wait_s),
                raw=raw,
                troubles=troubles,
            )
        case "azure":
            azure = _azure("BROADSIDE_FABRIC=azure")
            return Fabric(
                queue=azure.open_queue(settings, troubles),
                table=azure.open_table(settings, troubles),
                raw=raw,
                troubles=troubles,
            )


def _environment_settings() -> FabricSettings:
    try:
        return FabricSettings()
    except ValidationError as error:
        first = error.errors()[0]
        name = f"BROADSIDE_{'_'.join(map(str, first['loc'])).upper()}"
        raise ExchangeMisconfigured(f"{name}={first['input']}: {first['msg']}") from error


def _azure(asked_by: str) -> Any:
    """The Azure adapters, which an agent on one host never loads."""
    try:
        return importlib.import_module("exchange.azure.azure_fabric")
    except ModuleNotFoundError as error:
        raise ExchangeMisconfigured(
            f"{asked_by}: {error.name} is missing; pip install 'broadside[azure]'"
        ) from error
