"""Burst of many pairs as agents would store it, whole or up to one of its seconds.

The noise of eight pairs is packed. The rows of every pair are one of the eight under its own keys.
The store and its readers see no difference, and 1,000 pairs are created in seconds.
"""

import asyncio
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Container, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.plan.planner import plan as make_plan
from broadside.coordinator.core.run_spec import Plan, RunSpec, due_at
from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.core.thresholds import Objective
from broadside.coordinator.runs.evidence_loader import read_evidence
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import (
    Claim,
    ClockReading,
    ClockSource,
    EngineReport,
    Flow,
    FlowTotals,
    HostSecond,
    Interval,
    Job,
    JobPhase,
    JobReport,
    Outcome,
    ServerTest,
    Side,
    Track,
    Traffic,
)
from broadside.exchange.ports import Entity
from broadside.exchange.records import RunHeader, RunOutcome
from broadside.exchange.records.keys import (
    CHUNK,
    CLAIM,
    REPORT,
    TEST_CHUNK,
    burst_partition,
    server_test_key,
    server_tests_partition,
)
from broadside.exchange.rows import message_row
from broadside.exchange.second_rows import HostCounters, chunk_rows
from tests.synthetic_runs import create_run
from tests.unit.coordinator.presences import fleet as presences

VARIANTS_COUNT: Final = 8
T = TypeVar("T")
START: Final = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
_CLOCK: Final = ClockReading(
    source=ClockSource.CHRONY, synchronised=True, offset_s=0.0, bound_s=0.001, read_at=START
)


def run_in_process(work: Callable[..., Coroutine[Any, Any, T]], *given: object) -> T:
    """Run a module's coroutine function in a separate process and return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        reported: T = pool.apply(_carry_out, (work, given))
        return reported


def _carry_out(work: Callable[..., Coroutine[Any, Any, T]], given: Sequence[object]) -> T:
    return asyncio.run(work(*given))


def embedded(folder: str) -> Fabric:
    return open_fabric(FabricSettings(data_dir=Path(folder)))


def plan_of(pairs: int, duration_s: int, run_id: str = "bench") -> Plan:
    """Return the plan of a run with one burst that starts at :data:`START`."""
    spec = RunSpec(
        scenario="bench",
        pairs_count=pairs,
        bursts_count=1,
        burst_s=duration_s,
        period_s=duration_s + 60,
        traffic=Traffic(streams_count=8),
        objective=Objective(target_bits_per_second=pairs * 5e9),
    )
    now = START - timedelta(seconds=60)
    plan = make_plan(spec, presences(pairs, beat_at=now), now, run_id)
    burst = plan.bursts[0].model_copy(update={"planned_start_at": START})
    return plan.model_copy(update={"bursts": (burst,)})


def header_of(index: int, created_at: datetime) -> RunHeader:
    """Return the header of one of many ended runs."""
    return RunHeader(
        run_id=f"run-{index:06d}",
        scenario=f"scenario-{index % 7}",
        created_at=created_at,
        created_by="bench",
        labels={"idps": "on" if index % 2 else "off"},
        outcome=RunOutcome(
            cancelled=index % 50 == 0,
            verdict=("pass", "fail", "inconclusive")[index % 3],
            ended_at=created_at + timedelta(minutes=5),
            completeness_ratio=1 - index % 10 / 1000,
            fleet_received_bits_per_second=180e9 + index % 1000 * 1e6,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Readings of one end.

    Attributes:
        chunks: Variant, side and start of the packed chunks.
    """

    tracks: tuple[Track, ...]
    host: tuple[HostSecond, ...]
    sent_bytes: int
    chunks: tuple[int, Side, datetime]


@cache
def end_of(variant: int, side: Side, seconds: int, start_at: datetime) -> End:
    """Return the first ``seconds`` of one variant, for a burst that starts at ``start_at``."""
    # The seed makes both ends see the same traffic.
    rng = np.random.default_rng(variant)
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
    """Yield the rows of the burst, or with ``until_s`` the rows of a running burst so far.

    Args:
        plan: Plan of the run.
        until_s: Seconds of the burst so far. None means that the burst has ended.
        from_s: Second up to which rows are already stored, as in a live upload.
        only: Indexes of the pairs. None means all.
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
    """Yield the rows of a client: claim, report if it has ended, and seconds."""
    start_at, key = job.planned_start_at, f"{job.pair_index:05d}"
    partition, agent_id = burst_partition(job.run_id, job.burst_index), f"client-{key}"
    claim = Claim(
        job_id=job.job_id,
        agent_id=agent_id,
        phase=JobPhase.REPORTED if over else JobPhase.RUNNING,
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
    yield from _chunks(end, from_s, partition, f"{CHUNK}{key}")


def server_rows(job: Job, end: End, over: bool, from_s: float) -> Iterator[Entity]:
    """Yield the rows of a server: test and seconds."""
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
    chunks = _chunks(end, from_s, partition, f"{key}{TEST_CHUNK}")
    row = message_row(partition, key, test)
    # Agents write the rows in this order.
    yield from [*chunks, row] if over else [row, *chunks]


def _chunks(end: End, from_s: float, partition: str, prefix: str) -> list[Entity]:
    """Return the chunks of an end under its own keys."""
    return [
        replace(row, partition_key=partition, row_key=row.row_key.replace("prefix", prefix))
        for row in _packed_once(*end.chunks, len(end.host), from_s)
    ]


@cache
def _packed_once(
    variant: int, side: Side, start_at: datetime, seconds: int, from_s: float
) -> Sequence[Entity]:
    end = end_of(variant, side, seconds, start_at)
    zero_s = start_at.timestamp()
    return chunk_rows(
        "p", "prefix", end.tracks, HostCounters(seconds=end.host, zero_s=zero_s), from_s=from_s
    )


async def store(fabric: Fabric, plan: Plan, *, until_s: int | None = None) -> int:
    """Store a run with its burst and return the number of entities of the burst."""
    await create_run(fabric.records, plan)
    return await upload(fabric, plan, until_s=until_s)


async def upload(
    fabric: Fabric,
    plan: Plan,
    *,
    until_s: int | None = None,
    from_s: float = 0.0,
    only: Container[int] | None = None,
) -> int:
    """Store the rows of the burst for all agents and return their number."""
    parts: defaultdict[str, list[Entity]] = defaultdict(list)
    for row in rows_of(plan, until_s=until_s, from_s=from_s, only=only):
        parts[row.partition_key].append(row)
    for rows in parts.values():
        await fabric.results.batch(rows)
    return sum(map(len, parts.values()))


async def summarised(fabric: Fabric, plan: Plan) -> RunSummary:
    """Read, measure and judge the stored burst, as at its close."""
    now = due_at(plan.bursts[0])
    evidence = await read_evidence(fabric.records, plan, plan.bursts[0])
    return summarise_run(plan, [measure_burst(plan.spec, evidence, now)], None, now)
