"""Records whose three tables are one, where a test looks at rows and rights are not the matter."""

from dataclasses import dataclass

from exchange.fabric import Fabric
from exchange.messages import HostSecond, Track
from exchange.ports import JobQueue, RawStore, Table
from exchange.records import Records
from exchange.second_rows import unpacked_host, unpacked_tracks
from exchange.troubles import TroubleLog


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSeconds:
    """Everything one end of one pair stored for one burst."""

    pair_index: int
    tracks: tuple[Track, ...]  # one a flow
    host: tuple[HostSecond, ...]


def records_in(table: Table, raw: RawStore | None = None) -> Records:
    return Records(control=table, results=table, private=table, raw=raw)


def fabric_in(queue: JobQueue, table: Table, troubles: TroubleLog | None = None) -> Fabric:
    return Fabric(
        queue=queue,
        control=table,
        results=table,
        private=table,
        troubles=troubles or TroubleLog(),
    )


async def read_seconds(records: Records, run_id: str, burst_index: int) -> list[PairSeconds]:
    """The client ends' seconds of a burst, by pair index."""
    return [
        PairSeconds(pair_index=index, tracks=unpacked_tracks(end), host=unpacked_host(end))
        async for index, end in records.bursts.stream_seconds(run_id, burst_index)
    ]
