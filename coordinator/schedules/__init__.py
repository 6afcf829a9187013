"""Scheduled runs."""
