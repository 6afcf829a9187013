from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from broadside.coordinator.core.judge.reconciliation.residual_causes import (
    DeclarationError,
    _flow_rates,
    counted_flows_only,
    declaration_error,
    has_unit_error,
    rescaled,
    scale_of,
    with_declaration,
)
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.summary import (
    BurstSummary,
    Reconciliation,
    ResidualCause,
    RunSummary,
    Verdict,
)
from broadside.exchange.messages import Flow
from tests.hunt.adapter import conclude
from tests.unit.coordinator.core.records import burst_series
from tests.worlds import generate

FORWARD = {Flow.UP: 1e9}
BOTH = {Flow.UP: 7e8, Flow.DOWN: 3e8}


def with_ratio(ratio: float, **fields: object) -> Reconciliation:
    """Build the reconciliation for a counter with ``ratio`` times the fleet bytes."""
    return Reconciliation.model_validate(
        {
            "source": "counter",
            "layer": "ip",
            "grain_s": 60.0,
            "basis": "bytes",
            "lag_s": 0.0,
            "overhead_ratio": 1.036,
            "overhead_how": "recorded",
            "residual_ratio": ratio - 1,
            "residual_uncertainty_ratio": 0.01 * max(1.0, ratio),
            "crossed_bits_per_second": 1e9 * ratio,
            "baseline_uncertainty_bits_per_second": 0.0,
            **fields,
        }
    )


def explain(counter: Reconciliation | None, rates: Mapping[Flow, float]) -> DeclarationError | None:
    burst = _burst(**{flow.value: rate for flow, rate in rates.items()})
    return declaration_error(counter, [burst])


@pytest.mark.parametrize(
    ("ratio", "fix"),
    [
        (8, "unit=bits"),
        (1 / 8, "unit=bytes"),
        (8.1, "unit=bits"),
        (60, "aggregation=sum"),
        (1 / 60, "aggregation=mean"),
        (7.5, "unit=bytes and aggregation=sum"),
        (480, "unit=bits and aggregation=sum"),
        (8 / 60, "unit=bits and aggregation=mean"),
        (1000, "the prefix"),
        (1e-6, "the prefix"),
        (8000, "unit=bits and the prefix"),
        (2, "one of the two"),
        (0.5, "adds them"),
        (1.024**2, "the prefix"),
        (1 / 1.024**3, "the prefix"),
    ],
)
def test_factor_identifies_the_wrong_declaration(ratio: float, fix: str) -> None:
    result = explain(with_ratio(ratio), FORWARD)
    assert result is not None
    assert fix in result.fix


@pytest.mark.parametrize("ratio", [1.0, 0.995, 1.009, 0.9, 0.8, 0.3, 1.3, 3.0, 20.0, 0.02])
def test_unrelated_factors_are_no_declaration_error(ratio: float) -> None:
    assert explain(with_ratio(ratio), FORWARD) is None


@pytest.mark.parametrize(
    ("ratio", "counted", "fix"),
    [
        (0.7, (), "direction=in"),
        (0.3, (), "direction=out"),
        (1 / 0.7, (Flow.UP,), "direction=both"),
        (1 / 0.3, (Flow.DOWN,), "direction=both"),
    ],
)
def test_identifies_counted_direction_by_its_share(
    ratio: float, counted: tuple[Flow, ...], fix: str
) -> None:
    result = explain(with_ratio(ratio, counted_flows=counted), BOTH)
    assert result is not None
    assert result.is_sure
    assert result.fix == fix


def test_counted_direction_without_traffic_is_an_error() -> None:
    result = explain(with_ratio(0.02, counted_flows=(Flow.DOWN,)), FORWARD)
    assert result is not None
    assert result.fix == "direction=both"


def test_no_factor_for_counter_at_idle_level() -> None:
    assert explain(with_ratio(1 / 60, baseline_uncertainty_bits_per_second=1e7), FORWARD) is None
    assert explain(with_ratio(1 / 8, crossed_bits_per_second=0.0), FORWARD) is None
    assert explain(with_ratio(1 / 8, lag_s=None), FORWARD) is None
    assert explain(with_ratio(8, bypassed=True), FORWARD) is None
    assert explain(None, FORWARD) is None


@pytest.mark.parametrize(
    ("ratio", "fix"),
    [(8.0, "unit=bits"), (7.9, "unit=bits"), (60.0, "aggregation=sum"), (1e6, "the prefix"),
     (9.0, None), (2.0, None), (1.024**3, None)],
)  # fmt: skip
def test_scale_without_lag_identifies_unit_aggregation_or_prefix(
    ratio: float, fix: str | None
) -> None:
    """Some factors, such as 2 or 1024, can also be caused by traffic. They need a known lag."""
    result = explain(with_ratio(1.0, residual_ratio=None, lags_scale_ratio=ratio), FORWARD)
    assert (None if result is None else result.fix) == fix


