"""Clock offset estimation for telemetry, when time stamps could not be checked.

A device has more to do during a burst than before or after it. So for every offset, we fit a step
model to the readings, with a level for bursts and another for any other time. From the likelihood
of these fits, we get the offset and its interval (Wilks). If no offset is clearly better than a
constant level, or if offsets that are far apart fit equally well, the offset will not be known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    IssueKind,
    Quantity,
    TelemetryIssue,
    TelemetrySeries,
)

# Seconds. Telemetry is read for up to 360 seconds before and after a run (closing.LEDGER_MARGIN_S).
OFFSET_MAX_S: Final = 300
# Chi-square with a single degree of freedom, 95 %. Offsets within this distance fit equally well.
LIKE_MAX: Final = 3.84
# The same, using 0.1 % for all 601 offsets that are tried (Bonferroni, 1.7e-6). Above this value,
# there is a step.
STEP_MIN: Final = 22.9
# Minimum number of readings. There are two levels and an offset to estimate, and as many readings
# are needed to see the scatter.
READINGS_MIN_COUNT: Final = 6
# Seconds, for half the interval. If it is larger, the offset will not be known.
INTERVAL_MAX_S: Final = 60.0
# Minimum noise, as a share of the range. Readings are rounded, so a fit cannot be better than this.
NOISE_MIN_RATIO: Final = 0.01
# Seconds, as for time stamps from polled devices (stamp_offset.OFFSET_MAX_S).
REPORTED_S: Final = 2.0
# Quantities that increase when there is more load.
LOADED: Final = frozenset(Quantity) - {
    Quantity.HEALTH,
    Quantity.PING_ICMP,
    Quantity.PING_TCP,
    Quantity.PING_LOSS,
    Quantity.URL_TIME,
    Quantity.URL_FAILED,
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


def place(telemetry: DeviceTelemetry, bursts: Spans) -> DeviceTelemetry:
    """Correct time stamps from archives, and add a issue for each source.

    If the source's clock was declared or checked, its time stamps will not be changed. But if the
    values rise and fall with the bursts at another offset, they will be corrected too.

    Args:
        telemetry: Telemetry to correct. If a bound is NaN, the source's clock is not known.
        bursts: When there was traffic.

    Returns:
        The corrected telemetry.
    """
    sources: dict[tuple[str, str], list[TelemetrySeries]] = {}
    for series in telemetry.series:
        if _is_stamped(series):
            sources.setdefault((series.device, series.source), []).append(series)
    offsets, issues = {}, []
    for key, reported in sources.items():
        results = estimate_offset(reported, bursts)
        # This is NaN if any bound is NaN.
        bound_s = max(float(np.max(item.bound_s, initial=0.0)) for item in reported)
        if results is None:
            if np.isnan(bound_s):
                issues.append(_remark(key, bursts, None))
            continue
        away_s = abs(results[0]) - results[1]
        if np.isnan(bound_s) or away_s > bound_s + REPORTED_S:
            offsets[key] = results
            if away_s > REPORTED_S:
                issues.append(_remark(key, bursts, results))
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
    key: tuple[str, str], bursts: Spans, results: tuple[float, float] | None
) -> TelemetryIssue:
    if results is None:
        kind = IssueKind.UNPLACED
        reported = "no value shows where the bursts start and end, and its clock was not checked"
    else:
        kind, side = IssueKind.CLOCK, "late" if results[0] > 0 else "early"
        reported = (
            f"its values rise and fall {abs(results[0]):.0f} s {side} against the bursts "
            f"(+- {results[1]:.1f} s; limit {REPORTED_S:g} s)"
        )
    return TelemetryIssue(
        kind=kind,
        device=key[0],
        source=key[1],
        from_s=bursts[0][0],
        to_s=bursts[-1][1],
        text=reported,
    )


def estimate_offset(
    source_series: Sequence[TelemetrySeries], bursts: Spans
) -> tuple[float, float] | None:
    """Estimate the offset for a source's time stamps.

    Args:
        source_series: Series from this source. They all use the same clock.
        bursts: When there was traffic.

    Returns:
        Offset and its bound in seconds, or ``None`` if the offset cannot be estimated.
    """
    offsets = np.arange(-OFFSET_MAX_S, OFFSET_MAX_S + 1.0)
    gain = np.zeros(len(offsets))
    for series in source_series:
        known = ~np.isnan(series.values)
        if series.quantity not in LOADED or known.sum() < READINGS_MIN_COUNT:
            continue
        at_s, over_s = series.at_s[known], series.over_s[known]
        gains = _gains(at_s, over_s, series.values[known], bursts, offsets)
        # We should only use the best series, because the cores of a device are not independent.
        if gains.max() > gain.max():
            gain = gains
    if gain.max() < STEP_MIN:
        return None
    similar = offsets[gain >= gain.max() - LIKE_MAX]
    # An edge can be anywhere between two readings, so all these offsets fit equally well. We also
    # add a grid step on each side.
    bound_s = float(similar[-1] - similar[0]) / 2 + 1.0
    if bound_s > INTERVAL_MAX_S:
        return None
    return float(similar[0] + similar[-1]) / 2, bound_s


def _gains(at_s: Floats, over_s: Floats, values: Floats, bursts: Spans, offsets: Floats) -> Floats:
    """Return twice the log likelihood gained by a step at each offset."""
    count = len(values)
    spread = values - values.mean()
    complete = float(spread @ spread)
    least = count * (NOISE_MIN_RATIO * float(np.ptp(values))) ** 2
    if complete <= 0:
        return np.zeros(len(offsets))
    gains = np.zeros(len(offsets))
    for place_, offset_s in enumerate(offsets.tolist()):
        loaded = _loaded(at_s - offset_s, np.maximum(over_s, 1.0), bursts)
        step = loaded - loaded.mean()
        size = float(step @ step)
        rise = float(step @ spread)
        if size > 0 and rise > 0:
            left = max(complete - rise**2 / size, least)
            gains[place_] = count * np.log(complete / left)
    return gains


def _loaded(at_s: Floats, over_s: Floats, bursts: Iterable[tuple[float, float]]) -> Floats:
    """Return how much of each reading's time had traffic, as a ratio."""
    ran_s = np.zeros(len(at_s))
    for begun_s, ended_s in bursts:
        ran_s += np.clip(np.minimum(at_s, ended_s) - np.maximum(at_s - over_s, begun_s), 0.0, None)
    return ran_s / over_s
