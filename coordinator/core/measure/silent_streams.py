"""Detection of streams that had no traffic when the pair's other streams did.

If a device drops a single stream out of 64, you cannot see this in the sum, because the noise is
larger. A sender can go on until its socket buffer is full. So received bytes should be used. The
sender's record will only be used when there is no record from the receiver.
"""

from collections.abc import Iterator

from broadside.coordinator.core.measure.align import Aligned, receiving_side
from broadside.coordinator.core.measure.evidence import PairEvidence
from broadside.coordinator.core.summary import SilentStream, instant
from broadside.exchange.messages import SILENT_STREAMS_MAX_COUNT, Flow, Side, pair_name


def find_silent_streams(aligned: Aligned) -> tuple[SilentStream, ...]:
    """Find the longest silences for all pairs, in time order."""
    found = [
        each
        for pair in aligned.pairs
        for flow in (part.flow for part in aligned.flows)
        for each in _of_pair(pair, flow)
    ]
    kept = sorted(found, key=lambda each: -each.duration_s)[:SILENT_STREAMS_MAX_COUNT]
    return tuple(sorted(kept, key=lambda each: (each.from_at, each.pair, each.client_port or 0)))


def _of_pair(pair: PairEvidence, flow: Flow) -> Iterator[SilentStream]:
    receiver = receiving_side(flow)
    for side in sorted(Side, key=lambda side: side is not receiver):
        holder = pair.report if side is Side.CLIENT else pair.server_test
        if holder is None or holder.engine is None or holder.first_data_at is None:
            continue
        zero_s = holder.first_data_at.timestamp() - pair.clock_fixes[side][0]
        for each in holder.engine.silent_streams:
            if each.flow is flow:
                yield SilentStream(
                    pair=pair.name or pair_name(pair.pair_index),
                    flow=flow,
                    client_port=each.client_port,
                    streams_count=holder.engine.streams_count,
                    from_at=instant(zero_s + each.from_s),
                    duration_s=round(each.to_s - each.from_s, 3),
                )
        return
