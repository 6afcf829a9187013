"""What a burst has sent so far, for people who watch. Never used for a verdict."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.measure.columns import Floats, HostColumns, TrackColumns
from broadside.coordinator.core.measure.series import BurstSeries
from broadside.coordinator.core.measure.spread import Spread
from broadside.coordinator.core.plan.spec import Burst
from broadside.exchange.messages import Message, RunId, UtcDatetime


class ProgressSecond(Message):
    """One second of a running burst, summed over the pairs that have reported it."""

    second: int  # s since the planned start; 0 is the first
    fleet_bits_per_second: float  # sent payload, or link-layer NIC bits for `from_host_count` pairs
    pairs_count: int  # pairs whose upload covers the whole second
    from_host_count: int  # of those, pairs seen only by their host's NIC counters


COVERED_RATIO: Final = 0.9  # of a second that a pair's upload must span to count as there


class Progress(Message):
    """The newest begun burst, second by second."""

    run_id: RunId
    burst_index: int
    planned_start_at: UtcDatetime
    seconds: tuple[ProgressSecond, ...]

    @property
    def whole(self) -> tuple[ProgressSecond, ...]:
        """The seconds up to the last that (nearly) all pairs have uploaded whole."""
        most = max((second.pairs_count for second in self.seconds), default=0)
        full = [
            index
            for index, second in enumerate(self.seconds)
            if second.pairs_count and second.pairs_count >= COVERED_RATIO * most
        ]
        return self.seconds[: full[-1] + 1] if full else ()


def progress(
    run_id: str,
    burst: Burst,
    pairs: Iterable[tuple[Sequence[TrackColumns], HostColumns]],
) -> Progress:
    """Sum what the client ends have uploaded, on whole seconds from the planned start.

    A pair without engine intervals (iperf3 before 3.17 says nothing until it ends) is shown by its
    host's NIC counters. Each span's bytes are spread evenly over the seconds it covers.
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
            cells = Spread(zero_s + flow.start_s, zero_s + flow.end_s, edges)
            total_bytes += cells.over(flow.transferred_bytes)
            covered_s += cells.coverage
        if not flows and len(host):
            cells = Spread(host.start_at_s, host.end_at_s, edges)
            total_bytes += cells.over(host.nic_tx_bytes)
            covered_s += cells.coverage
        whole = covered_s >= COVERED_RATIO * max(1, len(flows))
        touched |= covered_s > 0
        pairs_count += whole
        host_count += whole & (not flows)
    return _progress(run_id, burst, touched, total_bytes, pairs_count, host_count)


def progress_of_series(run_id: str, burst: Burst, series: BurstSeries) -> Progress:
    """The same from what is stored of a burst that is over.

    Sent bytes where the senders are known, else received ones; pairs are those seen at all.
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
    return _progress(run_id, burst, seen[span] > 0, sent[span], seen[span], none)


def _progress(
    run_id: str,
    burst: Burst,
    touched: NDArray[np.bool_],
    total_bytes: Floats,
    pairs_count: NDArray[np.intp],
    host_count: NDArray[np.intp],
) -> Progress:
    return Progress(
        run_id=run_id,
        burst_index=burst.index,
        planned_start_at=burst.planned_start_at,
        seconds=tuple(
            ProgressSecond(
                second=second,
                fleet_bits_per_second=float(total_bytes[second]) * 8,
                pairs_count=int(pairs_count[second]),
                from_host_count=int(host_count[second]),
            )
            for second in np.flatnonzero(touched).tolist()
        ),
    )
