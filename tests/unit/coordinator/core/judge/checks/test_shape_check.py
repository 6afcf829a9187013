from types import SimpleNamespace
from typing import Any

import pytest

from broadside.coordinator.core.judge.checks.check_types import NOTHING, CheckResult
from broadside.coordinator.core.judge.checks.shape_check import check_shape
from broadside.coordinator.core.measure.formulas.steady import Stretch
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.summary import Verdict
from tests.unit.coordinator.core.judge.checks.check_input import (
    at,
    burst,
    make_reconciliation,
    of_burst,
    spec,
    weights,
    window,
)

# A part may be 1.5 % below 1 Gbit/s because of noise.
LEAST = 0.985e9
PART = {"slowest_from_s": 7, "slowest_s": 6}


def _run_check(of_window: dict[str, Any] | None = None, **fields: Any) -> CheckResult:
    given = {
        name: fields.pop(name) for name in ("clocks_promised", "slowest_sent") if name in fields
    }
    of = burst(window=window(**(of_window or {})), **fields)
    return check_shape(of_burst(of, **given))


@pytest.mark.parametrize(("rate", "slow"), [(LEAST, False), (LEAST - 1, True)])
def test_slowest_fifth_must_reach_the_limit(rate: float, slow: bool) -> None:
    result = _run_check({"slowest_bits_per_second": rate, **PART})
    assert result.verdict is (Verdict.INCONCLUSIVE if slow else Verdict.PASS)
    assert weights(result) == [("slow-stretch", 84)] * slow
    if slow:
        assert result.findings[0].sentence.startswith(
            "For 6 s, starting 7 s into the window, the fleet received 985 Mbit/s (payload), "
            "below the limit 1 Gbit/s"
        )


@pytest.mark.parametrize("name", ["slowest_bits_per_second", "slowest_from_s", "slowest_s"])
def test_ignores_slow_part_without_position(name: str) -> None:
    assert _run_check({"slowest_bits_per_second": 1.0, **PART, name: None}) == NOTHING


def test_ip_layer_rate_includes_headers() -> None:
    """The payload rate 0.95 Gbit/s is 0.988 Gbit/s at the IP layer."""
    of = burst(window=window(slowest_bits_per_second=0.95e9, **PART))
    assert check_shape(of_burst(of)).verdict is Verdict.INCONCLUSIVE
    assert check_shape(of_burst(of, spec(layer=Layer.IP))) == NOTHING


@pytest.mark.parametrize(("after", "slow"), [(LEAST, False), (LEAST - 1, True)])
def test_rate_after_drop_must_reach_the_limit(after: float, slow: bool) -> None:
    cliff = SimpleNamespace(at=at(22.4), after_bits_per_second=after)
    result = _run_check({"slowest_bits_per_second": 1e9, **PART}, cliff=cliff)
    assert weights(result) == [("slow-stretch", 84)] * slow
    if slow:
        assert result.findings[0].sentence.startswith("For 8 s, starting 22 s into the window")


@pytest.mark.parametrize(
    ("rate", "noise", "slow"),
    [
        (LEAST, None, False),
        (LEAST - 1, None, True),
        (LEAST - 3e6, 1e6, False),
        (LEAST - 3.1e6, 1e6, True),
    ],
)
def test_device_bins_may_be_three_standard_errors_below(
    rate: float, noise: float | None, slow: bool
) -> None:
    device = make_reconciliation(
        slowest_bits_per_second=rate, slowest_noise_bits_per_second=noise, slowest_s=6
    )
    result = _run_check(reconciliation=device)
    assert result.verdict is (Verdict.INCONCLUSIVE if slow else Verdict.PASS)
    assert weights(result) == [("slow-stretch-device", 84)] * slow
    if slow:
        assert result.findings[0].sentence.startswith(
            "For 6 s the device counter counter shows at most "
        )


def test_device_bins_include_headers_at_ip_layer() -> None:
    device = make_reconciliation(
        slowest_bits_per_second=0.94e9, slowest_noise_bits_per_second=3e6, slowest_s=6
    )
    # The upper bound is 1.04 x (0.94 + 0.009) = 0.98696.
    of = burst(reconciliation=device)
    assert check_shape(of_burst(of, spec(layer=Layer.IP))) == NOTHING
    device = make_reconciliation(
        slowest_bits_per_second=0.94e9, slowest_noise_bits_per_second=2e6, slowest_s=6
    )
    # The upper bound is 1.04 x (0.94 + 0.006) = 0.98384.
    of = burst(reconciliation=device)
    result = check_shape(of_burst(of, spec(layer=Layer.IP)))
    assert weights(result) == [("slow-stretch-device", 84)]
    assert "at most 977.6 Mbit/s (IP layer)" in result.findings[0].sentence


