"""Single streams that a device cut while the others of their pair went on: sessions too. Pure.

iperf3 goes on to its end where a data connection is reset and its control connection is not, so no
pair broke off. What is known of single streams are the longest silences of a burst
(:data:`broadside.exchange.messages.SILENT_STREAMS_MAX_COUNT`): of more than those, at least so
many were cut."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

import numpy as np
import numpy.typing as npt

from broadside.coordinator.core.measure.disruptions import HISTORY_LEAST_S
from broadside.coordinator.core.measure.drill import Drilled
from broadside.coordinator.core.summary import Disruption, DisruptionKind, SilentStream

END_S: Final = 3.0  # s before a burst's end to which a silence must last
SLACK_S: Final = 1.0  # s by which a second of payload is dated early


def cut_streams(
    silent: Sequence[SilentStream], from_s: float, until_s: float
) -> tuple[SilentStream, ...]:
    """Those that fell silent from an instant on, and were so to the burst's end; epoch s."""
    return tuple(
        each
        for each in silent
        if each.from_at.timestamp() + SLACK_S > from_s
        and each.from_at.timestamp() + each.duration_s >= until_s - END_S
    )


def with_cut_streams(
    found: Drilled, cut: Sequence[SilentStream], moved_again: Collection[str] | None
) -> Drilled:
    """A drill with the streams among its sessions that were cut.

    ``moved_again`` are the pairs that moved payload in the next burst; None: there is none.
    """
    cut = [each for each in cut if each.pair not in found.cut_pairs]
    if not cut:
        return found
    at = [each for each in (found.cut_from_at, found.cut_to_at) if each is not None]
    at += [each.from_at for each in cut]
    again = None if found.cut_count and found.opened_again_count is None else moved_again
    return found.model_copy(
        update={
            "cut_count": min(found.sessions_count, found.cut_count + len(cut)),
            "cut_from_at": min(at),
            "cut_to_at": max(at),
            "cut_pairs": tuple(sorted({*found.cut_pairs, *(each.pair for each in cut)})),
            "opened_again_count": None
            if again is None
            else (found.opened_again_count or 0) + sum(each.pair in again for each in cut),
        }
    )


def as_reset(
    cut: Sequence[SilentStream],
    known: Sequence[Disruption],
    received_bytes: npt.NDArray[np.float64],
    start_s: float,
    ended_at: datetime,
) -> tuple[Disruption, ...]:
    """Cut streams as one break of their pairs, those left out that broke off anyway.

    ``received_bytes``: the fleet's payload in each second from ``start_s`` (epoch s), NaN where it
    is unknown. What is short is what those seconds, until ``ended_at``, are under the median of
    those before the cut; of a level that fewer than :data:`HISTORY_LEAST_S` tell it is unknown.
    """
    broken = {name for each in known if each.kind is DisruptionKind.RESET for name in each.pairs}
    cut = [each for each in cut if each.pair not in broken]
    if not cut:
        return ()
    begun_at, pairs = min(each.from_at for each in cut), sorted({each.pair for each in cut})
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
