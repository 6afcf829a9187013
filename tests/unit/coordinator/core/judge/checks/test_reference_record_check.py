import numpy as np
import pytest

from broadside.coordinator.core.judge.checks.check_types import CheckResult
from broadside.coordinator.core.judge.checks.counter_checks import check_reference_record
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.summary import Verdict
from tests.unit.coordinator.core.judge.checks.check_input import (
    counter,
    of_run,
    plan,
    spec,
    weights,
)

REFERENCE = spec(bypasses_device=True)


def _run_check(device_counter: CounterRecord | None, promised: object = None) -> CheckResult:
    return check_reference_record(
        of_run(plan(spec=REFERENCE, ledger=promised), device_counter=device_counter)
    )


@pytest.mark.parametrize(
    ("ends_s", "grain_s", "is_short"),
    [
        pytest.param(31, 1.0, False, id="counter: one bin after the burst"),
        pytest.param(30, 1.0, True, id="counter: no bin after the burst"),
        pytest.param(80, 10.0, False, id="metric: five bins"),
        pytest.param(70, 10.0, True, id="metric: four bins"),
        pytest.param(39, 9.0, False, id="bins below 10 s are from a counter"),
    ],
)
def test_last_known_bin_must_cover_the_lag(ends_s: float, grain_s: float, is_short: bool) -> None:
    result = _run_check(counter(ends_s - 12 * grain_s, ends_s, grain_s))
    assert weights(result) == ([("reference-short", 92)] if is_short else [])
    assert result.verdict is (Verdict.INCONCLUSIVE if is_short else Verdict.PASS)


def test_unknown_bins_do_not_extend_the_record() -> None:
    device_counter = counter(-10, 40)
    device_counter.bytes[-10:] = np.nan
    assert weights(_run_check(device_counter)) == [("reference-short", 92)]
    device_counter.bytes[:] = np.nan
    assert weights(_run_check(device_counter)) == [("reference-short", 92)]
    assert "for 1 s after the last" in _run_check(device_counter).findings[0].sentence


def test_reference_run_needs_a_device_counter() -> None:
    assert weights(_run_check(None)) == [("reference-unwatched", 103)]
    assert _run_check(None, promised="a counter, whose absence is said elsewhere") == CheckResult()


def test_check_applies_only_to_reference_runs() -> None:
    assert check_reference_record(of_run(plan(), device_counter=counter(0, 5))) == CheckResult()
    assert check_reference_record(of_run(plan())) == CheckResult()
