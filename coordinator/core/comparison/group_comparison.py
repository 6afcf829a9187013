"""Comparison of two groups of bursts, with the differences and their 95 % intervals."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import numpy as np

from broadside.coordinator.core import formatting
from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.comparison.conditions import is_unreported
from broadside.coordinator.core.measure.formulas.steady import Mean, mean_of_bursts, t90, t95
from broadside.coordinator.core.metrics import (
    ALL_METRICS,
    RECEIVED,
    RECEIVED_HALF_WIDTH,
    RETRANSMITS,
    RTT,
    Layer,
    MetricDefinition,
    layer_label,
    received_at,
)
from broadside.coordinator.core.summary import BurstSummary, figure
from broadside.exchange.messages import Message, renamed

# No difference is reported as *apart* if a group has fewer bursts, or if there are fewer pairs of
# bursts.
ENOUGH_COUNT: Final = 3
# With fewer bursts in a group there is no scatter, so the difference has no interval.
SCATTER_COUNT: Final = 2
# Key of the planned start (epoch s) in an observation. It is absent if the start is unknown.
STARTED: Final = "planned_start_s"

# Metric values of one burst by name, without unknown values.
Observation = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Bursts with the same conditions, in time order.

    Attributes:
        name: Name of the group.
        observations: Metric values of each burst.
        conditions: Conditions by name, for example streams, pairs and scenario.
        layer: Layer of the objective. None if its runs have several.
    """

    name: str
    observations: tuple[Observation, ...]
    conditions: Mapping[str, str] = field(default_factory=dict)
    layer: Layer | None = None


class Metric(Message):
    """One metric in both groups, with the change from ``a`` to ``b``.

    Attributes:
        name: Name of the metric.
        unit: Unit of the value.
        a_mean: Mean of group a.
        a_half_width: Half of the 95 % interval of group a. None if there are too few bursts.
        a_count: Number of bursts of group a.
        b_mean: Mean of group b.
        b_half_width: Half of the 95 % interval of group b. None if there are too few bursts.
        b_count: Number of bursts of group b.
        difference: The mean of b minus the mean of a.
        difference_half_width: Half of the 95 % interval of the difference. None if there are too
            few bursts.
        ratio: The mean of b divided by the mean of a.
        ratio_low: Lower end of the 95 % interval of the ratio. None if there are too few bursts, or
            if the interval of a mean contains zero.
        ratio_high: Upper end of the 95 % interval of the ratio. None as for `ratio_low`.
        significant: True if the 95 % interval of the difference does not contain zero, with three
            bursts or more in each group.
        paired: True if the bursts of both groups alternated. The interval is then from the
            differences of neighbours.
        equivalent_within_ratio: The smallest margin, relative to the mean of a, for which the two
            groups are equivalent (two one-sided tests at 5 %). None if there are too few bursts.
    """

    name: str
    unit: str
    a_mean: float
    a_half_width: float | None
    a_count: int
    b_mean: float
    b_half_width: float | None
    b_count: int
    difference: float
    difference_half_width: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    significant: Annotated[bool, renamed("significant", "apart")]
    paired: bool = False
    equivalent_within_ratio: Annotated[
        float | None, renamed("equivalent_within_ratio", "alike_within_ratio")
    ] = None
    sentence: str


class Comparison(Message):
    """Differences between two groups of bursts. Rates are as measured, also in a scaled lab.

    Attributes:
        a: Name of group a.
        b: Name of group b.
        metrics: Metrics that both groups have.
        few_bursts: True if a group has fewer than three bursts.
        conditions_differ: Conditions that differ, except for the one that defines the groups.
    """

    a: str
    b: str
    metrics: tuple[Metric, ...]
    few_bursts: Annotated[bool, renamed("few_bursts", "thin")]
    conditions_differ: tuple[str, ...]
    sentence: str


