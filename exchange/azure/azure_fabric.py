"""The fabric of production: Service Bus, Table Storage, and Blob Storage where it is set."""

import logging

from broadside.exchange.azure.blob_storage import open_raw
from broadside.exchange.azure.service_bus import open_queue
from broadside.exchange.azure.table_storage import open_table

__all__ = ["open_queue", "open_raw", "open_table"]

# These tell every request, heartbeat and token at INFO, which is our agents' own level.
for _chatty in ("azure", "azure.identity"):
    logging.getLogger(_chatty).setLevel(logging.WARNING)
