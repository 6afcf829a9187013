"""Offset of telemetry whose time stamps nobody could check, estimated from the bursts themselves.

A device is busier during a burst than beside it. For every offset a step model is fitted to the
readings: one level beside the bursts, one during them. The likelihood of these fits gives the
offset and its interval (Wilks). Where no offset fits clearly better than a constant level, or where
offsets far apart fit alike, the readings stay unplaced.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.testimony import (
    Quantity,
    Remark,
    RemarkKind,
    Witnessed,
    WitnessSeries,
)

OFFSET_MAX_S: Final = 300  # s: what is read beside a run reaches 360 s (closing.LEDGER_MARGIN_S)
LIKE_MAX: Final = 3.84  # chi-square of one degree of freedom, 95 %: offsets that fit alike
# The same at 0.1 % for each of 601 offsets that are tried (Bonferroni: 1.7e-6): a step is there.
STEP_MIN: Final = 22.9
READINGS_MIN_COUNT: Final = 6  # two levels, an offset, and as many to show the scatter
INTERVAL_MAX_S: Final = 60.0  # s of half an interval: beyond it the placement is not known
NOISE_MIN_RATIO: Final = 0.01  # of the range: readings are rounded, and no fit is better than that
REPORTED_S: Final = 2.0  # s, as for stamps of polled devices (stamp_offset.OFFSET_MAX_S)
LOADED: Final = frozenset(Quantity) - {  # what rises with the load
    Quantity.HEALTH,
    Quantity.PING_ICMP,
    Quantity.PING_TCP,
    Quantity.PING_LOSS,
}
Spans = Sequence[tuple[float, float]]  # bursts: begin and end, epoch s


def is_unplaced(series: WitnessSeries) -> bool:
    """Return whether nothing is known of a series' clock."""
    return bool(len(series.bound_s)) and bool(np.isnan(series.bound_s).any())


def _is_stamped(series: WitnessSeries) -> bool:
    """Return whether a series was placed by its source's own stamps: a question and its answer are
    apart, so a bound of zero is none of theirs. Older records have it of archives."""
    return series.is_archive or is_unplaced(series) or not series.bound_s.any()


def place(testimony: Witnessed, bursts: Spans) -> Witnessed:
    """Return the testimony with the stamps of archives corrected, and a remark for each source.

    A source whose clock was stated or checked keeps its place, unless its figures rise and fall
    with the bursts at another one.

    Args:
        testimony: Readings; a bound of NaN says that the source's clock is not known.
        bursts: When traffic ran.
    """
    sources: dict[tuple[str, str], list[WitnessSeries]] = {}
    for series in testimony.series:
        if _is_stamped(series):
            sources.setdefault((series.device, series.source), []).append(series)
    offsets, remarks = {}, []
    for key, told in sources.items():
        found = estimate_offset(told, bursts)
        bound_s = max(float(np.max(each.bound_s, initial=0.0)) for each in told)  # NaN stays
        if found is None:
            if np.isnan(bound_s):
                remarks.append(_remark(key, bursts, None))
            continue
        away_s = abs(found[0]) - found[1]
        if np.isnan(bound_s) or away_s > bound_s + REPORTED_S:
            offsets[key] = found
            if away_s > REPORTED_S:
                remarks.append(_remark(key, bursts, found))
    if not offsets and not remarks:
        return testimony
    return replace(
        testimony,
        series=tuple(
            _moved(each, offsets.get((each.device, each.source))) for each in testimony.series
        ),
        remarks=(*testimony.remarks, *remarks),
    )


def _moved(series: WitnessSeries, found: tuple[float, float] | None) -> WitnessSeries:
    if found is None or not _is_stamped(series):
        return series
    offset_s, bound_s = found
    return replace(series, at_s=series.at_s - offset_s, bound_s=np.full(len(series.at_s), bound_s))


def _remark(key: tuple[str, str], bursts: Spans, found: tuple[float, float] | None) -> Remark:
    if found is None:
        kind = RemarkKind.UNPLACED
        said = "no figure shows where the bursts begin and end, and its clock was not checked"
    else:
        kind, side = RemarkKind.CLOCK, "late" if found[0] > 0 else "early"
        said = (
            f"its time stamps are {abs(found[0]):.0f} s {side} by its own figures' rise and fall "
            f"with the bursts (+- {found[1]:.1f} s; {REPORTED_S:g} s is the limit): corrected"
        )
    return Remark(
        kind=kind,
        device=key[0],
        source=key[1],
        from_s=bursts[0][0],
        to_s=bursts[-1][1],
        said=said,
    )


def estimate_offset(told: Sequence[WitnessSeries], bursts: Spans) -> tuple[float, float] | None:
    """Return the offset of a source's stamps and its bound (s); None where it cannot be known.

    Args:
        told: The source's series; they share one clock.
        bursts: When traffic ran.
    """
    offsets = np.arange(-OFFSET_MAX_S, OFFSET_MAX_S + 1.0)
    gain = np.zeros(len(offsets))
    for series in told:
        known = ~np.isnan(series.values)
        if series.quantity not in LOADED or known.sum() < READINGS_MIN_COUNT:
            continue
        at_s, over_s = series.at_s[known], series.over_s[known]
        gains = _gains(at_s, over_s, series.values[known], bursts, offsets)
        # The one that shows it best: cores of one device are no independent evidence.
        if gains.max() > gain.max():
            gain = gains
    if gain.max() < STEP_MIN:
        return None
    alike = offsets[gain >= gain.max() - LIKE_MAX]
    # An edge may be anywhere between two readings: all these offsets fit alike. A step of the grid
    # of offsets more on either side.
    bound_s = float(alike[-1] - alike[0]) / 2 + 1.0
    if bound_s > INTERVAL_MAX_S:
        return None
    return float(alike[0] + alike[-1]) / 2, bound_s


def _gains(at_s: Floats, over_s: Floats, values: Floats, bursts: Spans, offsets: Floats) -> Floats:
    """Return twice the log-likelihood by which a step at each offset beats a constant level."""
    count = len(values)
    spread = values - values.mean()
    whole = float(spread @ spread)
    least = count * (NOISE_MIN_RATIO * float(np.ptp(values))) ** 2
    if whole <= 0:
        return np.zeros(len(offsets))
    gains = np.zeros(len(offsets))
    for place_, offset_s in enumerate(offsets.tolist()):
        loaded = _loaded(at_s - offset_s, np.maximum(over_s, 1.0), bursts)
        step = loaded - loaded.mean()
        size = float(step @ step)
        rise = float(step @ spread)
        if size > 0 and rise > 0:
            left = max(whole - rise**2 / size, least)
            gains[place_] = count * np.log(whole / left)
    return gains


def _loaded(at_s: Floats, over_s: Floats, bursts: Iterable[tuple[float, float]]) -> Floats:
    """Return the share of each reading's time in which traffic ran."""
    ran_s = np.zeros(len(at_s))
    for begun_s, ended_s in bursts:
        ran_s += np.clip(np.minimum(at_s, ended_s) - np.maximum(at_s - over_s, begun_s), 0.0, None)
    return ran_s / over_s
