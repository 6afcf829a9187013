"""Two groups of bursts side by side: what changed, by how much, and how sure that is."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from coordinator.core import words
from coordinator.core.judge.summary import BurstSummary
from coordinator.core.measure.aggregate import figure
from coordinator.core.measure.cpu_cost import per_gigabyte
from coordinator.core.measure.steady import Mean, batch_mean, t95
from exchange.messages import Message

ENOUGH_COUNT: Final = 3  # bursts of a group under which an interval rests on single seconds
BATCHED_FROM: Final = 8  # bursts from which neighbours are batched; under it each stands alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One burst, as a comparison looks at it; ``None`` is unknown."""

    received_bits_per_second: float | None = None
    received_half_width: float | None = None  # within the burst, 95 %
    sent_bits_per_second: float | None = None
    rtt_s: float | None = None
    retransmit_ratio: float | None = None
    cpu_per_gigabit: float | None = None  # busy share of all the clients' cores a Gbit/s of a pair
    client_cpu_s_per_gigabyte: float | None = None  # of engines' processes
    server_cpu_s_per_gigabyte: float | None = None
    probe_p99_s: float | None = None  # of all pairs' probes under load


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    name: str
    words: str  # the name in a sentence
    unit: str
    read: Callable[[Observation], float | None]
    say: Callable[[float], str]


_FIGURES: Final = (
    _Figure(
        name="received_bits_per_second",
        words="payload received",
        unit="bit/s of payload, receiver",
        read=lambda seen: seen.received_bits_per_second,
        say=words.rate,
    ),
    _Figure(
        name="sent_bits_per_second",
        words="payload sent",
        unit="bit/s of payload, sender",
        read=lambda seen: seen.sent_bits_per_second,
        say=words.rate,
    ),
    _Figure(
        name="rtt_s",
        words="round-trip time",
        unit="s, mean of bursts' means",
        read=lambda seen: seen.rtt_s,
        say=words.time,
    ),
    _Figure(
        name="retransmit_ratio",
        words="segments sent again",
        unit="of segments sent",
        read=lambda seen: seen.retransmit_ratio,
        say=lambda value: f"{value:.4%}",
    ),
    _Figure(
        name="cpu_per_gigabit",
        words="busy share of a client's cores for each Gbit/s",
        unit="busy share of a client's cores a Gbit/s",
        read=lambda seen: seen.cpu_per_gigabit,
        say=lambda value: f"{value:.3g}",
    ),
    _Figure(
        name="client_cpu_s_per_gigabyte",
        words="clients' CPU time",
        unit="CPU-s of the clients' engines a GB of payload",
        read=lambda seen: seen.client_cpu_s_per_gigabyte,
        say=lambda value: f"{value:.3g} CPU-s/GB",
    ),
    _Figure(
        name="server_cpu_s_per_gigabyte",
        words="servers' CPU time",
        unit="CPU-s of the servers' engines a GB of payload",
        read=lambda seen: seen.server_cpu_s_per_gigabyte,
        say=lambda value: f"{value:.3g} CPU-s/GB",
    ),
    _Figure(
        name="probe_p99_s",
        words="99th percentile of probes under load",
        unit="s, 99th percentile of probes under load",
        read=lambda seen: seen.probe_p99_s,
        say=words.time,
    ),
)


def compare(a: Group, b: Group) -> Comparison:
    """Difference and ratio of every figure that both groups know, with 95 % intervals.

    A group's mean and its error come from its bursts (batch means, so that neighbouring bursts
    may be alike); with fewer than three bursts from the seconds within them, and the comparison is
    marked thin. The difference's interval is Welch's (B. L. Welch, Biometrika 34, 1947), the
    ratio's follows from the logarithm's first-order error. ``compare(a, a)`` is zero throughout.
    """
    metrics = tuple(metric for item in _FIGURES if (metric := _metric(item, a, b)) is not None)
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


def _metric(item: _Figure, a: Group, b: Group) -> Metric | None:
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
        name=item.name,
        unit=item.unit,
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


def _mean(item: _Figure, group: Group) -> tuple[Mean, int] | None:
    """A group's mean, from its bursts, or from within them where there are too few."""
    values = [value for seen in group.observations if (value := item.read(seen)) is not None]
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
    halves = [seen.received_half_width for seen in group.observations]
    if item.name == "received_bits_per_second" and None not in halves:
        inside = math.hypot(*(half for half in halves if half is not None)) / count
        return Mean(value=value, error=inside / t95(WITHIN_FREEDOM), freedom=WITHIN_FREEDOM), count
    return Mean(value=value, error=math.nan, freedom=0), count


_REAL_SCALE: Final = "1:1"
WITHIN_FREEDOM: Final = 10  # taken for errors that come from within bursts


def _welch(one: Mean, two: Mean) -> float:
    """Welch-Satterthwaite degrees of freedom of a difference of two means."""
    a, b = one.error**2, two.error**2
    if a + b <= 0 or one.freedom < 1 or two.freedom < 1:
        return max(1.0, min(one.freedom, two.freedom))
    return float((a + b) ** 2 / (a**2 / one.freedom + b**2 / two.freedom))


def _said(
    item: _Figure, a: Group, b: Group, one: Mean, two: Mean, ratio: float | None, *, apart: bool
) -> str:
    times = "" if ratio is None else f" (x {ratio:.3g})"
    sure = "the 95 % intervals do not overlap" if apart else "not told apart at 95 %"
    return (
        f"{item.words}: {item.say(one.value)} in {a.name}, {item.say(two.value)} in {b.name}"
        f"{times}; {sure}"
    )


def _sentence(
    a: Group, b: Group, metrics: Sequence[Metric], *, thin: bool, differ: Sequence[str]
) -> str:
    if not metrics:
        return f"{a.name} and {b.name} have no figure in common"
    parts = [metric.sentence for metric in metrics if metric.name in ("received_bits_per_second",)]
    parts += [m.sentence for m in metrics if m.apart and m.name in ("rtt_s", "retransmit_ratio")]
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
    received = burst.fleet_received_bits_per_second
    rtts = [flow.rtt_mean_s for flow in burst.flows if flow.rtt_mean_s is not None]
    again = [flow.retransmit_ratio for flow in burst.flows if flow.retransmit_ratio is not None]
    cpu = burst.client.cpu_mean_ratio
    each = received / burst.pairs_measured / 1e9 if received and burst.pairs_measured else None
    return Observation(
        received_bits_per_second=received,
        received_half_width=burst.fleet_received_half_width_bits_per_second,
        sent_bits_per_second=burst.fleet_sent_bits_per_second,
        rtt_s=sum(rtts) / len(rtts) if rtts else None,
        retransmit_ratio=sum(again) / len(again) if again else None,
        cpu_per_gigabit=None if cpu is None or not each else cpu / each,
        client_cpu_s_per_gigabyte=per_gigabyte(burst.client_cpu),
        server_cpu_s_per_gigabyte=per_gigabyte(burst.server_cpu),
        probe_p99_s=None if burst.latency is None else burst.latency.fleet.during.p99_s,
    )
