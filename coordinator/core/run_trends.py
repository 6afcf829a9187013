"""Computation of disruptions, availability and trends for a run from its bursts."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from broadside.coordinator.core import formatting
from broadside.coordinator.core.long_run_checks import IDLE_LIMIT_S
from broadside.coordinator.core.metrics import RECEIVED, RETRANSMITS, RTT
from broadside.coordinator.core.summary import (
    BurstSummary,
    BurstTrendValues,
    Disruption,
    DisruptionKind,
    Finding,
    RunTrends,
    Trend,
    caution,
    combined,
    figure,
    note,
    severity_rank,
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
    # We import it here, because you do not need it to read stored trends.
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
    gap_s = points[second, 0] - points[first, 0]
    distinct = gap_s > 0
    slopes = np.sort(
        (points[second, 1] - points[first, 1])[distinct] / gap_s[distinct] * 3600 / level * 100
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


def burst_trend_values(burst: BurstSummary) -> BurstTrendValues:
    """Return those values of a burst that the run's trends need."""
    return BurstTrendValues(
        index=burst.index,
        planned_start_at=burst.planned_start_at,
        received_bits_per_second=RECEIVED.of_burst(burst),
        rtt_mean_s=RTT.of_burst(burst),
        retransmit_ratio=RETRANSMITS.of_burst(burst),
        availability=burst.availability,
        disruptions=burst.disruptions,
        disruptions_count=burst.disruptions_count,
    )


def compute_run_trends(bursts: Iterable[BurstTrendValues]) -> RunTrends:
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
    result = in_a_row(singles)
    gravest = sorted(result, key=severity_rank)[:KEPT_COUNT]
    return RunTrends(
        bursts_count=len(parts),
        availability=combined(known) if known else None,
        trends=tuple(item for item in trends if item is not None),
        disruptions=tuple(sorted(gravest, key=lambda item: (item.start_at, item.kind, item.pairs))),
        disruptions_count=sum(burst.disruptions_count for burst in parts)
        - (len(singles) - len(result)),
    )


def in_a_row(disruptions: Iterable[Disruption]) -> list[Disruption]:
    """Merge absences of the same pairs for the same causes in consecutive bursts.

    If a client fails, it will cause one disruption, however many bursts it misses.
    """
    rows: list[list[Disruption]] = []
    newest: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Disruption]] = {}
    for disruption in sorted(disruptions, key=lambda disruption: disruption.burst_index):
        absent, user_and_why = (
            disruption.kind is DisruptionKind.ABSENT,
            (disruption.pairs, disruption.causes),
        )
        row = newest.get(user_and_why)
        if absent and row is not None and disruption.burst_index == row[-1].burst_index + 1:
            row.append(disruption)
            continue
        rows.append([disruption])
        if absent:
            newest[user_and_why] = rows[-1]
    return [_as_one(row) for row in rows]


def _as_one(row: Sequence[Disruption]) -> Disruption:
    if len(row) == 1:
        return row[0]
    return row[0].model_copy(
        update={
            "end_at": row[-1].end_at,
            "duration_s": sum(item.duration_s for item in row),
            "bursts_count": len(row),
        }
    )


def trend_findings(run_trends: RunTrends, *, silent_controls_count: int = 0) -> Iterator[Finding]:
    """Yield findings for disruptions, availability and trends.

    Args:
        run_trends: Trends and disruptions of the run.
        silent_controls_count: Number of tests with a silent control connection.
    """
    if silent_controls_count:
        yield caution(
            "silent-control",
            46,
            f"{silent_controls_count} tests left the control connection of iperf3 idle for more "
            f"than {IDLE_LIMIT_S} s. A firewall may then drop it, and the end of the test is lost "
            "although the path works.",
            "Build the start gate on the clients (`broadside doctor` shows how), or install iperf3 "
            "3.19 or newer",
        )
    worst = sorted(run_trends.disruptions, key=severity_rank)[:NAMED_COUNT]
    if worst:
        more = run_trends.disruptions_count - len(worst)
        yield caution(
            "disruptions",
            59,
            "Disruptions: "
            f"{'; '.join(map(describe, worst))}{f'; and {more} more' if more > 0 else ''}.",
            "Read the logs of the firewall and of the hosts at these times",
        )
    down = run_trends.availability
    if down is not None and down.resolution_s is not None:
        yield note(
            "disruptions-resolution",
            43,
            f"Readings cover up to {down.resolution_s:g} s. Shorter outages cannot be detected, "
            "and the time of an outage is known only to this resolution.",
        )
    if down is not None and down.down_s:
        yield note(
            "availability",
            42,
            f"Traffic was received in {formatting.ratio(down.up_ratio)} of {down.planned_s} "
            f"planned pair-seconds. In {down.down_s} pair-seconds the pair had no traffic, or its "
            "rate was below its median by `disruption_drop_ratio` or more. "
            f"{down.unknown_s} pair-seconds are unknown.",
        )
    yield from map(_drift, (trend for trend in run_trends.trends if trend.moved))


_TREND_LABELS: Final[Mapping[str, str]] = {
    "received": "received rate",
    "rtt": "mean round-trip time",
    "retransmits": "share of retransmitted segments",
}


def _drift(trend: Trend) -> Finding:
    interval = (
        f"{formatting.signed(trend.low_percent_per_hour, 3)} to "
        f"{formatting.signed(trend.high_percent_per_hour, 3)}"
    )
    return note(
        f"drift-{trend.name}",
        41,
        f"The {_TREND_LABELS.get(trend.name, trend.name)} changed steadily over "
        f"{trend.bursts_count} bursts: {formatting.signed(trend.percent_per_hour, 3)} % of its "
        f"median per hour (95 % interval {interval}).",
        "Compare memory, sessions and CPU of the device at the first and the last burst",
    )


def bursts_of(disruption: Disruption) -> str:
    """Return the burst number, counted from 1, or the first and last number of several bursts."""
    first, last = disruption.burst_index + 1, disruption.burst_index + disruption.bursts_count
    return str(first) if first == last else f"{first} to {last}"


def describe(disruption: Disruption) -> str:
    """Return a text with the start, type, pairs and duration of a disruption."""
    user = {
        "all": f"all {disruption.pairs_count} pairs",
        "one": disruption.pairs[0],
        "some": f"{disruption.pairs_count} pairs",
    }[disruption.scope]
    parts = {
        DisruptionKind.STALL: "no traffic",
        DisruptionKind.DROP: "low rate",
        DisruptionKind.RESET: "connections failed",
        DisruptionKind.CUT: "stopped",
        DisruptionKind.RECONNECT: "reconnected",
        DisruptionKind.ABSENT: "never sent",
        DisruptionKind.GAP: "not recorded",
    }[disruption.kind]
    why = f" ({disruption.causes[0]})" if disruption.causes else ""
    row = f" in {disruption.bursts_count} bursts" if disruption.bursts_count > 1 else ""
    limit = ""
    if disruption.resolution_s is not None:
        limit = f" or less (readings of {disruption.resolution_s:g} s)"
    return (
        f"{disruption.start_at:%Y-%m-%d %H:%M:%S} UTC, {user}: {parts} for "
        f"{disruption.duration_s:.1f} s{limit}{row}{why}"
    )
