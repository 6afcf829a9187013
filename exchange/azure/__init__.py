"""Storage backend for Azure, using the Azure SDK.

It provides the queue (Service Bus), the tables (Table Storage) and the raw output (Blob Storage).
"""
