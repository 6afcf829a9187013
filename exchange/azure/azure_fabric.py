"""The fabric of production: Service Bus and Table Storage; blobs are loaded where they are set."""

from exchange.azure.service_bus import Bounds, ServiceBusAddress, ServiceBusQueue, open_queue
from exchange.azure.table_storage import AzureTable, TableAddress, open_table

__all__ = [
    "AzureTable",
    "Bounds",
    "ServiceBusAddress",
    "ServiceBusQueue",
    "TableAddress",
    "open_queue",
    "open_table",
]
