"""Reads from the table what is known of a burst, both ends joined, their seconds still packed.

Row values of a thousand pairs would take gigabytes, and columns 200 MB: packed they are 60, and who
measures unpacks some pairs at a time.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.align import receiving_side
from broadside.coordinator.core.measure.columns import NO_HOST, HostColumns, TrackColumns
from broadside.coordinator.core.measure.evidence import (
    HOLD_MAX_S,
    BurstEvidence,
    PairEvidence,
    ProbeColumn,
    ServerRecord,
    join_tests,
    strays_during,
)
from broadside.coordinator.core.measure.shared_clock import on_shared_clock
from broadside.coordinator.core.plan.moves import Move, pairs_in
from broadside.coordinator.core.plan.spec import Burst, Pair, Plan
from broadside.coordinator.runs.chunk_columns import (
    ALL_COLUMNS,
    REACH_COLUMNS,
    EndColumns,
    readings_max_count,
    try_all_columns,
    try_columns,
    unless_long,
)
from broadside.coordinator.runs.stored import read_rows
from broadside.exchange.messages import ServerTest, Side
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.records import Document, Records
from broadside.exchange.rows import leave_out
from broadside.exchange.second_rows import PackedEnd, Probes

TESTS_MAX_COUNT: Final = 100  # on one endpoint about one burst; a restart or two is what happens


NOTHING: Final[EndColumns] = ((), NO_HOST)


def with_ends(pair: PairEvidence, client: EndColumns, server: EndColumns) -> PairEvidence:
    """The pair with what its two ends told."""
    return replace(
        pair,
        client_tracks=client[0],
        client_host=client[1],
        server_tracks=server[0],
        server_host=server[1],
    )


def probe_column(told: Probes) -> ProbeColumn:
    return ProbeColumn(
        first_at_s=told.first_at_s,
        every_s=told.every_s,
        rtt_s=np.array(told.rtt_s, dtype=np.float64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTest:
    """One server-side test, its seconds unpacked for who asks for them."""

    test: ServerTest
    end: PackedEnd | None
    readings_max_count: int

    @property
    def tracks(self) -> tuple[TrackColumns, ...]:
        return self._columns[0]

    @property
    def host(self) -> HostColumns:
        return self._columns[1]

    @property
    def _columns(self) -> EndColumns:
        if self.end is None:
            return NOTHING
        return try_columns(self.end, self.readings_max_count) or NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSeconds:
    """Both ends' seconds by pair index, as they lie in the table. Each pair's are given once: then
    what was packed makes room."""

    clients: dict[int, PackedEnd]
    servers: dict[int, ServerRecord]
    readings_max_count: int
    receiving: frozenset[Side]  # ends at which payload arrives
    given: set[int] = field(default_factory=set)  # pairs

    def unpack(self, pairs: Sequence[PairEvidence], instants_only: bool) -> Sequence[PairEvidence]:
        """The pairs with their seconds; all clients are decoded as one, and all servers."""
        if not self.given.isdisjoint(pair.pair_index for pair in pairs):
            raise RuntimeError("a burst's seconds are given once; read its evidence again")
        indices = [pair.pair_index for pair in pairs]
        records = [(index, self.servers[index]) for index in indices if index in self.servers]
        packed = {i: r.end for i, r in records if isinstance(r, PackedTest) and r.end is not None}
        clients = {index: self.clients[index] for index in indices if index in self.clients}
        client = self._columns(clients, Side.CLIENT, instants_only)
        server = self._columns(packed, Side.SERVER, instants_only)
        for index, record in records:
            if not isinstance(record, PackedTest):  # of several processes
                server[index] = (tuple(record.tracks), record.host)
        if not instants_only:
            self.given.update(indices)
            for index in indices:
                self.clients.pop(index, None)
                self.servers.pop(index, None)
        return [
            with_ends(
                pair,
                client.get(pair.pair_index, NOTHING),
                server.get(pair.pair_index, NOTHING),
            )
            for pair in pairs
        ]

    def _columns(
        self, packed: Mapping[int, PackedEnd], side: Side, instants_only: bool
    ) -> dict[int, EndColumns]:
        """What can be read of one side's ends; of what arrived at a sender nobody asks."""
        ends = list(packed.values())
        wanted = ALL_COLUMNS if side in self.receiving else ALL_COLUMNS - {"nic_rx_bytes"}
        if instants_only:
            ends, wanted = [replace(end, host=()) for end in ends], REACH_COLUMNS
        found = try_all_columns(ends, self.readings_max_count, wanted)
        return {index: end for index, end in zip(packed, found, strict=True) if end is not None}


