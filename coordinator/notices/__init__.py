"""Tells others that a run has ended: a signed webhook, figures over OTLP."""
