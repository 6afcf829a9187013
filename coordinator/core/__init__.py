"""The pure heart: planning, alignment, aggregation, reconciliation, verdict. No clock, no I/O."""
