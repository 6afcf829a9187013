"""Possible causes of a residual, and detection of metrics that are declared wrongly.

A counter may follow the fleet but be wrong by a constant factor. The factor may match a wrong unit,
prefix, aggregation or direction. The metric is then probably declared wrongly, and the finding is
about the declaration and not about the device.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from broadside.coordinator.core import formatting
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.summary import (
    BurstSummary,
    CauseId,
    Reconciliation,
    ResidualCause,
    figure,
)
from broadside.exchange.messages import Flow

UNSEEN_BY_BYTES: Final = (
    "Bytes alone cannot show other traffic that exists only during the bursts, or fleet traffic "
    "that bypasses the firewall and is replaced by other traffic. To rule this out: a reference "
    "run (device.path=bypass) under the same load, or the session count of the firewall."
)
# A smaller residual needs no cause, however small its uncertainty is.
AGREES_RATIO: Final = 0.005
# Id of the cause for traffic that was subtracted.
OTHER_TRAFFIC: Final = "foreign-traffic"
# A cause may leave this share of the residual unexplained.
UNEXPLAINED_RATIO: Final = 0.25
# A residual needs a cause if it is larger than its uncertainty by this factor.
DOUBT_FACTOR: Final = 1.25
# Same factor for one of several bursts. It is larger, because one of many bursts is always an
# outlier.
DOUBT_FACTOR_OF_MANY: Final = 2.0
BITS_A_BYTE: Final = 8
# Half the distance between the two nearest factors, 60 / 8 = 7.5 and 8. They differ by 6.5 %.
NEAR_RATIO: Final = 0.03
# If the layer and the packet size are unknown, a counter will count between payload and frames.
# This is 1 to 1.12 times the payload.
HEADERS_RATIO: Final = 0.12
# Other traffic or a wrong lag can explain a factor up to this one.
FAR_FACTOR: Final = 2.0
# The counted traffic of the fleet needs to exceed the idle level's uncertainty by this factor.
IDLE_FACTOR: Final = 3.0
_PREFIXES: Final = ((1e3, "thousand"), (1e6, "million"), (1e9, "billion"))
_BINARY: Final = (1.024, 1.024**2, 1.024**3)
_RATIOS: Final = ("residual_ratio", "residual_low_ratio", "residual_high_ratio")
_AMOUNTS: Final = (
    "firewall_bits_per_second",
    "crossed_bits_per_second",
    "firewall_bytes",
    "baseline_bits_per_second",
    "baseline_uncertainty_bits_per_second",
    "residual_uncertainty_ratio",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Missing records of a burst.

    Attributes:
        pairs_count: Number of pairs that may have sent without a record.
        share_ratio: Bytes that these pairs may have sent at the mean rate of a measured pair,
            divided by the fleet bytes.
        planned_pairs_count: Number of planned pairs.
        largest_ratio: Largest rate of a measured pair, divided by the mean rate.
    """

    pairs_count: int
    share_ratio: float
    planned_pairs_count: int
    largest_ratio: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """Difference between counter and prediction.

    Attributes:
        ratio: Counted bytes divided by predicted bytes, minus 1.
        uncertainty_ratio: Half width of the interval.
        doubt_factor: The residual needs a cause if it is larger than this number of uncertainties.
    """

    ratio: float
    uncertainty_ratio: float
    doubt_factor: float = DOUBT_FACTOR

    @property
    def significant(self) -> bool:
        """True if the residual needs a cause."""
        return abs(self.ratio) > max(self.doubt_factor * self.uncertainty_ratio, AGREES_RATIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTraffic:
    """Traffic in the counter while no plan sends.

    It is already subtracted from the residual and reported in addition.

    Attributes:
        ratio: Its bytes relative to the predicted bytes. None if unknown.
        bits_per_second: Its rate.
    """

    ratio: float | None
    bits_per_second: float


def causes(
    deviation: Residual, missing: Missing, foreign: ForeignTraffic, unknown_ratio: float
) -> tuple[ResidualCause, ...]:
    """Return the possible causes of a residual, sorted by the part that they explain.

    A cause has no probability. It only states which part of the residual it can explain. A cause is
    skipped if the unexplained part exceeds both two uncertainties and :data:`UNEXPLAINED_RATIO` of
    the residual.

    Args:
        deviation: The residual.
        missing: Missing records.
        foreign: Traffic of others.
        unknown_ratio: Share of the fleet bytes in unknown bins.

    Returns:
        The causes. If the residual is within its uncertainty, the only possible cause is other
        traffic.
    """
    residual, uncertainty = deviation.ratio, deviation.uncertainty_ratio
    # Each cause with the part of the residual that it leaves unexplained.
    offers: list[tuple[float, ResidualCause]] = []

    def offer(name: CauseId, low: float, high: float, sentence: str) -> None:
        """Add a cause that can explain a residual from ``low`` to ``high``."""
        open_ratio = max(0.0, low - residual, residual - high)
        if open_ratio <= max(2 * uncertainty, UNEXPLAINED_RATIO * abs(residual)):
            share = figure(min(max(residual, low), high)) or 0.0
            offers.append(
                (open_ratio, ResidualCause(id=name, share_ratio=share, sentence=sentence))
            )

    size = formatting.ratio(abs(residual), 1)
    significant = deviation.significant
    if significant and residual > 0 and missing.share_ratio > 0:
        offer(
            "lost-reports",
            0.0,
            missing.share_ratio * missing.largest_ratio,
            f"{missing.pairs_count} of {missing.planned_pairs_count} planned pairs have no "
            "complete record. If they sent at the mean rate, the firewall counted "
            f"{formatting.ratio(missing.share_ratio, 1)} more than the records of the fleet",
        )
    if significant and residual > 0.5:
        offer(
            "duplicate-counting",
            0.8,
            1.0,
            f"The firewall counted {1 + residual:.2f} times the bytes of the fleet. It probably "
            "counts each byte on its way in and on its way out",
        )
    if significant and residual < 0:
        pairs = -residual * missing.planned_pairs_count
        offer(
            "bypass",
            -1.0,
            0.0,
            f"The firewall counted {size} less than the fleet received, about the traffic of "
            f"{pairs:.1f} pairs. Some traffic bypassed it, or the counter does not count all of it",
        )
    if significant and unknown_ratio > AGREES_RATIO:
        offer(
            "unknown-bins",
            -unknown_ratio,
            unknown_ratio,
            f"{formatting.ratio(unknown_ratio, 1)} of the fleet's bytes are in bins for which the "
            "counter has no value yet",
        )
    listed = [cause for _, cause in sorted(offers, key=lambda item: item[0])]
    if foreign.ratio is not None and foreign.ratio > AGREES_RATIO:
        listed.append(
            ResidualCause(
                id=OTHER_TRAFFIC,
                share_ratio=figure(foreign.ratio) or 0.0,
                sentence=f"The firewall carried {formatting.rate(foreign.bits_per_second)} of "
                "other traffic while no planned traffic was sent. This rate is subtracted, "
                "so a change of it during the burst is part of the residual",
            )
        )
    if significant and all(open_ratio > uncertainty for open_ratio, _ in offers):
        side = "more" if residual > 0 else "less"
        listed.append(
            ResidualCause(
                id="unknown",
                share_ratio=figure(residual) or 0.0,
                sentence=f"The firewall counted {size} {side} than the fleet, and no known cause "
                "explains all of it",
            )
        )
    return tuple(listed)


@dataclass(frozen=True, slots=True)
class DeclarationError:
    """Possible error in the declaration of a metric.

    Attributes:
        factor: Counted bytes divided by true bytes. 0 if there is no factor.
        sentence: Description of the error.
        fix: Correct declaration.
        is_sure: True if real traffic cannot produce this factor.
    """

    factor: float
    sentence: str
    fix: str
    is_sure: bool = True

    def combine(self, other: "DeclarationError") -> "DeclarationError":
        """Return the combination of this error with another one."""
        return DeclarationError(
            self.factor * other.factor,
            f"{self.sentence}, and {other.sentence}",
            f"{self.fix} and {other.fix}",
        )

    def describe(self) -> str:
        """Return a text with the error and the factor that it causes."""
        if not self.factor:
            return self.sentence[:1].upper() + self.sentence[1:]
        number = formatting.number(max(self.factor, 1 / self.factor), 3)
        size = f"{number} times" if self.factor >= 1 else f"1/{number} of"
        return f"A factor of {size} the true bytes results if {self.sentence}"


def declaration_error(
    counter: Reconciliation | None, bursts: Sequence[BurstSummary]
) -> DeclarationError | None:
    """Return the wrong declaration that explains the factor of the counter.

    Args:
        counter: Reconciliation of the bursts. None if no source returned data.
        bursts: Bursts with the received rate of each flow.

    Returns:
        The error with the nearest factor within the uncertainty. If several are equally near, the
        first one, which is the simplest. None if no factor matches, if the counter agrees with the
        fleet, or if it does not follow the fleet.
    """
    if counter is None or counter.bypassed:
        return None
    rates = _flow_rates(bursts)
    if counter.counted_flows and rates and not rates.keys() & set(counter.counted_flows):
        return DeclarationError(
            0.0, "the metric counts only the direction in which nothing was sent", "direction=both"
        )
    if counter.residual_ratio is None and counter.lags_scale_ratio is not None:
        far = math.log(FAR_FACTOR)
        for error in _errors(counter, rates):
            distance = abs(math.log(counter.lags_scale_ratio / error.factor))
            if error.is_sure and abs(math.log(error.factor)) > far and distance <= NEAR_RATIO:
                return error
        return None
    if counter.residual_ratio is None or counter.lag_s is None:
        return None
    ratio, doubt = 1 + counter.residual_ratio, counter.residual_uncertainty_ratio or 0.0
    if ratio <= 0:
        return None
    idle = IDLE_FACTOR * (counter.baseline_uncertainty_bits_per_second or 0.0)
    if (counter.crossed_bits_per_second or 0.0) <= idle or abs(ratio - 1) <= doubt:
        return None
    reach = max(NEAR_RATIO, min(doubt / ratio, HEADERS_RATIO))
    near = [
        (round(distance / NEAR_RATIO), error)
        for error in _errors(counter, rates)
        if (distance := abs(math.log(ratio / error.factor)))
        <= (reach if error.is_sure else doubt / ratio)
    ]
    return min(near, key=lambda item: item[0], default=(0, None))[1]


def certain_declaration_error(
    counter: Reconciliation, bursts: Sequence[BurstSummary]
) -> DeclarationError | None:
    """Return the wrong declaration if real traffic cannot explain the factor.

    Args:
        counter: Reconciliation of the run with the device counter.
        bursts: All bursts of the run.

    Returns:
        The error. None if the declaration can be correct.
    """
    error = declaration_error(counter, bursts)
    return error if error is not None and error.is_sure else None


def _flow_rates(bursts: Sequence[BurstSummary]) -> dict[Flow, float]:
    """Return the received rate of each flow with traffic, summed over all bursts (bit/s)."""
    rates: dict[Flow, float] = {}
    for burst in bursts:
        for flow in burst.flows:
            rates[flow.flow] = rates.get(flow.flow, 0.0) + (flow.received_bits_per_second or 0.0)
    return {flow: rate for flow, rate in rates.items() if rate}


def _errors(counter: Reconciliation, rates: Mapping[Flow, float]) -> Iterator[DeclarationError]:
    """Yield the possible errors, the simplest first."""
    units = [
        DeclarationError(BITS_A_BYTE, "bits are read as bytes", "unit=bits"),
        DeclarationError(1 / BITS_A_BYTE, "bytes are read as bits", "unit=bytes"),
    ]
    sums = list(_sum_errors(counter.grain_s))
    prefixes = [
        DeclarationError(size, f"values are read a {name} times too {side}", "the prefix")
        for factor, name in _PREFIXES
        for size, side in ((factor, "large"), (1 / factor, "small"))
    ]
    yield from units
    yield from _direction_errors(counter.counted_flows, rates)
    yield from sums
    yield from prefixes
    for unit in units:
        yield from (unit.combine(other) for other in (*sums, *prefixes))
    yield DeclarationError(
        2.0,
        "bytes are counted on their way in and on their way out",
        "one of the two interfaces or directions",
        is_sure=False,
    )
    yield DeclarationError(
        0.5,
        "the metric is a mean over two instances or interfaces, or counts one of two",
        "a query that adds them",
        is_sure=False,
    )
    for factor in _BINARY:
        for size in (factor, 1 / factor):
            sentence = "a prefix of 1000 is read as 1024, or the reverse"
            yield DeclarationError(size, sentence, "the prefix", is_sure=False)


def _sum_errors(grain_s: float) -> Iterator[DeclarationError]:
    """Yield the errors of taking a rate for an amount, or an amount for a rate."""
    for over_s, name in {grain_s: "bin", 60.0: "minute"}.items():
        if over_s != 1:
            total = f"the total of a {name} of {over_s:g} s"
            yield DeclarationError(over_s, f"{total} is read as a rate", "aggregation=sum")
            yield DeclarationError(1 / over_s, f"a rate is read as {total}", "aggregation=mean")


def _direction_errors(
    counted: Sequence[Flow], rates: Mapping[Flow, float]
) -> Iterator[DeclarationError]:
    """Yield the errors of taking one direction for both, or both for one."""
    total = sum(rates.values())
    mine = sum(rate for flow, rate in rates.items() if flow in counted or not counted)
    if 0 < mine < total:
        sentence = "both directions are counted, but one is declared"
        yield DeclarationError(total / mine, sentence, "direction=both")
    elif len(rates) > 1:
        for flow, rate in rates.items():
            side = "in" if flow is Flow.UP else "out"
            sentence = f"only the direction {side} is counted, but both are declared"
            yield DeclarationError(rate / total, sentence, f"direction={side}")


def with_declaration(
    counter: Reconciliation, device_counter: CounterRecord, bursts: Sequence[BurstSummary]
) -> Reconciliation:
    """Adapt a reconciliation to a wrong declaration of the metric.

    A certain error removes the causes and rates that would be attributed to the device. An
    uncertain one is added as a possible cause.

    Args:
        counter: Reconciliation of the bursts.
        device_counter: Device counter.
        bursts: Bursts of this reconciliation.

    Returns:
        A copy with the counted flows. A certain error removes causes and rates of the device, a
        possible one is added as a cause.
    """
    flows = () if set(device_counter.flows) == set(Flow) else device_counter.flows
    counter = counter.model_copy(update={"counted_flows": flows})
    error = declaration_error(counter, bursts)
    if error is None or not (error.is_sure or counter.causes):
        return counter
    if not error.is_sure:
        share = figure(error.factor - 1) or 0.0
        cause = ResidualCause(id="metric-declaration", share_ratio=share, sentence=error.describe())
        return counter.model_copy(update={"causes": (*counter.causes, cause)})
    # The values are not bytes, so we should not report any result that is based on them.
    removed = dict.fromkeys(
        (
            "firewall_bits_per_second",
            "slowest_bits_per_second",
            "slowest_noise_bits_per_second",
            "slowest_s",
        )
    )
    return counter.model_copy(update={"causes": (), **removed})


def counted_flows_only(series: BurstSeries, device_counter: CounterRecord) -> BurstSeries:
    """Return the series without the flows that the counter does not count.

    If the counter counts none of its flows, all flows will be included.

    Args:
        series: Burst series.
        device_counter: Device counter.
    """
    flows = tuple(flow for flow in series.flows if flow.flow in device_counter.flows)
    return replace(series, flows=flows) if 0 < len(flows) < len(series.flows) else series


def has_unit_error(counter: Reconciliation) -> bool:
    """Return True if the counter has too few bytes to estimate the lag."""
    return not counter.bypassed and counter.lag_s is None and counter.residual_ratio is not None


def scale_of(device_counter: CounterRecord, counter: Reconciliation) -> float | None:
    """Return the ratio of all bytes in the counter to the expected bytes.

    Args:
        device_counter: Device counter.
        counter: Reconciliation with the expected bytes.

    Returns:
        The ratio. None if the counter has no bytes, or if no bytes are expected.
    """
    total = float(np.nansum(np.where(device_counter.bytes > 0, device_counter.bytes, 0.0)))
    return total / counter.expected_bytes if counter.expected_bytes and total > 0 else None


def rescaled(counter: Reconciliation, scale: float) -> Reconciliation:
    """Convert a reconciliation back to the original unit of the counter.

    Args:
        counter: Reconciliation with a counter that was divided by ``scale``.
        scale: Factor between the two units.

    Returns:
        A copy. Bytes, rates and residuals are those of the original unit.
    """
    update: dict[str, float | None] = {}
    for name in (*_RATIOS, *_AMOUNTS):
        value = getattr(counter, name)
        if value is not None:
            value = scale * (1 + value) - 1 if name in _RATIOS else value * scale
        update[name] = figure(value)
    return counter.model_copy(update=update)
