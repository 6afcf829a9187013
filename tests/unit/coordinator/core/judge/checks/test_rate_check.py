from types import SimpleNamespace
from typing import Any, cast

import pytest

from broadside.coordinator.core.judge.checks.check_types import CheckResult
from broadside.coordinator.core.judge.checks.rate_checks import check_rate
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.summary import BottleneckName, SecondState, Verdict
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS
from broadside.exchange.messages import Flow, Traffic
from tests.unit.coordinator.core.judge.checks.check_input import (
    burst,
    make_reconciliation,
    of_burst,
    seen,
    spec,
    weights,
)


def _run_check(rate: float, half: float = 0.01e9, **fields: Any) -> CheckResult:
    """Run the check with a 1 Gbit/s limit."""
    return check_rate(of_burst(burst(rate, half, **fields)))


@pytest.mark.parametrize(
    ("rate", "verdict", "expected"),
    [
        (1.011e9, Verdict.PASS, ("target-reached", 50)),
        (1.010e9, Verdict.INCONCLUSIVE, ("target-undecided", 86)),
        (0.990e9, Verdict.INCONCLUSIVE, ("target-undecided", 86)),
        (0.989e9, Verdict.FAIL, ("target-missed", 100)),
    ],
)
def test_rate_interval_decides_the_verdict(
    rate: float, verdict: Verdict, expected: tuple[str, float]
) -> None:
    result = _run_check(rate)
    assert (result.verdict, weights(result)) == (verdict, [expected])
    assert "the limit 1 Gbit/s" in result.findings[0].sentence


@pytest.mark.parametrize(
    ("bottleneck", "expected"),
    [
        (BottleneckName.UNKNOWN, "The bottleneck is unknown."),
        (BottleneckName.FIREWALL, "The bottleneck is in the device under test: the firewall."),
        (
            BottleneckName.CLIENT_CPU,
            (
                "the CPU of the clients, not the device under test: the target was not reached, "
                "but the run does not show how much the device can carry."
            ),
        ),
    ],
)
def test_fail_names_the_bottleneck(bottleneck: BottleneckName, expected: str) -> None:
    (finding,) = _run_check(0.5e9, bottleneck=bottleneck).findings
    assert finding.sentence.endswith(expected)


def test_rate_findings_have_kind_verdict() -> None:
    for rate, severity in ((1.2e9, "note"), (0.5e9, "problem")):
        (finding,) = _run_check(rate).findings
        assert (finding.kind, finding.severity) == ("verdict", severity)
    assert (_run_check(0.5e9).findings[0].next_step or "").startswith("Find the bottleneck")
    advice = SimpleNamespace(advice="add cores")
    assert _run_check(0.5e9, bottleneck_details=advice).findings[0].next_step == "add cores"


@pytest.mark.parametrize("fields", [{"rate": None}, {"window": None}])
def test_no_rate_without_a_window(fields: dict[str, Any]) -> None:
    result = check_rate(of_burst(burst(**fields)))
    assert (result.verdict, weights(result)) == (Verdict.INCONCLUSIVE, [("no-window", 92)])


def test_rate_without_interval_is_inconclusive() -> None:
    result = check_rate(of_burst(burst(half=None)))
    assert (result.verdict, weights(result)) == (Verdict.INCONCLUSIVE, [("interval-unknown", 91)])
    assert "window of 30 s" in result.findings[0].sentence
    between = check_rate(of_burst(burst(half=None), between_bits_per_second=1e6))
    assert between.verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({}, Verdict.MEASURED),
        ({"bypasses_device": True}, Verdict.PASS),
        ({"rtt_mean_max_s": 0.1}, Verdict.PASS),
    ],
)
def test_run_without_target_is_measured(fields: dict[str, Any], verdict: Verdict) -> None:
    under = spec(scaled_target_bits_per_second=None, layer=Layer.IP)
    bounds = {threshold.bound: fields.pop(threshold.bound, None) for threshold in ALL_THRESHOLDS}
    vars(under.objective).update(bounds)
    vars(under).update(fields)
    result = check_rate(of_burst(burst(1e9), under))
    assert (result.verdict, weights(result)) == (verdict, [("no-target", 20)])
    assert result.findings[0].sentence.startswith("Received rate 1.04 Gbit/s (IP layer)")
    assert (result.findings[0].kind, result.findings[0].severity) == ("verdict", "note")


