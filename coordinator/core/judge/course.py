"""Computation of disruptions, availability and trends for a run from its bursts."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from broadside.coordinator.core import words
from broadside.coordinator.core.figures import RECEIVED, RETRANSMITS, RTT
from broadside.coordinator.core.plan.endurance import IDLE_LIMIT_S
from broadside.coordinator.core.summary import (
    BurstCourse,
    BurstSummary,
    Course,
    Disruption,
    DisruptionKind,
    Finding,
    Trend,
    caution,
    combined,
    figure,
    gravity,
    note,
)

if TYPE_CHECKING:
    import numpy as np

# With fewer bursts the interval of a slope would be too wide to be useful.
BURSTS_LEAST: Final = 4
# With more bursts, neighbours are averaged, because the number of slopes grows with the square of
# the number of points.
POINTS_MAX: Final = 600
# Two-sided 95 % quantile of the normal distribution.
_Z95: Final = 1.959963984540054


def trend(name: str, at_s: Sequence[float], values: Sequence[float | None]) -> Trend | None:
    """Return the Theil-Sen slope of a metric over time, with Sen's interval.

    The slope is the median of the slopes between all pairs of points (Sen, "Estimates of the
    regression coefficient based on Kendall's tau", JASA 63, 1968). The interval is from the M1-th
    to the (M2 + 1)-th of the N sorted slopes, with both indices rounded outwards:
    ``M1, M2 = (N -+ z sqrt(n (n - 1) (2 n + 5) / 18)) / 2`` (Gilbert, *Statistical Methods for
    Environmental Pollution Monitoring*, 1987, section 16.5).

    Args:
        name: Name of the trend.
        at_s: Time of each burst (s).
        values: Metric of each burst. None if unknown.

    Returns:
        The trend in percent per hour. None if the metric is known for fewer than four bursts, or if
        its median is zero.
    """
    # Imported here, because stored trends can be read without it.
    import numpy as np

    known = [(at, value) for at, value in zip(at_s, values, strict=True) if value is not None]
    count = len(known)
    if count < BURSTS_LEAST:
        return None
    points = np.array(known, dtype=np.float64)
    points = points[np.lexsort((points[:, 1], points[:, 0]))]
    level = float(np.median(points[:, 1]))
    if level == 0 or points[0, 0] == points[-1, 0]:
        return None
    if count > POINTS_MAX:
        points = np.array([part.mean(axis=0) for part in np.array_split(points, POINTS_MAX)])
    first, second = np.triu_indices(len(points), 1)
    apart_s = points[second, 0] - points[first, 0]
    distinct = apart_s > 0
    slopes = np.sort(
        (points[second, 1] - points[first, 1])[distinct] / apart_s[distinct] * 3600 / level * 100
    )
    low, high = _interval(slopes, len(points))
    return Trend(
        name=name,
        bursts_count=count,
        median=figure(level) or 0.0,
        percent_per_hour=figure(float(np.median(slopes))) or 0.0,
        low_percent_per_hour=figure(low) or 0.0,
        high_percent_per_hour=figure(high) or 0.0,
    )


def _interval(slopes: "np.ndarray", count: int) -> tuple[float, float]:
    spread = _Z95 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    total = len(slopes)
    low = max(0, math.floor((total - spread) / 2) - 1)
    high = min(total - 1, math.ceil((total + spread) / 2))
    return float(slopes[low]), float(slopes[high])


# At most this number of disruptions is stored for a run. The most severe ones are selected.
KEPT_COUNT: Final = 200
# Number of disruptions to list in a finding.
NAMED_COUNT: Final = 3


def burst_course(burst: BurstSummary) -> BurstCourse:
    """Return those values of a burst that the run's trends need."""
    return BurstCourse(
        index=burst.index,
        planned_start_at=burst.planned_start_at,
        received_bits_per_second=RECEIVED.of_burst(burst),
        rtt_mean_s=RTT.of_burst(burst),
        retransmit_ratio=RETRANSMITS.of_burst(burst),
        availability=burst.availability,
        disruptions=burst.disruptions,
        disruptions_count=burst.disruptions_count,
    )


def course(bursts: Iterable[BurstCourse]) -> Course:
    """Compute the availability, trends and disruptions of a run from bursts in any order."""
    parts = sorted(bursts, key=lambda burst: burst.index)
    at_s = [burst.planned_start_at.timestamp() for burst in parts]
    trends = (
        trend("received", at_s, [burst.received_bits_per_second for burst in parts]),
        trend("rtt", at_s, [burst.rtt_mean_s for burst in parts]),
        trend("retransmits", at_s, [burst.retransmit_ratio for burst in parts]),
    )
    known = [burst.availability for burst in parts if burst.availability is not None]
    singles = [disruption for burst in parts for disruption in burst.disruptions]
    found = in_a_row(singles)
    gravest = sorted(found, key=gravity)[:KEPT_COUNT]
    return Course(
        bursts_count=len(parts),
        availability=combined(known) if known else None,
        trends=tuple(each for each in trends if each is not None),
        disruptions=tuple(sorted(gravest, key=lambda each: (each.start_at, each.kind, each.pairs))),
        disruptions_count=sum(burst.disruptions_count for burst in parts)
        - (len(singles) - len(found)),
    )


def in_a_row(disruptions: Iterable[Disruption]) -> list[Disruption]:
    """Merge absences of the same pairs for the same causes in consecutive bursts.

    If a client fails, it causes one disruption, however many bursts it misses.
    """
    rows: list[list[Disruption]] = []
    newest: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Disruption]] = {}
    for each in sorted(disruptions, key=lambda each: each.burst_index):
        absent, who_and_why = each.kind is DisruptionKind.ABSENT, (each.pairs, each.causes)
        row = newest.get(who_and_why)
        if absent and row is not None and each.burst_index == row[-1].burst_index + 1:
            row.append(each)
            continue
        rows.append([each])
        if absent:
            newest[who_and_why] = rows[-1]
    return [_as_one(row) for row in rows]


