"""Settings in, a fabric out: the queue and the table that this deployment uses.

Adapters are imported when they are chosen, so that an agent on one host loads no Azure SDK.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from exchange.ports import ExchangeMisconfigured, JobQueue, Table
from exchange.records import Records


class FabricSettings(BaseSettings):
    """Where coordinator and agents meet: environment variables ``BROADSIDE_...``, set on both."""

    model_config = SettingsConfigDict(env_prefix="BROADSIDE_", extra="ignore", frozen=True)

    fabric: Literal["embedded", "azure"] = Field(
        "embedded",
        description="`embedded`: SQLite, one host; `azure`: Service Bus and Table Storage",
    )
    data_dir: Path = Field(
        Path(".broadside"), description="directory of the embedded fabric's two database files"
    )
    queue_lock_s: float = Field(
        60.0, gt=0, le=300, description="seconds in which a receiver must settle a message"
    )
    queue_deliveries_max_count: int = Field(
        5, ge=1, le=100, description="deliveries after which a message is set aside as poison"
    )
    queue_duplicates_s: float = Field(
        86_400.0,
        ge=600,
        le=604_800,
        description="seconds in which a second send of one job is recognised and dropped",
    )
    storage_wait_s: float = Field(
        10.0, gt=0, le=300, description="seconds to wait for another process's write to end"
    )
    servicebus_namespace: str | None = Field(
        None, description="`<name>.servicebus.windows.net`, entered with an Azure identity"
    )
    servicebus_connection_string: SecretStr | None = Field(
        None, description="in place of the namespace: a shared access policy's connection string"
    )
    servicebus_queue: str = Field("jobs", description="the queue's name in its namespace")
    servicebus_endpoint: str | None = Field(
        None, description="`sb://host:port` to connect to in place of the namespace itself"
    )
    servicebus_ca_file: Path | None = Field(
        None, description="PEM file of the authority behind that endpoint's certificate"
    )
    tables_endpoint: str | None = Field(
        None, description="`https://<account>.table.core.windows.net`, entered with an identity"
    )
    tables_connection_string: SecretStr | None = Field(
        None, description="in place of the endpoint: the storage account's connection string"
    )
    tables_name: str = Field("broadside", description="the table's name in its account")
    tables_ca_file: Path | None = Field(
        None, description="PEM file of the authority behind that endpoint's certificate"
    )
    managed_identity_client_id: str | None = Field(
        None, description="client id of a user-assigned identity; none: the system-assigned one"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A queue, a table, and the records in the table."""

    queue: JobQueue
    table: Table

    @property
    def records(self) -> Records:
        return Records(self.table)

    async def close(self) -> None:
        """Release both; locks held on messages are left to run out."""
        try:
            await self.queue.close()
        finally:
            await self.table.close()


def open_fabric(settings: FabricSettings | None = None) -> Fabric:
    """The fabric that ``settings`` (None: the environment's) name.

    Nothing is touched yet: files and connections open at the first call, which belongs after any
    fork. Raises :class:`~exchange.ports.ExchangeMisconfigured`.
    """
    if settings is None:
        settings = _environment_settings()
    match settings.fabric:
        case "embedded":
            from exchange.embedded import EmbeddedQueue, EmbeddedTable

            return Fabric(
                queue=EmbeddedQueue(
                    settings.data_dir,
                    lock_s=settings.queue_lock_s,
                    deliveries_max_count=settings.queue_deliveries_max_count,
                    duplicates_s=settings.queue_duplicates_s,
                    busy_s=settings.storage_wait_s,
                ),
                table=EmbeddedTable(settings.data_dir, busy_s=settings.storage_wait_s),
            )
        case "azure":
            return _open_azure(settings)


def _environment_settings() -> FabricSettings:
    try:
        return FabricSettings()
    except ValidationError as error:
        first = error.errors()[0]
        name = f"BROADSIDE_{'_'.join(map(str, first['loc'])).upper()}"
        raise ExchangeMisconfigured(f"{name}={first['input']}: {first['msg']}") from error


def _open_azure(settings: FabricSettings) -> Fabric:
    try:
        azure = importlib.import_module("exchange.azure")
    except ModuleNotFoundError as error:
        if error.name == "exchange.azure":
            raise ExchangeMisconfigured(
                "BROADSIDE_FABRIC=azure: not built in this version; use embedded"
            ) from error
        raise ExchangeMisconfigured(
            f"BROADSIDE_FABRIC=azure: {error.name} is missing; pip install 'broadside[azure]'"
        ) from error
    fabric: Fabric = azure.open_azure(settings)
    return fabric
