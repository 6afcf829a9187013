"""Inputs and results of checks.

A check is a pure function that returns a verdict and findings. A finding contains the measured
value, the limit and the next step. Checks do not depend on each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broadside.coordinator.core.measure.formulas.steady import Stretch
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.run_spec import Plan, RunSpec
from broadside.coordinator.core.summary import (
    BurstSummary,
    Finding,
    FindingValue,
    Verdict,
    problem,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstInput:
    """Input for the checks of one burst.

    Attributes:
        spec: Specification for the run, with its objective.
        burst: Measured burst, with its reconciliation and bottleneck.
        between_bits_per_second: Half width from the scatter between bursts, in bit/s of payload.
            For an import with one or two bursts it can be from the scatter between device bins
            instead. None if neither is known.
        clocks_promised: True if every agent reported its clock at launch. A missing clock reading
            then counts as a gap.
        clocks_shared: True if all ends use the clock of the same kernel.
        others: Other measured bursts of the run.
        slowest_sent: Slowest part of the window in the senders' seconds, in bit/s of payload. None
            if the seconds of a sender are missing.
    """

    spec: RunSpec
    burst: BurstSummary
    between_bits_per_second: float | None = None
    clocks_promised: bool = True
    clocks_shared: bool = False
    others: Sequence[BurstSummary] = ()
    slowest_sent: Stretch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInput:
    """Input for the checks of a run.

    Attributes:
        plan: Stored plan.
        device_counter: Bins of the device counter. None if no source returned data.
        bursts: Bursts with their verdicts, in order. Planned bursts may be missing.
        completeness_ratio: Measured pair-seconds divided by planned ones, including missing bursts.
    """

    plan: Plan
    device_counter: CounterRecord | None
    bursts: Sequence[BurstSummary]
    completeness_ratio: float


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Verdict and findings of a check."""

    verdict: Verdict = Verdict.PASS
    findings: tuple[Finding, ...] = ()


NOTHING: Final = CheckResult()


def inconclusive(
    id: str, weight: float, sentence: str, next_step: str, value: FindingValue | None = None
) -> CheckResult:
    """Return an inconclusive result with one finding.

    Args:
        id: Finding id.
        weight: Rank of the finding. Findings with a higher weight are listed first.
        sentence: Finding text.
        next_step: What you can do.
        value: Measured value, for the range over several bursts. None if there is no single one.
    """
    return CheckResult(Verdict.INCONCLUSIVE, (problem(id, weight, sentence, next_step, value),))