async def read_tests(
    records: Records, plan: Plan, burst: Burst, planned: Sequence[Pair]
) -> list[PackedTest]:
    """The tests on the pairs' endpoints that may be of a burst."""
    most = readings_max_count(burst, plan.spec.traffic.interval_s)
    begin_at = burst.planned_start_at - timedelta(seconds=HOLD_MAX_S)
    ports = {(pair.endpoint.address, port) for pair in planned for port in pair.endpoint.ports}
    tests = []
    on_port: Counter[tuple[int, str]] = Counter()
    async for test, end in records.bursts.stream_tests(begin_at, burst.planned_end_at):
        place = test.endpoint.address, test.endpoint.port
        if place not in ports:  # another run's
            continue
        on_port[test.endpoint.port, test.endpoint.address] += 1
        if on_port[test.endpoint.port, test.endpoint.address] > TESTS_MAX_COUNT:
            leave_out(RecordUnreadable(f"tests on {test.endpoint}: over {TESTS_MAX_COUNT}"))
        else:
            short = unless_long(end, most)
            tests.append(PackedTest(test=test, end=short, readings_max_count=most))
    return tests


async def read_evidence(records: Records, plan: Plan, burst: Burst) -> BurstEvidence:
    """Everything the table holds of a burst. Raises ``ExchangeUnavailable``,
    ``RecordUnreadable``."""
    rows, control, caps, moves = await asyncio.gather(
        read_rows(records, plan.run_id, burst.index),
        records.runs.read_control(plan.run_id),
        _read_caps(records, plan),
        records.runs.read_moves(plan.run_id, Move),
    )
    planned = pairs_in(plan, moves, burst.index)
    # A run that is cancelled later cuts nothing of a burst that was over, nor of its summary.
    cancelled_at = control.cancelled_at if control else None
    cut = control if cancelled_at is not None and cancelled_at < burst.planned_end_at else None
    most = readings_max_count(burst, plan.spec.traffic.interval_s)
    clients = {
        pair_index: short
        async for pair_index, end in records.bursts.stream_seconds(plan.run_id, burst.index)
        if (short := unless_long(end, most)) is not None
    }
    probes = {}
    if plan.spec.traffic.probe is not None:
        async for pair_index, told in records.bursts.stream_probes(plan.run_id, burst.index):
            if len(told.rtt_s) * plan.spec.traffic.probe.every_s > most:
                leave_out(RecordUnreadable(f"probes of pair {pair_index}: {len(told.rtt_s)}"))
                continue
            probes[pair_index] = probe_column(told)
    tests = await read_tests(records, plan, burst, planned)
    join = join_tests(burst, planned, rows.claims, rows.reports, tests)
    pairs = []
    for pair in planned:
        claim, report = rows.claims.get(pair.index), rows.reports.get(pair.index)
        record = join.records.get(pair.index)
        holder = report or claim
        pairs.append(
            PairEvidence(
                pair_index=pair.index,
                claim=claim,
                report=report,
                server_test=record.test if record else None,
                joined_by=join.joined_by.get(pair.index),
                client_nic_bits_per_second=caps.get(holder.agent_id) if holder else None,
                server_nic_bits_per_second=pair.server_nic_bits_per_second,
                nic_mtu_bytes=pair.nic_mtu_bytes,
                probes=probes.get(pair.index),
            )
        )
    return BurstEvidence(
        burst=burst,
        pairs=on_shared_clock(pairs, plan.shared_boot_id),
        unpack=PackedSeconds(
            clients=clients,
            servers=dict(join.records),
            readings_max_count=most,
            receiving=frozenset(map(receiving_side, plan.spec.traffic.direction.flows)),
        ).unpack,
        strays=strays_during(burst, planned, join.strays),
        cancelled_at=cut.cancelled_at if cut else None,
        cancel_reason=cut.cancel_reason if cut else None,
    )


async def _read_caps(records: Records, plan: Plan) -> Mapping[str, int | None]:
    """NIC caps by agent, as they were when the run was launched or first looked at.

    Kept with the run: a summary that is computed again must rest on the same figures.
    """
    document = await records.private.read_document(plan.run_id, Document.CAPS)
    if document is None:
        presences = await records.fleet.read_presences()
        caps = {p.agent_id: p.nic_bits_per_second for p in presences}
        document = json.dumps(caps, sort_keys=True).encode()
        await records.private.save_document(plan.run_id, Document.CAPS, document)
    kept: dict[str, int | None] = json.loads(document)
    return kept
