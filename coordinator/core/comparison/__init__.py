"""Comparison of groups of bursts, their conditions, and regression gates."""

from broadside.coordinator.core.comparison.conditions import conditions_of
from broadside.coordinator.core.comparison.group_comparison import (
    STARTED,
    Comparison,
    Group,
    Metric,
    Observation,
    compare,
    observe,
)
from broadside.coordinator.core.comparison.regression_gate import Gate, Held, hold, parse_gate

__all__ = [
    "STARTED",
    "Comparison",
    "Gate",
    "Group",
    "Held",
    "Metric",
    "Observation",
    "compare",
    "conditions_of",
    "group_comparison",
    "hold",
    "observe",
    "parse_gate",
    "regression_gate",
]
