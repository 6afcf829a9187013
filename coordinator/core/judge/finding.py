"""What a reader is told of a run, and how it ended."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

from exchange.messages import Message


class Verdict(StrEnum):
    PASS = "pass"  # noqa: S105  # a verdict, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    MEASURED = "measured"  # whole, and nothing was to be passed: no target


Severity = Literal["problem", "warning", "note"]


class Finding(Message):
    """One thing a reader must know, with its numbers and what to do."""

    id: str
    kind: Literal["verdict", "cause", "context"]  # concluded, why, and to bear in mind
    severity: Severity
    weight: float  # findings are ordered by it, heaviest first
    sentence: str
    next_step: str | None = None


def problem(id: str, weight: float, sentence: str, next_step: str) -> Finding:
    """What keeps a verdict from being a pass, with what to do about it."""
    return Finding(
        id=id,
        kind="verdict",
        severity="problem",
        weight=weight,
        sentence=sentence,
        next_step=next_step,
    )


Check = tuple[Verdict, list[Finding]]


def order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Heaviest first; equal weights by id, so that the order is always the same."""
    return tuple(sorted(findings, key=lambda finding: (-finding.weight, finding.id)))


def worse(verdicts: Iterable[Verdict]) -> Verdict:
    """All must pass; one failure fails; nothing at all is inconclusive.

    What was only measured is no pass, and takes none away but in name.
    """
    said = set(verdicts)
    if Verdict.FAIL in said:
        return Verdict.FAIL
    if not said or Verdict.INCONCLUSIVE in said:
        return Verdict.INCONCLUSIVE
    return Verdict.MEASURED if Verdict.MEASURED in said else Verdict.PASS
