import re
from pathlib import Path
from typing import Any

import pytest

import broadside.coordinator.core.judge.checks as package
from broadside.coordinator.core.judge.checks.decision import (
    BURST_CHECKS,
    PRECEDENCE,
    RUN_CHECKS,
    Check,
    Stage,
    decide,
)
from broadside.coordinator.core.summary import Verdict

PASS, FAIL, OPEN, MEASURED = (
    Verdict.PASS,
    Verdict.FAIL,
    Verdict.INCONCLUSIVE,
    Verdict.MEASURED,
)
CHECKS: list[Check[Any]] = [*BURST_CHECKS, *RUN_CHECKS]
FILES = sorted(Path(package.__file__).parent.glob("*_check*.py"))


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ([], PASS),
        ([(Stage.RATE, PASS), (Stage.EVIDENCE, PASS)], PASS),
        ([(Stage.RATE, MEASURED), (Stage.EVIDENCE, PASS)], MEASURED),
        ([(Stage.RATE, MEASURED), (Stage.EVIDENCE, OPEN)], OPEN),
        ([(Stage.THRESHOLD, FAIL), (Stage.EVIDENCE, OPEN)], FAIL),
        ([(Stage.THRESHOLD, FAIL), (Stage.COVERAGE, OPEN)], OPEN),
        ([(Stage.RATE, FAIL), (Stage.COVERAGE, OPEN)], FAIL),
        ([(Stage.RATE, FAIL), (Stage.SEAL, OPEN)], OPEN),
        ([(Stage.RATE, OPEN), (Stage.THRESHOLD, FAIL)], FAIL),
        ([(Stage.RATE, PASS), (Stage.RATE, FAIL), (Stage.EVIDENCE, OPEN)], FAIL),
    ],
)
def test_first_matching_precedence_row_decides(
    results: list[tuple[Stage, Verdict]], verdict: Verdict
) -> None:
    assert decide(results) is verdict
    assert decide(results[::-1]) is verdict


def test_last_precedence_row_always_applies() -> None:
    assert PRECEDENCE[-1].applies([])


def test_every_check_is_registered_once() -> None:
    functions = [
        name
        for path in FILES
        for name in re.findall(r"(?m)^def (check_\w+)", path.read_text("utf-8"))
    ]
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert sorted(check.evaluate.__name__ for check in CHECKS) == sorted(functions)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_check_declares_all_its_findings(path: Path) -> None:
    names = re.findall(
        r"(?:problem|inconclusive|note|caution|_rate_finding)\(\s*\"([a-z-]+)\"",
        path.read_text("utf-8"),
    )
    declared = {
        id
        for check in CHECKS
        if check.evaluate.__module__.endswith(path.stem)
        for id in check.findings.split()
    }
    assert set(names) <= declared


def test_every_check_documents_formula_and_sources() -> None:
    for check in CHECKS:
        text = check.evaluate.__doc__ or ""
        assert all(f"\n    {part}: " in text for part in ("Formula", "Reads", "If absent"))