def compare(a: Group, b: Group) -> Comparison:
    """Compare every metric that is known in both groups.

    The mean of a group and its error are computed from its bursts. If a group has only one or two
    bursts, the comparison will be marked as thin and no metric is *apart*. The difference has
    Welch's interval (B. L. Welch, Biometrika 34, 1947).

    If the bursts of the groups alternated (ABAB, ABBA), all intervals are computed from the
    differences between neighbours. A drift that affects both groups then does not appear as a
    difference.

    Equivalence is tested with two one-sided tests (D. J. Schuirmann, Journal of Pharmacokinetics
    and Biopharmaceutics 15, 1987). If a margin contains the whole 90 % interval, the groups are
    equivalent within it. The interval of the ratio is computed from the first-order error of its
    logarithm.

    Args:
        a: Reference group.
        b: Group to compare with the reference.

    Returns:
        The comparison. All differences in ``compare(a, a)`` are zero.
    """
    # The rate at the layer of the objective comes first, as in all other outputs.
    main = received_at(a.layer if a.layer == b.layer else None)
    items = (main, *(item for item in _COMPARED if item is not main), *_of_parts(a))
    metrics = tuple(metric for item in items if (metric := _metric(item, a, b)) is not None)
    thin = min(len(a.observations), len(b.observations)) < ENOUGH_COUNT
    differ = tuple(
        f"{name}: {a.conditions.get(name, 'unknown')} and {b.conditions.get(name, 'unknown')}"
        for name in sorted(a.conditions.keys() | b.conditions.keys())
        if a.conditions.get(name) != b.conditions.get(name)
        and not is_unreported(name, a.conditions, b.conditions)
    )
    return Comparison(
        a=a.name,
        b=b.name,
        metrics=metrics,
        few_bursts=thin,
        conditions_differ=differ,
        sentence=_sentence(a, b, metrics, few_bursts=thin, differ=differ),
    )


def _of_parts(group: Group) -> Iterator[MetricDefinition]:
    """Yield the metrics of the other parts of mixed runs."""
    names = dict.fromkeys(
        name.rpartition("/")[0] for seen in group.observations for name in seen if "/" in name
    )
    yield from (item.of_part(part) for part in names for item in _OF_PARTS)


def _metric(item: MetricDefinition, a: Group, b: Group) -> Metric | None:
    left, right = _mean(item, a), _mean(item, b)
    if left is None or right is None:
        return None
    (one, count_a), (two, count_b) = left, right
    difference = two.value - one.value
    turns = _turns(item, a, b)
    if turns is None:
        error, freedom = math.hypot(one.error, two.error), _welch(one, two)
    else:
        error, freedom = _mean_error(turns[:, 1] - turns[:, 0]), len(turns) - 1.0
    half = error * t95(freedom) if error > 0 else (0.0 if error == 0 else math.nan)
    if min(count_a, count_b) < SCATTER_COUNT:
        half = math.nan
    ratio = two.value / one.value if one.value else None
    low = high = None
    reported_from_zero = all(entry.half_width < abs(entry.value) for entry in (one, two))
    if ratio is not None and ratio > 0 and reported_from_zero and not math.isnan(half):
        relative = (
            math.hypot(one.error / one.value, two.error / two.value)
            if turns is None
            else _mean_error(turns[:, 1] - ratio * turns[:, 0]) / abs(two.value)
        )
        factor = math.exp(relative * t95(freedom))
        low, high = ratio / factor, ratio * factor
    half_a, half_b = one.half_width, two.half_width
    enough = min(count_a, count_b) >= ENOUGH_COUNT
    gap = enough and not math.isnan(half) and abs(difference) > half
    nan = math.nan
    if enough and one.value:
        nan = (abs(difference) + (error * t90(freedom) if error > 0 else 0.0)) / abs(one.value)
    return Metric(
        name=item.short_name,
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
        significant=gap,
        paired=turns is not None,
        equivalent_within_ratio=figure(nan),
        sentence=_describe(
            item, (a, one), (b, two), ratio, _sure(difference, half, nan, item, gap)
        ),
    )


def _mean(item: MetricDefinition, group: Group) -> tuple[Mean, int] | None:
    """Return the mean and the number of bursts, or None if no burst has the metric.

    If there are too few bursts, the error of the received rate is computed from the seconds within
    them.
    """
    values = [value for seen in group.observations if (value := seen.get(item.name)) is not None]
    if not values:
        return None
    count = len(values)
    halves: list[float | None] = [None] * count
    if item is RECEIVED:
        halves = [seen.get(RECEIVED_HALF_WIDTH.name) for seen in group.observations]
    if count < ENOUGH_COUNT and item is not RECEIVED:
        return Mean(value=float(np.mean(values)), error=math.nan, freedom=0), count
    return mean_of_bursts(values, halves), count


