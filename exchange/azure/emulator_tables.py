"""Creates the tables in Azurite; Terraform creates those of a storage account on Azure."""

from contextlib import suppress

from azure.core.exceptions import ResourceExistsError
from azure.data.tables import TableServiceClient

from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.ports import ExchangeMisconfigured


def create_tables(settings: FabricSettings) -> None:
    """Create the tables that the settings name, unless they exist.

    Raises:
        ExchangeMisconfigured: no emulator is named.
    """
    secret = settings.tables_connection_string
    if secret is None:
        raise ExchangeMisconfigured(
            "BROADSIDE_TABLES_CONNECTION_STRING is not set; set it to the emulator's"
        )
    with TableServiceClient.from_connection_string(secret.get_secret_value()) as service:
        for name in (settings.tables_control, settings.tables_results, settings.tables_private):
            with suppress(ResourceExistsError):
                service.create_table(name)
