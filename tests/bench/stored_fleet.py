"""A burst of many pairs as agents would have stored it, whole or up to one of its seconds.

Eight pairs' noise is packed, and every pair's rows are one of the eight under its own keys: the
store and who reads it cannot tell, and a thousand pairs are there in seconds.
"""

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final

import numpy as np

from coordinator.core.plan.planner import plan as make_plan
from coordinator.core.plan.spec import Objective, Plan, RunSpec
from exchange.fabric import Fabric
from exchange.messages import (
    Claim,
    ClockReading,
    ClockSource,
    Control,
    EngineReport,
    Flow,
    FlowTotals,
    HostSecond,
    Interval,
    Job,
    JobReport,
    Outcome,
    Phase,
    ServerTest,
    Side,
    Track,
    Traffic,
)
from exchange.ports import Entity
from exchange.records import RunHeader
from exchange.records.keys import (
    CHUNK,
    CLAIM,
    REPORT,
    TEST_CHUNK,
    burst_partition,
    server_test_key,
    server_tests_partition,
)
from exchange.rows import message_row
from exchange.second_rows import chunk_rows
from tests.unit.coordinator.presences import fleet as presences

VARIANTS_COUNT: Final = 8
START: Final = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
_CLOCK: Final = ClockReading(
    source=ClockSource.CHRONY, synchronised=True, offset_s=0.0, bound_s=0.001, read_at=START
)


def plan_of(pairs: int, duration_s: int, run_id: str = "bench") -> Plan:
    """A run of one burst that starts at :data:`START`."""
    spec = RunSpec(
        scenario="bench",
        pairs_count=pairs,
        bursts_count=1,
        burst_s=duration_s,
        period_s=duration_s + 60,
        traffic=Traffic(streams_count=8),
        objective=Objective(target_bits_per_second=pairs * 5e9),
    )
    there = [
        each.model_copy(update={"beat_at": START - timedelta(seconds=60)})
        for each in presences(pairs)
    ]
    plan = make_plan(spec, there, START - timedelta(seconds=60), run_id)
    burst = plan.bursts[0].model_copy(update={"planned_start_at": START})
    return plan.model_copy(update={"bursts": (burst,)})


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end's readings."""

    tracks: tuple[Track, ...]
    host: tuple[HostSecond, ...]
    sent_bytes: int
    chunks: tuple[int, Side, datetime]  # which of those that are packed once


