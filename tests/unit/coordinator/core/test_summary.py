"""Tests for verdicts and findings."""

import pytest

from broadside.coordinator.core.summary import (
    Verdict,
    caution,
    note,
    order,
    problem,
    warning,
    worse,
)

PASS, FAIL, OPEN, MEASURED = (
    *(Verdict.PASS, Verdict.FAIL),
    *(Verdict.INCONCLUSIVE, Verdict.MEASURED),
)


@pytest.mark.parametrize(
    ("verdicts", "combined"),
    [
        ((), OPEN),
        ((PASS, PASS), PASS),
        ((PASS, MEASURED), MEASURED),
        ((PASS, OPEN, MEASURED), OPEN),
        ((PASS, OPEN, FAIL), FAIL),
    ],
)
def test_combined_verdict_is_the_worst(verdicts: tuple[Verdict, ...], combined: Verdict) -> None:
    assert worse(verdicts) is combined
    assert worse(reversed(verdicts)) is combined


def test_findings_are_sorted_by_weight_and_then_by_id() -> None:
    findings = [note("c", 1, "C."), note("b", 5, "B."), note("a", 1, "A.")]
    assert [finding.id for finding in order(findings)] == ["b", "a", "c"]


def test_only_a_problem_belongs_to_the_verdict() -> None:
    made = (problem("a", 1, "A.", "Do."), warning("b", 1, "B."), caution("c", 1, "C."))
    kinds = [(finding.kind, finding.severity) for finding in (*made, note("d", 1, "D."))]
    assert kinds == [
        *(("verdict", "problem"), ("cause", "warning")),
        *(("context", "warning"), ("context", "note")),
    ]
