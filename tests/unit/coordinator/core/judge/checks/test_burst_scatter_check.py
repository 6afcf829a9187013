import math

import pytest

from broadside.coordinator.core.judge.checks.check_types import NOTHING, CheckResult
from broadside.coordinator.core.judge.checks.rate_checks import check_burst_scatter
from broadside.coordinator.core.measure.formulas.headers import OVERHEAD_KNOWN_RATIO
from broadside.coordinator.core.measure.formulas.steady import mean_of_bursts
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.summary import Verdict
from tests.unit.coordinator.core.judge.checks.check_input import burst, of_run, plan, spec, weights


def _run_check(
    *rates: float | None, limit: float | None = 1e9, layer: Layer = Layer.PAYLOAD
) -> CheckResult:
    of = plan(spec=spec(scaled_target_bits_per_second=limit, layer=layer))
    return check_burst_scatter(of_run(of, *(burst(rate, 1e6) for rate in rates)))


def test_inconclusive_if_burst_scatter_reaches_the_limit() -> None:
    result = _run_check(1.0e9, 1.1e9, 1.2e9)
    assert (result.verdict, weights(result)) == (Verdict.INCONCLUSIVE, [("target-undecided", 86)])
    assert "The mean received rate of 3 bursts is 1.1 Gbit/s +- " in result.findings[0].sentence
    assert "The limit 1 Gbit/s is inside" in result.findings[0].sentence


@pytest.mark.parametrize(
    "rates",
    [
        pytest.param((1.10e9, 1.11e9, 1.12e9), id="interval above the limit"),
        pytest.param((0.80e9, 0.81e9, 0.82e9), id="interval below the limit (burst checks fail)"),
        pytest.param((1.0e9, 1.2e9), id="two bursts"),
        pytest.param((1.0e9, 1.2e9, None), id="two bursts with a rate"),
    ],
)
def test_no_result_for_clear_mean_or_fewer_than_three_bursts(
    rates: tuple[float | None, ...],
) -> None:
    assert _run_check(*rates) == NOTHING


def test_no_result_without_a_limit() -> None:
    assert _run_check(1.0e9, 1.1e9, 1.2e9, limit=None) == NOTHING


def test_ip_layer_adds_headers_and_their_uncertainty() -> None:
    """The limit is just inside and then just outside the interval."""
    rates = [1.10e9, 1.11e9, 1.12e9]
    mean = mean_of_bursts([1.04 * rate for rate in rates], [1.04 * 1e6] * 3)
    half = math.hypot(mean.half_width, OVERHEAD_KNOWN_RATIO * mean.value)
    for limit, undecided in ((mean.value - half * 0.999, True), (mean.value - half * 1.001, False)):
        assert bool(_run_check(*rates, limit=limit, layer=Layer.IP).findings) is undecided
    for limit, undecided in ((mean.value + half * 0.999, True), (mean.value + half * 1.001, False)):
        assert bool(_run_check(*rates, limit=limit, layer=Layer.IP).findings) is undecided
