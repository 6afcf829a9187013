"""Two groups of bursts side by side: what changed, by how much, and how sure that is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from coordinator.core.figures import (
    FIGURES,
    RECEIVED,
    RECEIVED_HALF_WIDTH,
    RETRANSMITS,
    RTT,
    Figure,
)
from coordinator.core.judge.summary import BurstSummary
from coordinator.core.measure.aggregate import figure
from coordinator.core.measure.steady import Mean, batch_mean, t95
from exchange.messages import Message

ENOUGH_COUNT: Final = 3  # bursts of a group under which an interval rests on single seconds
BATCHED_FROM: Final = 8  # bursts from which neighbours are batched; under it each stands alone


Observation = Mapping[str, float]  # one burst's figures by name; what is unknown is not there


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Bursts under one condition, in time order."""

    name: str
    observations: tuple[Observation, ...]
    conditions: Mapping[str, str] = field(default_factory=dict)  # streams, pairs, scenario, ...


class Metric(Message):
    """One figure in both groups; ``b`` against ``a``."""

    name: str
    unit: str
    a_mean: float
    a_half_width: float | None  # 95 % CI; None: too few bursts to say
    a_count: int
    b_mean: float
    b_half_width: float | None
    b_count: int
    difference: float  # b - a
    difference_half_width: float | None
    ratio: float | None  # b / a
    ratio_low: float | None
    ratio_high: float | None
    apart: bool  # the 95 % intervals of the two means do not overlap
    sentence: str


class Comparison(Message):
    """What two groups of bursts differ in; rates are as measured, also in a scaled lab."""

    a: str
    b: str
    metrics: tuple[Metric, ...]
    thin: bool  # a group has fewer than three bursts
    conditions_differ: tuple[str, ...]  # besides what was meant to differ
    sentence: str


def compare(a: Group, b: Group) -> Comparison:
    """Difference and ratio of every figure that both groups know, with 95 % intervals.

    A group's mean and its error come from its bursts (batch means, so that neighbouring bursts
    may be alike); with fewer than three bursts from the seconds within them, and the comparison is
    marked thin. The difference's interval is Welch's (B. L. Welch, Biometrika 34, 1947), the
    ratio's follows from the logarithm's first-order error. ``compare(a, a)`` is zero throughout.
    """
    metrics = tuple(metric for item in _COMPARED if (metric := _metric(item, a, b)) is not None)
    thin = min(len(a.observations), len(b.observations)) < ENOUGH_COUNT
    differ = tuple(
        f"{name}: {a.conditions.get(name, 'unknown')} against {b.conditions.get(name, 'unknown')}"
        for name in sorted(a.conditions.keys() | b.conditions.keys())
        if a.conditions.get(name) != b.conditions.get(name)
    )
    return Comparison(
        a=a.name,
        b=b.name,
        metrics=metrics,
        thin=thin,
        conditions_differ=differ,
        sentence=_sentence(a, b, metrics, thin=thin, differ=differ),
    )


def _metric(item: Figure, a: Group, b: Group) -> Metric | None:
    left, right = _mean(item, a), _mean(item, b)
    if left is None or right is None:
        return None
    (one, count_a), (two, count_b) = left, right
    difference = two.value - one.value
    error = math.hypot(one.error, two.error)
    half = error * t95(_welch(one, two)) if error > 0 else (0.0 if error == 0 else math.nan)
    ratio = two.value / one.value if one.value else None
    low = high = None
    if ratio is not None and ratio > 0 and not math.isnan(half) and one.value and two.value:
        relative = math.hypot(one.error / one.value, two.error / two.value)
        factor = math.exp(relative * (t95(_welch(one, two)) if relative > 0 else 0.0))
        low, high = ratio / factor, ratio * factor
    half_a, half_b = one.half_width, two.half_width
    apart = bool(
        not math.isnan(half_a) and not math.isnan(half_b) and abs(difference) > half_a + half_b
    )
    return Metric(
        name=item.called,
        unit=", ".join(filter(None, (item.unit, item.layer))),
        a_mean=figure(one.value) or 0.0,
        a_half_width=figure(half_a),
        a_count=count_a,
        b_mean=figure(two.value) or 0.0,
        b_half_width=figure(half_b),
        b_count=count_b,
        difference=figure(difference) or 0.0,
        difference_half_width=figure(half),
        ratio=figure(ratio),
        ratio_low=figure(low),
        ratio_high=figure(high),
        apart=apart,
        sentence=_said(item, a, b, one, two, ratio, apart=apart),
    )


