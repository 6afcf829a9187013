"""Clock offset estimation for telemetry, when time stamps could not be checked.

A device has more to do during a burst than before or after it. So for every offset, we fit a step
model to the readings, with a level for bursts and another for any other time. From the likelihood
of these fits, we get the offset and its interval (Wilks). If no offset is clearly better than a
constant level, or if offsets that are far apart fit equally well, the offset will not be known.

Each burst of another run has a level of its own, because a device has more to do in it too. A clock
that was declared or checked is corrected by at most half the gap to the next burst of another run.
If a larger offset fits clearly better, the values can be those of the other run and prove nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    IssueKind,
    Quantity,
    TelemetryIssue,
    TelemetrySeries,
)

# Seconds. Telemetry is read for up to 360 seconds before and after a run (run_span.MARGIN_S).
OFFSET_MAX_S: Final = 300
OFFSETS_S: Final = np.arange(-OFFSET_MAX_S, OFFSET_MAX_S + 1.0)
# Chi-square with a single degree of freedom, 95 %. Offsets within this distance fit equally well.
LIKE_MAX: Final = 3.84
# The same, using 0.1 % for all 601 offsets that are tried (Bonferroni, 1.7e-6). Above this value,
# there is a step.
STEP_MIN: Final = 22.9
# The same for the level of each burst of another run.
LEVEL_MIN: Final = 4.0
# Minimum number of readings. There are two levels and an offset to estimate, and as many readings
# are needed to see the scatter.
READINGS_MIN_COUNT: Final = 6
# Seconds, for half the interval. If it is larger, the offset will not be known.
INTERVAL_MAX_S: Final = 60.0
# Minimum noise, as a share of the range. Readings are rounded, so a fit cannot be better than this.
NOISE_MIN_RATIO: Final = 0.01
# Seconds, as for time stamps from polled devices.
REPORTED_S: Final = 2.0
# Quantities that increase when there is more load.
LOADED: Final = frozenset(Quantity) - {
    Quantity.HEALTH,
    Quantity.PING_ICMP,
    Quantity.PING_TCP,
    Quantity.PING_LOSS,
    Quantity.URL_TIME,
    Quantity.URL_FAILED,
    # Held sessions end after a burst.
    Quantity.ENDED,
}
# Start and end per burst, in epoch seconds.
Spans = Sequence[tuple[float, float]]


def is_unplaced(series: TelemetrySeries) -> bool:
    """Return true if the clock error for a series is not known."""
    return bool(len(series.bound_s)) and bool(np.isnan(series.bound_s).any())


def _is_stamped(series: TelemetrySeries) -> bool:
    """Return true if a series uses its source's own time stamps.

    For any other series, there is some time between a request and its answer, so the bound cannot
    be zero. Older records may have a bound of zero for archives.
    """
    return series.is_archive or is_unplaced(series) or not series.bound_s.any()


def place(telemetry: DeviceTelemetry, bursts: Spans, others: Spans = ()) -> DeviceTelemetry:
    """Correct time stamps from archives, and add a issue for each source.

    If the source's clock was declared or checked, its time stamps will not be changed. But if the
    values rise and fall with the bursts at another offset, they will be corrected too.

    Args:
        telemetry: Telemetry to correct. If a bound is NaN, the source's clock is not known.
        bursts: When there was traffic.
        others: When there was traffic of other runs.

    Returns:
        The corrected telemetry.
    """
    sources: dict[tuple[str, str], list[TelemetrySeries]] = {}
    for series in telemetry.series:
        if _is_stamped(series):
            sources.setdefault((series.device, series.source), []).append(series)
    offsets, issues = {}, []
    reach_s = _reach_s(bursts, others)
    for key, reported in sources.items():
        fits = _source_fits(reported, bursts, others)
        results = fits.best(OFFSET_MAX_S)
        # This is NaN if any bound is NaN.
        bound_s = max(float(np.max(item.bound_s, initial=0.0)) for item in reported)
        if results and not np.isnan(bound_s) and abs(results[0]) > reach_s:
            far, results = results, fits.best(reach_s)
            if fits.gain.max() - fits.gain[np.abs(OFFSETS_S) <= reach_s].max() > STEP_MIN:
                offsets[key], results = (0.0, np.nan), None
                issues.append(_remark(key, bursts, far, IssueKind.UNPLACED))
        if results is None:
            if np.isnan(bound_s):
                issues.append(_remark(key, bursts, None, IssueKind.UNPLACED))
            continue
        away_s = abs(results[0]) - results[1]
        if np.isnan(bound_s) or away_s > bound_s + REPORTED_S:
            offsets[key] = results
            if away_s > REPORTED_S:
                issues.append(_remark(key, bursts, results, IssueKind.CLOCK))
    if not offsets and not issues:
        return telemetry
    return replace(
        telemetry,
        series=tuple(
            _moved(item, offsets.get((item.device, item.source))) for item in telemetry.series
        ),
        issues=(*telemetry.issues, *issues),
    )


def _moved(series: TelemetrySeries, results: tuple[float, float] | None) -> TelemetrySeries:
    if results is None or not _is_stamped(series):
        return series
    offset_s, bound_s = results
    return replace(series, at_s=series.at_s - offset_s, bound_s=np.full(len(series.at_s), bound_s))


def _remark(
    key: tuple[str, str], bursts: Spans, results: tuple[float, float] | None, kind: IssueKind
) -> TelemetryIssue:
    if results is None:
        reported = "no value shows where the bursts start and end, and its clock was not checked"
    else:
        side = "late" if results[0] > 0 else "early"
        reported = (
            f"its values rise and fall {abs(results[0]):.0f} s {side} against the bursts "
            f"(+- {results[1]:.1f} s; limit {REPORTED_S:g} s)"
        )
        if kind is IssueKind.UNPLACED:
            reported += ", nearer to a burst of another run"
    return TelemetryIssue(
        kind=kind,
        device=key[0],
        source=key[1],
        from_s=bursts[0][0],
        to_s=bursts[-1][1],
        text=reported,
    )


def _reach_s(bursts: Spans, others: Spans) -> float:
    """Return half the gap between the bursts and those of other runs, in seconds."""
    gaps_s = [
        max(other[0] - burst[1], burst[0] - other[1], 0.0) for burst in bursts for other in others
    ]
    return min([OFFSET_MAX_S, *(gap_s / 2 for gap_s in gaps_s)])


def estimate_offset(
    source_series: Sequence[TelemetrySeries], bursts: Spans, others: Spans = ()
) -> tuple[float, float] | None:
    """Estimate the offset for a source's time stamps.

    Args:
        source_series: Series from this source. They all use the same clock.
        bursts: When there was traffic.
        others: When there was traffic of other runs.

    Returns:
        Offset and its bound in seconds, or ``None`` if the offset cannot be estimated.
    """
    return _source_fits(source_series, bursts, others).best(OFFSET_MAX_S)


@dataclass(frozen=True, slots=True)
class _Fits:
    """Fits of a series at each offset.

    Attributes:
        gain: Twice the log likelihood gained by the levels.
        rises: True if the level of the run's own bursts is above the level of other times.
        step_min: Gain from which there are levels.
    """

    gain: Floats
    rises: "np.ndarray[Any, Any]"
    step_min: float

    @property
    def highest(self) -> float:
        """Largest gain of an offset at which the level rises."""
        return float(self.gain.max(where=self.rises, initial=0.0))

    def best(self, reach_s: float) -> tuple[float, float] | None:
        """Return the best offset within a reach and its bound, or None if it is not known.

        An offset without a rise can fit equally well, if the burst of another run explains all.
        """
        near = np.abs(OFFSETS_S) <= reach_s
        fits = _Fits(self.gain[near], self.rises[near], self.step_min)
        if fits.highest < self.step_min:
            return None
        similar = OFFSETS_S[near][fits.gain >= fits.highest - LIKE_MAX]
        # An edge can be anywhere between two readings, so all these offsets fit equally well. We
        # also add a grid step on each side.
        bound_s = float(similar[-1] - similar[0]) / 2 + 1.0
        if bound_s > INTERVAL_MAX_S:
            return None
        return float(similar[0] + similar[-1]) / 2, bound_s


def _source_fits(source_series: Sequence[TelemetrySeries], bursts: Spans, others: Spans) -> _Fits:
    """Return the fits of a source's best series."""
    groups: dict[bytes, list[TelemetrySeries]] = {}
    for series in source_series:
        known = ~np.isnan(series.values)
        if series.quantity in LOADED and known.sum() >= READINGS_MIN_COUNT:
            key = series.at_s[known].tobytes() + series.over_s[known].tobytes()
            groups.setdefault(key, []).append(series)
    step_min, none = STEP_MIN + LEVEL_MIN * len(others), np.zeros(len(OFFSETS_S))
    results = [_Fits(none, none > 0, step_min)]
    for group in groups.values():
        known = ~np.isnan(group[0].values)
        values = np.array([series.values[~np.isnan(series.values)] for series in group])
        times = group[0].at_s[known], np.maximum(group[0].over_s[known], 1.0)
        gains, rises = _fit(times, values, [bursts, *([other] for other in others)])
        results += [_Fits(*fit, step_min) for fit in zip(gains, rises, strict=True)]
    # We should only use the best series, because the cores of a device are not independent.
    return max(results, key=lambda fits: fits.highest)


