"""Azure storage backend with Service Bus, Table Storage and, if configured, Blob Storage."""

import logging

from broadside.exchange.azure.blob_storage import open_raw
from broadside.exchange.azure.service_bus import open_queue
from broadside.exchange.azure.table_storage import open_table

__all__ = ["open_queue", "open_raw", "open_table"]

# These loggers write every request, heartbeat and token at INFO, the log level of the agents.
for _chatty in ("azure", "azure.identity"):
    logging.getLogger(_chatty).setLevel(logging.WARNING)