def test_ip_layer_rate_includes_headers() -> None:
    """The payload rate 0.97 Gbit/s is 1.0088 Gbit/s at the IP layer, +- hypot(1, 2.02) Mbit/s."""
    assert _run_check(0.97e9, 1e6).verdict is Verdict.FAIL
    ip = check_rate(of_burst(burst(0.97e9, 1e6), spec(layer=Layer.IP)))
    assert ip.verdict is Verdict.PASS


PART = seen(900)


def _pair(index: int, rate: float | None, completeness: float = 1.0) -> SimpleNamespace:
    state = SecondState.MEASURED if rate is not None else SecondState.LOST
    return SimpleNamespace(
        pair=f"p{index}",
        pair_index=index,
        state=state,
        reason=None,
        completeness_ratio=completeness,
        received_bits_per_second=rate,
    )


@pytest.mark.parametrize(
    ("history", "device", "verdict"),
    [
        pytest.param(None, None, Verdict.INCONCLUSIVE, id="no history: 1.35 Gbit/s"),
        pytest.param(0.09e9, None, Verdict.INCONCLUSIVE, id="0.9 + 0.01 + 0.09 is the limit"),
        pytest.param(0.08e9, None, Verdict.FAIL, id="0.9 + 0.01 + 0.08 is below the limit"),
        pytest.param(0.08e9, 0.12, Verdict.INCONCLUSIVE, id="the device counted 1.008"),
        pytest.param(0.08e9, 0.05, Verdict.FAIL, id="the device counted 0.945"),
    ],
)
def test_fails_only_if_unseen_pairs_cannot_reach_the_limit(
    history: float | None, device: float | None, verdict: Verdict
) -> None:
    pairs = (_pair(0, 0.45e9), _pair(1, 0.45e9), _pair(2, None, 0.0))
    others = [burst(pairs=(_pair(2, history),))] if history is not None else []
    under = spec()
    under.traffic, under.scale = Traffic(), 1.0
    of = burst(
        0.9e9,
        completeness=PART,
        pairs=pairs,
        reconciliation=None if device is None else make_reconciliation(device),
    )
    result = check_rate(of_burst(of, under, others=cast(Any, others)))
    assert result.verdict is verdict
    if verdict is Verdict.INCONCLUSIVE:
        assert weights(result) == [("target-open", 85)]
        sentence = result.findings[0].sentence
        assert (
            "100 seconds of all pairs were not measured; they may have carried the missing 100 "
            "Mbit/s" in sentence
            if device is None
            else "100 seconds of all pairs were not measured, and the device counted 1.008 Gbit/s"
            in sentence
        )


@pytest.mark.parametrize(
    ("sent", "verdict"), [(1.2e9, Verdict.PASS), (1.02e9, Verdict.PASS), (1.0e9, None)]
)
def test_received_rate_is_bounded_by_sent_rate(sent: float, verdict: Verdict | None) -> None:
    """The received rate is 1.2 +- 0.01 Gbit/s, but it cannot be higher than the sent rate."""
    result = _run_check(1.2e9, fleet_sent_bits_per_second=sent)
    assert result.verdict is (verdict or Verdict.INCONCLUSIVE)
    if verdict is None:
        assert weights(result) == [("target-above-sent", 82)]
        assert "the senders recorded only 1 Gbit/s" in result.findings[0].sentence


def test_sent_rate_is_no_bound_if_senders_are_missing() -> None:
    flow = SimpleNamespace(flow=Flow.UP, received_bits_per_second=1.2e9,
                           sent_bits_per_second=1.2e9, sent_pairs_count=0)  # fmt: skip
    assert (
        _run_check(1.2e9, fleet_sent_bits_per_second=0.5e9, flows=(flow,)).verdict is Verdict.PASS
    )
    assert _run_check(1.2e9, fleet_sent_bits_per_second=0.5e9, flows=()).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("worst", "fields", "verdict"),
    [
        (1.011e9, {"proven_ratio": 0.9}, Verdict.PASS),
        (1.010e9, {"proven_ratio": 0.9}, Verdict.INCONCLUSIVE),
        (1.010e9, {"completeness": PART}, Verdict.INCONCLUSIVE),
        (None, {"proven_ratio": 0.9}, Verdict.INCONCLUSIVE),
        (1.010e9, {"proven_ratio": 0.9999}, Verdict.PASS),
        (None, {}, Verdict.PASS),
    ],
)
def test_worst_window_with_missing_rows_must_reach_the_limit(
    worst: float | None, fields: dict[str, Any], verdict: Verdict
) -> None:
    result = _run_check(1.2e9, worst_bits_per_second=worst, **fields)
    assert result.verdict is verdict
    if verdict is Verdict.INCONCLUSIVE:
        assert weights(result) == [("target-unproven", 80)]