def _mean(item: Figure, group: Group) -> tuple[Mean, int] | None:
    """A group's mean, from its bursts, or from within them where there are too few."""
    values = [value for seen in group.observations if (value := seen.get(item.name)) is not None]
    if not values:
        return None
    count = len(values)
    array = np.array(values, dtype=np.float64)
    if count >= BATCHED_FROM:
        return batch_mean(array), count
    value = float(array.mean())
    if count >= ENOUGH_COUNT:
        error = float(array.std(ddof=1)) / math.sqrt(count)
        return Mean(value=value, error=error, freedom=count - 1), count
    halves = [seen.get(RECEIVED_HALF_WIDTH.name) for seen in group.observations]
    if item is RECEIVED and None not in halves:
        inside = math.hypot(*(half for half in halves if half is not None)) / count
        return Mean(value=value, error=inside / t95(WITHIN_FREEDOM), freedom=WITHIN_FREEDOM), count
    return Mean(value=value, error=math.nan, freedom=0), count


_COMPARED: Final = tuple(each for each in FIGURES if each is not RECEIVED_HALF_WIDTH)
_TOLD_IF_APART: Final = (RTT.called, RETRANSMITS.called)
_REAL_SCALE: Final = "1:1"
WITHIN_FREEDOM: Final = 10  # taken for errors that come from within bursts


def _welch(one: Mean, two: Mean) -> float:
    """Welch-Satterthwaite degrees of freedom of a difference of two means."""
    a, b = one.error**2, two.error**2
    if a + b <= 0 or one.freedom < 1 or two.freedom < 1:
        return max(1.0, min(one.freedom, two.freedom))
    return float((a + b) ** 2 / (a**2 / one.freedom + b**2 / two.freedom))


def _said(
    item: Figure, a: Group, b: Group, one: Mean, two: Mean, ratio: float | None, *, apart: bool
) -> str:
    times = "" if ratio is None else f" (x {ratio:.3g})"
    sure = "the 95 % intervals do not overlap" if apart else "not told apart at 95 %"
    what = ", ".join(filter(None, (item.words, item.layer)))
    return (
        f"{what}: {item.say(one.value)} in {a.name}, {item.say(two.value)} in {b.name}"
        f"{times}; {sure}"
    )


def _sentence(
    a: Group, b: Group, metrics: Sequence[Metric], *, thin: bool, differ: Sequence[str]
) -> str:
    if not metrics:
        return f"{a.name} and {b.name} have no figure in common"
    parts = [metric.sentence for metric in metrics if metric.name == RECEIVED.called]
    parts += [m.sentence for m in metrics if m.apart and m.name in _TOLD_IF_APART]
    if thin:
        counts = f"{len(a.observations)} and {len(b.observations)}"
        parts.append(f"the data is thin: {counts} bursts, three of each are wanted")
    scale = a.conditions.get("scale", _REAL_SCALE)
    if scale == b.conditions.get("scale", _REAL_SCALE) != _REAL_SCALE:
        parts.append(f"rates are as measured, in a lab at {scale}")
    if differ:
        parts.append("conditions differ: " + ", ".join(differ))
    return "; ".join(parts)


def observe(burst: BurstSummary) -> Observation:
    """One burst of a run."""
    known = {each.name: each.of_burst(burst) for each in FIGURES}
    return {name: value for name, value in known.items() if value is not None}
