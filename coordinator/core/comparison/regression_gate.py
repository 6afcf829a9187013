"""Regression gates for the comparison of two runs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from broadside.coordinator.core import formatting
from broadside.coordinator.core.comparison.group_comparison import ENOUGH_COUNT, Comparison, Metric
from broadside.coordinator.core.summary import Verdict

_RULE: Final = re.compile(
    r"\s*([a-z0-9_][a-z0-9_/ -]*?)\s*([<>])\s*([+-]?\d+(?:\.\d*)?)\s*%\s*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Limit for the change of a metric from run a to run b, relative to the mean of a.

    Attributes:
        figure: Name of the metric in a comparison, or the start of its name.
        side: ``<`` if the gate fails below the limit, ``>`` if it fails above the limit.
        change_ratio: Limit for the relative change.
    """

    figure: str
    side: Literal["<", ">"]
    change_ratio: float

    def __str__(self) -> str:
        return f"{self.figure} {self.side} {self.change_ratio * 100:+g}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """Result of a gate.

    Attributes:
        gate: Gate that was applied.
        verdict: Fail if the whole interval is beyond the limit, pass if none of it is, else
            inconclusive.
        sentence: Text with the measured change.
    """

    gate: Gate
    verdict: Verdict
    sentence: str


def parse_gate(text: str) -> Gate:
    """Parse a gate such as ``received < -3%``.

    Raises:
        ValueError: The text is not a valid gate.
    """
    match = _RULE.fullmatch(text)
    if not match:
        raise ValueError(
            f"{text!r} is not a gate; use METRIC < PERCENT or METRIC > PERCENT, for example "
            "'received < -3%' or 'rtt > 10%'"
        )
    side: Literal["<", ">"] = "<" if match[2] == "<" else ">"
    return Gate(figure=match[1].lower(), side=side, change_ratio=float(match[3]) / 100)


def evaluate_gate(gate: Gate, comparison: Comparison) -> GateResult:
    """Compare the 95 % interval of a change with a gate.

    The result is inconclusive if the limit is inside the interval, or if there are too few bursts.

    Args:
        gate: Gate to apply.
        comparison: Comparison of two runs.

    Returns:
        The verdict with its sentence. Inconclusive also if a run has too few bursts for an
        interval.

    Raises:
        ValueError: The name does not match exactly one metric of both runs. The message lists the
            available metrics.
    """
    metric = _metric(gate, comparison.metrics)
    ends = _change(metric)
    if isinstance(ends, str):
        return GateResult(
            gate=gate,
            verdict=Verdict.INCONCLUSIVE,
            sentence=f"{gate}: inconclusive. {ends}.",
        )
    low, high = ends
    beyond, within = (
        (high < gate.change_ratio, low >= gate.change_ratio)
        if gate.side == "<"
        else (low > gate.change_ratio, high <= gate.change_ratio)
    )
    verdict = Verdict.FAIL if beyond else Verdict.PASS if within else Verdict.INCONCLUSIVE
    text = {
        Verdict.FAIL: "the change is beyond the limit",
        Verdict.PASS: "the change is within the limit",
        Verdict.INCONCLUSIVE: "the limit is inside the interval; run more or longer bursts",
    }[verdict]
    change = (
        f"{metric.name} changed by {formatting.signed_ratio(low)} to "
        f"{formatting.signed_ratio(high)}"
    )
    sentence = f"{gate}: {text}. {change} (95 % interval)."
    return GateResult(gate=gate, verdict=verdict, sentence=sentence)


def _change(metric: Metric) -> tuple[float, float] | str:
    """Return the 95 % interval of the change relative to the mean of a, or an error text.

    The interval includes the error of this mean. If b can be zero or a is negative, the interval of
    the difference is used instead.
    """
    half, half_a, mean = metric.difference_half_width, metric.a_half_width, abs(metric.a_mean)
    if half is None or half_a is None or min(metric.a_count, metric.b_count) < ENOUGH_COUNT:
        return f"{metric.a_count} and {metric.b_count} bursts; {ENOUGH_COUNT} of each are required"
    if half_a >= mean:
        return "The 95 % interval of the first mean contains zero"
    if metric.a_mean > 0 and metric.ratio_low is not None and metric.ratio_high is not None:
        return metric.ratio_low - 1, metric.ratio_high - 1
    return (metric.difference - half) / mean, (metric.difference + half) / mean


def _metric(gate: Gate, metrics: Sequence[Metric]) -> Metric:
    exact = [metric for metric in metrics if metric.name == gate.figure]
    begun = [metric for metric in metrics if metric.name.startswith(f"{gate.figure}_")]
    result = exact or begun
    if len(result) != 1:
        names = ", ".join(metric.name for metric in result or metrics) or "none"
        raise ValueError(
            f"{gate.figure!r} matches {len(result) or 'no'} metrics of both runs; available: "
            f"{names}"
        )
    return result[0]
