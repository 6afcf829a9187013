"""Runs at instants to come."""
