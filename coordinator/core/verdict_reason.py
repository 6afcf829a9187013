"""Reason for a verdict and its next step, computed once for every output. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broadside.coordinator.core.summary import BurstSummary, Finding, RunSummary, Verdict
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS

# Findings of a failed check. All other problems make a verdict inconclusive.
FAIL_IDS: Final = frozenset(
    {"target-missed", "canary-leaked", *(f"{one.id}-limit" for one in ALL_THRESHOLDS)}
)
# Findings that decide an inconclusive verdict before all others: an abort, then the findings of the
# stages *seal* and *coverage* of the decision table. They are listed here so that a command that
# only shows a verdict does not load the checks.
FIRST_IDS: Final = (
    "run-aborted stopped-by-guard guard-not-armed dry-run-failed",
    "plan-altered",
    "bursts-pending below-floor receiver-unseen clocks-unproven clock-readings-missing",
)
SEVERITIES: Final = ("problem", "warning", "note")
_REASONS: Final = {
    Verdict.PASS: "Every check passes.",
    Verdict.FAIL: "A check fails.",
    Verdict.INCONCLUSIVE: "The data does not show whether the objective was met.",
    Verdict.MEASURED: "No target and no threshold was set.",
}
_NEXT_STEPS: Final = {
    Verdict.PASS: 'Write the report (`broadside report`, or "Report" on the page of the run), read '
    "its warnings and notes, then sign it",
    Verdict.FAIL: "Find the bottleneck in the report",
    Verdict.INCONCLUSIVE: "Read the findings and remove the cause",
    Verdict.MEASURED: "The run is complete. For a pass or a fail, launch again with the rate that "
    "the device must carry (`--set target=RATE`)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictReason:
    """Explanation of a verdict, with the findings in the order to show them.

    Attributes:
        reason: One or more sentences with the reason for the verdict.
        next_step: What to do next, without a full stop at the end.
        deciding: Finding that the reason is from. None if no finding decides.
        others: Other problems and warnings, the most important first.
        notes: Additional information, to be folded.
    """

    reason: str
    next_step: str
    deciding: Finding | None
    others: tuple[Finding, ...]
    notes: tuple[Finding, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings: the deciding one, other problems and warnings, then notes."""
        first = () if self.deciding is None else (self.deciding,)
        return (*first, *self.others, *self.notes)


def explain_verdict(summary: RunSummary | BurstSummary) -> VerdictReason:
    """Return the reason for the verdict of a run or of a burst.

    Args:
        summary: Summary with verdict and findings. Its findings can be in any order.
    """
    return explain_findings(summary.verdict, summary.findings)


def explain_findings(verdict: Verdict, findings: Sequence[Finding]) -> VerdictReason:
    """Return the reason for a verdict.

    Args:
        verdict: The verdict.
        findings: Findings of the same run or burst, in any order.
    """
    deciding = _deciding(verdict, findings)
    ranked = sorted(
        (finding for finding in findings if finding is not deciding),
        key=lambda f: (SEVERITIES.index(f.severity), -f.weight, f.id),
    )
    step = ((deciding and deciding.next_step) or _NEXT_STEPS[verdict]).rstrip(".")
    # Only another run can pass. The step of a finding may omit this if it is one of many.
    if verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE) and "again" not in step:
        step += ". Then run again"
    return VerdictReason(
        reason=_reason(verdict, deciding, findings),
        next_step=step[:1].upper() + step[1:],
        deciding=deciding,
        others=tuple(finding for finding in ranked if finding.severity != "note"),
        notes=tuple(finding for finding in ranked if finding.severity == "note"),
    )


def _reason(verdict: Verdict, deciding: Finding | None, findings: Sequence[Finding]) -> str:
    """Return the sentence of the deciding finding. A pass also says what the device counted."""
    sentence = _REASONS[verdict] if deciding is None else deciding.sentence
    if verdict is not Verdict.PASS:
        return sentence
    agrees = any(finding.id == "reconciled" for finding in findings)
    return f"{sentence} The device counter {'agrees' if agrees else 'was not compared'}."


def _deciding(verdict: Verdict, findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that decided, or None.

    The order is that of the decision table: stages first, then the weight of the finding.
    """
    candidates = [finding for finding in findings if _can_decide(verdict, finding)]
    return min(
        candidates, key=lambda f: (_stage_rank(verdict, f.id), -f.weight, f.id), default=None
    )


def _can_decide(verdict: Verdict, finding: Finding) -> bool:
    if finding.kind != "verdict":
        return False
    if verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        fails = finding.id in FAIL_IDS
        return finding.severity == "problem" and fails is (verdict is Verdict.FAIL)
    return finding.severity == "note"


def _stage_rank(verdict: Verdict, finding_id: str) -> int:
    """Return the position of a finding in the decision table. The lowest one decides."""
    if verdict is Verdict.FAIL:
        return int(finding_id != "target-missed")
    ranks = (rank for rank, ids in enumerate(FIRST_IDS) if finding_id in ids.split())
    return next(ranks, len(FIRST_IDS))
