"""Reads who claimed and who reported: all that a status is derived from."""

import asyncio

from coordinator.core.live.status import BurstRows
from exchange.records import ALL_PAIRS, Records


async def read_rows(
    records: Records, run_id: str, burst_index: int, pairs: range = ALL_PAIRS
) -> BurstRows:
    """Claims and reports of a burst, of all its pairs or of some."""
    claims, reports = await asyncio.gather(
        records.bursts.read_claims(run_id, burst_index, pairs),
        records.bursts.read_reports(run_id, burst_index, pairs),
    )
    return BurstRows(claims=claims, reports=reports)
