"""Computation of all values for a burst from agents' rows, without input or output."""
