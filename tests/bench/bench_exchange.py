"""Measure queues, table and packed seconds of the exchange with many real processes.

To run it, use ``python -m tests.bench.bench_exchange``. The embedded adapters use a temporary
directory. The ratios compare a value with a bound of the same machine.

Service Bus is the real SDK with the broker of the lab on the same machine. The values include the
cost of SDK and broker, but not that of a network.
"""

import asyncio
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from broadside.exchange.chunks import pack_host, pack_intervals, unpack_intervals
from broadside.exchange.messages import Claim, Flow, HostSecond, Job, JobPhase, Side, Track
from broadside.exchange.ports import Outgoing
from broadside.exchange.second_rows import CHUNK_S
from broadside.lab.broker_process import BrokerProcess
from broadside.lab.servicebus.queues import QueueSettings
from tests.bench.stored_fleet import end_of
from tests.contract.adapters import TABLES, Place
from tests.contract.processes import in_processes
from tests.one_table import records_in, unpack_host
from tests.unit.agent.jobs import make_job
from tests.unit.exchange.flows import ten_gigabit_flow

JOBS_COUNT: Final = 1_000
AGENTS_COUNT: Final = 30
UPLOADERS_COUNT: Final = 60
UPLOADING_S: Final = 4.0
IDLE_S: Final = 3.0
PAIRS_COUNT: Final = 30
BURST_S: Final = 1740
# Time between two uploads of one agent.
UPLOAD_EVERY_S: Final = 2.0

AT = datetime.now(UTC)


def job(pair_index: int) -> Job:
    return make_job(run_id="bench", pair_index=pair_index, planned_start_at=AT + timedelta(hours=1))


def host_seconds(count: int) -> tuple[HostSecond, ...]:
    return end_of(0, Side.CLIENT, count, AT).host


async def enqueue(place: Place) -> float:
    """Send all jobs and return the seconds taken."""
    queue = place.open_queue()
    # The first call opens the queue.
    await queue.counts()
    started_s = time.perf_counter()
    await queue.send(
        [
            Outgoing(
                body=job(n).body,
                message_id=job(n).job_id,
                expires_at=AT + timedelta(hours=1),
            )
            for n in range(JOBS_COUNT)
        ]
    )
    seconds = time.perf_counter() - started_s
    await queue.close()
    return seconds


async def claim_jobs(place: Place, number: int) -> tuple[list[int], float, float]:
    """Receive, claim and settle jobs until the queue is empty.

    The claim is skipped if the adapter has no table. Return the pair indexes and the epoch seconds
    of start and end.
    """
    queue = place.open_queue()
    table = place.open_table() if place.adapter in TABLES else None
    pairs, started_s = [], time.time()
    ended_s = started_s
    while (delivery := await queue.receive(0.5)) is not None:
        taken = Job.model_validate_json(delivery.body)
        claim = Claim(
            job_id=taken.job_id,
            agent_id=f"client-{number}",
            phase=JobPhase.CLAIMED,
            claimed_at=datetime.now(UTC),
        )
        if table is None or await records_in(table).bursts.claim(taken, claim):
            pairs.append(taken.pair_index)
        await queue.complete(delivery)
        ended_s = time.time()
    await queue.close()
    if table is not None:
        await table.close()
    return pairs, started_s, ended_s


async def wait_idle(place: Place, _: int) -> float:
    """Return the CPU seconds that one waiting receiver uses."""
    queue = place.open_queue()
    await queue.receive(0)
    before = resource.getrusage(resource.RUSAGE_SELF)
    assert await queue.receive(IDLE_S) is None
    after = resource.getrusage(resource.RUSAGE_SELF)
    await queue.close()
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