def test_accepts_factor_within_residual_uncertainty() -> None:
    """The ratio 8.4 is 4.9 % above 8. The residual uncertainty is 5 % and then 1 %."""
    near = with_ratio(8.4, residual_uncertainty_ratio=0.05 * 8.4)
    result = explain(near, FORWARD)
    assert result is not None
    assert result.fix == "unit=bits"
    assert explain(with_ratio(8.4, residual_uncertainty_ratio=0.01 * 8.4), FORWARD) is None
    # Headers can only explain 12 %.
    assert explain(with_ratio(9.2, residual_uncertainty_ratio=5.0), FORWARD) is None


def test_no_factor_if_residual_is_within_uncertainty() -> None:
    agrees = with_ratio(2.0, residual_uncertainty_ratio=1.0)
    assert explain(agrees, FORWARD) is None
    assert explain(with_ratio(0.0, crossed_bits_per_second=5.0), FORWARD) is None


def test_describes_factor_and_cause() -> None:
    def text(factor: float) -> str:
        return DeclarationError(factor, "bits are read as bytes", "unit=bits").describe()

    tail = "the true bytes results if bits are read as bytes"
    assert text(8.0) == f"A factor of 8 times {tail}"
    assert text(1.0) == f"A factor of 1 times {tail}"
    assert text(0.125) == f"A factor of 1/8 of {tail}"
    assert text(1 / 7.4567) == f"A factor of 1/7.46 of {tail}"
    assert text(0.0) == "Bits are read as bytes"


def test_combines_two_declaration_errors() -> None:
    one = DeclarationError(factor=8.0, sentence="a", fix="x")
    other = DeclarationError(factor=60.0, sentence="b", fix="y")
    both = one.combine(other)
    assert (both.factor, both.sentence, both.fix) == (480.0, "a, and b", "x and y")


def _burst(**rates: float | None) -> BurstSummary:
    flows = [
        SimpleNamespace(flow=Flow(flow), received_bits_per_second=rate)
        for flow, rate in rates.items()
    ]
    return cast(BurstSummary, SimpleNamespace(flows=flows))


def test_sums_burst_rates_by_flow() -> None:
    bursts = [_burst(up=3e8, down=None), _burst(up=4e8, down=0.0), _burst(up=None)]
    assert _flow_rates(bursts) == {Flow.UP: 7e8}


def _device_counter(*bytes_: float, flows: tuple[Flow, ...] = tuple(Flow)) -> CounterRecord:
    at = np.arange(len(bytes_), dtype=np.float64)
    return CounterRecord(
        source="counter",
        start_s=at,
        end_s=at + 1,
        bytes=np.array(bytes_),
        grain_s=1.0,
        read_at=datetime(2026, 3, 1, tzinfo=UTC),
        flows=flows,
    )


def _series(*flows: Flow) -> BurstSeries:
    return burst_series(0, 0.0, np.ones(3), np.ones((1, 3)), flows=flows)


@pytest.mark.parametrize(
    ("of_counter", "expected"),
    [
        ((Flow.UP,), [Flow.UP]),
        ((Flow.DOWN,), [Flow.DOWN]),
        (tuple(Flow), [Flow.UP, Flow.DOWN]),
        ((), [Flow.UP, Flow.DOWN]),
    ],
)
def test_compares_only_counted_flows(of_counter: tuple[Flow, ...], expected: list[Flow]) -> None:
    both = _series(Flow.UP, Flow.DOWN)
    assert [
        flow.flow for flow in counted_flows_only(both, _device_counter(1, flows=of_counter)).flows
    ] == expected


def test_scale_is_counted_over_expected_bytes() -> None:
    """Unknown and negative bins are ignored, so the scale is (100 + 300) / 200."""
    of_fleet = with_ratio(1.0, expected_bytes=200.0)
    assert scale_of(_device_counter(100, np.nan, -50, 300), of_fleet) == 2.0
    assert scale_of(_device_counter(np.nan, 0.0), of_fleet) is None
    assert scale_of(_device_counter(0.5), of_fleet) == 0.0025
    assert scale_of(_device_counter(100), with_ratio(1.0, expected_bytes=None)) is None
    assert scale_of(_device_counter(100), with_ratio(1.0, expected_bytes=0.0)) is None


