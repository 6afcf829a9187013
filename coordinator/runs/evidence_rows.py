"""Reads from the table what is known of a burst, both ends joined, a pair at a time into columns.

Row values of a thousand pairs would take gigabytes; as columns they take some 300 MB, and the loop
goes on renewing leases while they are made.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import numpy as np

from coordinator.core.measure.evidence import (
    HOLD_MAX_S,
    NO_HOST,
    BurstEvidence,
    HostColumns,
    PairEvidence,
    ProbeColumn,
    TrackColumns,
    join_tests,
    strays_during,
)
from coordinator.core.measure.shared_clock import on_shared_clock
from coordinator.core.plan.moves import Move, pairs_in
from coordinator.core.plan.spec import Burst, Pair, Plan
from coordinator.runs.burst_rows import read_rows
from coordinator.runs.chunk_columns import readings_max_count, stream_columns
from exchange.messages import ServerTest
from exchange.ports import RecordUnreadable
from exchange.records import Document, Records
from exchange.rows import leave_out
from exchange.second_rows import PackedEnd

TESTS_MAX_COUNT: Final = 100  # on one endpoint about one burst; a restart or two is what happens


@dataclass(frozen=True, slots=True, kw_only=True)
class TestColumns:
    """One server-side test with its seconds as columns."""

    __test__ = False  # pytest: not a test class

    test: ServerTest
    tracks: tuple[TrackColumns, ...]
    host: HostColumns


async def read_tests(
    records: Records, plan: Plan, burst: Burst, planned: Sequence[Pair]
) -> list[TestColumns]:
    """The tests on the pairs' endpoints that may be of a burst."""
    most = readings_max_count(burst, plan.spec.traffic.interval_s)
    begin_at = burst.planned_start_at - timedelta(seconds=HOLD_MAX_S)
    ports = {(pair.endpoint.address, port) for pair in planned for port in pair.endpoint.ports}
    tests = []
    on_port: Counter[tuple[int, str]] = Counter()

    async def own() -> AsyncIterator[tuple[ServerTest, PackedEnd]]:
        async for test, end in records.bursts.stream_tests(begin_at, burst.planned_end_at):
            if (test.endpoint.address, test.endpoint.port) in ports:  # else another run's
                on_port[test.endpoint.port, test.endpoint.address] += 1
                if on_port[test.endpoint.port, test.endpoint.address] > TESTS_MAX_COUNT:
                    leave_out(RecordUnreadable(f"tests on {test.endpoint}: over {TESTS_MAX_COUNT}"))
                else:
                    yield test, end

    async for test, columns in stream_columns(own(), most):
        tracks, host = columns or ((), NO_HOST)
        tests.append(TestColumns(test=test, tracks=tracks, host=host))
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
    packed = records.bursts.stream_seconds(plan.run_id, burst.index)
    clients = {
        pair_index: columns
        async for pair_index, columns in stream_columns(packed, most)
        if columns is not None
    }
    probes = {}
    if plan.spec.traffic.probe is not None:
        async for pair_index, told in records.bursts.stream_probes(plan.run_id, burst.index):
            if len(told.rtt_s) * plan.spec.traffic.probe.every_s > most:
                leave_out(RecordUnreadable(f"probes of pair {pair_index}: {len(told.rtt_s)}"))
                continue
            probes[pair_index] = ProbeColumn(
                first_at_s=told.first_at_s,
                every_s=told.every_s,
                rtt_s=np.array(told.rtt_s, dtype=np.float64),
            )
    tests = await read_tests(records, plan, burst, planned)
    join = join_tests(burst, planned, rows.claims, rows.reports, tests)
    pairs = []
    for pair in planned:
        claim, report = rows.claims.get(pair.index), rows.reports.get(pair.index)
        client, record = clients.get(pair.index), join.records.get(pair.index)
        holder = report or claim
        pairs.append(
            PairEvidence(
                pair_index=pair.index,
                claim=claim,
                report=report,
                client_tracks=client[0] if client else (),
                client_host=client[1] if client else NO_HOST,
                server_test=record.test if record else None,
                server_tracks=tuple(record.tracks) if record else (),
                server_host=record.host if record else NO_HOST,
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
