"""What a burst has sent so far, for people who watch. Never used for a verdict."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from coordinator.core.runs import Burst
from exchange.messages import HostSecond, Message, RunId, Track, UtcDatetime


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
    run_id: str, burst: Burst, pairs: Iterable[tuple[Sequence[Track], Sequence[HostSecond]]]
) -> Progress:
    """Sum what the client ends have uploaded, on whole seconds from the planned start.

    A pair without engine intervals (iperf3 before 3.17 says nothing until it ends) is shown by its
    host's NIC counters. Each span's bytes are spread evenly over the seconds it covers.
    """
    start_s = burst.planned_start_at.timestamp()
    total_bytes: defaultdict[int, float] = defaultdict(float)
    pairs_count: defaultdict[int, int] = defaultdict(int)
    host_count: defaultdict[int, int] = defaultdict(int)
    for tracks, host in pairs:
        spans = [
            (
                track.first_data_at_s + interval.start_s - start_s,
                track.first_data_at_s + interval.end_s - start_s,
                interval.transferred_bytes,
            )
            for track in tracks
            for interval in track.intervals
        ] or [
            (second.start_at_s - start_s, second.end_at_s - start_s, second.nic_tx_bytes)
            for second in host
        ]
        covered_s: defaultdict[int, float] = defaultdict(float)
        for begin_s, end_s, transferred_bytes in spans:
            for second, share_ratio in _shares(begin_s, end_s):
                if 0 <= second < burst.duration_s + burst.omit_s:
                    total_bytes[second] += transferred_bytes * share_ratio
                    covered_s[second] += (end_s - begin_s) * share_ratio
        flows_count = max(1, sum(bool(track.intervals) for track in tracks))
        for second, span_s in covered_s.items():
            if span_s >= COVERED_RATIO * flows_count:
                pairs_count[second] += 1
                host_count[second] += not any(track.intervals for track in tracks)
    return Progress(
        run_id=run_id,
        burst_index=burst.index,
        planned_start_at=burst.planned_start_at,
        seconds=tuple(
            ProgressSecond(
                second=second,
                fleet_bits_per_second=total_bytes[second] * 8,
                pairs_count=pairs_count[second],
                from_host_count=host_count[second],
            )
            for second in sorted(total_bytes)
        ),
    )


def _shares(begin_s: float, end_s: float) -> Iterable[tuple[int, float]]:
    """The whole seconds a span touches, and the share of the span in each."""
    if end_s <= begin_s:
        return
    for second in range(math.floor(begin_s), math.ceil(end_s)):
        overlap_s = min(end_s, second + 1) - max(begin_s, second)
        yield second, overlap_s / (end_s - begin_s)
