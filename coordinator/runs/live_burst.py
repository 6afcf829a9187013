"""Live view of one running burst, from full reads and cheaper incremental reads.

Reading and measuring all rows of a thousand pairs takes seconds. A full read therefore uses a
limited share of one core. It is done at once if the newest rows do not continue the known ones.
Between full reads, only the tails of the ends with a changed ETag are read.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, TypeVar

from broadside.coordinator.chunk_decoder import (
    LIVE_COLUMNS,
    EndColumns,
    decode_ends,
)
from broadside.coordinator.core.live.live_view import (
    LiveSnapshot,
    empty_snapshot,
    full_snapshot,
    incremental_snapshot,
    newest_of,
)
from broadside.coordinator.core.measure.grid.align import Chosen
from broadside.coordinator.core.measure.records.columns import HostColumns, IntervalColumns
from broadside.coordinator.core.measure.records.evidence import (
    OPENED_BEFORE_MAX_S,
    BurstEvidence,
    CounterRecord,
    PairEvidence,
)
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.runs.evidence_loader import (
    NOTHING,
    read_evidence,
    readings_max_count,
    with_ends,
)
from broadside.exchange.records import Records
from broadside.exchange.records.keys import server_test_key
from broadside.exchange.second_rows import TAIL_OVERLAP_S, PackedEnd

# Largest share of the time that full reads of a burst may use.
SHARE_RATIO: Final = 0.2
# Seconds below which a full read is done at each look.
CHEAP_S: Final = 0.25

_Key = TypeVar("_Key", int, str)


class LiveBurst:
    """State of one running burst."""

    def __init__(self, records: Records, plan: Plan, burst: Burst) -> None:
        self.burst = burst
        self._records = records
        self._plan = plan
        self._most = readings_max_count(burst, plan.spec.traffic.interval_s)
        self._snapshot: LiveSnapshot | None = None
        # Full read in progress.
        self.measuring: asyncio.Task[LiveSnapshot] | None = None
        # Monotonic time of the last full read, and its duration in seconds.
        self._full_read_at_s = self._full_read_cost_s = 0.0
        # Evidence of the last full read, without seconds.
        self._evidence: BurstEvidence | None = None
        # The same evidence with the tails of the last look.
        self._followed: BurstEvidence | None = None
        # Tails by pair index.
        self._clients: dict[int, EndColumns] = {}
        # Tails by key of the server test.
        self._servers: dict[str, EndColumns] = {}
        # Selected tracks of pairs without new data.
        self._chosen: dict[int, Chosen] = {}
        self._etags: dict[str, str] = {}
        self._test_etags: dict[str, str] = {}

    async def take_snapshot(
        self, device_counter: CounterRecord | None, now: datetime
    ) -> LiveSnapshot:
        """Return the burst as it is known now.

        Args:
            device_counter: Data of the device counter, or None.
            now: The current time to use.
        """
        self._adopt()
        onwards = None
        if self._is_dear:
            onwards = await self._onwards(now)
        rested_s = time.monotonic() - self._full_read_at_s
        is_due = rested_s >= self._full_read_cost_s * (1 - SHARE_RATIO) / SHARE_RATIO
        if self.measuring is None and (onwards is None or is_due):
            self.measuring = asyncio.create_task(self._read_fully(device_counter, now))
        if onwards is not None:
            self._snapshot = onwards
        elif self.measuring is not None:
            await asyncio.wait({self.measuring})
            self._adopt()
        return self._snapshot or empty_snapshot(self._plan, self.burst)

    async def close(self) -> None:
        """Cancel a full read in progress."""
        if self.measuring is not None:
            self.measuring.cancel()
            await asyncio.wait({self.measuring})

    @property
    def _is_dear(self) -> bool:
        """True if full reads are slow and tails can be followed.

        With several processes per pair, each process would need a separate tail, so tails are not
        followed.
        """
        ports = self._plan.pairs[0].endpoint.ports
        return self._full_read_cost_s > CHEAP_S and len(ports) == 1

    def _adopt(self) -> None:
        """Use the result of a finished full read, and add data that is newer."""
        if self.measuring is None or not self.measuring.done():
            return
        done, self.measuring = self.measuring, None
        unpacked = done.result()
        self._snapshot = unpacked if self._snapshot is None else newest_of(unpacked, self._snapshot)

    async def _read_fully(
        self, device_counter: CounterRecord | None, now: datetime
    ) -> LiveSnapshot:
        began_s = time.monotonic()
        evidence = await read_evidence(self._records, self._plan, self.burst)
        tails: list[PairEvidence] = []
        shown = await asyncio.to_thread(
            full_snapshot, self._plan, _keeping_tails(evidence, tails), device_counter, now
        )
        for pair in tails:
            _put_newer(self._clients, pair.pair_index, pair.client_tracks, pair.client_host)
            if pair.server_test is not None:
                key = server_test_key(pair.server_test)
                _put_newer(self._servers, key, pair.server_tracks, pair.server_host)
        # Drop the seconds to release their memory.
        self._evidence = replace(evidence, unpack=None)
        self._followed = None
        self._full_read_at_s = time.monotonic()
        self._full_read_cost_s = self._full_read_at_s - began_s
        return shown

    async def _onwards(self, now: datetime) -> LiveSnapshot | None:
        if self._snapshot is None or self._evidence is None:
            return None
        plan, burst = self._plan, self.burst
        begin_at = burst.planned_start_at - timedelta(seconds=OPENED_BEFORE_MAX_S)
        clients, servers = await asyncio.gather(
            self._records.bursts.read_tails(plan.run_id, burst.index, self._etags),
            self._records.bursts.read_test_tails(begin_at, burst.planned_end_at, self._test_etags),
        )
        evidence = self._evidence
        followed = await asyncio.to_thread(
            self._follow, self._followed or evidence, clients, servers, self._followed is None
        )
        # We should only use it if no full read has finished in the meantime.
        if self._evidence is evidence:
            self._followed = followed
        return await asyncio.to_thread(
            incremental_snapshot, plan, self._snapshot, followed, now, self._chosen
        )

    def _follow(
        self,
        evidence: BurstEvidence,
        clients: Mapping[int, PackedEnd],
        servers: Mapping[str, PackedEnd],
        is_first: bool,
    ) -> BurstEvidence:
        """Return the evidence with the newest tails. Pairs that have no new data are not copied."""
        new_clients, new_servers = self._decoded(clients), self._decoded(servers)
        self._clients |= new_clients
        self._servers |= new_servers

        def followed(pair: PairEvidence) -> PairEvidence:
            test = pair.server_test
            is_new = pair.pair_index in new_clients
            is_new |= test is not None and server_test_key(test) in new_servers
            return self._with_tails(pair) if is_new or is_first else pair

        return replace(evidence, pairs=tuple(map(followed, evidence.pairs)))

    def _decoded(self, packed: Mapping[_Key, PackedEnd]) -> dict[_Key, EndColumns]:
        """Decode tails. An end that is complete has no tail, so its last tail stays valid."""
        ends = decode_ends(list(packed.values()), self._most, LIVE_COLUMNS)
        return {
            key: end for key, end in zip(packed, ends, strict=True) if end is not None and end[0]
        }

    def _with_tails(self, pair: PairEvidence) -> PairEvidence:
        test = pair.server_test
        client = self._clients.get(pair.pair_index, NOTHING)
        server = NOTHING if test is None else self._servers.get(server_test_key(test), NOTHING)
        return with_ends(pair, client, server)


def _put_newer(
    tails: dict[_Key, EndColumns],
    key: _Key,
    tracks: Sequence[IntervalColumns],
    host: HostColumns,
) -> None:
    """Store the tail of a fully read end, unless the stored tail reaches further."""
    if _until_s(tracks) > _until_s(tails.get(key, NOTHING)[0]):
        tails[key] = (tuple(tracks), host)


def _keeping_tails(evidence: BurstEvidence, tails: list[PairEvidence]) -> BurstEvidence:
    """Return the evidence with an ``unpack`` that also collects the tails of each pair.

    Seconds can be unpacked only once, so the tails are taken at the same time.
    """
    if (unpack := evidence.unpack) is None:
        return evidence

    def unpack_with_tails(
        pairs: Sequence[PairEvidence], instants_only: bool
    ) -> Sequence[PairEvidence]:
        unpacked = unpack(pairs, instants_only)
        if not instants_only:
            tails.extend(map(_tail, unpacked))
        return unpacked

    return replace(evidence, unpack=unpack_with_tails)


def _tail(pair: PairEvidence) -> PairEvidence:
    client = _last_rows(pair.client_tracks, pair.client_host)
    return with_ends(pair, client, _last_rows(pair.server_tracks, pair.server_host))


def _last_rows(tracks: Sequence[IntervalColumns], host: HostColumns) -> EndColumns:
    begin_s = _until_s(tracks) - TAIL_OVERLAP_S
    return (
        tuple(track.rows(track.first_data_at_s + track.end_s > begin_s) for track in tracks),
        host.rows(host.end_at_s > begin_s),
    )


def _until_s(tracks: Sequence[IntervalColumns]) -> float:
    """Return the latest end of the tracks as epoch seconds, or 0 without tracks."""
    return max((t.first_data_at_s + float(t.end_s[-1]) for t in tracks if len(t)), default=0.0)
