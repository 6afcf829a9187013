"""Types for checks, their inputs and results, and the order of precedence.

Each check has a pure function that returns a verdict and findings. A finding contains the measured
value, the limit and the next step. Checks do not depend on each other.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.measure.steady import Stretch
from broadside.coordinator.core.plan.spec import Plan, RunSpec
from broadside.coordinator.core.summary import BurstSummary, Finding, Verdict, problem


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
        ledger: Bins of the device counter. None if no source returned data.
        bursts: Bursts with their verdicts, in order. Planned bursts may be missing.
        completeness_ratio: Measured pair-seconds divided by planned ones, including missing bursts.
    """

    plan: Plan
    ledger: FirewallLedger | None
    bursts: Sequence[BurstSummary]
    completeness_ratio: float


@dataclass(frozen=True, slots=True)
class Result:
    """Verdict and findings of a check."""

    verdict: Verdict = Verdict.PASS
    findings: tuple[Finding, ...] = ()


NOTHING: Final = Result()


def inconclusive(id: str, weight: float, sentence: str, next_step: str) -> Result:
    """Return an inconclusive result with one finding.

    Args:
        id: Finding id.
        weight: Rank of the finding. Findings with a higher weight are listed first.
        sentence: Finding text.
        next_step: What the user can do.
    """
    return Result(Verdict.INCONCLUSIVE, (problem(id, weight, sentence, next_step),))


class Stage(StrEnum):
    """Position of a check in the order of precedence."""

    SEAL = "seal"
    RATE = "rate"
    COVERAGE = "coverage"
    THRESHOLD = "threshold"
    EVIDENCE = "evidence"


Input = TypeVar("Input", BurstInput, RunInput)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Generic[Input]):
    """Definition of a check.

    Attributes:
        id: Stable name of the check.
        stage: Position of its result in the order of precedence.
        question: Question that the check answers, for the reader of a verdict.
        formula: Formula, with the symbols of docs/verdict.md.
        reads: Sources that the check reads.
        when_absent: Result if these sources are missing.
        findings: Ids of the findings that it can return.
        evaluate: Function that computes the result. It is pure.
    """

    id: str
    stage: Stage
    question: str
    formula: str
    reads: str
    when_absent: str
    findings: tuple[str, ...]
    evaluate: Callable[[Input], Result]


StagedResult = tuple[Stage, Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precedence:
    """One row in the order of precedence.

    Attributes:
        situation: Description of the situation, for the reader of a verdict.
        verdict: Verdict of this row.
        given: Verdict of a check that makes the row apply. None if the row always applies.
        stage: Stage of the checks that count for this row. None for all checks.
    """

    situation: str
    verdict: Verdict
    given: Verdict | None
    stage: Stage | None = None

    def applies(self, results: Iterable[StagedResult]) -> bool:
        """Return True if at least one of the results makes this row apply."""
        return self.given is None or any(
            self.stage in (None, stage) and result.verdict is self.given
            for stage, result in results
        )


# The first row that applies is used.
PRECEDENCE: Final = (
    Precedence(
        situation="The stored plan is not the plan that was sealed at launch.",
        verdict=Verdict.INCONCLUSIVE,
        given=Verdict.INCONCLUSIVE,
        stage=Stage.SEAL,
    ),
    Precedence(
        situation="The rate is below the limit, and missing records cannot make up the difference.",
        verdict=Verdict.FAIL,
        given=Verdict.FAIL,
        stage=Stage.RATE,
    ),
    Precedence(
        situation="Too little was measured, or with clocks that may be wrong.",
        verdict=Verdict.INCONCLUSIVE,
        given=Verdict.INCONCLUSIVE,
        stage=Stage.COVERAGE,
    ),
    Precedence(
        situation="A threshold is exceeded.",
        verdict=Verdict.FAIL,
        given=Verdict.FAIL,
    ),
    Precedence(
        situation="A check is undecided: evidence is absent, contradictory, or too uncertain.",
        verdict=Verdict.INCONCLUSIVE,
        given=Verdict.INCONCLUSIVE,
    ),
    Precedence(
        situation="No target and no threshold was set.",
        verdict=Verdict.MEASURED,
        given=Verdict.MEASURED,
    ),
    Precedence(
        situation="Every check passes.",
        verdict=Verdict.PASS,
        given=None,
    ),
)


def decide(results: Sequence[StagedResult]) -> Verdict:
    """Return the verdict of the first row in :data:`PRECEDENCE` that applies."""
    return next(row.verdict for row in PRECEDENCE if row.applies(results))
