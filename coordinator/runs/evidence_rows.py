"""Reads from the table what is known of a burst, both ends joined, their seconds still packed.

Row values of a thousand pairs would take gigabytes, and columns 200 MB: packed they are 60, and who
measures unpacks some pairs at a time.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

import numpy as np

from broadside.coordinator.core import words
from broadside.coordinator.core.live.status import BurstRows
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
from broadside.coordinator.core.summary import ForeignRow
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
from broadside.exchange.messages import JobReport, ServerTest, Side, plain_text
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.records import Document, Records
from broadside.exchange.records.keys import (
    REPORT,
    burst_partition,
    server_test_key,
    server_tests_partition,
)
from broadside.exchange.records.row_rules import Violation
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
    records: Records,
    plan: Plan,
    burst: Burst,
    planned: Sequence[Pair],
    foreign: list[ForeignRow] | None = None,
) -> list[PackedTest]:
    """Read the tests on the pairs' endpoints that may be of a burst.

    Args:
        records: The tables.
        plan: The run's plan.
        burst: The burst.
        planned: Its pairs, every move applied.
        foreign: Gets the rows that name an endpoint or agent of the pairs without the right to.
    """
    most = readings_max_count(burst, plan.spec.traffic.interval_s)
    begin_at = burst.planned_start_at - timedelta(seconds=HOLD_MAX_S)
    holders = defaultdict[tuple[str, int], set[str]](set)  # agents by planned endpoint
    for pair in planned:
        for port in pair.endpoint.ports:
            holders[pair.endpoint.address, port].add(pair.endpoint.agent_id)
    tests: dict[str, PackedTest] = {}  # by key: a copy outside the agent's own share counts less
    broken: list[Violation] = []
    others = [] if foreign is None else foreign
    counts: Counter[tuple[str, tuple[str, int]]] = Counter()
    async for test, end in records.bursts.stream_tests(begin_at, burst.planned_end_at, broken):
        place = test.endpoint.address, test.endpoint.port
        if place not in holders:  # another run's
            continue
        if test.agent_id not in holders[place]:
            others.append(_at_anothers_endpoint(test, holders[place]))
            continue
        counts[test.agent_id, place] += 1
        if counts[test.agent_id, place] > TESTS_MAX_COUNT:
            leave_out(RecordUnreadable(f"tests on {test.endpoint}: over {TESTS_MAX_COUNT}"))
        else:
            short = unless_long(end, most)
            kept = PackedTest(test=test, end=short, readings_max_count=most)
            tests[server_test_key(test)] = kept
    agents = set[str]().union(*holders.values())
    others += [_foreign_row(each) for each in broken if _concerns(each, agents, holders)]
    return list(tests.values())


def _at_anothers_endpoint(test: ServerTest, planned: Collection[str]) -> ForeignRow:
    at = f"{test.endpoint.address} port {test.endpoint.port}"
    return ForeignRow(
        row=f"{server_tests_partition(test.started_at, test.agent_id)}|{server_test_key(test)}",
        field="endpoint",
        said=f"{test.agent_id} recorded a test at {at}, which is planned at "
        f"{', '.join(sorted(planned))}",
    )


def _foreign_row(violation: Violation) -> ForeignRow:
    said = f"{violation.field} is not what the row's key says"
    return ForeignRow(row=plain_text(violation.row, 300), field=violation.field, said=said)


def _concerns(
    violation: Violation, agents: Collection[str], endpoints: Container[tuple[str, int]]
) -> bool:
    """Return whether a server's row that breaks a rule names something of these pairs."""
    test, place = violation.message, violation.place
    named = {place.facts.get("agent")} if place is not None else set()
    if isinstance(test, ServerTest):
        named |= {test.agent_id, test.endpoint.agent_id}
        if (test.endpoint.address, test.endpoint.port) in endpoints:
            return True
    return not named.isdisjoint(agents)


def _own_reports(
    rows: BurstRows, run_id: str, burst: Burst, foreign: list[ForeignRow]
) -> dict[int, JobReport]:
    """Return the reports whose writer claimed the pair, for the burst that was planned."""
    own = {}
    for index, report in rows.reports.items():
        claim = rows.claims.get(index)
        said = None
        if claim is not None and claim.agent_id != report.agent_id:
            field, said = "agent_id", f"{report.agent_id} reports a job of {claim.agent_id}"
        elif report.planned_start_at != burst.planned_start_at:
            field = "planned_start_at"
            said = f"{report.agent_id} reports a job of {words.instant(report.planned_start_at)}"
        if said is None:
            own[index] = report
        else:
            key = f"{burst_partition(run_id, burst.index)}|{REPORT}{index:05d}"
            foreign.append(ForeignRow(row=key, field=field, said=said))
    return own


async def read_evidence(records: Records, plan: Plan, burst: Burst) -> BurstEvidence:
    """Everything the table holds of a burst. Raises ``ExchangeUnavailable``,
    ``RecordUnreadable``."""
    broken: list[Violation] = []
    rows, control, caps, moves = await asyncio.gather(
        read_rows(records, plan.run_id, burst.index, broken=broken),
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
        async for pair_index, end in records.bursts.stream_seconds(plan.run_id, burst.index, broken)
        if (short := unless_long(end, most)) is not None
    }
    probes = {}
    if plan.spec.traffic.probe is not None:
        async for pair_index, told in records.bursts.stream_probes(plan.run_id, burst.index):
            if len(told.rtt_s) * plan.spec.traffic.probe.every_s > most:
                leave_out(RecordUnreadable(f"probes of pair {pair_index}: {len(told.rtt_s)}"))
                continue
            probes[pair_index] = probe_column(told)
    foreign = [_foreign_row(violation) for violation in broken]
    reports = _own_reports(rows, plan.run_id, burst, foreign)
    tests = await read_tests(records, plan, burst, planned, foreign)
    join = join_tests(burst, planned, rows.claims, reports, tests)
    pairs = []
    for pair in planned:
        claim, report = rows.claims.get(pair.index), reports.get(pair.index)
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
        foreign_rows=tuple(foreign),
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