def _mean_error(values: Floats) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def _turns(item: MetricDefinition, a: Group, b: Group) -> Floats | None:
    """Return the values of neighbouring bursts of a and b, shape (pairs, 2).

    None if the bursts of the two groups did not alternate, or if there are too few.
    """
    seen = sorted(
        (entry[STARTED], side, entry[item.name])
        for side, group in enumerate((a, b))
        for entry in group.observations
        if STARTED in entry and item.name in entry
    )
    count = len(a.observations)
    if count < ENOUGH_COUNT or len(b.observations) != count or len(seen) != 2 * count:
        return None
    blocks = [sorted(seen[i : i + 2], key=lambda entry: entry[1]) for i in range(0, 2 * count, 2)]
    if any([side for _, side, _ in block] != [0, 1] for block in blocks):
        return None
    return np.array([[value for _, _, value in block] for block in blocks])


_COMPARED: Final = tuple(entry for entry in ALL_METRICS if entry is not RECEIVED_HALF_WIDTH)
# Metrics of the other parts of mixed runs.
_OF_PARTS: Final = tuple(
    entry
    for entry in _COMPARED
    if entry.short_name
    in {
        *(RECEIVED.short_name, RTT.short_name, RETRANSMITS.short_name),
        *("completeness_ratio", "success_ratio", "connections_per_second"),
        *("connections_held_count", "connections_dropped_count", "handshake_p99_s"),
        *("first_byte_p99_s", "probe_p99_s", "probe_loss_ratio"),
    }
)
_TOLD_IF_APART: Final = (RTT.short_name, RETRANSMITS.short_name)
_REAL_SCALE: Final = "1:1"


def _welch(one: Mean, two: Mean) -> float:
    """Return the Welch-Satterthwaite degrees of freedom for the difference of two means."""
    a, b = one.error**2, two.error**2
    if a + b <= 0 or one.freedom < 1 or two.freedom < 1:
        return max(1.0, min(one.freedom, two.freedom))
    return float((a + b) ** 2 / (a**2 / one.freedom + b**2 / two.freedom))


def _sure(
    difference: float,
    half: float,
    equivalent_ratio: float,
    item: MetricDefinition,
    significant: bool,
) -> str:
    """Return a text that explains what a difference shows."""
    if math.isnan(half):
        return "too few bursts to compare"
    if significant:
        return f"different: {item.format(difference)} +- {item.format(half)} (95 %)"
    if math.isnan(equivalent_ratio):
        return "too few bursts to compare"
    return f"no difference shown (95 %); equivalent within {formatting.ratio(equivalent_ratio)}"


def _describe(
    item: MetricDefinition,
    first: tuple[Group, Mean],
    second: tuple[Group, Mean],
    ratio: float | None,
    sure: str,
) -> str:
    (a, one), (b, two) = first, second
    times = "" if ratio is None else f" ({formatting.number(ratio, 3)} times as much)"
    what = ", ".join(filter(None, (item.label, layer_label(item.layer))))
    return (
        f"{what}: {item.format(one.value)} in {a.name}, {item.format(two.value)} in {b.name}"
        f"{times}; {sure}"
    )


def _sentence(
    a: Group, b: Group, metrics: Sequence[Metric], *, few_bursts: bool, differ: Sequence[str]
) -> str:
    if not metrics:
        return f"{a.name} and {b.name} have no metric in common"
    parts = [metrics[0].sentence]
    parts += [m.sentence for m in metrics if m.significant and m.name in _TOLD_IF_APART]
    if few_bursts:
        counts = f"{len(a.observations)} and {len(b.observations)}"
        parts.append(f"too few bursts: {counts}; {ENOUGH_COUNT} of each are required")
    scale = a.conditions.get("scale", _REAL_SCALE)
    if scale == b.conditions.get("scale", _REAL_SCALE) != _REAL_SCALE:
        parts.append(f"rates are as measured in a lab at {scale}")
    if differ:
        parts.append("conditions differ: " + ", ".join(differ))
    return "; ".join(parts)


def observe(burst: BurstSummary) -> Observation:
    """Return the known metric values of a burst by name, including its planned start."""
    known = {entry.name: entry.of_burst(burst) for entry in ALL_METRICS}
    for part in burst.parts:
        known |= {
            entry.of_part(part.name).name: entry.of_burst(part.summary) for entry in _OF_PARTS
        }
    known[STARTED] = burst.planned_start_at.timestamp()
    return {name: value for name, value in known.items() if value is not None}
