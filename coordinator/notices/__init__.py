"""Notifications when a run has ended, by a signed webhook or as metrics over OTLP."""
