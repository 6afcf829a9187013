"""Expected and worst cost of a run whose bursts end as soon as their rate is certain. Pure."""

import math
from dataclasses import dataclass, replace
from typing import Final

from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.plan.cost_estimate import (
    EarlyStopEstimate,
    Estimate,
    expected_bill,
)
from broadside.coordinator.core.plan.expected_usage import ExpectedUsage, ip_bytes_of
from broadside.coordinator.core.plan.price import Prices
from broadside.coordinator.core.run_spec import RunSpec

# Used for a device without history. The scatter is that of the seconds, relative to the rate.
SCATTER_RATIO: Final = 0.01
CORRELATION: Final = 0.5
# Time in seconds for the reports of a second and for the order to stop.
DELAY_S: Final = 8.0
# A burst that is not certain after this time is expected to have its planned duration.
SIMULATED_MAX_S: Final = 3600
# Simulated bursts.
BURSTS_COUNT: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHistory:
    """Bursts of the same device with the same traffic.

    Attributes:
        bursts_count: Number of bursts.
        payload_bits_per_second: Median received payload, as measured.
        scatter_ratio: Median standard deviation of the seconds divided by the rate.
        correlation: Median correlation of neighbouring seconds.
        between_ratio: Scatter from burst to burst divided by the rate, without slow changes. None
            with fewer than three bursts.
    """

    bursts_count: int
    payload_bits_per_second: float
    scatter_ratio: float
    correlation: float
    between_ratio: float | None = None


def with_early_stop(
    price: Estimate,
    spec: RunSpec,
    usage: ExpectedUsage,
    prices: Prices,
    history: DeviceHistory | None,
) -> Estimate:
    """Add the expected and the worst cost to an estimate, if bursts may end early.

    Args:
        price: Estimate for bursts of the planned duration.
        spec: The specification.
        usage: Its expected usage.
        prices: The price table to use.
        history: Earlier bursts, or None if there are none.

    Returns:
        A copy with the estimate of the early end, or the same object if bursts cannot end early.
    """
    if spec.objective.stop is None:
        return price
    margin, how = _margin(spec, usage, history)
    scatter = SCATTER_RATIO if history is None else history.scatter_ratio
    correlation = CORRELATION if history is None else history.correlation
    burst_s = float(spec.burst_s)
    if margin is not None:
        burst_s = expected_burst_s(margin, scatter, correlation, spec)
    saved_s = spec.burst_s - burst_s
    # The start times of later bursts stay the same.
    shorter = replace(
        usage,
        traffic_s=usage.traffic_s - spec.bursts_count * saved_s,
        elapsed_s=usage.elapsed_s - saved_s,
    )
    early = EarlyStopEstimate(
        margin_ratio=margin,
        scatter_ratio=scatter,
        correlation=correlation,
        history_bursts_count=0 if history is None else history.bursts_count,
        how=how,
        expected_burst_s=burst_s,
        expected_usd=expected_bill(spec, shorter, prices).total_usd,
        worst_usd=price.bill.total_usd,
    )
    return price.model_copy(update={"early_stop": early})


def _margin(
    spec: RunSpec, usage: ExpectedUsage, history: DeviceHistory | None
) -> tuple[float | None, str]:
    """Return the expected rate divided by the limit, minus one, and how the rate was found."""
    objective = spec.objective
    if objective.target_bits_per_second is None:
        return None, "no target"
    limit = objective.target_bits_per_second * (1 - objective.tolerance_ratio)
    ip_ratio = ip_bytes_of(spec, 1.0) / spec.scale
    if history is not None:
        rate: float | None = history.payload_bits_per_second * ip_ratio * spec.scale
        how = f"the rate of {history.bursts_count} earlier bursts of this device"
    else:
        rate, how = usage.rate.value, usage.rate_how
    if rate is None:
        return None, how
    if objective.layer is Layer.PAYLOAD:
        rate /= ip_ratio
    return rate / limit - 1, how


def expected_burst_s(margin: float, scatter: float, correlation: float, spec: RunSpec) -> float:
    """Return the mean duration of simulated bursts in seconds. The same input has the same result.

    Args:
        margin: Rate divided by the limit, minus one.
        scatter: Standard deviation of the seconds divided by the rate.
        correlation: Correlation of neighbouring seconds.
        spec: The specification with the planned and the shortest duration.
    """
    # These imports load NumPy.
    import numpy as np

    from broadside.coordinator.core.measure.formulas.certainty import certain_at_s
    from broadside.coordinator.core.measure.formulas.headers import OVERHEAD_KNOWN_RATIO

    if abs(margin) <= OVERHEAD_KNOWN_RATIO and spec.objective.layer is not Layer.PAYLOAD:
        # The size of the headers is not known better than this.
        return float(spec.burst_s)
    simulated_s = min(spec.burst_s, SIMULATED_MAX_S)
    noise = np.random.default_rng(0).standard_normal((simulated_s, BURSTS_COUNT))
    fresh = math.sqrt(1 - correlation**2)
    for second in range(1, simulated_s):
        noise[second] = correlation * noise[second - 1] + fresh * noise[second]
    seconds = (1 + margin) * (1 + scatter * noise.T)
    stops = certain_at_s(seconds, 1.0, spec.sustain_least_s) + DELAY_S
    return float(np.where(np.isnan(stops), spec.burst_s, np.minimum(stops, spec.burst_s)).mean())
