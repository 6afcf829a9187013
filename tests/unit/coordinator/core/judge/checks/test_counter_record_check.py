from types import SimpleNamespace

import numpy as np
import pytest

from broadside.coordinator.core.judge.checks.check_types import CheckResult
from broadside.coordinator.core.judge.checks.counter_checks import check_counter_record
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.summary import Verdict
from tests.unit.coordinator.core.judge.checks.check_input import (
    burst,
    counter,
    make_reconciliation,
    of_run,
    plan,
    weights,
)

PROMISE = SimpleNamespace(source="counter", coverage_min_ratio=0.95)
PROMISED = plan(ledger=PROMISE)


def _run_check(device_counter: CounterRecord | None, *unknown_ratios: float) -> CheckResult:
    bursts = [
        burst(index=index, reconciliation=make_reconciliation(unknown_ratio=ratio))
        for index, ratio in enumerate(unknown_ratios)
    ]
    return check_counter_record(of_run(PROMISED, *bursts, device_counter=device_counter))


def test_absent_promised_counter_is_inconclusive() -> None:
    result = _run_check(None)
    assert (result.verdict, weights(result)) == (
        Verdict.INCONCLUSIVE,
        [("device-counter-missing", 105)],
    )
    assert check_counter_record(of_run(plan())) == CheckResult()


def test_reports_incomplete_counter_response() -> None:
    result = _run_check(counter(-10, 40, partial="page 2 of 3"))
    assert (result.verdict, weights(result)) == (
        Verdict.INCONCLUSIVE,
        [("device-counter-partial", 94)],
    )
    assert "page 2 of 3" in result.findings[0].sentence


def test_names_burst_with_lowest_counter_coverage() -> None:
    """The required coverage is 95 %. Two out of three bursts have less."""
    result = _run_check(counter(-10, 40), 0.05, 0.4, 0.06)
    assert (result.verdict, weights(result)) == (
        Verdict.INCONCLUSIVE,
        [("device-counter-sparse", 93)],
    )
    sentence = result.findings[0].sentence
    assert sentence.startswith("Burst 2: the device counter counter covers 60.0 % of")
    assert "2 of 3 bursts are below this limit" in sentence
    assert _run_check(counter(-10, 40), 0.05) == CheckResult()


@pytest.mark.parametrize(
    ("from_s", "grain_s", "late"),
    [
        pytest.param(-5, 1.0, False, id="five seconds"),
        pytest.param(-4, 1.0, True, id="four seconds"),
        pytest.param(-0.0, 1.0, True, id="starts with the traffic"),
        pytest.param(-60, 60.0, False, id="one long bin"),
        pytest.param(-4.5, 1.5, False, id="half a bin may be missing"),
    ],
)
def test_counter_must_begin_before_the_first_burst(
    from_s: float, grain_s: float, late: bool
) -> None:
    result = _run_check(counter(from_s, 60, grain_s))
    assert weights(result) == ([("device-counter-late", 91)] if late else [])
    if late:
        sentence = result.findings[0].sentence
        assert f"covers {-from_s:g} s before the first burst; 5 s are required" in sentence


def test_unknown_bins_before_the_first_burst_do_not_count() -> None:
    device_counter = counter(-10, 40)
    device_counter.bytes[:6] = np.nan
    assert weights(_run_check(device_counter)) == [("device-counter-late", 91)]


def test_names_the_reason_of_a_counter_without_bins() -> None:
    reason = "it could not be read completely: 401 Unauthorized"
    [finding] = _run_check(counter(0, 0, notes=(reason,)), 1.0).findings
    assert finding.id == "device-counter-missing"
    assert finding.sentence.endswith(
        "The source reports: It could not be read completely: 401 Unauthorized."
    )
    [finding] = _run_check(None, 1.0).findings
    assert "the coordinator had no source with a byte_counter" in finding.sentence
