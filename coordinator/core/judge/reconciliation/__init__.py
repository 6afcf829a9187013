"""Comparison of the fleet's bytes with the device counter: lag, idle level, residual and fit."""

from broadside.coordinator.core.judge.reconciliation.counter_bins import fleet_curve, readable
from broadside.coordinator.core.judge.reconciliation.lag import CLOCK_PPM_MAX, is_clock
from broadside.coordinator.core.judge.reconciliation.overlapping_bursts import Neighbour
from broadside.coordinator.core.judge.reconciliation.reconcile import reconcile, reconcile_run
from broadside.coordinator.core.judge.reconciliation.residual_causes import (
    UNSEEN_BY_BYTES,
    DeclarationError,
    certain_declaration_error,
)

__all__ = [
    "CLOCK_PPM_MAX",
    "UNSEEN_BY_BYTES",
    "DeclarationError",
    "Neighbour",
    "certain_declaration_error",
    "counter_bins",
    "fleet_curve",
    "is_clock",
    "lag",
    "mixed_parts",
    "overlapping_bursts",
    "readable",
    "reconcile",
    "reconcile_run",
    "residual_causes",
]