async def upload(place: Place, number: int, *, every_s: float) -> list[float]:
    """Rewrite a half-full open chunk repeatedly and return the seconds of each write."""
    table = place.open_table()
    records = records_in(table)
    flow = ten_gigabit_flow(CHUNK_S // 2, seed=number)
    track = Track(
        side=Side.CLIENT, flow=Flow.UP, first_data_at_s=AT.timestamp() + 3600, intervals=flow
    )
    host = host_seconds(CHUNK_S // 2)
    # The first call opens the table.
    await records.runs.read_control("bench")
    # Agents of a real fleet do not upload at the same instant.
    await asyncio.sleep(every_s * number / UPLOADERS_COUNT)
    taken_s, until_s = [], time.perf_counter() + UPLOADING_S
    while (started_s := time.perf_counter()) < until_s:
        await records.bursts.save_seconds(job(number), [track], host)
        taken_s.append(time.perf_counter() - started_s)
        await asyncio.sleep(max(0.0, every_s - taken_s[-1]))
    await table.close()
    return taken_s


def syncs_per_second(directory: Path) -> float:
    """Return the syncs per second of one writer that appends 4 KiB, as the bound of a log."""
    with (directory / "syncs").open("wb", buffering=0) as file:
        started_s = time.perf_counter()
        for _ in range(500):
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
        return 500 / (time.perf_counter() - started_s)


@contextmanager
def places(directory: Path) -> Iterator[list[Place]]:
    """Yield the embedded fabric and a Service Bus queue with its broker in a separate process."""
    broker = BrokerProcess(directory, {"jobs": QueueSettings(lock_s=60)}, sas_key="bench")
    broker.start()
    try:
        yield [
            Place(adapter=adapter, address=address, lock_s=60, deliveries_max_count=10)
            for adapter, address in (
                ("embedded", str(directory / "fabric")),
                ("servicebus", f"jobs {broker.connection_string}"),
            )
        ]
    finally:
        broker.stop()


def bench_queue(place: Place) -> float:
    """Print the time for sending and claiming all jobs and return the seconds of claiming."""
    print(f"{place.adapter}:")
    enqueue_s = asyncio.run(enqueue(place))
    print(
        f"  enqueue {JOBS_COUNT} jobs: {enqueue_s:.2f} s, {JOBS_COUNT / enqueue_s:,.0f} messages/s"
    )
    agents = in_processes(AGENTS_COUNT, claim_jobs, place)
    claim_s = max(ended for _, _, ended in agents) - min(started for _, started, _ in agents)
    claimed = sorted(pair for pairs, _, _ in agents for pair in pairs)
    assert claimed == list(range(JOBS_COUNT)), "a job was lost or claimed twice"
    steps = "receive, claim, settle" if place.adapter in TABLES else "receive, settle"
    print(
        f"  {steps} by {AGENTS_COUNT} agents: {claim_s:.2f} s, {JOBS_COUNT / claim_s:,.0f} jobs/s"
    )
    return claim_s


def bench_embedded(place: Place, directory: Path) -> None:
    syncs = syncs_per_second(directory)
    claim_s = bench_queue(place)
    print(
        f"  the disk gives {syncs:,.0f} synced appends/s to one writer; "
        f"{3 * JOBS_COUNT / claim_s / syncs:.2f} of that (three commits a job)"
    )

    idle_s = in_processes(AGENTS_COUNT, wait_idle, place)
    print(
        f"  {AGENTS_COUNT} idle receivers: {sum(idle_s) / IDLE_S * 100:.1f} % of one core together"
    )

    for every_s in (0.0, UPLOAD_EVERY_S):
        parts = in_processes(UPLOADERS_COUNT, partial(upload, every_s=every_s), place)
        taken_s = sorted(seconds for part in parts for seconds in part)
        rate = len(taken_s) / UPLOADING_S
        pace = f"each every {every_s:g} s" if every_s else "as fast as they can"
        print(
            f"  upserts of a half-full chunk by {UPLOADERS_COUNT} processes, {pace}: "
            f"{rate:,.0f}/s; median {taken_s[len(taken_s) // 2] * 1e3:.0f} ms, "
            f"99 % {taken_s[len(taken_s) * 99 // 100] * 1e3:.0f} ms, "
            f"worst {taken_s[-1] * 1e3:.0f} ms"
        )


def bench_chunks() -> None:
    flow = ten_gigabit_flow(BURST_S, seed=1)
    host = host_seconds(BURST_S)
    cuts = range(0, BURST_S, CHUNK_S)
    started_s = time.perf_counter()
    packed = [pack_intervals(flow[at : at + CHUNK_S]) for at in cuts]
    pack_s = time.perf_counter() - started_s
    packed_host = [pack_host(host[at : at + CHUNK_S]) for at in cuts]
    flow_bytes, host_bytes = sum(map(len, packed)), sum(map(len, packed_host))
    json_bytes = len(json.dumps([asdict(interval) for interval in flow]))
    print(f"chunks of a noisy {BURST_S} s, 10 Gbit/s flow:")
    print(
        f"  {flow_bytes / BURST_S:.2f} bytes a second stored (limit 12), host counters "
        f"{host_bytes / BURST_S:.2f}; {json_bytes / flow_bytes:.0f} times smaller than JSON, "
        f"{5 * 8 * BURST_S / flow_bytes:.1f} than five 64-bit integers; packed in "
        f"{pack_s * 1e3:.0f} ms"
    )
    started_s = time.perf_counter()
    for _ in range(2 * PAIRS_COUNT):
        for chunk in packed:
            unpack_intervals(chunk)
    decode_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    for _ in range(2 * PAIRS_COUNT):
        for chunk in packed_host:
            unpack_host(chunk)
    host_s = time.perf_counter() - started_s
    print(
        f"  decode {PAIRS_COUNT} pairs x 2 ends: flows {decode_s:.2f} s, host counters "
        f"{host_s:.2f} s; {2 * PAIRS_COUNT * BURST_S / decode_s:,.0f} intervals/s"
    )


def main() -> None:
    bench_chunks()
    with (
        tempfile.TemporaryDirectory(prefix="broadside-bench-") as directory,
        places(Path(directory)) as (embedded, service_bus),
    ):
        bench_embedded(embedded, Path(directory))
        bench_queue(service_bus)


if __name__ == "__main__":
    main()
