"""Causes of a bottleneck, each by its own evidence."""
