import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broadside.coordinator.core.judge.checks.rate_checks import (
    RateInterval,
    _compare,
    device_rate,
    half_width_of_bursts,
    half_width_of_device,
    header_bounds,
    layer_factor,
    limit_of,
    received_rate,
)
from broadside.coordinator.core.measure.formulas.headers import (
    OVERHEAD_KNOWN_RATIO,
    OVERHEAD_LESS_RATIO,
    OVERHEAD_MORE_RATIO,
)
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import BurstSummary, Completeness
from broadside.exchange.messages import Flow
from tests.unit.coordinator.core.judge.checks.check_input import (
    burst,
    make_reconciliation,
    spec,
    window,
)

PAYLOAD = cast(RunSpec, spec())
IP = cast(RunSpec, spec(layer=Layer.IP))


def _burst(*args: Any, **fields: Any) -> BurstSummary:
    return cast(BurstSummary, burst(*args, **fields))


def test_formats_symmetric_and_asymmetric_interval() -> None:
    even = RateInterval(value=1e9, below=1e7, above=1e7)
    assert (even.low, even.high) == (0.99e9, 1.01e9)
    assert str(even) == "1 Gbit/s +- 10 Mbit/s"
    uneven = RateInterval(value=1e9, below=1e7, above=2e7)
    assert (uneven.low, uneven.high) == (0.99e9, 1.02e9)
    assert str(uneven) == "1 Gbit/s (-10 Mbit/s, +20 Mbit/s)"


def test_limit_is_target_minus_tolerance() -> None:
    assert limit_of(cast(RunSpec, spec(tolerance_ratio=0.1))) == 0.9e9
    assert limit_of(cast(RunSpec, spec(scaled_target_bits_per_second=None))) is None


def test_header_factor_and_uncertainty_at_ip_layer() -> None:
    assert (layer_factor(PAYLOAD, _burst()), layer_factor(IP, _burst())) == (1.0, 1.04)
    assert header_bounds(PAYLOAD, _burst(headers_assumed=True)) == (0.0, 0.0)
    assert header_bounds(IP, _burst()) == (OVERHEAD_KNOWN_RATIO, OVERHEAD_KNOWN_RATIO)
    assumed = header_bounds(IP, _burst(headers_assumed=True))
    assert assumed == (OVERHEAD_LESS_RATIO, OVERHEAD_MORE_RATIO)


def test_received_rate_at_ip_layer() -> None:
    """The rate is 1.2 x 1.04 = 1.248 Gbit/s. Header errors are added to 10.4 Mbit/s."""
    result = received_rate(IP, _burst(headers_assumed=True))
    assert result is not None
    assert result.value == pytest.approx(1.248e9)
    assert result.below == pytest.approx(math.hypot(10.4e6, 1.248e9 * OVERHEAD_LESS_RATIO))
    assert result.above == pytest.approx(math.hypot(10.4e6, 1.248e9 * OVERHEAD_MORE_RATIO))


@pytest.mark.parametrize(("window_s", "known"), [(7, True), (6, False)])
def test_scatter_between_bursts_applies_to_long_enough_burst(window_s: int, known: bool) -> None:
    means = _burst(half=None, window=window(window_s=window_s))
    result = received_rate(PAYLOAD, means, 5e6)
    assert (None if result is None else result.below) == (5e6 if known else None)
    with_half_width = received_rate(PAYLOAD, _burst(), 5e6)
    assert with_half_width is not None
    assert with_half_width.below == 1e7
    assert received_rate(PAYLOAD, _burst(half=None, window=None), 5e6) is None
    assert received_rate(PAYLOAD, _burst(half=None)) is None
    assert received_rate(PAYLOAD, _burst(None)) is None


def _flow(sent: float | None, arrived: float | None) -> SimpleNamespace:
    return SimpleNamespace(
        flow=Flow.UP, sent_bits_per_second=sent, received_bits_per_second=arrived
    )


def test_bytes_recorded_only_by_senders_raise_upper_bound() -> None:
    """As 25 % is not proven, 25 Mbit/s are added (26 Mbit/s at the IP layer)."""
    flows = (_flow(0.7e9, 0.6e9), _flow(0.5e9, 0.6e9), _flow(None, 1.0), _flow(9e9, None))
    result = received_rate(PAYLOAD, _burst(flows=flows, proven_ratio=0.75))
    assert result is not None
    assert (result.below, result.above) == pytest.approx((1e7, 3.5e7))
    more = received_rate(IP, _burst(flows=flows, proven_ratio=0.75))
    same = received_rate(IP, _burst(flows=flows, proven_ratio=1.1))
    assert more is not None
    assert same is not None
    assert more.above - same.above == pytest.approx(2.6e7)
    assert same.above == same.below


