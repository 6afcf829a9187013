import pytest

from broadside.coordinator.core.judge.checks.check_types import NOTHING
from broadside.coordinator.core.judge.checks.record_checks import check_window
from broadside.coordinator.core.summary import Verdict
from tests.unit.coordinator.core.judge.checks.check_input import burst, of_burst, weights, window


@pytest.mark.parametrize(
    ("outside_s", "verdict", "expected"),
    [
        (0, Verdict.PASS, []),
        (2, Verdict.PASS, []),
        (3, Verdict.PASS, [("window-outside", 13)]),
        # The limit is 2 seconds and 5 % of 100 seconds.
        (7, Verdict.PASS, [("window-outside", 13)]),
        (8, Verdict.INCONCLUSIVE, [("outside-window", 87)]),
    ],
)
def test_classifies_seconds_outside_the_common_window(
    outside_s: int, verdict: Verdict, expected: list[tuple[str, float]]
) -> None:
    of = burst(duration_s=100, window=window(outside_s=outside_s, common_s=90))
    result = check_window(of_burst(of))
    assert (result.verdict, weights(result)) == (verdict, expected)
    if expected:
        text = f"{outside_s} of 100 s of pair-001 are outside the 90 s that are common to all"
        assert result.findings[0].sentence.startswith(text)


def test_no_result_without_a_window() -> None:
    assert check_window(of_burst(burst(window=None))) == NOTHING


def test_burst_of_zero_length_is_inconclusive() -> None:
    """The limit is computed for a duration of at least one second."""
    result = check_window(of_burst(burst(duration_s=0, window=window(outside_s=3))))
    assert result.verdict is Verdict.INCONCLUSIVE
