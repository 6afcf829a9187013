"""Merges the readings of several processes that together form the test of a pair."""

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, TypeVar

from broadside.exchange.engines.buckets import folded
from broadside.exchange.engines.port import EngineResult
from broadside.exchange.engines.stream_silences import longest_silences
from broadside.exchange.messages import EngineReport, Flow, FlowTotals, Interval

_N = TypeVar("_N", int, float)


def merge(readings: Sequence[EngineResult]) -> EngineResult:
    """Return the sum of the readings of several processes of a test.

    Bytes and counts are conserved. The cumulative counts of each process are interpolated at the
    interval bounds of the first process. While the test runs, seconds that are missing in one
    process are omitted. After all processes have ended, the last interval of the first process is
    extended to the last byte of all processes. Round trips and jitter are means, congestion windows
    are sums. If one reading failed, the merged reading has failed. Other fields come from the first
    reading.
    """
    if len(readings) == 1:
        return readings[0]
    lead = readings[0]
    zeros = [reading.first_data_at_s for reading in readings if reading.first_data_at_s]
    zero_s = min(zeros, default=None)
    flows = [flow for flow in Flow if any(flow in reading.intervals for reading in readings)]
    over = all(not reading.report.truncated for reading in readings)
    intervals = {
        flow: _merged([_placed(reading, flow, zero_s) for reading in readings], over=over)
        for flow in flows
    }
    return replace(
        lead,
        report=_report([reading.report for reading in readings]),
        intervals={flow: merged for flow, merged in intervals.items() if merged},
        first_data_at_s=zero_s,
    )


def _placed(reading: EngineResult, flow: Flow, zero_s: float | None) -> list[Interval]:
    """Return the intervals of a process on the common engine time."""
    rows = reading.intervals.get(flow, ())
    if zero_s is None or reading.first_data_at_s is None:
        return list(rows)
    shift_s = reading.first_data_at_s - zero_s
    return [replace(row, start_s=row.start_s + shift_s, end_s=row.end_s + shift_s) for row in rows]


def _merged(parts: Sequence[list[Interval]], *, over: bool) -> tuple[Interval, ...]:
    if not all(parts):
        return ()
    lead = parts[0]
    ends_s = [part[-1].end_s for part in parts]
    starts_s = [row.start_s for row in lead]
    bounds = [(row.start_s, row.end_s) for row in lead if over or row.end_s <= min(ends_s)]
    if not bounds:
        return ()
    bounds[0] = (min(part[0].start_s for part in parts), bounds[0][1])
    if over:
        bounds[-1] = (bounds[-1][0], max(bounds[-1][1], *ends_s))
    sums = {
        name: [_at_bounds(part, bounds, attrgetter(name)) for part in parts]
        for name in _COUNTS
        if all(getattr(row, name) is not None for part in parts for row in part)
    }
    merged = []
    for index, (start_s, end_s) in enumerate(bounds):
        summed: dict[str, Any] = {
            name: sum(column[index] for column in columns) for name, columns in sums.items()
        }
        here = [_during(part, start_s, end_s) for part in parts]
        place = max(0, bisect.bisect_right(starts_s, start_s) - 1)
        merged.append(
            Interval(
                start_s=start_s,
                end_s=end_s,
                omitted=lead[place].omitted,
                rtt_s=_mean(row.rtt_s for row in here if row),
                jitter_s=_mean(row.jitter_s for row in here if row),
                cwnd_bytes=_total(row.cwnd_bytes if row else None for row in here),
                **summed,
            )
        )
    return tuple(merged)


_COUNTS = ("transferred_bytes", "retransmits_count", "packets_count", "lost_count")


def _at_bounds(
    part: Sequence[Interval],
    bounds: Sequence[tuple[float, float]],
    read: Callable[[Interval], int | None],
) -> list[int]:
    """Return the count of a process between the bounds, as integers that conserve the total."""
    starts_s = [row.start_s for row in part]
    before = [0, *accumulate(read(row) or 0 for row in part)]

    def until(at_s: float) -> int:
        place = bisect.bisect_right(starts_s, at_s) - 1
        if place < 0:
            return 0
        row = part[place]
        inside = min(1.0, (at_s - row.start_s) / (row.end_s - row.start_s))
        return before[place] + round((read(row) or 0) * inside)

    reached = [until(bounds[0][0]), *(until(end_s) for _, end_s in bounds)]
    return [after - earlier for earlier, after in pairwise(reached)]


def _during(part: Sequence[Interval], start_s: float, end_s: float) -> Interval | None:
    """Return the interval that contains the middle of a time range."""
    middle_s = (start_s + end_s) / 2
    place = bisect.bisect_right(part, middle_s, key=lambda row: row.start_s) - 1
    return part[place] if place >= 0 and middle_s < part[place].end_s else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _total(values: Iterable[_N | None]) -> _N | None:
    """Return the sum, or None unless every value is known."""
    items = list(values)
    known = [value for value in items if value is not None]
    return sum(known) if known and len(known) == len(items) else None


# Reports ---------------------------------------------------------------------------------------


def _report(reports: Sequence[EngineReport]) -> EngineReport:
    lead = reports[0]
    errors = list(dict.fromkeys(report.error for report in reports if report.error))
    return lead.model_copy(
        update={
            "streams_count": _total(report.streams_count for report in reports),
            "totals": _totals(reports),
            "error": "; ".join(errors) or None,
            "truncated": any(report.truncated for report in reports),
            "processes": tuple(reports),
            "cpu_s": _total(report.cpu_s for report in reports),
            "cpu_payload_bytes": _total(report.cpu_payload_bytes for report in reports),
            "measures": tuple(measure for report in reports for measure in report.measures),
            "distributions": folded(one for report in reports for one in report.distributions),
            "silent_streams": longest_silences(
                one for report in reports for one in report.silent_streams
            ),
        }
    )


def _totals(reports: Sequence[EngineReport]) -> tuple[FlowTotals, ...]:
    totals = []
    for flow in Flow:
        flow_totals = [total for report in reports for total in report.totals if total.flow is flow]
        if len(flow_totals) < len(reports):
            # If we do not know the values of a process, we cannot compute the sum.
            continue
        totals.append(
            FlowTotals(
                flow=flow,
                sent_bytes=_total(total.sent_bytes for total in flow_totals),
                sent_s=_largest(total.sent_s for total in flow_totals),
                received_bytes=_total(total.received_bytes for total in flow_totals),
                received_s=_largest(total.received_s for total in flow_totals),
                retransmits_count=_total(total.retransmits_count for total in flow_totals),
                rtt_min_s=min(
                    (t.rtt_min_s for t in flow_totals if t.rtt_min_s is not None), default=None
                ),
                rtt_mean_s=_mean(total.rtt_mean_s for total in flow_totals),
                rtt_max_s=_largest(total.rtt_max_s for total in flow_totals),
                packets_count=_total(total.packets_count for total in flow_totals),
                lost_count=_total(total.lost_count for total in flow_totals),
                jitter_s=_mean(total.jitter_s for total in flow_totals),
            )
        )
    return tuple(totals)


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
