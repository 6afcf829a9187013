from types import SimpleNamespace
from typing import Any, cast

import pytest

from broadside.coordinator.core.judge.checks.check_types import BurstInput, CheckResult
from broadside.coordinator.core.judge.checks.thresholds_check import check_thresholds
from broadside.coordinator.core.summary import DeviceFigure, DevicePlacement, Verdict
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS
from tests.unit.coordinator.core.judge.checks.check_input import pair


def _run_check(limits: dict[str, float], *, completeness: float = 1.0, **burst: Any) -> CheckResult:
    """Run the check for a burst with two pairs."""
    unset: dict[str, float | None] = {threshold.bound: None for threshold in ALL_THRESHOLDS}
    reported = {"devices": (), "flows": (), "measures": (), "latency": None} | burst
    given = SimpleNamespace(
        spec=SimpleNamespace(objective=SimpleNamespace(**(unset | limits))),
        burst=SimpleNamespace(
            pairs=(pair("a"), pair("b")),
            completeness=SimpleNamespace(completeness_ratio=completeness),
            **reported,
        ),
    )
    return check_thresholds(cast(BurstInput, given))


def _ids(result: CheckResult) -> list[str]:
    return [finding.id for finding in result.findings]


def _flow(**fields: Any) -> SimpleNamespace:
    known = {"flow": "up", "rtt_mean_s": 0.02, "rtt_pairs_count": 2}
    return SimpleNamespace(**(known | fields))


def _device(name: str = "fw", **figures: DeviceFigure | None) -> SimpleNamespace:
    return SimpleNamespace(device=name, **({"cpu_ratio": None, "health_ratio": None} | figures))


def _figure(value: float, **fields: Any) -> DeviceFigure:
    return DeviceFigure(
        **({"mean": value, "p95": value, "min": value, "max": value, "covered_ratio": 1.0} | fields)
    )


def _placement(value: float) -> DevicePlacement:
    return DevicePlacement(mean=value, p95=value, min=value, max=value)


def test_passes_without_thresholds() -> None:
    assert _run_check({}) == CheckResult(Verdict.PASS, ())


@pytest.mark.parametrize(
    ("limit_s", "pairs", "completeness", "verdict", "ids"),
    [
        pytest.param(0.02, 2, 1.0, Verdict.PASS, [], id="at the limit"),
        pytest.param(0.019, 2, 1.0, Verdict.FAIL, ["rtt-limit"], id="above the limit"),
        pytest.param(
            0.019, 1, 0.5, Verdict.FAIL, ["rtt-limit"], id="above the limit, not all pairs"
        ),
        pytest.param(0.03, 1, 1.0, Verdict.INCONCLUSIVE, ["rtt-unproven"], id="not all pairs"),
        pytest.param(0.03, 2, 0.5, Verdict.INCONCLUSIVE, ["rtt-unproven"], id="not all seconds"),
    ],
)
def test_compares_flow_metric_with_threshold(
    limit_s: float, pairs: int, completeness: float, verdict: Verdict, ids: list[str]
) -> None:
    flows = (_flow(rtt_pairs_count=pairs),)
    result = _run_check({"rtt_mean_max_s": limit_s}, flows=flows, completeness=completeness)
    assert (result.verdict, _ids(result)) == (verdict, ids)


def test_reports_every_flow_with_its_value() -> None:
    flows = (_flow(), _flow(flow="down", rtt_mean_s=0.04), _flow(flow="up", rtt_mean_s=None))
    result = _run_check({"rtt_mean_max_s": 0.03}, flows=flows)
    assert result.verdict is Verdict.FAIL
    assert _ids(result) == ["rtt-limit", "rtt-unproven"]
    assert [finding.weight for finding in result.findings] == [90, 70]
    assert (
        result.findings[0].sentence
        == "From servers to clients (down): mean RTT is 40 ms, above the limit 30 ms."
    )
    assert result.findings[0].next_step == ALL_THRESHOLDS[0].next_step
    assert result.findings[1].sentence == (
        "From clients to servers (up): mean RTT is known for 2 of 2 pairs, which is not enough "
        "for the limit 30 ms."
    )
    assert result.findings[1].next_step == "Run again with all pairs"


