"""The form of a check, what it reads, and the order of precedence of results.

A check asks one question of the evidence. It returns a result: a verdict of its own and findings
that give the measured value, the limit and the next step. Checks do not know each other.
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
    """What the checks of one burst read.

    Attributes:
        spec: The run's specification, with its objective.
        burst: The measured burst, with its reconciliation and bottleneck.
        between_bits_per_second: Scatter between the run's bursts (payload); None for under three.
        clocks_promised: Every agent reported its clock at launch, so an unread clock is a gap.
        clocks_shared: All ends read the clock of one kernel.
        others: The run's other measured bursts.
        slowest_sent: The slowest part of the window by senders' seconds, in bit/s of payload; None
            where some sender's are missing.
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
    """What the checks of a whole run read.

    Attributes:
        plan: The plan as stored.
        ledger: The device counter's bins; None where no source answered.
        bursts: The judged bursts, in order; planned bursts may be missing.
        completeness_ratio: Measured of all planned pair-seconds, missing bursts included.
    """

    plan: Plan
    ledger: FirewallLedger | None
    bursts: Sequence[BurstSummary]
    completeness_ratio: float


@dataclass(frozen=True, slots=True)
class Result:
    """What a check concludes, with its findings."""

    verdict: Verdict = Verdict.PASS
    findings: tuple[Finding, ...] = ()


NOTHING: Final = Result()


def inconclusive(id: str, weight: float, sentence: str, next_step: str) -> Result:
    """Return an inconclusive result with one finding that says why."""
    return Result(Verdict.INCONCLUSIVE, (problem(id, weight, sentence, next_step),))


class Stage(StrEnum):
    """Where a check stands in the order of precedence."""

    SEAL = "seal"
    RATE = "rate"
    COVERAGE = "coverage"
    THRESHOLD = "threshold"
    EVIDENCE = "evidence"


Input = TypeVar("Input", BurstInput, RunInput)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Generic[Input]):
    """One check.

    Attributes:
        id: A stable name.
        stage: Where its result stands in the order of precedence.
        question: What it asks, as a reader of a verdict would.
        formula: How it is computed, with the symbols of docs/verdict.md.
        reads: The recorded sources.
        when_absent: What it concludes where these sources are missing.
        findings: The ids of the findings that it can return.
        evaluate: The computation. It is pure.
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
    """One row of the order of precedence.

    Attributes:
        situation: When it applies, for a reader.
        verdict: What it decides.
        given: The result that makes it apply; None where nothing else applied.
        stage: The checks whose result counts; None for all of them.
    """

    situation: str
    verdict: Verdict
    given: Verdict | None
    stage: Stage | None = None

    def applies(self, results: Iterable[StagedResult]) -> bool:
        """Return whether one of the results makes this row apply."""
        return self.given is None or any(
            self.stage in (None, stage) and result.verdict is self.given
            for stage, result in results
        )


# The first row that applies decides.
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
    """Return the verdict of the first row of :data:`PRECEDENCE` that applies."""
    return next(row.verdict for row in PRECEDENCE if row.applies(results))
