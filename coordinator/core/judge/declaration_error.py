"""Detection of device metrics with a wrong declaration.

A counter may follow the fleet but be wrong by a constant factor. The factor may match a wrong unit,
prefix, aggregation or direction. The metric is then probably declared wrongly, and the finding is
about the declaration and not about the device.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from broadside.coordinator.core import words
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.measure.series import BurstSeries
from broadside.coordinator.core.summary import BurstSummary, Cause, Reconciliation, figure
from broadside.exchange.messages import Flow

BITS_A_BYTE: Final = 8
# Half the distance between the two nearest factors, 60 / 8 = 7.5 and 8. They differ by 6.5 %.
NEAR_RATIO: Final = 0.03
# If the layer and the packet size are unknown, a counter counts between payload and frames. This is
# 1 to 1.12 times the payload.
HEADERS_RATIO: Final = 0.12
# Other traffic or a wrong lag can explain a factor up to this one.
FAR_FACTOR: Final = 2.0
# The counted traffic of the fleet must exceed the idle level's uncertainty by this factor.
IDLE_FACTOR: Final = 3.0
_PREFIXES: Final = ((1e3, "thousand"), (1e6, "million"), (1e9, "billion"))
_BINARY: Final = (1.024, 1.024**2, 1.024**3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misreading:
    """Possible error in the declaration of a metric.

    Attributes:
        factor: Counted bytes divided by true bytes.
        sentence: Description of the error.
        fix: Correct declaration.
        is_sure: True if real traffic cannot produce this factor.
    """

    factor: float
    sentence: str
    fix: str
    is_sure: bool = True

    def and_also(self, other: "Misreading") -> "Misreading":
        """Return the combination of this error with another one."""
        return Misreading(
            factor=self.factor * other.factor,
            sentence=f"{self.sentence}, and {other.sentence}",
            fix=f"{self.fix} and {other.fix}",
        )


def misreading(
    held: Reconciliation | None, rates: Mapping[Flow, float | None]
) -> Misreading | None:
    """Return the wrong declaration that explains the counter's factor.

    Args:
        held: Reconciliation of a burst or run.
        rates: Received rate for each flow, in bit/s.

    Returns:
        The error with the nearest factor within the uncertainty. If several are equally near, the
        first one, which is the simplest. None if no factor matches, if the counter agrees with the
        fleet, or if it does not follow the fleet.
    """
    if held is None or held.bypassed:
        return None
    known = {flow: rate for flow, rate in rates.items() if rate}
    if held.counted_flows and known and not known.keys() & set(held.counted_flows):
        return Misreading(
            factor=0.0,
            sentence="the metric is declared to count only the direction in which this run sent "
            "nothing",
            fix="direction=both",
        )
    if held.residual_ratio is None and held.lags_scale_ratio is not None:
        return _of_lags(held, held.lags_scale_ratio, known)
    if held.residual_ratio is None or held.lag_s is None:
        return None
    ratio, doubt = 1 + held.residual_ratio, held.residual_uncertainty_ratio or 0.0
    if ratio <= 0:
        return None
    idle = IDLE_FACTOR * (held.baseline_uncertainty_bits_per_second or 0.0)
    if (held.crossed_bits_per_second or 0.0) <= idle or abs(ratio - 1) <= doubt:
        return None
    reach = max(NEAR_RATIO, min(doubt / ratio, HEADERS_RATIO))

    def apart(each: Misreading) -> float:
        return abs(math.log(ratio / each.factor))

    near = [
        each
        for each in _misreadings(held, known)
        if apart(each) <= (reach if each.is_sure else doubt / ratio)
    ]
    return min(near, key=lambda each: round(apart(each) / NEAR_RATIO), default=None)


def _of_lags(held: Reconciliation, ratio: float, rates: Mapping[Flow, float]) -> Misreading | None:
    """Return the wrong declaration that explains the factor, if the lag is unknown."""
    for each in _misreadings(held, rates):
        far = abs(math.log(each.factor)) > math.log(FAR_FACTOR)
        if each.is_sure and far and abs(math.log(ratio / each.factor)) <= NEAR_RATIO:
            return each
    return None


def _misreadings(held: Reconciliation, rates: Mapping[Flow, float]) -> Iterator[Misreading]:
    """Yield the possible errors, the simplest first."""
    units = [
        Misreading(factor=BITS_A_BYTE, sentence="bits are read as bytes", fix="unit=bits"),
        Misreading(factor=1 / BITS_A_BYTE, sentence="bytes are read as bits", fix="unit=bytes"),
    ]
    sums = list(_sums(held.grain_s))
    prefixes = [
        each
        for factor, name in _PREFIXES
        for each in (
            Misreading(
                factor=factor,
                sentence=f"figures are read a {name} times too large",
                fix="the prefix",
            ),
            Misreading(
                factor=1 / factor,
                sentence=f"figures are read a {name} times too small",
                fix="the prefix",
            ),
        )
    ]
    yield from units
    yield from _directions(held.counted_flows, rates)
    yield from sums
    yield from prefixes
    for unit in units:
        yield from (unit.and_also(other) for other in (*sums, *prefixes))
    yield from _halves()
    for factor in _BINARY:
        for each in (factor, 1 / factor):
            sentence = "a prefix of 1000 is read as 1024, or the reverse"
            yield Misreading(factor=each, sentence=sentence, fix="the prefix", is_sure=False)


def _sums(grain_s: float) -> Iterator[Misreading]:
    """Yield the errors of taking a rate for an amount, or an amount for a rate."""
    for over_s, name in {grain_s: "bin", 60.0: "minute"}.items():
        if over_s != 1:
            yield Misreading(
                factor=over_s,
                sentence=f"the total of a {name} of {over_s:g} s is read as a rate",
                fix="aggregation=total",
            )
            yield Misreading(
                factor=1 / over_s,
                sentence=f"a rate is read as the total of a {name} of {over_s:g} s",
                fix="aggregation=average",
            )


def _directions(counted: Sequence[Flow], rates: Mapping[Flow, float]) -> Iterator[Misreading]:
    """Yield the errors of taking one direction for both, or both for one."""
    total = sum(rates.values())
    mine = sum(rate for flow, rate in rates.items() if flow in counted or not counted)
    if 0 < mine < total:
        yield Misreading(
            factor=total / mine,
            sentence="both directions are counted, and one is declared",
            fix="direction=both",
        )
    elif len(rates) > 1:
        for flow, rate in rates.items():
            way = "in" if flow is Flow.UP else "out"
            yield Misreading(
                factor=rate / total,
                sentence=f"only the direction {way} is counted, and both are declared",
                fix=f"direction={way}",
            )


def _halves() -> Iterator[Misreading]:
    yield Misreading(
        factor=2.0,
        sentence="bytes are counted on their way in and on their way out",
        fix="one of the two interfaces or directions",
        is_sure=False,
    )
    yield Misreading(
        factor=0.5,
        sentence="the metric is a mean over two instances or interfaces, or counts one of two",
        fix="a query that adds them up",
        is_sure=False,
    )


def rates_of(bursts: Sequence[BurstSummary]) -> dict[Flow, float | None]:
    """Return the received rate of each flow, summed over all bursts (bit/s)."""
    rates: dict[Flow, float | None] = {}
    for burst in bursts:
        for flow in burst.flows:
            known = (rates.get(flow.flow) or 0.0) + (flow.received_bits_per_second or 0.0)
            rates[flow.flow] = known or None
    return rates


def counted(series: BurstSeries, ledger: FirewallLedger) -> BurstSeries:
    """Return the series without the flows that the counter does not count.

    If the counter counts none of its flows, all flows are included.

    Args:
        series: Burst series.
        ledger: Device counter.
    """
    flows = tuple(flow for flow in series.flows if flow.flow in ledger.flows)
    return replace(series, flows=flows) if 0 < len(flows) < len(series.flows) else series


def with_declaration(
    held: Reconciliation, ledger: FirewallLedger, bursts: Sequence[BurstSummary]
) -> Reconciliation:
    """Adapt a reconciliation to a wrong declaration of the metric.

    A certain error removes the causes and rates that would be attributed to the device. An
    uncertain one is added as a possible cause.

    Args:
        held: Result of :func:`~broadside.coordinator.core.judge.reconcile.reconcile`.
        ledger: Device counter.
        bursts: Bursts of this reconciliation.
    """
    flows = () if set(ledger.flows) == set(Flow) else ledger.flows
    held = held.model_copy(update={"counted_flows": flows})
    found = misreading(held, rates_of(bursts))
    if found is None or not (found.is_sure or held.causes):
        return held
    if not found.is_sure:
        share = figure(found.factor - 1) or 0.0
        cause = Cause(id="metric-declaration", share_ratio=share, sentence=said(found))
        return held.model_copy(update={"causes": (*held.causes, cause)})
    # The values are not bytes, so nothing that is computed from them may be reported.
    return held.model_copy(
        update={
            "causes": (),
            "firewall_bits_per_second": None,
            "slowest_bits_per_second": None,
            "slowest_noise_bits_per_second": None,
            "slowest_s": None,
        }
    )


def is_far_below(held: Reconciliation) -> bool:
    """Return True if the counter has too few bytes to estimate the lag."""
    return not held.bypassed and held.lag_s is None and held.residual_ratio is not None


def scale_of(ledger: FirewallLedger, held: Reconciliation) -> float | None:
    """Return the ratio of all bytes in the counter to the expected bytes.

    Args:
        ledger: Device counter.
        held: Reconciliation with the expected bytes.

    Returns:
        The ratio. None if the counter has no bytes, or if no bytes are expected.
    """
    held_bytes = float(np.nansum(np.where(ledger.bytes > 0, ledger.bytes, 0.0)))
    return held_bytes / held.expected_bytes if held.expected_bytes and held_bytes > 0 else None


def rescaled(held: Reconciliation, scale: float) -> Reconciliation:
    """Convert a reconciliation back to the original unit of the counter.

    Args:
        held: Reconciliation with a counter that was divided by ``scale``.
        scale: Factor between the two units.
    """

    def ratio(value: float | None) -> float | None:
        return None if value is None else figure(scale * (1 + value) - 1)

    update = {name: ratio(getattr(held, name)) for name in _RATIOS}
    for name in _AMOUNTS:
        value = getattr(held, name)
        update[name] = None if value is None else figure(value * scale)
    return held.model_copy(update=update)


_RATIOS: Final = ("residual_ratio", "residual_low_ratio", "residual_high_ratio")
_AMOUNTS: Final = (
    "firewall_bits_per_second",
    "crossed_bits_per_second",
    "firewall_bytes",
    "baseline_bits_per_second",
    "baseline_uncertainty_bits_per_second",
    "residual_uncertainty_ratio",
)


def said(found: Misreading) -> str:
    """Return a text with the factor and the error that causes it."""
    if not found.factor:
        return found.sentence
    times = (
        f"{words.number(found.factor, 3)} times"
        if found.factor >= 1
        else f"1/{words.number(1 / found.factor, 3)} of"
    )
    return f"{times} the bytes is what a counter shows where {found.sentence}"