@pytest.mark.parametrize(("rate", "slow"), [(LEAST, False), (LEAST - 1, True)])
def test_detects_slow_part_from_senders(rate: float, slow: bool) -> None:
    sent = Stretch(at=3, length_s=6, mean=rate, noise=0.0)
    result = _run_check(slowest_sent=sent)
    assert weights(result) == [("slow-stretch-senders", 84)] * slow
    if slow:
        assert result.findings[0].sentence.startswith(
            "For 6 s, starting 3 s into the window, the fleet sent 985 Mbit/s (payload)"
        )
        of = of_burst(burst(), spec(layer=Layer.IP), slowest_sent=sent)
        assert check_shape(of) == NOTHING


def test_shape_is_not_assessed_with_coarse_readings() -> None:
    result = _run_check({"reading_s": 10.0, "window_s": 100})
    assert (result.verdict, weights(result)) == (Verdict.INCONCLUSIVE, [("shape-not-assessed", 83)])
    assert result.findings[0].sentence.startswith("Changes of the rate within 10 s are not visible")
    assert "in bins of 10 s or less" in (result.findings[0].next_step or "")
    imported = _run_check({"reading_s": 10.0}, clocks_promised=False)
    assert (imported.verdict, weights(imported)) == (Verdict.PASS, [("shape-not-assessed", 30)])


def test_finer_source_assesses_the_shape() -> None:
    device = make_reconciliation(slowest_bits_per_second=1e9, slowest_s=6)
    assert _run_check({"reading_s": 10.0}, reconciliation=device) == NOTHING
    assert _run_check({"reading_s": 10.0, "slowest_bits_per_second": 1e9, **PART}) == NOTHING
    assert weights(_run_check({"reading_s": 10.0}, reconciliation=make_reconciliation())) == [
        ("shape-not-assessed", 83)
    ]


@pytest.mark.parametrize(("rate", "unproven"), [(LEAST, False), (LEAST - 1, True)])
def test_part_with_missing_rows_needs_proof_from_present_rows(rate: float, unproven: bool) -> None:
    result = _run_check({"slowest_proven_bits_per_second": rate})
    assert result.verdict is (Verdict.INCONCLUSIVE if unproven else Verdict.PASS)
    assert weights(result) == [("stretch-unproven", 79)] * unproven
    if unproven:
        assert "Over 6 s the receivers recorded 985 Mbit/s" in result.findings[0].sentence
        of = burst(window=window(slowest_proven_bits_per_second=rate))
        assert check_shape(of_burst(of, spec(layer=Layer.IP))) == NOTHING


def test_reports_excluded_ramp_with_any_result() -> None:
    cut = {"ramp_s": 4, "ramp_bits_per_second": 5e8}
    note = ("ramp-cut", 12)
    result = _run_check(cut)
    assert (result.verdict, weights(result)) == (Verdict.PASS, [note])
    assert result.findings[0].sentence.startswith(
        "The first 4 of 30 common seconds are not used, because the rate still increased: 500 "
        "Mbit/s of payload"
    )
    for reported, id_ in (
        ({"slowest_bits_per_second": 1.0, **PART}, "slow-stretch"),
        ({"reading_s": 10.0}, "shape-not-assessed"),
        ({"slowest_proven_bits_per_second": 1.0}, "stretch-unproven"),
    ):
        assert [item for item, _ in weights(_run_check(cut | reported))] == ["ramp-cut", id_]
    sent = Stretch(at=3, length_s=6, mean=1.0, noise=0.0)
    assert weights(_run_check(cut, slowest_sent=sent)) == [note, ("slow-stretch-senders", 84)]
    assert _run_check({"ramp_s": 0, "ramp_bits_per_second": 5e8}) == NOTHING
    assert _run_check({"ramp_s": 4}) == NOTHING
    unlimited = spec(scaled_target_bits_per_second=None)
    slow = burst(window=window(slowest_bits_per_second=1.0, **PART, **cut))
    assert weights(check_shape(of_burst(slow, unlimited))) == [note]
    assert check_shape(of_burst(burst(window=None))) == NOTHING
