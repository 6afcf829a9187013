"""Check that the thresholds of the objective are met."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, assert_never

from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.checks.canary_check import CANARY_STEP
from broadside.coordinator.core.judge.checks.check_types import BurstInput, CheckResult
from broadside.coordinator.core.judge.checks.pair_texts import missing_pairs_step
from broadside.coordinator.core.judge.checks.rate_checks import COMPLETE_RATIO
from broadside.coordinator.core.measure.engine_metrics import find
from broadside.coordinator.core.summary import (
    BurstSummary,
    DeviceFigure,
    Finding,
    FindingValue,
    Verdict,
    describe_leaks,
    problem,
    worse,
)
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS, MetricSource, Threshold
from broadside.exchange.messages import Flow

_FLOW_TEXTS: Final = {
    Flow.UP: "From clients to servers (up)",
    Flow.DOWN: "From servers to clients (down)",
}
# A device metric needs to be known for this share of the window. It is below 1, because the first
# and the last reading can extend beyond the window.
DEVICE_KNOWN_RATIO: Final = 0.8


@dataclass(frozen=True, slots=True)
class _Value:
    """Measured value of a metric.

    Attributes:
        prefix: Device or flow, as a prefix for the finding.
        low: Lowest possible value. None if it was not measured.
        high: Highest possible value. None if it was not measured.
        is_complete: True if every pair, or enough of the window, has a value.
        coverage: Text that describes how much was measured.
        bound_s: Largest time error of the readings.
        text: Measured value with its interval, if it is not exact for another reason.
    """

    prefix: str
    low: float | None
    high: float | None
    is_complete: bool
    coverage: str
    bound_s: float = 0.0
    text: str | None = None


def check_thresholds(inputs: BurstInput) -> CheckResult:
    """Check that the thresholds of the objective are met.

    Formula: value <= threshold (or >= threshold for a minimum). The value needs to be known for
        every pair (engine, probes) or for 80 % of the window (telemetry). The threshold needs to
        be met for every time offset within the clock error of the source.
    Reads: the metric of each threshold: engine, probes, canaries or telemetry.
    If absent: inconclusive.
    """
    results = [
        _compare(threshold, limit, value, inputs.burst)
        for threshold in ALL_THRESHOLDS
        if (limit := getattr(inputs.spec.objective, threshold.bound)) is not None
        for value in _values(threshold, inputs.burst)
    ]
    verdicts = [verdict for verdict, _ in results]
    findings = tuple(finding for _, finding in results if finding is not None)
    return CheckResult(worse([Verdict.PASS, *verdicts]), findings)


def _compare(
    threshold: Threshold, limit: float, value: _Value, burst: BurstSummary
) -> tuple[Verdict, Finding | None]:
    """Return the result for one metric with one threshold.

    It fails if all possible values are beyond the threshold. It passes if no possible value is
    beyond the threshold.
    """
    values = [end for end in (value.low, value.high) if end is not None]
    beyond = [threshold.broken_by(end, limit) for end in values]
    label = (
        value.prefix + threshold.label
        if value.prefix
        else threshold.label[:1].upper() + threshold.label[1:]
    )
    if beyond and all(beyond):
        worst = values[-1] if threshold.is_floor else values[0]
        side = "below" if threshold.is_floor else "above"
        return Verdict.FAIL, problem(
            f"{threshold.id}-limit",
            90,
            f"{label} is {value.text or threshold.format(worst)}, {side} the limit "
            f"{threshold.format(limit)}.",
            threshold.next_step,
            FindingValue(
                value=worst,
                text=threshold.format(worst),
                worst="low" if threshold.is_floor else "high",
            ),
        )
    if any(beyond) and value.text is not None:
        return Verdict.INCONCLUSIVE, problem(
            f"{threshold.id}-unproven",
            70,
            f"{label} is {value.text}. The interval contains the limit {threshold.format(limit)}.",
            CANARY_STEP,
        )
    if any(beyond):
        return Verdict.INCONCLUSIVE, problem(
            f"{threshold.id}-unproven",
            70,
            f"{label} is between {threshold.format(values[0])} and "
            f"{threshold.format(values[-1])}, because the time of its readings is uncertain by "
            f"{formatting.time(value.bound_s)}. The limit is {threshold.format(limit)}.",
            "Use a source with a clock that can be checked, or a burst longer than this error",
        )
    measured_ratio = burst.completeness.completeness_ratio
    if values and value.is_complete and measured_ratio >= COMPLETE_RATIO:
        return Verdict.PASS, None
    if values and value.is_complete:
        return Verdict.INCONCLUSIVE, problem(
            f"{threshold.id}-unproven",
            70,
            f"{label} is within the limit {threshold.format(limit)} as far as it is known, but "
            f"{formatting.ratio(1 - measured_ratio, 2)} of the pair-seconds were not measured. A "
            f"threshold passes with at most {formatting.ratio(1 - COMPLETE_RATIO, 2)}.",
            missing_pairs_step(burst),
        )
    return Verdict.INCONCLUSIVE, problem(
        f"{threshold.id}-unproven",
        70,
        f"{label} is known for {value.coverage}, which is not enough for the limit "
        f"{threshold.format(limit)}.",
        "Make the telemetry of the device available, then run again"
        if threshold.source is MetricSource.DEVICE
        else missing_pairs_step(burst),
    )


def _values(threshold: Threshold, burst: BurstSummary) -> Iterator[_Value]:
    """Yield a threshold's metric for each of its sources."""
    if threshold.source is MetricSource.DEVICE:
        yield from _device_values(threshold, burst)
        return
    if threshold.source is MetricSource.CANARY:
        yield _canary_value(burst)
        return
    count = len(burst.pairs)
    for prefix, value, known in _pair_values(threshold, burst):
        yield _Value(prefix, value, value, known >= count, f"{known} of {count} pairs")


