"""The registry of checks is whole, and the order of precedence decides as documented."""

import re
from pathlib import Path

import pytest

import broadside.coordinator.core.judge.checks as package
from broadside.coordinator.core.judge.checks import (
    BURST_CHECKS,
    PRECEDENCE,
    RUN_CHECKS,
    Result,
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
FILES = sorted(Path(package.__file__).parent.glob("*_check.py"))


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
def test_the_first_row_that_applies_decides(
    results: list[tuple[Stage, Verdict]], verdict: Verdict
) -> None:
    staged = [(stage, Result(of)) for stage, of in results]
    assert decide(staged) is verdict
    assert decide(staged[::-1]) is verdict


def test_the_last_row_always_applies() -> None:
    assert PRECEDENCE[-1].applies([])


def test_every_file_is_a_check_and_registered_once() -> None:
    ids = [check.id for check in BURST_CHECKS] + [check.id for check in RUN_CHECKS]
    assert len(set(ids)) == len(ids) == len(FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_check_declares_every_finding_that_it_returns(path: Path) -> None:
    source = path.read_text("utf-8")
    evaluated, declared = source.split(": Final = Check(")
    named = re.findall(r"(?:id=|(?:problem|inconclusive)\(\s*)\"([a-z-]+)\"", evaluated)
    named += re.findall(r"if \S+ < floor else \"([a-z-]+)\"", evaluated)
    assert named or "id=f" in evaluated
    assert all(f'"{name}"' in declared for name in named)
    listed = re.findall(r"findings=\(([^)]*)\)", declared)
    if listed:
        assert set(re.findall(r"\"([a-z-]+)\"", listed[0])) == set(named)
