"""The fabric of production: Service Bus for the queue, Table Storage for the table."""

import logging

from exchange.azure_queue import Bounds, ServiceBusAddress, ServiceBusQueue, open_queue
from exchange.azure_table import AzureTable, TableAddress, TableBounds, open_table
from exchange.fabric import Fabric, FabricSettings

__all__ = [
    "AzureTable",
    "Bounds",
    "ServiceBusAddress",
    "ServiceBusQueue",
    "TableAddress",
    "TableBounds",
    "open_azure",
    "open_queue",
    "open_table",
]


def open_azure(settings: FabricSettings) -> Fabric:
    """The fabric that ``settings`` name; nothing connects yet. Raises ExchangeMisconfigured."""
    # These tell every request, heartbeat and token at INFO, which is our agents' own level.
    for chatty in ("azure", "azure.identity"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return Fabric(queue=open_queue(settings), table=open_table(settings))
