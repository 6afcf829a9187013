"""All checks, and the decision table whose first row that applies is the verdict."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from broadside.coordinator.core.judge.checks.canary_check import check_canary
from broadside.coordinator.core.judge.checks.check_types import BurstInput, CheckResult, RunInput
from broadside.coordinator.core.judge.checks.counter_checks import (
    check_bypass,
    check_counter_record,
    check_device_fit,
    check_metric_aggregation,
    check_reference_record,
    check_residual,
)
from broadside.coordinator.core.judge.checks.coverage_checks import (
    check_clocks,
    check_coverage,
    check_run_coverage,
    check_seal,
)
from broadside.coordinator.core.judge.checks.rate_checks import (
    check_burst_scatter,
    check_device_rate,
    check_rate,
)
from broadside.coordinator.core.judge.checks.record_checks import (
    check_consistency,
    check_starts,
    check_window,
)
from broadside.coordinator.core.judge.checks.shape_check import check_shape
from broadside.coordinator.core.judge.checks.thresholds_check import check_thresholds
from broadside.coordinator.core.summary import Finding, Rule, Verdict
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS


class Stage(StrEnum):
    """Kind of a check. Only the first three have rows of their own in the order of precedence."""

    SEAL = "seal"
    RATE = "rate"
    COVERAGE = "coverage"
    THRESHOLD = "threshold"
    EVIDENCE = "evidence"


Input = TypeVar("Input", BurstInput, RunInput)


@dataclass(frozen=True, slots=True)
class Check(Generic[Input]):
    """One row in the table of checks.

    Attributes:
        id: Stable name of the check.
        stage: Position of its result in the order of precedence. Seal, rate and coverage have rows
            of their own; the other two have the same effect.
        evaluate: Pure function that computes the result. Its docstring has the formula, the sources
            and the result if they are missing.
        findings: Ids of the findings that it can return, separated by spaces.
    """

    id: str
    stage: Stage
    evaluate: Callable[[Input], CheckResult]
    findings: str


@dataclass(frozen=True, slots=True)
class Precedence:
    """One row in the order of precedence.

    Attributes:
        situation: Description of the situation, for the reader of a verdict.
        verdict: Verdict of this row.
        trigger: Verdict of a check that makes the row apply. None if the row always applies.
        stage: Stage of the checks that count for this row. None for all checks.
    """

    situation: str
    verdict: Verdict
    trigger: Verdict | None = None
    stage: Stage | None = None

    def applies(self, results: Iterable[tuple[Stage, Verdict]]) -> bool:
        """Return True if at least one of the results makes this row apply."""
        return self.trigger is None or any(
            self.stage in (None, stage) and verdict is self.trigger for stage, verdict in results
        )


_PASS, _FAIL, _OPEN = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
# The first row that applies is used.
PRECEDENCE: Final = (
    Precedence("The stored plan is not the plan that was sealed.", _OPEN, _OPEN, Stage.SEAL),
    Precedence(
        "The rate is below the limit, and missing records cannot make up the difference.",
        _FAIL,
        _FAIL,
        Stage.RATE,
    ),
    Precedence(
        "Too few pair-seconds were measured, or measured with good clocks.",
        _OPEN,
        _OPEN,
        Stage.COVERAGE,
    ),
    Precedence(
        "The value of a metric is beyond its threshold, or forbidden canaries leaked.", _FAIL, _FAIL
    ),
    Precedence(
        "A check is inconclusive, because evidence is missing, contradictory or too uncertain.",
        _OPEN,
        _OPEN,
    ),
    Precedence("No target and no threshold was set.", Verdict.MEASURED, Verdict.MEASURED),
    Precedence("Every check passes.", _PASS),
)
_THRESHOLD_IDS = " ".join(f"{one.id}-limit {one.id}-unproven" for one in ALL_THRESHOLDS)
_RULE_IDS = " ".join(f"contradiction-{rule}" for rule in Rule)
RUN_CHECKS: Final[tuple[Check[RunInput], ...]] = (
    Check("seal", Stage.SEAL, check_seal, "plan-altered"),
    Check("run-coverage", Stage.COVERAGE, check_run_coverage, "bursts-pending"),
    Check(
        "counter-record",
        Stage.EVIDENCE,
        check_counter_record,
        "device-counter-missing device-counter-late device-counter-partial device-counter-sparse",
    ),
    Check("metric-aggregation", Stage.EVIDENCE, check_metric_aggregation, "metric-aggregation"),
    Check(
        "reference-record",
        Stage.EVIDENCE,
        check_reference_record,
        "reference-short reference-unwatched",
    ),
    Check("burst-scatter", Stage.EVIDENCE, check_burst_scatter, "target-undecided"),
)
BURST_CHECKS: Final[tuple[Check[BurstInput], ...]] = (
    Check(
        "rate",
        Stage.RATE,
        check_rate,
        "no-window no-target interval-unknown target-missed target-open target-undecided "
        "target-above-sent target-unproven target-reached",
    ),
    Check("coverage", Stage.COVERAGE, check_coverage, "below-floor receiver-unseen"),
    Check(
        "clocks",
        Stage.COVERAGE,
        check_clocks,
        "clocks-unproven clock-readings-missing clocks-shared clocks-self-reported",
    ),
    Check("thresholds", Stage.THRESHOLD, check_thresholds, _THRESHOLD_IDS),
    Check(
        "canary",
        Stage.THRESHOLD,
        check_canary,
        "canary-leaked canary-missing canary-few canary-blocked",
    ),
    Check(
        "shape",
        Stage.EVIDENCE,
        check_shape,
        "slow-stretch slow-stretch-device slow-stretch-senders shape-not-assessed "
        "stretch-unproven ramp-cut",
    ),
    Check("device-rate", Stage.EVIDENCE, check_device_rate, "device-unproven"),
    Check(
        "residual",
        Stage.EVIDENCE,
        check_residual,
        "lag-unknown device-counter-empty device-counter-invalid metric-declaration residual "
        "reconciled unseen-by-bytes",
    ),
    Check("device-fit", Stage.EVIDENCE, check_device_fit, "device-shape"),
    Check("bypass", Stage.EVIDENCE, check_bypass, "idle-unknown bypassed not-bypassed"),
    Check("consistency", Stage.EVIDENCE, check_consistency, _RULE_IDS),
    Check("starts", Stage.EVIDENCE, check_starts, "start-spread"),
    Check("window", Stage.EVIDENCE, check_window, "outside-window window-outside"),
)


def decide(results: Iterable[tuple[Stage, Verdict]]) -> Verdict:
    """Return the verdict of the first row in :data:`PRECEDENCE` that applies."""
    listed = list(results)
    return next(row.verdict for row in PRECEDENCE if row.applies(listed))


def evaluate_burst(inputs: BurstInput) -> tuple[Verdict, list[Finding]]:
    """Evaluate all checks of one burst and return its verdict and findings."""
    return _evaluate(BURST_CHECKS, inputs, ())


def evaluate_run(inputs: RunInput) -> tuple[Verdict, list[Finding]]:
    """Evaluate all checks of a run and return its verdict and findings.

    If a burst failed, its own missing records were already taken into account. Missing bursts
    cannot turn this fail into another verdict. Without any burst the result is inconclusive.
    """
    bursts = [(Stage.RATE, burst.verdict) for burst in inputs.bursts]
    verdict, findings = _evaluate(RUN_CHECKS, inputs, bursts)
    return verdict if bursts else Verdict.INCONCLUSIVE, findings


def _evaluate(
    checks: Sequence[Check[Input]], inputs: Input, others: Sequence[tuple[Stage, Verdict]]
) -> tuple[Verdict, list[Finding]]:
    stages = list(others)
    findings: list[Finding] = []
    for check in checks:
        result = check.evaluate(inputs)
        stages.append((check.stage, result.verdict))
        findings += result.findings
    return decide(stages), findings
