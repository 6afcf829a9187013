"""HTTP API of the coordinator, with errors as RFC 9457 problem documents."""