def test_rescales_reconciliation_to_original_unit() -> None:
    """The ratio 1.1 becomes 4.4. Interval and rates are also multiplied by 4."""
    divided = with_ratio(
        1.1,
        residual_low_ratio=-0.1,
        residual_high_ratio=None,
        residual_uncertainty_ratio=0.02,
        firewall_bits_per_second=1e9,
        crossed_bits_per_second=2e9,
        firewall_bytes=500,
        baseline_bits_per_second=3e6,
        baseline_uncertainty_bits_per_second=None,
    )
    result = rescaled(divided, 4.0)
    assert result.residual_ratio == pytest.approx(3.4)
    assert result.residual_low_ratio == pytest.approx(2.6)
    assert result.residual_high_ratio is None
    assert result.residual_uncertainty_ratio == pytest.approx(0.08)
    assert (result.firewall_bits_per_second, result.crossed_bits_per_second) == (4e9, 8e9)
    assert (result.firewall_bytes, result.baseline_bits_per_second) == (2000, 12e6)
    assert result.baseline_uncertainty_bits_per_second is None
    assert (result.lag_s, result.overhead_ratio) == (divided.lag_s, divided.overhead_ratio)


@pytest.mark.parametrize(
    ("fields", "is_far"),
    [({"lag_s": None}, True), ({}, False), ({"lag_s": None, "bypassed": True}, False),
     ({"lag_s": None, "residual_ratio": None}, False)],
)  # fmt: skip
def test_only_counter_without_lag_has_unit_error(fields: dict[str, object], is_far: bool) -> None:
    assert has_unit_error(with_ratio(0.01, **fields)) is is_far


CAUSES = (ResidualCause(id="duplicate-counting", share_ratio=1.0, sentence="counted twice"),)
OF_BYTES = {
    "causes": CAUSES,
    "firewall_bits_per_second": 8e9,
    "slowest_bits_per_second": 7e9,
    "slowest_noise_bits_per_second": 1e8,
    "slowest_s": 5.0,
}


def test_wrong_unit_removes_device_findings() -> None:
    result = with_declaration(with_ratio(8.0, **OF_BYTES), _device_counter(1.0), [_burst(up=1e9)])
    assert result.causes == ()
    assert result.firewall_bits_per_second is None
    assert result.slowest_bits_per_second is None
    assert result.slowest_noise_bits_per_second is None
    assert result.slowest_s is None
    assert result.counted_flows == ()
    assert result.residual_ratio == 7.0


def test_ambiguous_factor_is_an_additional_cause() -> None:
    result = with_declaration(with_ratio(2.0, **OF_BYTES), _device_counter(1.0), [_burst(up=1e9)])
    assert [cause.id for cause in result.causes] == ["duplicate-counting", "metric-declaration"]
    assert result.causes[1].share_ratio == 1.0
    assert result.causes[1].sentence.startswith("A factor of 2 times the true bytes results if")
    assert result.firewall_bits_per_second == 8e9
    without = with_ratio(2.0, **(OF_BYTES | {"causes": ()}))
    assert with_declaration(without, _device_counter(1.0), [_burst(up=1e9)]).causes == ()


def test_preserves_declared_flows() -> None:
    one_method = _device_counter(1.0, flows=(Flow.UP,))
    result = with_declaration(
        with_ratio(1 / 0.7, causes=CAUSES), one_method, [_burst(up=7e8, down=3e8)]
    )
    assert result.counted_flows == (Flow.UP,)
    # The counter uses both directions, but only one is declared.
    assert result.causes == ()
    agrees = with_declaration(
        with_ratio(1.0, causes=CAUSES), one_method, [_burst(up=7e8, down=3e8)]
    )
    assert (agrees.counted_flows, agrees.causes) == ((Flow.UP,), CAUSES)


def ids(summary: RunSummary) -> set[str]:
    return {finding.id for finding in summary.findings}


ACCUSATIONS = {"bypass", "duplicate-counting", "device-unproven", "slow-stretch-device"}


@pytest.mark.parametrize("seed", range(8))
def test_detects_bits_read_as_bytes(seed: int) -> None:
    summary = conclude(generate("wrong-units", seed).recording)
    assert summary.verdict is not Verdict.PASS
    assert not ids(summary) & ACCUSATIONS
    (finding,) = [f for f in summary.findings if f.id == "metric-declaration"]
    assert "bits are read as bytes" in finding.sentence


@pytest.mark.parametrize("seed", range(8))
def test_one_direction_counter_is_no_bypass(seed: int) -> None:
    """If the direction is declared, only that direction is compared."""
    world = generate("one-way", seed)
    summary = conclude(world.recording)
    assert not ids(summary) & ACCUSATIONS
    declared = world.recording.devices[0].directions is not None
    assert ("metric-declaration" in ids(summary)) != declared
    if not declared:
        assert summary.verdict is not Verdict.PASS
