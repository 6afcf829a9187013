"""Checks of a burst and of a run, and the decision table for the verdict."""

from broadside.coordinator.core.judge.checks.check_types import BurstInput, RunInput
from broadside.coordinator.core.judge.checks.decision import (
    BURST_CHECKS,
    PRECEDENCE,
    RUN_CHECKS,
    evaluate_burst,
    evaluate_run,
)

__all__ = [
    "BURST_CHECKS",
    "PRECEDENCE",
    "RUN_CHECKS",
    "BurstInput",
    "RunInput",
    "check_types",
    "counter_checks",
    "decision",
    "evaluate_burst",
    "evaluate_run",
    "pair_texts",
    "rate_checks",
    "shape_check",
]
