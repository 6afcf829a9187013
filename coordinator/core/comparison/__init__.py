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
from broadside.coordinator.core.comparison.regression_gate import (
    Gate,
    GateResult,
    evaluate_gate,
    parse_gate,
)

__all__ = [
    "STARTED",
    "Comparison",
    "Gate",
    "GateResult",
    "Group",
    "Metric",
    "Observation",
    "compare",
    "conditions_of",
    "evaluate_gate",
    "group_comparison",
    "observe",
    "parse_gate",
    "regression_gate",
    "sequential",
]
