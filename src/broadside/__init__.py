"""Synchronised load tests of firewalls: agents, coordinator, command line and lab."""
