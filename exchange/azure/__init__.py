"""The fabric of production: Service Bus, Table Storage and Blob Storage, by the official SDKs."""

import logging

# These tell every request, heartbeat and token at INFO, which is our agents' own level.
for _chatty in ("azure", "azure.identity"):
    logging.getLogger(_chatty).setLevel(logging.WARNING)
