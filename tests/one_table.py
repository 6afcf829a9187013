"""Records with one table for all three, for tests that check rows but not permissions."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any

from broadside.exchange.chunks import CPU_RATIO_UNITS, MICROSECONDS, unpack
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import HostSecond, ServerTest, Track
from broadside.exchange.outage_log import OutageLog
from broadside.exchange.ports import JobQueue, RawStore, Table
from broadside.exchange.records import Records
from broadside.exchange.second_rows import PackedEnd, joined, unpacked_tracks


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSeconds:
    """Stored seconds of one end of one pair for one burst.

    Attributes:
        tracks: One track per flow.
    """

    pair_index: int
    tracks: tuple[Track, ...]
    host: tuple[HostSecond, ...]


def unpack_host(packed: bytes) -> tuple[HostSecond, ...]:
    """Return the counters packed by ``pack_host`` as rows. The product reads columns instead."""
    columns = {name: [value or 0 for value in column] for name, column in unpack(packed).items()}
    gaps_us, spans_us = columns.pop("gap_us"), columns.pop("span_us")
    ends_us = list(accumulate(gap + span for gap, span in zip(gaps_us, spans_us, strict=True)))
    for method in ("rx", "tx"):
        over, rate = (columns.pop(f"nic_{method}_packets_{part}") for part in ("over", "rate"))
        columns[f"nic_{method}_packets_count"] = [
            more + (size * share >> 32)
            for more, size, share in zip(over, columns[f"nic_{method}_bytes"], rate, strict=True)
        ]
    seconds: list[HostSecond] = []
    for at, (end_us, span_us) in enumerate(zip(ends_us, spans_us, strict=True)):
        counted: dict[str, Any] = {
            name: column[at] / CPU_RATIO_UNITS if name.endswith("_ratio") else column[at]
            for name, column in columns.items()
        }
        start_at_s, end_at_s = (end_us - span_us) / MICROSECONDS, end_us / MICROSECONDS
        seconds.append(HostSecond(start_at_s=start_at_s, end_at_s=end_at_s, **counted))
    return tuple(seconds)


def unpacked_host(end: PackedEnd) -> tuple[HostSecond, ...]:
    """Return one end's counters as rows."""
    return joined(end.host, unpack_host, lambda second: second.start_at_s)


def records_in(table: Table, raw: RawStore | None = None) -> Records:
    return Records(control=table, results=table, private=table, raw=raw)


def fabric_in(queue: JobQueue, table: Table, troubles: OutageLog | None = None) -> Fabric:
    return Fabric(
        queue=queue,
        control=table,
        results=table,
        private=table,
        troubles=troubles or OutageLog(),
    )


async def read_seconds(records: Records, run_id: str, burst_index: int) -> list[PairSeconds]:
    """Return the clients' seconds of a burst, by pair index."""
    return [
        PairSeconds(pair_index=index, tracks=unpacked_tracks(end), host=unpacked_host(end))
        async for index, end in records.bursts.stream_seconds(run_id, burst_index)
    ]


async def read_served(
    records: Records, at: datetime
) -> list[tuple[ServerTest, tuple[Track, ...], tuple[HostSecond, ...]]]:
    """Return server tests of the hour from ``at``, each with its seconds."""
    return [
        (test, unpacked_tracks(end), unpacked_host(end))
        async for test, end in records.bursts.stream_tests(at, at + timedelta(hours=1))
    ]
