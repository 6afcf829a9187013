"""Creates the tables in Azurite. Terraform creates the tables of an Azure storage account."""

from contextlib import suppress

from azure.core.exceptions import ResourceExistsError
from azure.data.tables import TableServiceClient

from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.ports import ExchangeMisconfigured


def create_tables(settings: FabricSettings) -> None:
    """Create the tables in the settings if they do not exist.

    Raises:
        ExchangeMisconfigured: The connection string has not been set.
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
