"""Coordinator settings, from environment variables ``BROADSIDE_...``."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from broadside.coordinator.core.plan.nightly_stop import NightlyStop


class CoordinatorSettings(BaseSettings):
    """Coordinator settings.

    The fabric settings are in :mod:`broadside.exchange.fabric`.
    """

    model_config = SettingsConfigDict(env_prefix="BROADSIDE_", extra="ignore", frozen=True)

    host: str = Field(
        "127.0.0.1",
        description="address on which the API listens; any address other than loopback "
        "requires sign-in",
    )
    port: int = Field(
        8080, ge=0, le=65535, description="port on which the API listens; 0 selects a free port"
    )
    hosts_listen: str | None = Field(
        None,
        description="address and port, such as `[::]:8443`, on which agents on other hosts "
        "connect with HTTPS; default: none. See docs/hosts.md",
    )
    hosts_certificate_file: Path | None = Field(
        None,
        description="PEM file with the certificate for `hosts_listen`; default: a certificate "
        "from the coordinator's own authority, created in `BROADSIDE_DATA_DIR`",
    )
    hosts_key_file: Path | None = Field(
        None, description="PEM file with the key of the certificate"
    )
    requests_at_once: int = Field(
        128,
        ge=4,
        description="largest number of concurrent requests per credential, for the API and "
        "for agents; more requests get the status 429. Health checks and joining are not "
        "limited",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "WARNING", description="log level of `broadside serve` on standard error"
    )
    tick_s: float = Field(
        1.0, gt=0, le=60, description="seconds between two passes over the active runs"
    )
    prices: Path | None = Field(
        None, description="TOML file with your own prices, which replace the included ones"
    )
    webhook_url: str | None = Field(
        None,
        pattern="^https?://",
        description="URL that receives a signed message when a run ends; see docs/pipeline.md",
    )
    webhook_secret: SecretStr | None = Field(
        None, description="key to sign the messages: `whsec_` and 24 to 64 bytes in base64"
    )
    otlp_endpoint: str | None = Field(
        None,
        pattern="^https?://",
        description="OpenTelemetry collector, such as http://127.0.0.1:4318, that receives "
        "the metrics of a run when it ends",
    )
    nightly_stop: Annotated[
        NightlyStop | None,
        NoDecode,
        BeforeValidator(
            lambda value: NightlyStop.parse(value) if isinstance(value, str) else value
        ),
    ] = Field(
        None,
        description="time of day and time zone, such as `20:00 Europe/Berlin`, at which the VMs of "
        "the agents stop; every launch shows it. Set by `broadside up`",
    )
    retention_days: float = Field(
        90.0, ge=0, description="age in days from which `broadside prune` deletes a run"
    )
    backup_dir: Path | None = Field(
        None,
        description="folder for scheduled backups of the embedded storage, written every "
        "`BROADSIDE_BACKUP_EVERY_H` hours; default: no backups. See docs/hosts.md",
    )
    backup_every_h: float = Field(
        24.0, ge=0.1, le=8760, description="hours between two scheduled backups"
    )
    backup_keep_count: int = Field(
        7,
        ge=1,
        le=10_000,
        description="number of scheduled backups to keep; older ones are deleted",
    )
    switches_file: Path | None = Field(
        None,
        description="TOML file with the commands that change the state of the device; see "
        "docs/studies.md",
    )
    telemetry_file: Path | None = Field(
        None,
        description="TOML file of the sources of device telemetry: byte counter, CPU, sessions, "
        "drops, health; see docs/telemetry.md. Replaces `BROADSIDE_LEDGER...` and "
        "`BROADSIDE_WITNESSES_FILE`",
    )
    azure_monitor_resource_id: str | None = Field(
        None,
        description="`/subscriptions/.../azureFirewalls/<name>`: firewall of `broadside capacity`",
    )
    azure_monitor_endpoint: str = Field(
        "https://management.azure.com",
        description="Resource Manager for `broadside capacity` and `policy-switch`: "
        "`https://management.usgovcloudapi.net`, `https://management.chinacloudapi.cn`. The "
        "token scope and the sign-in address are derived from it",
    )
    azure_monitor_token: SecretStr | None = Field(
        None, description="bearer token for them in place of an Azure identity"
    )
    managed_identity_client_id: str | None = Field(
        None, description="client id of the identity for the fabric, also for the Resource Manager"
    )
