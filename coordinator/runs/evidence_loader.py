"""Loader of the stored evidence of a burst, with both ends joined and seconds still packed.

For a thousand pairs, row objects need gigabytes and columns need 200 MB. Packed chunks need 60 MB.
The measuring code unpacks only some pairs at a time.
"""

import asyncio
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.chunk_decoder import (
    ALL_COLUMNS,
    REACH_COLUMNS,
    EndColumns,
    decode_end,
    decode_ends,
)
from broadside.coordinator.core import formatting
from broadside.coordinator.core.live.status import BurstRows
from broadside.coordinator.core.measure.records.clock_readings import on_shared_clock
from broadside.coordinator.core.measure.records.columns import NO_HOST, HostColumns, IntervalColumns
from broadside.coordinator.core.measure.records.evidence import (
    OPENED_BEFORE_MAX_S,
    BurstEvidence,
    CanaryColumns,
    PairEvidence,
    ProbeColumn,
    receiving_side,
)
from broadside.coordinator.core.measure.records.server_tests import (
    ServerRecord,
    foreign_tests_during,
    join_tests,
)
from broadside.coordinator.core.plan.server_failover import Failover, pairs_in
from broadside.coordinator.core.run_spec import Burst, Pair, Plan
from broadside.coordinator.core.summary import ForeignRow
from broadside.exchange.canary_rows import CanaryRequests, CanaryRounds
from broadside.exchange.messages import JobReport, ServerTest, Side, plain_text
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.records import ALL_PAIRS, Document, Records
from broadside.exchange.records.keys import (
    REPORT,
    burst_partition,
    server_test_key,
    server_tests_partition,
)
from broadside.exchange.records.row_rules import Violation
from broadside.exchange.rows import leave_out
from broadside.exchange.second_rows import PackedEnd, Probes

# Maximum number of tests on one endpoint for one burst. One or two restarts are normal.
TESTS_MAX_COUNT: Final = 100
# Time before and after a burst in which an end may read counters.
_BESIDE_MAX_S: Final = 900.0
# Upper limit of the packed size of one reading. Broadside's own readings have about 20 bytes.
_READING_MAX_BYTES: Final = 128
# Additional bytes allowed per row, because a row with few readings still has a header.
_ROW_MAX_BYTES: Final = 65_536


NOTHING: Final[EndColumns] = ((), NO_HOST)


def with_ends(pair: PairEvidence, client: EndColumns, server: EndColumns) -> PairEvidence:
    """Return the pair with the columns for both ends.

    Args:
        pair: The pair.
        client: Tracks and host columns of the client.
        server: Tracks and host columns of the server.
    """
    return replace(
        pair,
        client_tracks=client[0],
        client_host=client[1],
        server_tracks=server[0],
        server_host=server[1],
    )


def canary_columns(stored: CanaryRounds) -> CanaryColumns:
    """Return stored canaries as columns."""

    def received(requests: CanaryRequests) -> NDArray[np.int8]:
        return np.array([-1 if r is None else int(r) for r in requests.received], np.int8)

    return CanaryColumns(
        first_at_s=stored.first_at_s,
        every_s=stored.every_s,
        forbidden=np.array(stored.forbidden.outcomes, np.int8),
        allowed=np.array(stored.allowed.outcomes, np.int8),
        forbidden_received=received(stored.forbidden),
        allowed_received=received(stored.allowed),
        took_s=np.array([math.nan if us is None else us / 1e6 for us in stored.forbidden.took_us]),
    )


async def _read_canaries(records: Records, plan: Plan, burst: Burst) -> dict[int, CanaryColumns]:
    """Return the canaries of a burst by pair index. Records that are too long are left out."""
    canary, columns = plan.spec.traffic.canary, {}
    if canary is None:
        return {}
    most = canary.before_s + canary.after_s + burst.omit_s + burst.longest_s + 2 * canary.every_s
    async for pair_index, stored in records.bursts.stream_canaries(plan.run_id, burst.index):
        count = len(stored.allowed.outcomes)
        if count * stored.every_s > most or stored.every_s != canary.every_s:
            leave_out(RecordUnreadable(f"canaries of pair {pair_index}: {count}"))
            continue
        columns[pair_index] = canary_columns(stored)
    return columns


