"""Coordinator settings, from environment variables ``BROADSIDE_...``."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class CoordinatorSettings(BaseSettings):
    """Coordinator settings.

    The fabric settings are in :mod:`broadside.exchange.fabric`.
    """

    model_config = SettingsConfigDict(env_prefix="BROADSIDE_", extra="ignore", frozen=True)

    host: str = Field(
        "127.0.0.1", description="address the API listens on; beyond loopback with sign-in only"
    )
    port: int = Field(
        8080, ge=0, le=65535, description="port the API listens on; 0 picks a free one"
    )
    hosts_listen: str | None = Field(
        None,
        description="address and port, such as `[::]:8443`, at which agents of other hosts are "
        "served over HTTPS; unset: none are. See docs/hosts.md",
    )
    hosts_certificate_file: Path | None = Field(
        None,
        description="PEM file of the certificate shown there; default: one by the coordinator's "
        "own authority, made in `BROADSIDE_DATA_DIR`",
    )
    hosts_key_file: Path | None = Field(None, description="PEM file of that certificate's key")
    requests_at_once: int = Field(
        128,
        ge=4,
        description="requests that one credential may have in progress, at the API and, of an "
        "agent, at the agents' port; more are answered with 429. Health and joining are free",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "WARNING", description="how much `broadside serve` says on standard error"
    )
    tick_s: float = Field(1.0, gt=0, le=60, description="seconds between two looks at active runs")
    prices: Path | None = Field(
        None, description="TOML file of your own prices, over those that come with Broadside"
    )
    webhook_url: str | None = Field(
        None,
        pattern="^https?://",
        description="address that is told when a run ends, signed; see docs/pipeline.md",
    )
    webhook_secret: SecretStr | None = Field(
        None, description="key of that signature: `whsec_` and 24 to 64 bytes in base64"
    )
    otlp_endpoint: str | None = Field(
        None,
        pattern="^https?://",
        description="OpenTelemetry collector, such as http://127.0.0.1:4318, that is sent a run's "
        "figures when it ends",
    )
    retention_days: float = Field(
        90.0, ge=0, description="age in days from which `broadside prune` forgets a run"
    )
    backup_dir: Path | None = Field(
        None,
        description="folder into which the coordinator writes a backup of an embedded store every "
        "`BROADSIDE_BACKUP_EVERY_H` hours; unset: it writes none. See docs/hosts.md",
    )
    backup_every_h: float = Field(
        24.0, ge=0.1, le=8760, description="hours between two scheduled backups"
    )
    backup_keep_count: int = Field(
        7, ge=1, le=10_000, description="scheduled backups that are kept; older ones are removed"
    )
    switches_file: Path | None = Field(
        None,
        description="TOML file of the commands that put the device into a state; "
        "see docs/studies.md",
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
        "`https://management.usgovcloudapi.net`, `https://management.chinacloudapi.cn`; tokens' "
        "scope and who signs in follow",
    )
    azure_monitor_token: SecretStr | None = Field(
        None, description="bearer token for them in place of an Azure identity"
    )
    managed_identity_client_id: str | None = Field(
        None, description="the fabric's own identity, also for the Resource Manager"
    )
