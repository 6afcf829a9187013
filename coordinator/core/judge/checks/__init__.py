"""Verdict checks, one file per check, and the registry that lists them."""

from typing import Final

from broadside.coordinator.core.judge.checks.burst_scatter_check import BURST_SCATTER
from broadside.coordinator.core.judge.checks.bypass_check import BYPASS
from broadside.coordinator.core.judge.checks.check_types import (
    PRECEDENCE,
    BurstInput,
    Check,
    Result,
    RunInput,
    Stage,
    decide,
)
from broadside.coordinator.core.judge.checks.clocks_check import CLOCKS
from broadside.coordinator.core.judge.checks.consistency_check import CONSISTENCY
from broadside.coordinator.core.judge.checks.counter_record_check import COUNTER_RECORD
from broadside.coordinator.core.judge.checks.coverage_check import COVERAGE
from broadside.coordinator.core.judge.checks.device_fit_check import DEVICE_FIT
from broadside.coordinator.core.judge.checks.device_rate_check import DEVICE_RATE
from broadside.coordinator.core.judge.checks.metric_aggregation_check import METRIC_AGGREGATION
from broadside.coordinator.core.judge.checks.rate_check import RATE
from broadside.coordinator.core.judge.checks.reference_record_check import REFERENCE_RECORD
from broadside.coordinator.core.judge.checks.residual_check import RESIDUAL
from broadside.coordinator.core.judge.checks.run_coverage_check import RUN_COVERAGE
from broadside.coordinator.core.judge.checks.seal_check import SEAL
from broadside.coordinator.core.judge.checks.shape_check import SHAPE
from broadside.coordinator.core.judge.checks.starts_check import STARTS
from broadside.coordinator.core.judge.checks.thresholds_check import THRESHOLDS
from broadside.coordinator.core.judge.checks.window_check import WINDOW

BURST_CHECKS: Final[tuple[Check[BurstInput], ...]] = (
    RATE,
    COVERAGE,
    CLOCKS,
    THRESHOLDS,
    SHAPE,
    DEVICE_RATE,
    RESIDUAL,
    DEVICE_FIT,
    BYPASS,
    CONSISTENCY,
    STARTS,
    WINDOW,
)
RUN_CHECKS: Final[tuple[Check[RunInput], ...]] = (
    SEAL,
    RUN_COVERAGE,
    COUNTER_RECORD,
    METRIC_AGGREGATION,
    REFERENCE_RECORD,
    BURST_SCATTER,
)

__all__ = [
    "BURST_CHECKS",
    "PRECEDENCE",
    "RUN_CHECKS",
    "BurstInput",
    "Check",
    "Result",
    "RunInput",
    "Stage",
    "decide",
]