@cache
def end_of(variant: int, side: Side, seconds: int, start_at: datetime) -> End:
    """The first ``seconds`` of one of the eight, of a burst that starts at an instant."""
    rng = np.random.default_rng(variant)  # both ends saw the same traffic
    zero_s = start_at.timestamp() + 0.004 + variant / 1000
    bounds = np.arange(seconds + 1) + np.append(0.0, rng.normal(0, 2e-5, seconds))
    sent = rng.normal(625e6, 20e6, seconds).astype(np.int64)
    client = side is Side.CLIENT
    rtt, cwnd = rng.normal(900e-6, 60e-6, seconds), rng.integers(10**6, 2 * 10**6, seconds)
    intervals = tuple(
        Interval(
            start_s=round(float(bounds[i]), 6),
            end_s=round(float(bounds[i + 1]), 6),
            transferred_bytes=int(sent[i]),
            retransmits_count=int(rng.poisson(3)) if client else None,
            rtt_s=round(float(rtt[i]), 6) if client else None,
            cwnd_bytes=int(cwnd[i]) if client else None,
        )
        for i in range(seconds)
    )
    host = tuple(
        HostSecond(
            start_at_s=zero_s + i,
            end_at_s=zero_s + i + 1,
            nic_rx_bytes=int(sent[i] * 0.02),
            nic_tx_bytes=int(sent[i] * 1.045),
            nic_rx_packets_count=int(sent[i] // 9000),
            nic_tx_packets_count=int(sent[i] // 1448),
            nic_drops_count=0,
            tcp_retransmits_count=int(rng.poisson(3)),
            cpu_busy_ratio=float(np.clip(rng.normal(0.4, 0.03), 0, 1)),
            cpu_busiest_core_ratio=float(np.clip(rng.normal(0.6, 0.03), 0, 1)),
        )
        for i in range(seconds)
    )
    track = Track(side=side, flow=Flow.UP, first_data_at_s=zero_s, intervals=intervals)
    return End(
        tracks=(track,), host=host, sent_bytes=int(sent.sum()), chunks=(variant, side, start_at)
    )


def rows_of(
    plan: Plan,
    *,
    until_s: int | None = None,
    from_s: float = 0.0,
    only: Container[int] | None = None,
) -> Iterator[Entity]:
    """Every row of the burst; with ``until_s`` those of a burst that goes on, so far.

    ``from_s`` leaves out what was stored by then, as a live upload does; ``only`` are pairs.
    """
    burst = plan.bursts[0]
    seconds = burst.duration_s if until_s is None else until_s
    for pair, job in zip(plan.pairs, plan.jobs(burst), strict=True):
        if only is not None and pair.index not in only:
            continue
        for side, rows in ((Side.CLIENT, client_rows), (Side.SERVER, server_rows)):
            end = end_of(pair.index % VARIANTS_COUNT, side, seconds, burst.planned_start_at)
            yield from rows(job, end, until_s is None, from_s)


def _engine(job: Job, end: End, *, over: bool) -> EngineReport:
    totals = FlowTotals(
        flow=Flow.UP,
        sent_bytes=end.sent_bytes,
        received_bytes=end.sent_bytes,
        received_s=float(len(end.host)),
    )
    return EngineReport(
        engine="iperf3",
        version="3.18",
        cookie=f"cookie{job.pair_index:05d}",
        mss_bytes=1448,
        streams_count=8,
        totals=(totals,) if over else (),
    )


def client_rows(job: Job, end: End, over: bool, from_s: float) -> Iterator[Entity]:
    """A client end's: its claim, its report once it is over, its seconds."""
    start_at, key = job.planned_start_at, f"{job.pair_index:05d}"
    partition, agent_id = burst_partition(job.run_id, job.burst_index), f"client-{key}"
    claim = Claim(
        job_id=job.job_id,
        agent_id=agent_id,
        phase=Phase.REPORTED if over else Phase.RUNNING,
        claimed_at=start_at - timedelta(seconds=10),
        armed_at=start_at - timedelta(seconds=5),
        cookie=f"cookie{key}",
        clock=_CLOCK,
    )
    yield message_row(partition, f"{CLAIM}{key}", claim)
    if over:
        report = JobReport(
            job_id=job.job_id,
            run_id=job.run_id,
            burst_index=job.burst_index,
            pair_index=job.pair_index,
            agent_id=agent_id,
            outcome=Outcome.MEASURED,
            planned_start_at=start_at,
            first_data_at=datetime.fromtimestamp(end.tracks[0].first_data_at_s, UTC),
            engine=_engine(job, end, over=True),
            clock_before=_CLOCK,
            clock_after=_CLOCK,
            reported_at=start_at + timedelta(seconds=job.duration_s),
        )
        yield message_row(partition, f"{REPORT}{key}", report)
    for row in _chunks(*end.chunks, len(end.host), from_s):
        name = row.row_key.replace("prefix", f"{CHUNK}{key}")
        yield Entity(partition_key=partition, row_key=name, properties=row.properties)


def server_rows(job: Job, end: End, over: bool, from_s: float) -> Iterator[Entity]:
    """A server end's: its test, its seconds."""
    start_at = job.planned_start_at
    test = ServerTest(
        agent_id=job.endpoint.agent_id,
        endpoint=job.endpoint,
        started_at=start_at - timedelta(seconds=5),
        first_data_at=datetime.fromtimestamp(end.tracks[0].first_data_at_s, UTC),
        ended_at=start_at + timedelta(seconds=job.duration_s) if over else None,
        engine=_engine(job, end, over=over),
        clock_before=_CLOCK,
        clock_after=_CLOCK if over else None,
    )
    partition = server_tests_partition(test.started_at, test.agent_id)
    key = server_test_key(test)
    chunks = [
        Entity(
            partition_key=partition,
            row_key=row.row_key.replace("prefix", f"{key}{TEST_CHUNK}"),
            properties=row.properties,
        )
        for row in _chunks(*end.chunks, len(end.host), from_s)
    ]
    row = message_row(partition, key, test)
    yield from [*chunks, row] if over else [row, *chunks]  # as agents write them


@cache
def _chunks(
    variant: int, side: Side, start_at: datetime, seconds: int, from_s: float
) -> Sequence[Entity]:
    end = end_of(variant, side, seconds, start_at)
    zero_s = start_at.timestamp()
    return chunk_rows("p", "prefix", end.tracks, end.host, host_zero_s=zero_s, from_s=from_s)


async def store(fabric: Fabric, plan: Plan, *, until_s: int | None = None) -> int:
    """Store a run with its burst; how many entities of the burst there are."""
    await fabric.records.create_run(
        RunHeader(
            run_id=plan.run_id, scenario="bench", created_at=plan.created_at, created_by="bench"
        ),
        plan.model_dump_json().encode(),
        Control(run_id=plan.run_id, lease_until_at=plan.bursts[0].planned_end_at),
    )
    return await upload(fabric, plan, until_s=until_s)


async def upload(
    fabric: Fabric,
    plan: Plan,
    *,
    until_s: int | None = None,
    from_s: float = 0.0,
    only: Container[int] | None = None,
) -> int:
    """Store the burst's rows, as all agents at once; how many there are."""
    parts: defaultdict[str, list[Entity]] = defaultdict(list)
    for row in rows_of(plan, until_s=until_s, from_s=from_s, only=only):
        parts[row.partition_key].append(row)
    for rows in parts.values():
        await fabric.results.batch(rows)
    return sum(map(len, parts.values()))
