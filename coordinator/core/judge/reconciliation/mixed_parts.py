"""Bytes of the other parts of a mixed run, which the device counter counts too."""

from collections.abc import Collection

import numpy as np

from broadside.coordinator.core.judge.reconciliation.overlapping_bursts import Neighbour
from broadside.coordinator.core.summary import BurstPart, BurstSummary
from broadside.exchange.messages import Flow


def part_beside(part: BurstPart, burst: BurstSummary, flows: Collection[Flow]) -> Neighbour | None:
    """Return the payload of a part in each second, for a device counter that counts all parts.

    A long burst has no seconds, so its mean rate is used. None if the part has no rate.

    Args:
        part: The measured part.
        burst: Its burst.
        flows: Flows that the counter counts.

    Returns:
        Bytes per second from the start of the burst, as the counter counts them. None if the part
        has no rate.
    """
    by_flow = {one.flow: one.received_bits_per_second or 0.0 for one in part.summary.flows}
    total = sum(by_flow.values())
    if not total:
        return None
    counted_ratio = sum(rate for flow, rate in by_flow.items() if flow in flows) / total
    rates = np.array(part.received_bits_per_second, dtype=np.float64)
    start_at = part.start_at
    if start_at is None or not len(rates):
        start_at, rates = burst.planned_start_at, np.full(burst.duration_s, total)
    return Neighbour(
        run_id="",
        burst_index=burst.index,
        start_s=round(start_at.timestamp()),
        received_bytes=np.nan_to_num(rates) / 8 * counted_ratio,
    )
