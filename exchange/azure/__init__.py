"""The fabric of production: Service Bus, Table Storage and Blob Storage, by the official SDKs."""
