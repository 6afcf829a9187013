from types import SimpleNamespace
from typing import Any

import pytest

from broadside.coordinator.core.judge.checks.check_types import NOTHING, CheckResult
from broadside.coordinator.core.judge.checks.coverage_checks import check_clocks
from broadside.coordinator.core.summary import Verdict
from tests.unit.coordinator.core.judge.checks.check_input import burst, of_burst, seen, weights


def _run_check(
    unsteady_s: int | None, unread_s: int, measured_s: int = 1000, **fields: Any
) -> CheckResult:
    """Run the check. At least 950 out of 1000 pair-seconds are required."""
    unsteady = (
        None
        if unsteady_s is None
        else SimpleNamespace(measured_s=unsteady_s, pairs_count=4, examples=("pair-002 (60 ms)",))
    )
    of = burst(unsteady_clocks=unsteady, clocks_unread_s=unread_s, completeness=seen(measured_s))
    return check_clocks(of_burst(of, **fields))


@pytest.mark.parametrize(
    ("unsteady_s", "unread_s", "verdict", "expected"),
    [
        pytest.param(None, 0, Verdict.PASS, [("clocks-self-reported", 10)], id="all"),
        pytest.param(
            20, 30, Verdict.PASS, [("clocks-self-reported", 10)], id="950 steady and read"
        ),
        pytest.param(
            21, 30, Verdict.INCONCLUSIVE, [("clock-readings-missing", 89)], id="949 steady and read"
        ),
        pytest.param(
            50, 30, Verdict.INCONCLUSIVE, [("clock-readings-missing", 89)], id="950 steady"
        ),
        pytest.param(51, 0, Verdict.INCONCLUSIVE, [("clocks-unproven", 89)], id="949 steady"),
    ],
)
def test_coverage_floor_applies_to_seconds_with_steady_clocks(
    unsteady_s: int | None, unread_s: int, verdict: Verdict, expected: list[tuple[str, float]]
) -> None:
    result = _run_check(unsteady_s, unread_s)
    assert (result.verdict, weights(result)) == (verdict, expected)


def test_reports_seconds_without_reading_or_steady_clock() -> None:
    unread, unsteady = _run_check(20, 100), _run_check(100, 10)
    assert unread.findings[0].sentence.startswith("88.0 % of the planned seconds")
    assert "100 seconds have no reading" in unread.findings[0].sentence
    assert "chronyd" in (unread.findings[0].next_step or "")
    assert unsteady.findings[0].sentence.startswith("90.0 % of the planned seconds")
    assert "within 50 ms" in unsteady.findings[0].sentence
    assert unsteady.findings[0].sentence.endswith("Above the limit: pair-002 (60 ms); and 1 more.")
    assert "repair their time synchronisation" in (unsteady.findings[0].next_step or "")


def test_notes_shared_clock() -> None:
    assert weights(_run_check(0, 0, clocks_shared=True)) == [("clocks-shared", 10)]


def test_import_needs_no_clock_readings() -> None:
    assert _run_check(0, 900, clocks_promised=False) == NOTHING
    assert weights(_run_check(51, 0, clocks_promised=False)) == [("clocks-unproven", 89)]


@pytest.mark.parametrize("fields", [{"completeness": seen(949)}, {"proven_ratio": 0.949}])
def test_clocks_check_leaves_missing_seconds_to_coverage_check(fields: dict[str, Any]) -> None:
    assert check_clocks(of_burst(burst(clocks_unread_s=900, **fields))) == NOTHING
