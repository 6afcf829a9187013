"""Simulated devices with telemetry over SNMP."""
