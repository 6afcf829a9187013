"""Coordinator settings, from environment variables ``BROADSIDE_...``."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from broadside.coordinator.device.ledgers import source_names

LedgerLayer = Literal["payload", "ip", "wire", "unknown"]
ByteMetric = Literal["Throughput", "DataProcessed"]
PrometheusUnit = Literal["bits_per_second", "bytes_per_second", "bytes_total"]
CsvUnit = Literal[
    "bits_per_second",
    "kilobits_per_second",
    "megabits_per_second",
    "gigabits_per_second",
    "bytes_per_second",
    "bytes",
    "bits",
]


def _known_source(name: str) -> str:
    if name not in ("none", *source_names()):
        raise ValueError(f"set none, {', '.join(source_names())}")
    return name


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
    ledger: Annotated[str, AfterValidator(_known_source)] = Field(
        "none",
        description="where the firewall's own byte counts come from: none or "
        + ", ".join(source_names()),
    )
    ledger_path: Path | None = Field(
        None,
        description="file of the `lab` ledger (cumulative IP-layer bytes, a reading a second), or "
        "of the `csv` one",
    )
    ledger_layer: LedgerLayer = Field(
        "unknown",
        description="what the firewall's figures count: payload, IP packets or Ethernet frames; "
        "the `lab` ledger knows",
    )
    ledger_aggregation: Literal["average", "maximum", "minimum"] = Field(
        "average",
        description="what a figure is of its bin: `average`, or the total where the unit is an "
        "amount; from the largest or smallest sample no bytes follow (inconclusive)",
    )
    ledger_direction: Literal["in", "out", "both"] = Field(
        "both",
        description="which way they count: `in` from clients to servers, `out` from servers to "
        "clients; the `lab` ledger knows",
    )
    ledger_mss_bytes: int | None = Field(
        None,
        ge=88,
        le=65_535,
        description="TCP payload of a full packet at the firewall, where the engines do not report "
        "it; `ss -i` gives it",
    )
    ledger_counts_lost: bool | None = Field(
        None,
        description="whether the firewall counts packets before it drops any (`true`) or after "
        "(`false`); decides whether bytes sent again or lost are in its figures; unset: not known",
    )
    ledger_lag_s: float | None = Field(
        None,
        ge=-900,
        le=900,
        description="seconds by which its labels run behind the traffic; default: fitted, near 75 "
        "for `azure-monitor` of one-minute points",
    )
    ledger_settle_s: float | None = Field(
        None,
        gt=0,
        le=3600,
        description="seconds in which its newest figures may still change; default: 300 for "
        "`azure-monitor`, two steps for `prometheus`, none for `csv`",
    )
    witnesses_file: Path | None = Field(
        None,
        description="TOML file of who else tells of the device: its CPU, sessions, drops, health; "
        "see docs/witnesses.md",
    )
    azure_monitor_resource_id: str | None = Field(
        None,
        description="`/subscriptions/.../azureFirewalls/<name>`; needs Monitoring Reader on it",
    )
    azure_monitor_metric: ByteMetric = Field(
        "Throughput", description="which of its metrics counts the bytes"
    )
    azure_monitor_grain: str = Field("PT1M", description="length of its points, ISO 8601")
    azure_monitor_endpoint: str = Field(
        "https://management.azure.com",
        description="the Resource Manager of the cloud it is in: `https://management.usgovcloudapi"
        ".net`, `https://management.chinacloudapi.cn`; tokens' scope and who signs in follow",
    )
    azure_monitor_token: SecretStr | None = Field(
        None, description="bearer token in place of an Azure identity; an hour's life, as a rule"
    )
    azure_monitor_ca_file: Path | None = Field(
        None, description="PEM file of the authority behind that endpoint's certificate"
    )
    managed_identity_client_id: str | None = Field(
        None, description="the fabric's own identity, which also reads Azure Monitor"
    )
    prometheus_url: str | None = Field(None, description="Prometheus's base address")
    prometheus_query: str | None = Field(
        None, description="PromQL that gives one series, such as `sum(rate(...[15s])) * 8`"
    )
    prometheus_unit: PrometheusUnit = Field(
        "bits_per_second", description="what the query gives; `bytes_total` is a counter"
    )
    prometheus_step_s: float = Field(
        15.0, gt=0, le=3600, description="seconds between samples; not under the scrape interval"
    )
    prometheus_token: SecretStr | None = Field(None, description="bearer token for Prometheus")
    prometheus_ca_file: Path | None = Field(
        None, description="PEM file of the authority behind its certificate"
    )
    csv_time_column: str = Field("time", description="column of ISO 8601 times or epoch seconds")
    csv_value_column: str = Field("bytes", description="column of figures")
    csv_unit: CsvUnit = Field(
        "bytes", description="what the figures are; `bytes` and `bits` are those of each row's bin"
    )
    csv_zone: str = Field("UTC", description="IANA time zone of times without an offset")
    csv_label: Literal["start", "end"] = Field(
        "start", description="which end of its bin a time names"
    )
