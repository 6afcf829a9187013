"""Progress of a running burst, for display only. It is never used for a verdict."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.grid.resample import OverlapResampler
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.columns import HostColumns, IntervalColumns
from broadside.coordinator.core.run_spec import Burst
from broadside.coordinator.core.summary import BurstPart
from broadside.exchange.messages import BurstIndex, Message, RunId, UtcDatetime


class ProgressSecond(Message):
    """One second of a running burst, summed over the pairs that have reported it.

    Attributes:
        second: Seconds from the planned start, beginning with 0.
        fleet_bits_per_second: Sent payload rate in bit/s, or rate of the NICs at the link layer for
            `from_host_count` pairs.
        pairs_count: Pairs with an upload that covers the whole second.
        from_host_count: Number of these pairs with data only from the NIC counters of the host.
    """

    second: int
    fleet_bits_per_second: float
    pairs_count: int
    from_host_count: int


# Part of a second that an upload needs to cover.
COVERED_RATIO: Final = 0.9


class PartProgress(Message):
    """Seconds of one part of a mixed run.

    Attributes:
        name: Name of the part.
        pairs_planned: Number of planned pairs.
        seconds: Seconds that are known so far.
    """

    name: str
    pairs_planned: int
    seconds: tuple[ProgressSecond, ...]


class Progress(Message):
    """Seconds of the newest burst that has begun.

    Attributes:
        seconds: Seconds that are known so far. In a mixed run, these are of its first part.
        parts: All parts of a mixed run, with the first one.
    """

    run_id: RunId
    burst_index: BurstIndex
    planned_start_at: UtcDatetime
    seconds: tuple[ProgressSecond, ...]
    parts: tuple[PartProgress, ...] = ()

    @property
    def complete_seconds(self) -> tuple[ProgressSecond, ...]:
        """Seconds up to the last one that was fully uploaded by (nearly) all pairs."""
        return complete_seconds(self.seconds)

    @property
    def sent_bytes(self) -> int:
        """Bytes of all pairs."""
        rows = [part.seconds for part in self.parts] or [self.seconds]
        return round(sum(one.fleet_bits_per_second for row in rows for one in row) / 8)


def complete_seconds(seconds: Sequence[ProgressSecond]) -> tuple[ProgressSecond, ...]:
    """Return the seconds up to the last one that was fully uploaded by (nearly) all pairs."""
    most = max((second.pairs_count for second in seconds), default=0)
    full = [
        index
        for index, second in enumerate(seconds)
        if second.pairs_count and second.pairs_count >= COVERED_RATIO * most
    ]
    return tuple(seconds[: full[-1] + 1]) if full else ()


def progress(
    run_id: str, burst: Burst, pairs: Iterable[tuple[Sequence[IntervalColumns], HostColumns]]
) -> Progress:
    """Sum the uploads from the client ends into whole seconds from the planned start.

    If a pair has no engine intervals (iperf3 before 3.17 does not report until the end), the host
    NIC counters are used. The bytes in a span are distributed evenly to the seconds that it covers.

    Args:
        run_id: The run id to return.
        burst: The burst.
        pairs: Tracks and host columns for each client end.

    Returns:
        Seconds with the sent rate in bit/s and the number of pairs. Seconds without data are left
        out.
    """
    start_s = burst.planned_start_at.timestamp()
    count = burst.duration_s + burst.omit_s
    edges = start_s + np.arange(count + 1, dtype=np.float64)
    total_bytes = np.zeros(count)
    touched = np.zeros(count, np.bool_)
    pairs_count, host_count = np.zeros(count, np.intp), np.zeros(count, np.intp)
    for tracks, host in pairs:
        flows = [track for track in tracks if len(track)]
        covered_s = np.zeros(count)
        for flow in flows:
            zero_s = flow.first_data_at_s
            cells = OverlapResampler(zero_s + flow.start_s, zero_s + flow.end_s, edges)
            total_bytes += cells.over(flow.transferred_bytes)
            covered_s += cells.coverage
        if not flows and len(host):
            cells = OverlapResampler(host.start_at_s, host.end_at_s, edges)
            total_bytes += cells.over(host.nic_tx_bytes)
            covered_s += cells.coverage
        complete = covered_s >= COVERED_RATIO * max(1, len(flows))
        touched |= covered_s > 0
        pairs_count += complete
        host_count += complete & (not flows)
    return _progress(run_id, burst, _seconds(touched, total_bytes, pairs_count, host_count))


def progress_of_series(run_id: str, burst: Burst, series: BurstSeries) -> Progress:
    """Return the progress of a finished burst from its stored series.

    Sent bytes are used if they are known, or else received bytes. Pairs with any data are counted.

    Args:
        run_id: The run id to return.
        burst: The burst.
        series: Data for each second in the burst.
    """
    count = burst.duration_s + burst.omit_s
    first = round(burst.planned_start_at.timestamp()) - series.start_s
    sent = np.sum(
        [np.where(np.isnan(f.sent_bytes), f.received_bytes, f.sent_bytes) for f in series.flows],
        axis=0,
    )
    seen = np.max([(~np.isnan(f.pairs_bits_per_second)).sum(axis=0) for f in series.flows], axis=0)
    stop = min(first + count, len(sent))
    span = slice(first, stop)
    none = np.zeros(stop - first, np.intp)
    return _progress(run_id, burst, _seconds(seen[span] > 0, sent[span], seen[span], none))


def mixed_progress(parts: Sequence[Progress], names: Sequence[tuple[str, int]]) -> Progress:
    """Return the progress of a mixed run.

    Args:
        parts: Progress of each part.
        names: Name and number of planned pairs of each part.
    """
    listed = tuple(
        PartProgress(name=name, pairs_planned=count, seconds=part.seconds)
        for (name, count), part in zip(names, parts, strict=True)
    )
    return parts[0].model_copy(update={"parts": listed})


def progress_of_part(run_id: str, burst: Burst, part: BurstPart) -> Progress:
    """Return the received rate of another part of a finished burst. It is empty for a long one.

    Args:
        run_id: The run id to return.
        burst: The burst.
        part: The measured part.
    """
    zero_s = burst.planned_start_at.timestamp()
    first = 0 if part.start_at is None else round(part.start_at.timestamp() - zero_s)
    last = burst.duration_s + burst.omit_s
    seconds = tuple(
        ProgressSecond(
            second=first + number,
            fleet_bits_per_second=rate,
            pairs_count=part.summary.pairs_measured,
            from_host_count=0,
        )
        for number, rate in enumerate(part.received_bits_per_second)
        if rate is not None and 0 <= first + number < last
    )
    return _progress(run_id, burst, seconds)


def _progress(run_id: str, burst: Burst, seconds: tuple[ProgressSecond, ...]) -> Progress:
    return Progress(
        run_id=run_id,
        burst_index=burst.index,
        planned_start_at=burst.planned_start_at,
        seconds=seconds,
    )


def _seconds(
    touched: NDArray[np.bool_],
    total_bytes: Floats,
    pairs_count: NDArray[np.intp],
    host_count: NDArray[np.intp],
) -> tuple[ProgressSecond, ...]:
    return tuple(
        ProgressSecond(
            second=second,
            fleet_bits_per_second=float(total_bytes[second]) * 8,
            pairs_count=int(pairs_count[second]),
            from_host_count=int(host_count[second]),
        )
        for second in np.flatnonzero(touched).tolist()
    )
