"""Curve of the leaked share of canaries against the offered load, and its knee. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from broadside.coordinator.core import formatting
from broadside.coordinator.studies.study import Conclusion, LeakCurve, LeakPoint, TrialResult


def leak_curve(results: Sequence[TrialResult]) -> LeakCurve:
    """Return the leaked share at each offered load.

    The knee is the first load at which the share is certainly larger than at the lowest load: the
    lower end of its interval is above the upper end at the lowest load.

    Args:
        results: Complete trials with canaries.
    """
    by_offer: dict[float, list[TrialResult]] = defaultdict(list)
    for result in results:
        if result.offered_bits_per_second is not None and result.leak_ratio is not None:
            by_offer[result.offered_bits_per_second].append(result)
    points = tuple(_point(offer, by_offer[offer]) for offer in sorted(by_offer))
    for before, point in pairwise(points):
        if point.leak_low_ratio > points[0].leak_high_ratio:
            return LeakCurve(
                points=points,
                knee_from_bits_per_second=before.offered_bits_per_second,
                knee_to_bits_per_second=point.offered_bits_per_second,
            )
    return LeakCurve(points=points)


def _point(offer: float, results: Sequence[TrialResult]) -> LeakPoint:
    worst = max(results, key=lambda result: result.leak_ratio or 0.0)
    rates = [r.received_bits_per_second for r in results if r.received_bits_per_second is not None]
    return LeakPoint(
        offered_bits_per_second=offer,
        received_bits_per_second=sum(rates) / len(rates) if rates else None,
        leak_ratio=worst.leak_ratio or 0.0,
        leak_low_ratio=worst.leak_low_ratio or 0.0,
        leak_high_ratio=1.0 if worst.leak_high_ratio is None else worst.leak_high_ratio,
        device_cpu_ratio=worst.device_cpu_ratio,
    )


def inspected(results: Sequence[TrialResult]) -> Conclusion:
    """Return the conclusion of a study of inspection under load.

    Args:
        results: Complete trials.
    """
    curve = leak_curve(results)
    if len(curve.points) < 2:
        sentence = "the leaked share is unknown: fewer than two loads have complete canaries"
        return Conclusion(sentence=sentence)
    first, last = curve.points[0], curve.points[-1]
    lowest = formatting.rate(first.offered_bits_per_second)
    text = f"at {lowest} of payload, {_share(first)} of the forbidden canaries leaked"
    start, end = curve.knee_from_bits_per_second, curve.knee_to_bits_per_second
    if start is None or end is None:
        highest = formatting.rate(last.offered_bits_per_second)
        sentence = f"no knee up to {highest}: {text}, and at {highest} {_share(last)}"
    else:
        point = next(point for point in curve.points if point.offered_bits_per_second == end)
        sentence = (
            f"the device stops inspecting between {formatting.rate(start)} and "
            f"{formatting.rate(end)}: {text}, and at {formatting.rate(end)} {_share(point)}"
        )
    return Conclusion(sentence=sentence, leaks=curve)


def _share(point: LeakPoint) -> str:
    low, high = (formatting.ratio(end, 1) for end in (point.leak_low_ratio, point.leak_high_ratio))
    return f"{formatting.ratio(point.leak_ratio, 1)} ({low} to {high})"


def blocked_text(result: TrialResult) -> str:
    """Return the share of forbidden canaries that were blocked, with its lower end."""
    if result.leak_ratio is None or result.leak_high_ratio is None:
        return formatting.UNKNOWN
    least = formatting.ratio(1 - result.leak_high_ratio, 1)
    return f"{formatting.ratio(1 - result.leak_ratio, 1)} (at least {least})"