def _device_values(threshold: Threshold, burst: BurstSummary) -> Iterator[_Value]:
    """Yield a threshold's metric for each device, with the range that time errors allow."""
    quantity, _, statistic = threshold.metric.partition(".")
    if not burst.devices:
        yield _Value("", None, None, is_complete=False, coverage="no device")
    for device in burst.devices:
        metric: DeviceFigure | None = getattr(device, quantity)
        known = 0.0 if metric is None else metric.covered_ratio
        low = high = None if metric is None else getattr(metric, statistic)
        if metric is not None and metric.at_least is not None and metric.at_most is not None:
            low, high = getattr(metric.at_least, statistic), getattr(metric.at_most, statistic)
        yield _Value(
            f"{device.device}: ",
            low,
            high,
            known >= DEVICE_KNOWN_RATIO,
            f"{formatting.ratio(known, 0)} of the window "
            f"({formatting.ratio(DEVICE_KNOWN_RATIO, 0)} are required)",
            0.0 if metric is None else metric.bound_s,
        )


def _canary_value(burst: BurstSummary) -> _Value:
    """Return the share of canaries that leaked, with the ends of its interval."""
    canary = burst.canary
    if canary is None or not canary.during.tested_count:
        return _Value("", None, None, is_complete=False, coverage="no canary")
    during = canary.during
    return _Value(
        "",
        during.leak_low_ratio,
        during.leak_high_ratio,
        # The check of the canaries looks at the number of pairs.
        is_complete=True,
        coverage=f"{canary.pairs_count} of {len(burst.pairs)} pairs",
        text=describe_leaks(during),
    )


def _pair_values(
    threshold: Threshold, burst: BurstSummary
) -> Iterator[tuple[str, float | None, int]]:
    match threshold.source:
        case MetricSource.FLOW:
            for flow in burst.flows:
                yield (
                    f"{_FLOW_TEXTS[flow.flow]}: ",
                    getattr(flow, threshold.metric),
                    getattr(flow, threshold.pairs_count),
                )
        case MetricSource.ENGINE:
            metric = find(burst.measures, threshold.metric)
            yield ("", None, 0) if metric is None else ("", metric.value, metric.pairs_count)
        case MetricSource.PROBE:
            latency = burst.latency
            if latency is None:
                yield "", None, 0
            else:
                value = getattr(latency.fleet.during, threshold.metric)
                yield "", value, latency.complete_pairs_count
        case MetricSource.DEVICE | MetricSource.CANARY:
            return
        case _:
            assert_never(threshold.source)
