"""Settings of the fabric, used by :func:`broadside.exchange.fabric.open_fabric`."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class FabricSettings(BaseSettings):
    """Fabric settings from ``BROADSIDE_...`` environment variables, for coordinator and agents."""

    model_config = SettingsConfigDict(env_prefix="BROADSIDE_", extra="ignore", frozen=True)

    fabric: Literal["embedded", "http", "azure"] = Field(
        "embedded",
        description="`embedded`: SQLite, one host; `http`: an agent's, over HTTPS to a coordinator "
        "that has `BROADSIDE_HOSTS_LISTEN`; `azure`: Service Bus and Table Storage",
    )
    coordinator: str | None = Field(
        None,
        description="`http`: `https://host:8443` of the coordinator, or several, comma-separated, "
        "tried in turn",
    )
    credential_file: Path | None = Field(
        None,
        description="`http`: where the agent keeps its credential; default: `credential.json` in "
        "its spool's folder",
    )
    data_dir: Path = Field(
        Path(".broadside"), description="directory of the embedded fabric's database files"
    )
    queue_lock_s: float = Field(
        10.0, gt=0, le=300, description="seconds in which a receiver must settle a message"
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
    tables_control: str = Field(
        "control", description="the table of plans and control rows: agents only read it"
    )
    tables_results: str = Field(
        "results", description="the table of presences, claims, reports and seconds"
    )
    tables_private: str = Field(
        "private",
        description="the table of tokens, schedules, studies, verdicts and audit: an agent needs "
        "no right on it",
    )
    tables_ca_file: Path | None = Field(
        None, description="PEM file of the authority behind that endpoint's certificate"
    )
    blobs_endpoint: str | None = Field(
        None,
        description="`https://<account>.blob.core.windows.net`, entered with an identity, to keep "
        "engines' raw output in; default: the table of results keeps it",
    )
    blobs_connection_string: SecretStr | None = Field(
        None, description="in place of the endpoint: the storage account's connection string"
    )
    blobs_container: str = Field(
        "broadside-raw", description="the blob container's name in its account"
    )
    blobs_ca_file: Path | None = Field(
        None, description="PEM file of the authority behind that endpoint's certificate"
    )
    managed_identity_client_id: str | None = Field(
        None, description="client id of a user-assigned identity; none: the system-assigned one"
    )