@pytest.mark.parametrize(
    ("fields", "scatter"),
    [
        # Here 4.303 is t for 2 degrees of freedom.
        ({}, 1.2e9 * 4.303 * 0.01),
        ({"full_bins_count": 2}, None),
        ({"counter_cov_ratio": None}, None),
        ({"bypassed": True}, None),
        ({"residual_ratio": None}, None),
    ],
)
def test_half_width_from_scatter_of_device_bins(
    fields: dict[str, Any], scatter: float | None
) -> None:
    device = make_reconciliation(**({"counter_cov_ratio": 0.01, "full_bins_count": 3} | fields))
    result = half_width_of_device(_burst(reconciliation=device))
    assert result == (None if scatter is None else pytest.approx(scatter))
    assert half_width_of_device(_burst(None, reconciliation=device)) is None
    assert half_width_of_device(_burst()) is None


def test_half_width_of_bursts_uses_student_t() -> None:
    """For 1.0, 1.1 and 1.2 the deviation is 0.1, and t (2 degrees) is 4.303."""
    bursts = [_burst(rate) for rate in (1.0e9, 1.1e9, 1.2e9)]
    assert half_width_of_bursts(bursts) == pytest.approx(0.4303e9)
    assert half_width_of_bursts(bursts[:2]) is None
    assert half_width_of_bursts([*bursts[:2], _burst(None)]) is None


FLEET = RateInterval(value=1e9, below=3e6, above=4e6)


def test_device_rate_is_fleet_rate_plus_residual() -> None:
    """The residual is 10 % +- 0.5 %. The errors are hypot(3, 5) and hypot(4, 5) Mbit/s."""
    result = device_rate(PAYLOAD, _burst(reconciliation=make_reconciliation(0.1)), FLEET)
    assert result is not None
    assert result.value == pytest.approx(1.1e9)
    assert result.below == pytest.approx(math.hypot(3e6, 5e6))
    assert result.above == pytest.approx(math.hypot(4e6, 5e6))


def test_layer_error_of_device_rate_is_added_linearly() -> None:
    """The layer error is 10 Mbit/s up and 20 Mbit/s down. Retransmissions add 6 Mbit/s down.

    The other errors are added in quadrature.
    """
    fields = {
        "residual_low_ratio": 0.07,
        "residual_high_ratio": 0.115,
        "layer_ratio": 0.01,
        "layer_low_ratio": 0.02,
        "extra_ratio": 0.006,
    }
    result = device_rate(PAYLOAD, _burst(reconciliation=make_reconciliation(0.1, **fields)), FLEET)
    assert result is not None
    assert result.below == pytest.approx(math.hypot(3e6, 4e6) + 26e6)
    assert result.above == pytest.approx(math.hypot(4e6, 5e6) + 10e6)
    same = make_reconciliation(0.1, **(fields | {"layer_low_ratio": None}))
    result = device_rate(PAYLOAD, _burst(reconciliation=same), FLEET)
    assert result is not None
    assert result.below == pytest.approx(math.hypot(3e6, 14e6) + 16e6)


@pytest.mark.parametrize(
    "device",
    [
        None,
        make_reconciliation(0.1, bypassed=True),
        make_reconciliation(None),
        make_reconciliation(7.0, crossed_bits_per_second=8e9),
    ],
    ids=["none", "reference", "no residual", "bits read as bytes"],
)
def test_no_device_rate_without_usable_counter(device: Any) -> None:
    assert device_rate(PAYLOAD, _burst(reconciliation=device), FLEET) is None


def test_factor_is_no_declaration_error_if_pairs_are_unseen() -> None:
    """Additional bytes may be from unseen pairs, so 10/8 should not be used as a factor."""
    reported = make_reconciliation(7.0, crossed_bits_per_second=8e9)
    part = Completeness(planned_s=100, measured_s=80, lost_s=20, completeness_ratio=0.8)
    result = device_rate(PAYLOAD, _burst(reconciliation=reported, completeness=part), FLEET)
    assert result is not None
    assert result.value == 8e9


def test_ambiguous_factor_keeps_the_device_rate() -> None:
    doubled = make_reconciliation(1.0, crossed_bits_per_second=2e9)
    result = device_rate(PAYLOAD, _burst(reconciliation=doubled), FLEET)
    assert result is not None
    assert result.value == 2e9


def test_comparison_sentence_has_layer_window_limit_and_tolerance() -> None:
    under = cast(RunSpec, spec(tolerance_ratio=0.1, layer=Layer.IP))
    assert _compare(under, _burst(), FLEET, 0.9e9) == (
        "Received rate 1 Gbit/s (-3 Mbit/s, +4 Mbit/s) is above the limit 900 Mbit/s (target "
        "1 Gbit/s minus 10 %), IP layer, over 30 s"
    )
    assert _compare(PAYLOAD, _burst(window=None), FLEET, 1e9).endswith(
        "is not clearly above the limit 1 Gbit/s, payload, over 0 s"
    )
    assert "is below the limit 1.1 Gbit/s" in _compare(PAYLOAD, _burst(), FLEET, 1.1e9)