def _as_one(row: Sequence[Disruption]) -> Disruption:
    if len(row) == 1:
        return row[0]
    return row[0].model_copy(
        update={
            "end_at": row[-1].end_at,
            "duration_s": sum(each.duration_s for each in row),
            "bursts_count": len(row),
        }
    )


def course_findings(said: Course, *, silent_controls_count: int = 0) -> Iterator[Finding]:
    """Yield findings for disruptions, availability and trends.

    Args:
        said: Trends and disruptions of the run.
        silent_controls_count: Number of tests with a silent control connection.
    """
    if silent_controls_count:
        yield caution(
            id="silent-control",
            weight=46,
            sentence=f"{silent_controls_count} tests left iperf3's control connection silent "
            f"for over {IDLE_LIMIT_S} s, after which a firewall may forget it: their ends may "
            "be lost without a fault of the path",
            next_step="build the start gate on the clients (broadside doctor there says how), "
            "or install iperf3 3.19 or newer",
        )
    worst = sorted(said.disruptions, key=gravity)[:NAMED_COUNT]
    if worst:
        more = said.disruptions_count - len(worst)
        yield caution(
            id="disruptions",
            weight=59,
            sentence="what broke: "
            + "; ".join(describe(disruption) for disruption in worst)
            + (f"; and {more} more" if more > 0 else ""),
            next_step="hold these seconds against the firewall's and the hosts' logs",
        )
    down = said.availability
    if down is not None and down.resolution_s is not None:
        yield note(
            id="disruptions-resolution",
            weight=43,
            sentence=f"Outages were looked for in readings of up to {down.resolution_s:g} s. A "
            "shorter outage is hidden in the mean of a reading, and none is dated finer.",
        )
    if down is not None and down.down_s:
        yield note(
            id="availability",
            weight=42,
            sentence=f"the load was carried for {words.ratio(down.up_ratio)} of "
            f"{down.planned_s} planned pair-seconds; {down.down_s} were below the floor, "
            f"{down.unknown_s} are unknown",
        )
    for each in (trend for trend in said.trends if trend.moved):
        yield note(
            id=f"drift-{each.name}",
            weight=41,
            sentence=f"{each.name} moved by {words.signed(each.percent_per_hour, 3)} % an hour "
            f"(95 %: {words.signed(each.low_percent_per_hour, 3)} to "
            f"{words.signed(each.high_percent_per_hour, 3)}) "
            f"over {each.bursts_count} bursts",
        )


def bursts_of(disruption: Disruption) -> str:
    """Return the burst number, counted from 1, or the first and last number of several bursts."""
    first, last = disruption.burst_index + 1, disruption.burst_index + disruption.bursts_count
    return str(first) if first == last else f"{first} to {last}"


def describe(disruption: Disruption) -> str:
    """Return a text with the start, type, pairs and duration of a disruption."""
    who = {
        "all": f"all {disruption.pairs_count} pairs",
        "one": disruption.pairs[0],
        "some": f"{disruption.pairs_count} pairs",
    }[disruption.scope]
    words = {
        DisruptionKind.STALL: "stalled",
        DisruptionKind.DROP: "dropped",
        DisruptionKind.RESET: "broke off",
        DisruptionKind.CUT: "was cut",
        DisruptionKind.RECONNECT: "connected again",
        DisruptionKind.ABSENT: "never sent",
        DisruptionKind.GAP: "went unrecorded",
    }[disruption.kind]
    why = f" ({disruption.causes[0]})" if disruption.causes else ""
    row = f" in {disruption.bursts_count} bursts" if disruption.bursts_count > 1 else ""
    within = "for"
    if disruption.resolution_s is not None:
        within = f"(by readings of {disruption.resolution_s:g} s) within"
    return (
        f"{disruption.start_at:%Y-%m-%d %H:%M:%S} UTC {who} {words} "
        f"{within} {disruption.duration_s:.1f} s{row}{why}"
    )
