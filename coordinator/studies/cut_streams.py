"""Detection of single streams that a device has cut while the rest of the pair continues. Pure.

If a data connection of iperf3 is reset but not its control connection, the test will continue to
its end. The pair is then not reported as broken. Only the longest silences in a burst are stored
(:data:`broadside.exchange.messages.SILENT_STREAMS_MAX_COUNT`). If this number is reached, it is a
lower limit for the number of cut streams.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

import numpy as np
import numpy.typing as npt

from broadside.coordinator.core.measure.disruptions import HISTORY_LEAST_S
from broadside.coordinator.core.measure.experiments.drill import DrillResult
from broadside.coordinator.core.summary import Disruption, DisruptionKind, SilentStream

# Seconds before the burst end until which a silence needs to last.
END_S: Final = 3.0
# Seconds by which the time of payload can be too early.
SLACK_S: Final = 1.0


def cut_streams(
    silent: Sequence[SilentStream], from_s: float, until_s: float
) -> tuple[SilentStream, ...]:
    """Return the streams that were silent from a given time to the burst end.

    Args:
        silent: All silent streams of the burst.
        from_s: Epoch seconds from which a silence can start.
        until_s: Epoch seconds of the burst end.

    Returns:
        Silent streams in their order. Tolerances are :data:`SLACK_S` and :data:`END_S`.
    """
    return tuple(
        stream
        for stream in silent
        if stream.from_at.timestamp() + SLACK_S > from_s
        and stream.from_at.timestamp() + stream.duration_s >= until_s - END_S
    )


def with_cut_streams(
    drilled: DrillResult, cut: Sequence[SilentStream], moved_again: Collection[str] | None
) -> DrillResult:
    """Add cut streams to the sessions of a drill.

    Args:
        drilled: Results of the drill.
        cut: The cut streams.
        moved_again: Pairs that have payload in the next burst, or None if there is no next burst.

    Returns:
        A copy with the cut sessions and their times, or the same object if no stream was cut.
    """
    cut = [stream for stream in cut if stream.pair not in drilled.cut_pairs]
    if not cut:
        return drilled
    times = [stream for stream in (drilled.cut_from_at, drilled.cut_to_at) if stream is not None]
    times += [stream.from_at for stream in cut]
    again = None if drilled.cut_count and drilled.opened_again_count is None else moved_again
    return drilled.model_copy(
        update={
            "cut_count": min(drilled.sessions_count, drilled.cut_count + len(cut)),
            "cut_from_at": min(times),
            "cut_to_at": max(times),
            "cut_pairs": tuple(sorted({*drilled.cut_pairs, *(stream.pair for stream in cut)})),
            "opened_again_count": None
            if again is None
            else (drilled.opened_again_count or 0) + sum(stream.pair in again for stream in cut),
        }
    )


def as_reset(
    cut: Sequence[SilentStream],
    known: Sequence[Disruption],
    received_bytes: npt.NDArray[np.float64],
    start_s: float,
    ended_at: datetime,
) -> tuple[Disruption, ...]:
    """Return cut streams as a single reset, for pairs that have no other reset.

    The missing bytes are the difference to the median of the seconds before the cut. They are
    unknown if there are fewer than :data:`HISTORY_LEAST_S` such seconds.

    Args:
        cut: The cut streams.
        known: Disruptions that are already known.
        received_bytes: Received payload in each second, with NaN for unknown seconds.
        start_s: Epoch seconds of the first second.
        ended_at: Burst end.

    Returns:
        One disruption with all cut streams. Empty if every pair has another reset.
    """
    broken = {
        name for stream in known if stream.kind is DisruptionKind.RESET for name in stream.pairs
    }
    cut = [stream for stream in cut if stream.pair not in broken]
    if not cut:
        return ()
    begun_at, pairs = min(stream.from_at for stream in cut), sorted({stream.pair for stream in cut})
    place = max(0, int(begun_at.timestamp() - start_s))
    before, after = (part[~np.isnan(part)] for part in np.split(received_bytes, [place]))
    short = None
    if len(before) >= HISTORY_LEAST_S and len(after):
        short = max(0.0, float((np.median(before) - after).sum()))
    return (
        Disruption(
            kind=DisruptionKind.RESET,
            burst_index=0,
            start_at=begun_at,
            end_at=ended_at,
            duration_s=(ended_at - begun_at).total_seconds(),
            scope="one" if len(pairs) == 1 else "some",
            pairs_count=len(pairs),
            pairs=tuple(pairs[:10]),
            short_bytes=short,
        ),
    )
