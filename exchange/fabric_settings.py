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
        description="`embedded`: SQLite, on one host; `http`: for agents, over HTTPS to a "
        "coordinator with `BROADSIDE_HOSTS_LISTEN`; `azure`: Service Bus and Table Storage",
    )
    coordinator: str | None = Field(
        None,
        description="`http`: URL of the coordinator, such as `https://host:8443`; several "
        "URLs are separated by commas and tried in turn",
    )
    credential_file: Path | None = Field(
        None,
        description="`http`: file with the credential of the agent; default: "
        "`credential.json` in the folder of its spool",
    )
    data_dir: Path = Field(
        Path(".broadside"), description="directory for the database files of the embedded fabric"
    )
    queue_lock_s: float = Field(
        10.0, gt=0, le=300, description="seconds in which a receiver must settle a message"
    )
    queue_deliveries_max_count: int = Field(
        5,
        ge=1,
        le=100,
        description="number of deliveries after which a message becomes a dead letter",
    )
    queue_duplicates_s: float = Field(
        86_400.0,
        ge=600,
        le=604_800,
        description="seconds in which a second message for the same job is dropped",
    )
    storage_wait_s: float = Field(
        10.0, gt=0, le=300, description="seconds to wait for a write of another process"
    )
    servicebus_namespace: str | None = Field(
        None, description="`<name>.servicebus.windows.net`, for use with an Azure identity"
    )
    servicebus_connection_string: SecretStr | None = Field(
        None, description="connection string of a shared access policy, instead of the namespace"
    )
    servicebus_queue: str = Field("jobs", description="name of the queue in the namespace")
    servicebus_endpoint: str | None = Field(
        None, description="`sb://host:port` to connect to, instead of the namespace"
    )
    servicebus_ca_file: Path | None = Field(
        None, description="PEM file with the CA certificate for this endpoint"
    )
    tables_endpoint: str | None = Field(
        None,
        description="`https://<account>.table.core.windows.net`, for use with an Azure identity",
    )
    tables_connection_string: SecretStr | None = Field(
        None, description="connection string of the storage account, instead of the endpoint"
    )
    tables_control: str = Field(
        "control", description="table with plans and control rows, which agents can only read"
    )
    tables_results: str = Field(
        "results", description="table with presences, claims, reports and seconds"
    )
    tables_private: str = Field(
        "private",
        description="table with tokens, schedules, studies, verdicts and the audit log; "
        "agents need no access to it",
    )
    tables_ca_file: Path | None = Field(
        None, description="PEM file with the CA certificate for this endpoint"
    )
    blobs_endpoint: str | None = Field(
        None,
        description="`https://<account>.blob.core.windows.net`, for use with an Azure "
        "identity, to store the raw output of engines; default: it is stored in the results "
        "table",
    )
    blobs_connection_string: SecretStr | None = Field(
        None, description="connection string of the storage account, instead of the endpoint"
    )
    blobs_container: str = Field(
        "broadside-raw", description="name of the blob container in the account"
    )
    blobs_ca_file: Path | None = Field(
        None, description="PEM file with the CA certificate for this endpoint"
    )
    managed_identity_client_id: str | None = Field(
        None,
        description="client id of a user-assigned identity; default: the system-assigned identity",
    )