def _fit(
    times: tuple[Floats, Floats], values: Floats, traffic: Sequence[Spans]
) -> "tuple[Floats, np.ndarray[Any, Any]]":
    """Return the gain by levels, and whether the first level rises, by series and offset.

    Args:
        times: Time and length of each reading.
        values: Values, by series and reading.
        traffic: Spans with the same level. Those of the run come first.
    """
    at_s, over_s = times
    spread = values - values.mean(axis=1, keepdims=True)
    complete = (spread**2).sum(axis=1)
    least = len(at_s) * (NOISE_MIN_RATIO * np.ptp(values, axis=1)) ** 2
    gains, rises = np.zeros((2, len(values), len(OFFSETS_S)))
    changes = complete > 0
    for place_, offset_s in enumerate(OFFSETS_S.tolist()):
        steps = np.array([_loaded(at_s - offset_s, over_s, spans) for spans in traffic])
        steps -= steps.mean(axis=1, keepdims=True)
        products = steps @ spread.T
        levels = np.linalg.pinv(steps @ steps.T, hermitian=True) @ products
        left = np.maximum(complete - (products * levels).sum(axis=0), least)
        gains[changes, place_] = len(at_s) * np.log(complete[changes] / left[changes])
        rises[:, place_] = levels[0]
    return gains, rises > 0


def _loaded(at_s: Floats, over_s: Floats, bursts: Iterable[tuple[float, float]]) -> Floats:
    """Return how much of each reading's time had traffic, as a ratio."""
    ran_s = np.zeros(len(at_s))
    for begun_s, ended_s in bursts:
        ran_s += np.clip(np.minimum(at_s, ended_s) - np.maximum(at_s - over_s, begun_s), 0.0, None)
    return ran_s / over_s
