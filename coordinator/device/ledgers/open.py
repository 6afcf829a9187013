"""Settings in, a source out."""

from typing import NoReturn

from pydantic import SecretStr

from coordinator.coordinator_settings import CoordinatorSettings
from coordinator.device.ledgers.csv_file import CsvForm, CsvLedger
from coordinator.device.ledgers.lab_ledger import LabLedger
from coordinator.device.ledgers.prometheus import PrometheusLedger
from coordinator.device.ledgers.source import LedgerError, LedgerSource


def open_ledger(settings: CoordinatorSettings) -> LedgerSource | None:
    """The source the settings ask for; nothing is read yet.

    Raises :class:`LedgerError` when they are half filled or wrong.
    """
    match settings.ledger:
        case "none":
            return None
        case "lab":
            return LabLedger(settings.ledger_path or _missing(settings, "ledger_path"))
        case "csv":
            return CsvLedger(
                settings.ledger_path or _missing(settings, "ledger_path"),
                CsvForm(
                    time_column=settings.csv_time_column,
                    value_column=settings.csv_value_column,
                    unit=settings.csv_unit,
                    zone=settings.csv_zone,
                    label=settings.csv_label,
                ),
                layer=settings.ledger_layer,
                settle_s=settings.ledger_settle_s or 0.0,
            )
        case "prometheus":
            return PrometheusLedger(
                settings.prometheus_url or _missing(settings, "prometheus_url"),
                settings.prometheus_query or _missing(settings, "prometheus_query"),
                settings.prometheus_unit,
                step_s=settings.prometheus_step_s,
                layer=settings.ledger_layer,
                settle_s=settings.ledger_settle_s,
                token=_secret(settings.prometheus_token),
                ca_file=settings.prometheus_ca_file,
            )
        case "azure-monitor":
            return _open_azure_monitor(settings)


def _open_azure_monitor(settings: CoordinatorSettings) -> LedgerSource:
    try:
        from coordinator.device.ledgers.azure_monitor import AzureMonitorLedger
    except ModuleNotFoundError as error:
        raise LedgerError(
            f"ledger azure-monitor: {error.name} is missing; pip install 'broadside[azure]'"
        ) from error
    return AzureMonitorLedger(
        settings.azure_monitor_resource_id or _missing(settings, "azure_monitor_resource_id"),
        metric=settings.azure_monitor_metric,
        grain=settings.azure_monitor_grain,
        layer=settings.ledger_layer,
        settle_s=300.0 if settings.ledger_settle_s is None else settings.ledger_settle_s,
        endpoint=settings.azure_monitor_endpoint,
        client_id=settings.managed_identity_client_id,
        token=_secret(settings.azure_monitor_token),
        ca_file=settings.azure_monitor_ca_file,
    )


def _missing(settings: CoordinatorSettings, name: str) -> NoReturn:
    raise LedgerError(
        f"{name}: not set, but ledger is {settings.ledger!r}; set BROADSIDE_{name.upper()}"
    )


def _secret(value: SecretStr | None) -> str | None:
    return value.get_secret_value() if value else None
