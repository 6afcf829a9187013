"""Computation of findings and a verdict from the metrics of a run. All functions are pure."""