async def _read_probes(
    records: Records, plan: Plan, burst: Burst, most: int
) -> dict[int, ProbeColumn]:
    """Return the probes of a burst by pair index. Records that are too long are left out."""
    parts, columns = plan.spec.parts, {}
    if all(part.traffic.probe is None for part in parts):
        return {}
    part_of = {pair.index: pair.part_index for pair in plan.pairs}
    async for pair_index, stored in records.bursts.stream_probes(plan.run_id, burst.index):
        requested = parts[part_of.get(pair_index, 0)].traffic.probe
        if requested is None or len(stored.rtt_s) * requested.every_s > most:
            leave_out(RecordUnreadable(f"probes of pair {pair_index}: {len(stored.rtt_s)}"))
            continue
        columns[pair_index] = probe_column(stored)
    return columns


def probe_column(stored: Probes) -> ProbeColumn:
    """Return stored probes as a column of round-trip times in seconds."""
    return ProbeColumn(
        first_at_s=stored.first_at_s,
        every_s=stored.every_s,
        rtt_s=np.array(stored.rtt_s, dtype=np.float64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTest:
    """Record of one server-side test, with seconds that are unpacked on access."""

    test: ServerTest
    end: PackedEnd | None
    readings_max_count: int

    @property
    def tracks(self) -> tuple[IntervalColumns, ...]:
        return self._columns[0]

    @property
    def host(self) -> HostColumns:
        return self._columns[1]

    @property
    def _columns(self) -> EndColumns:
        if self.end is None:
            return NOTHING
        return decode_end(self.end, self.readings_max_count) or NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSeconds:
    """Packed seconds of both ends by pair index.

    The full seconds of each pair can be unpacked only once, and then their memory is released.

    Attributes:
        clients: Packed client ends.
        servers: Server records, packed or already unpacked.
        readings_max_count: Maximum number of readings of one end.
        receiving: Sides at which payload arrives.
        given: Indices of the pairs that were unpacked.
    """

    clients: dict[int, PackedEnd]
    servers: dict[int, ServerRecord]
    readings_max_count: int
    receiving: frozenset[Side]
    given: set[int] = field(default_factory=set)

    def unpack(self, pairs: Sequence[PairEvidence], instants_only: bool) -> Sequence[PairEvidence]:
        """Unpack the seconds of some pairs, all clients together and all servers together.

        Args:
            pairs: The pairs.
            instants_only: True decodes only times and bytes, and does not release the packed
                seconds.

        Returns:
            Copies with their seconds, in the order of ``pairs``. Unreadable ends are empty.

        Raises:
            RuntimeError: The full seconds of one of the pairs were unpacked before.
        """
        if not self.given.isdisjoint(pair.pair_index for pair in pairs):
            raise RuntimeError("a burst's seconds can be read only once; load its evidence again")
        indices = [pair.pair_index for pair in pairs]
        records = [(index, self.servers[index]) for index in indices if index in self.servers]
        packed = {i: r.end for i, r in records if isinstance(r, PackedTest) and r.end is not None}
        clients = {index: self.clients[index] for index in indices if index in self.clients}
        client = self._columns(clients, Side.CLIENT, instants_only)
        server = self._columns(packed, Side.SERVER, instants_only)
        for index, record in records:
            # This server record is merged from several processes and already unpacked.
            if not isinstance(record, PackedTest):
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
        """Decode the ends of one side, and skip received NIC bytes at a side that only sends."""
        ends = list(packed.values())
        wanted = ALL_COLUMNS if side in self.receiving else ALL_COLUMNS - {"nic_rx_bytes"}
        if instants_only:
            ends, wanted = [replace(end, host=()) for end in ends], REACH_COLUMNS
        decoded = decode_ends(ends, self.readings_max_count, wanted)
        return {index: end for index, end in zip(packed, decoded, strict=True) if end is not None}


async def read_rows(
    records: Records,
    run_id: str,
    burst_index: int,
    pairs: range = ALL_PAIRS,
    broken: list[Violation] | None = None,
) -> BurstRows:
    """Read the claims and reports of a burst.

    Args:
        records: Records to use for access to the tables.
        run_id: The id to look up.
        burst_index: The index to look up.
        pairs: Indices of the pairs. The default is all pairs.
        broken: List to which invalid rows are added. They are not returned. None only skips them.

    Returns:
        Valid claims and reports by pair index.
    """
    claims, reports = await asyncio.gather(
        records.bursts.read_claims(run_id, burst_index, pairs, broken),
        records.bursts.read_reports(run_id, burst_index, pairs, broken),
    )
    return BurstRows(claims=claims, reports=reports)


def readings_max_count(burst: Burst, interval_s: float) -> int:
    """Return an upper limit of the number of readings of one end in a burst.

    Args:
        burst: The burst to use.
        interval_s: Reporting interval in seconds.

    Returns:
        Twice the expected number of readings, as a safety margin.
    """
    longest_s = burst.longest_s + burst.omit_s + _BESIDE_MAX_S
    return round(2 * longest_s / min(interval_s, 1.0))


def _reject_oversized(end: PackedEnd, readings_max_count: int) -> PackedEnd | None:
    """Return the end, or None if it has more bytes than its readings can need.

    Args:
        end: The packed end.
        readings_max_count: Maximum number of readings of the end.

    Returns:
        The end unchanged, or None. A rejected end is logged once.
    """
    for chunks in (*(track.chunks for track in end.tracks), end.host):
        packed_bytes = sum(len(chunk.data) for chunk in chunks)
        if packed_bytes > readings_max_count * _READING_MAX_BYTES + len(chunks) * _ROW_MAX_BYTES:
            why = f"{packed_bytes} bytes are too many for {readings_max_count} readings"
            leave_out(RecordUnreadable(f"row {chunks[0].row}: {why}"))
            return None
    return end


async def read_tests(
    records: Records,
    plan: Plan,
    burst: Burst,
    planned: Sequence[Pair],
    foreign: list[ForeignRow] | None = None,
) -> list[PackedTest]:
    """Read the server-side tests on the pairs' endpoints that may belong to a burst.

    Args:
        records: Records to use for access to the tables.
        plan: The run's plan.
        burst: The burst to use.
        planned: Pairs of the burst, with all moves applied.
        foreign: List to which invalid rows are added. These rows name an endpoint or agent of the
            pairs, but another agent wrote them. None only skips them.

    Returns:
        Tests in any order, with packed seconds. Each test occurs once.
    """
    most = readings_max_count(burst, plan.spec.traffic.interval_s)
    begin_at = burst.planned_start_at - timedelta(seconds=OPENED_BEFORE_MAX_S)
    # Agents by planned endpoint.
    holders = defaultdict[tuple[str, int], set[str]](set)
    for pair in planned:
        for port in pair.endpoint.ports:
            holders[pair.endpoint.address, port].add(pair.endpoint.agent_id)
    # Tests by key. Copies under the partition of another agent have lower priority.
    tests: dict[str, PackedTest] = {}
    broken: list[Violation] = []
    others = [] if foreign is None else foreign
    counts: Counter[tuple[str, tuple[str, int]]] = Counter()
    async for test, end in records.bursts.stream_tests(begin_at, burst.planned_end_at, broken):
        place = test.endpoint.address, test.endpoint.port
        # A test of another run.
        if place not in holders:
            continue
        if test.agent_id not in holders[place]:
            others.append(_at_anothers_endpoint(test, holders[place]))
            continue
        counts[test.agent_id, place] += 1
        if counts[test.agent_id, place] > TESTS_MAX_COUNT:
            leave_out(RecordUnreadable(f"tests on {test.endpoint}: over {TESTS_MAX_COUNT}"))
        else:
            short = _reject_oversized(end, most)
            packed_test = PackedTest(test=test, end=short, readings_max_count=most)
            tests[server_test_key(test)] = packed_test
    agents = set[str]().union(*holders.values())
    others += [_foreign_row(item) for item in broken if _concerns(item, agents, holders)]
    return list(tests.values())


def _at_anothers_endpoint(test: ServerTest, planned: Collection[str]) -> ForeignRow:
    at = f"{test.endpoint.address} port {test.endpoint.port}"
    return ForeignRow(
        row=f"{server_tests_partition(test.started_at, test.agent_id)}|{server_test_key(test)}",
        field="endpoint",
        problem=f"{test.agent_id} recorded a test at {at}, which is planned at "
        f"{', '.join(sorted(planned))}",
    )


def _foreign_row(violation: Violation) -> ForeignRow:
    problem = f"{violation.field} does not match the row's key"
    return ForeignRow(row=plain_text(violation.row, 300), field=violation.field, problem=problem)


def _concerns(
    violation: Violation, agents: Collection[str], endpoints: Container[tuple[str, int]]
) -> bool:
    """Return True if an invalid server row names an agent or endpoint of these pairs."""
    test, place = violation.message, violation.place
    named = {place.facts.get("agent")} if place is not None else set()
    if isinstance(test, ServerTest):
        named |= {test.agent_id, test.endpoint.agent_id}
        if (test.endpoint.address, test.endpoint.port) in endpoints:
            return True
    return not named.isdisjoint(agents)


def _valid_reports(
    rows: BurstRows, run_id: str, burst: Burst, foreign: list[ForeignRow]
) -> dict[int, JobReport]:
    """Return the reports from the agents that claimed the pairs, for the planned start time.

    All other reports are added to ``foreign``.
    """
    valid = {}
    for index, report in rows.reports.items():
        claim = rows.claims.get(index)
        problem = None
        if claim is not None and claim.agent_id != report.agent_id:
            field, problem = "agent_id", f"{report.agent_id} reports a job of {claim.agent_id}"
        elif report.planned_start_at != burst.planned_start_at:
            field = "planned_start_at"
            problem = (
                f"{report.agent_id} reports a job of {formatting.instant(report.planned_start_at)}"
            )
        if problem is None:
            valid[index] = report
        else:
            key = f"{burst_partition(run_id, burst.index)}|{REPORT}{index:05d}"
            foreign.append(ForeignRow(row=key, field=field, problem=problem))
    return valid


async def read_evidence(records: Records, plan: Plan, burst: Burst) -> BurstEvidence:
    """Read all stored evidence of a burst.

    Args:
        records: Records to use for access to the tables.
        plan: The run's plan.
        burst: The burst to use.

    Returns:
        The evidence. The seconds of its pairs stay packed until they are used.

    Raises:
        ExchangeUnavailable: The tables cannot be reached.
        RecordUnreadable: A stored record is invalid.
    """
    broken: list[Violation] = []
    rows, control, caps, moves = await asyncio.gather(
        read_rows(records, plan.run_id, burst.index, broken=broken),
        records.runs.read_control(plan.run_id),
        _read_caps(records, plan),
        records.runs.read_moves(plan.run_id, Failover),
    )
    planned = pairs_in(plan, moves, burst.index)
    # A later cancellation does not change a burst that was already over.
    cancelled_at = control.cancelled_at if control else None
    cut = control if cancelled_at is not None and cancelled_at < burst.planned_end_at else None
    most = readings_max_count(burst, plan.spec.traffic.interval_s)
    clients = {
        pair_index: short
        async for pair_index, end in records.bursts.stream_seconds(plan.run_id, burst.index, broken)
        if (short := _reject_oversized(end, most)) is not None
    }
    probes = await _read_probes(records, plan, burst, most)
    canaries = await _read_canaries(records, plan, burst)
    foreign = [_foreign_row(violation) for violation in broken]
    reports = _valid_reports(rows, plan.run_id, burst, foreign)
    tests = await read_tests(records, plan, burst, planned, foreign)
    join = join_tests(burst, planned, rows.claims, reports, tests)
    foreign_tests = foreign_tests_during(burst, planned, join.foreign_tests)
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
                canary=canaries.get(pair.index),
            )
        )
    return BurstEvidence(
        burst=burst,
        pairs=on_shared_clock(pairs, plan.shared_boot_id),
        unpack=PackedSeconds(
            clients=clients,
            servers=dict(join.records),
            readings_max_count=most,
            receiving=frozenset(
                receiving_side(flow)
                for part in plan.spec.parts
                for flow in part.traffic.direction.flows
            ),
        ).unpack,
        foreign_tests=foreign_tests,
        foreign_rows=tuple(foreign),
        cancelled_at=cut.cancelled_at if cut else None,
        cancel_reason=cut.cancel_reason if cut else None,
    )


async def _read_caps(records: Records, plan: Plan) -> Mapping[str, int | None]:
    """Return NIC limits in bit/s by agent, as they were when the run was first read.

    They are stored with the run, so that a recomputed summary uses the same values.
    """
    document = await records.private.read_document(plan.run_id, Document.CAPS)
    if document is None:
        presences = await records.fleet.read_presences()
        caps = {p.agent_id: p.nic_bits_per_second for p in presences}
        document = json.dumps(caps, sort_keys=True).encode()
        await records.private.save_document(plan.run_id, Document.CAPS, document)
    stored_caps: dict[str, int | None] = json.loads(document)
    return stored_caps