@pytest.mark.parametrize(
    ("value", "pairs", "verdict"),
    [
        (0.99, 2, Verdict.PASS),
        (0.98, 2, Verdict.FAIL),
        (0.99, 1, Verdict.INCONCLUSIVE),
        (None, 0, Verdict.INCONCLUSIVE),
    ],
)
def test_minimum_threshold_fails_below_it(
    value: float | None, pairs: int, verdict: Verdict
) -> None:
    reported = SimpleNamespace(name="success_ratio", value=value, pairs_count=pairs)
    result = _run_check({"success_min_ratio": 0.99}, measures=() if value is None else (reported,))
    assert result.verdict is verdict


@pytest.mark.parametrize(
    ("p99_s", "complete_count", "verdict"),
    [
        (0.1, 2, Verdict.PASS),
        (0.2, 2, Verdict.FAIL),
        (0.1, 1, Verdict.INCONCLUSIVE),
        (None, 2, Verdict.INCONCLUSIVE),
    ],
)
def test_compares_probe_latency_with_threshold(
    p99_s: float | None, complete_count: int, verdict: Verdict
) -> None:
    during = SimpleNamespace(p99_s=p99_s)
    seen = SimpleNamespace(
        fleet=SimpleNamespace(during=during), complete_pairs_count=complete_count
    )
    assert _run_check({"probe_p99_max_s": 0.15}, latency=seen).verdict is verdict
    assert _run_check({"probe_p99_max_s": 0.15}).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("covered", "verdict"),
    [(0.8, Verdict.PASS), (0.79, Verdict.INCONCLUSIVE), (1.0, Verdict.PASS)],
)
def test_device_metric_must_cover_80_percent_of_the_window(
    covered: float, verdict: Verdict
) -> None:
    devices = (_device(cpu_ratio=_figure(0.5, covered_ratio=covered)),)
    result = _run_check({"device_cpu_p95_max_ratio": 0.9}, devices=devices)
    assert result.verdict is verdict
    if verdict is not Verdict.PASS:
        assert "fw: " in result.findings[0].sentence
        assert "79 % of the window" in result.findings[0].sentence
        assert (result.findings[0].next_step or "").startswith(
            "Make the telemetry of the device available"
        )


def test_device_without_telemetry_is_inconclusive() -> None:
    limits = {"device_cpu_p95_max_ratio": 0.9}
    no_user, silent = _run_check(limits), _run_check(limits, devices=(_device(),))
    assert no_user.verdict is silent.verdict is Verdict.INCONCLUSIVE
    assert "no device" in no_user.findings[0].sentence
    assert "fw: " in silent.findings[0].sentence
    assert "0 % of the window" in silent.findings[0].sentence


@pytest.mark.parametrize(
    ("least", "most", "verdict"),
    [
        pytest.param(0.5, 0.9, Verdict.PASS, id="within limit at all placements"),
        pytest.param(0.5, 0.95, Verdict.INCONCLUSIVE, id="above limit at some placements"),
        pytest.param(0.92, 0.95, Verdict.FAIL, id="above limit at all placements"),
    ],
)
def test_threshold_is_checked_for_all_placements_of_readings(
    least: float, most: float, verdict: Verdict
) -> None:
    seen = _figure(0.7, at_least=_placement(least), at_most=_placement(most), bound_s=30.0)
    result = _run_check({"device_cpu_p95_max_ratio": 0.9}, devices=(_device(cpu_ratio=seen),))
    assert result.verdict is verdict
    if verdict is Verdict.INCONCLUSIVE:
        assert _ids(result) == ["device-cpu-unproven"]
        assert "between 50.000 % and 95.000 %" in result.findings[0].sentence
        assert "uncertain by 30 s" in result.findings[0].sentence
    # This is the lowest possible value.
    if verdict is Verdict.FAIL:
        assert "92.000 %" in result.findings[0].sentence


def test_minimum_threshold_uses_highest_placement() -> None:
    seen = _figure(0.7, at_least=_placement(0.4), at_most=_placement(0.6))
    result = _run_check({"device_health_min_ratio": 0.9}, devices=(_device(health_ratio=seen),))
    assert result.verdict is Verdict.FAIL
    assert "60.000 %" in result.findings[0].sentence


@pytest.mark.parametrize("bound", ["at_least", "at_most"])
def test_single_placement_bound_is_ignored(bound: str) -> None:
    seen = _figure(0.7, **{bound: _placement(0.99)})
    result = _run_check({"device_cpu_p95_max_ratio": 0.9}, devices=(_device(cpu_ratio=seen),))
    assert result.verdict is Verdict.PASS
