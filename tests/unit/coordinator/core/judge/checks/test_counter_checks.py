from typing import Any

import pytest

from broadside.coordinator.core.judge.checks.check_types import NOTHING, CheckResult
from broadside.coordinator.core.judge.checks.counter_checks import check_residual
from broadside.coordinator.core.summary import Verdict
from tests.unit.coordinator.core.judge.checks.check_input import (
    burst,
    make_reconciliation,
    of_burst,
    seen,
    weights,
)

AGREES = [("reconciled", 40), ("unseen-by-bytes", 11)]


def _run_check(
    residual: float | None, of_burst_: dict[str, Any] | None = None, **fields: Any
) -> CheckResult:
    """Run the check with a 2 % limit and 0.5 % residual uncertainty."""
    of = burst(reconciliation=make_reconciliation(residual, **fields), **(of_burst_ or {}))
    return check_residual(of_burst(of))


@pytest.mark.parametrize(
    ("residual", "fields", "passes"),
    [
        (0.015, {}, True),
        (0.0151, {}, False),
        (-0.015, {}, True),
        (-0.0151, {}, False),
        (0.0, {"unknown_ratio": 0.015}, True),
        (0.0, {"unknown_ratio": 0.0151}, False),
        (0.0, {"residual_low_ratio": -0.02}, True),
        (0.0, {"residual_low_ratio": -0.0201}, False),
        (0.0, {"residual_high_ratio": 0.0201}, False),
        (0.0, {"lag_s": None, "baseline_how": None}, False),
    ],
)
def test_both_bounds_of_the_residual_must_be_within_the_limit(
    residual: float, fields: dict[str, Any], passes: bool
) -> None:
    result = _run_check(residual, **fields)
    assert result.verdict is (Verdict.PASS if passes else Verdict.INCONCLUSIVE)
    assert weights(result) == (AGREES if passes else [("residual", 88)])


@pytest.mark.parametrize(
    ("peak", "passes"), [(1.2e9, False), (0.17e9, True), (0.19e9, False), (None, True)]
)
def test_missing_pairs_lower_the_residual_bound(peak: float | None, passes: bool) -> None:
    """In this 30 s burst, 3 out of 300 pair-seconds are missing.

    They may have carried 10 % of the peak pair rate. For 0.18 Gbit/s this is 1.5 % of 1.2 Gbit/s.
    The residual has another 0.5 % uncertainty.
    """
    of = {"completeness": seen(297, 300), "peak_pair_bits_per_second": peak}
    assert (_run_check(0.0, of).verdict is Verdict.PASS) is passes
    above = of | {"peak_pair_bits_per_second": 0.17e9}
    # The upper bound does not change.
    assert _run_check(0.015, above).verdict is Verdict.PASS


def test_reports_residual_with_interval_and_next_step() -> None:
    larger, unsure = _run_check(0.03).findings[0], _run_check(0.018).findings[0]
    assert larger.sentence == (
        "The device counter shows 3.0 % more than the fleet (residual +3.00 %, 95 % interval "
        "+2.50 % to +3.50 %; 1 GB expected, IP layer). 2.0 % are allowed."
    )
    assert larger.next_step == "Find traffic that only the firewall or only the fleet counted"
    assert unsure.sentence.startswith("Device counter and fleet may differ by up to 2.3 %, ")
    assert (unsure.next_step or "").startswith("Reduce the uncertainty")
    for reported in ({"layer_ratio": 0.01}, {"overhead_how": "assumed"}):
        layer = _run_check(0.018, **reported).findings[0]
        assert (layer.next_step or "").startswith("Declare the layer")
    assert "by up to 2.5 %" in _run_check(0.02).findings[0].sentence


def test_names_the_first_cause_of_a_residual_with_its_step() -> None:
    cause = {"id": "bypass", "share_ratio": -0.4, "sentence": "The firewall counted 40 % less"}
    [finding] = _run_check(-0.4, causes=(cause,)).findings
    assert finding.sentence.endswith("2.0 % are allowed. The firewall counted 40 % less.")
    assert (finding.next_step or "").startswith("Check that the routes")
    for share, step in (
        (0.4, "Run again without the other traffic. If the counters still differ, find traffic"),
        (0.39, "Find traffic"),
    ):
        other = cause | {"id": "foreign-traffic", "share_ratio": share}
        [finding] = _run_check(-0.4, causes=(other,)).findings
        assert (finding.next_step or "").startswith(step)


def test_no_result_without_counter_or_for_reference_run() -> None:
    assert check_residual(of_burst(burst())) == NOTHING
    assert _run_check(0.5, bypassed=True) == NOTHING


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"lag_s": None}, ("lag-unknown", 76)),
        ({"lag_s": None, "baseline_how": None}, ("device-counter-empty", 75)),
        ({}, ("device-counter-empty", 75)),
        ({"lag_s": None, "lags_scale_ratio": 8.0}, ("metric-declaration", 88)),
        ({"lag_s": None, "lags_scale_ratio": 1.3}, ("lag-unknown", 76)),
        ({"rejected_bins_count": 3}, ("device-counter-empty", 75)),
    ],
)
def test_names_reason_for_missing_residual(
    fields: dict[str, Any], expected: tuple[str, float]
) -> None:
    result = _run_check(None, **fields)
    assert (result.verdict, weights(result)) == (Verdict.INCONCLUSIVE, [expected])


def test_counts_impossible_bins() -> None:
    result = _run_check(0.0, rejected_bins_count=3)
    assert (result.verdict, weights(result)) == (
        Verdict.INCONCLUSIVE,
        [("device-counter-invalid", 89)],
    )
    assert result.findings[0].sentence.startswith(
        "3 bins of the device counter counter have impossible"
    )
    assert weights(_run_check(0.0, rejected_bins_count=3, bypassed=True)) == [
        ("device-counter-invalid", 89)
    ]


def test_names_wrong_unit_declaration_by_factor() -> None:
    result = _run_check(7.0, crossed_bits_per_second=8e9)
    assert (result.verdict, weights(result)) == (Verdict.INCONCLUSIVE, [("metric-declaration", 88)])
    assert result.findings[0].sentence.startswith(
        "The device counter counter has 8 times the bytes of the fleet. A factor of 8 times"
    )
    assert "declare unit=bits" in (result.findings[0].next_step or "")
    at_lags = _run_check(None, lag_s=None, lags_scale_ratio=60.0, grain_s=60.0)
    assert "has 60 times the bytes of the fleet" in at_lags.findings[0].sentence
    # This factor can also be caused by traffic.
    doubled = _run_check(1.0, crossed_bits_per_second=2e9)
    assert weights(doubled) == [("residual", 88)]


def test_missing_pairs_do_not_matter_without_received_rate() -> None:
    nothing = burst(None, reconciliation=make_reconciliation(0.0), completeness=seen(297, 300))
    assert check_residual(of_burst(nothing)).verdict is Verdict.PASS
