"""1,000 jobs sent by one coordinator and claimed by 30 agents, on both fabrics' queues.

Run as ``python -m tests.bench.bench_servicebus``. Agents are processes of their own; Service Bus
is the real SDK to the lab's broker on the same machine, so the figures are the SDK's cost and the
broker's, with no network between.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from exchange.messages import Endpoint, Job, Traffic
from exchange.ports import Outgoing
from lab.servicebus.broker_process import BrokerProcess
from lab.servicebus.queues import QueueSettings
from tests.contract.adapters import Place
from tests.contract.processes import in_processes

JOBS_COUNT: Final = 1_000
AGENTS_COUNT: Final = 30
LOCK_S: Final = 60.0
START_AT: Final = datetime.now(UTC) + timedelta(hours=1)


def outgoing(pair_index: int) -> Outgoing:
    job = Job(
        run_id="bench",
        burst_index=0,
        pair_index=pair_index,
        endpoint=Endpoint(agent_id="server-1", address="10.2.1.1", port=5201),
        traffic=Traffic(),
        planned_start_at=START_AT,
        duration_s=30,
    )
    body = job.model_dump_json().encode()
    return Outgoing(body=body, message_id=job.job_id, expires_at=START_AT)


async def send_all(place: Place) -> float:
    """Seconds to send every job, the connection's opening included."""
    queue = place.open_queue()
    messages = [outgoing(pair_index) for pair_index in range(JOBS_COUNT)]
    started_s = time.monotonic()
    await queue.send(messages)
    sent_s = time.monotonic() - started_s
    await queue.close()
    return sent_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one agent got, and when, by the machine's monotonic clock."""

    pairs: tuple[int, ...]
    first_at_s: float
    last_at_s: float


async def claim_some(place: Place, _: int) -> Share:
    """Receive one message, complete it, and again, until none comes."""
    queue = place.open_queue()
    pairs, first_at_s, last_at_s = [], float("inf"), 0.0
    while (delivery := await queue.receive(1.0)) is not None:
        first_at_s = min(first_at_s, time.monotonic())
        await queue.complete(delivery)
        last_at_s = time.monotonic()
        pairs.append(Job.model_validate_json(delivery.body).pair_index)
    await queue.close()
    return Share(pairs=tuple(pairs), first_at_s=first_at_s, last_at_s=last_at_s)


@contextmanager
def places() -> Iterator[list[Place]]:
    """The embedded queue, and a Service Bus queue of a broker in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="broadside-bench-") as folder:
        settings = QueueSettings(lock_s=LOCK_S)
        broker = BrokerProcess(Path(folder), {"jobs": settings}, sas_key="bench")
        broker.start()
        try:
            yield [
                Place(adapter=adapter, address=address, lock_s=LOCK_S, deliveries_max_count=10)
                for adapter, address in (
                    ("embedded", f"{folder}/embedded"),
                    ("servicebus", f"jobs {broker.connection_string}"),
                )
            ]
        finally:
            broker.stop()


def main() -> None:
    with places() as compared:
        for place in compared:
            sent_s = asyncio.run(send_all(place))
            shares = in_processes(AGENTS_COUNT, claim_some, place)
            claimed_s = max(s.last_at_s for s in shares) - min(s.first_at_s for s in shares)
            pairs = sorted(pair for share in shares for pair in share.pairs)
            figures = {
                "queue": place.adapter,
                "jobs_count": JOBS_COUNT,
                "agents_count": AGENTS_COUNT,
                "send_s": round(sent_s, 3),
                "send_per_s": round(JOBS_COUNT / sent_s),
                "claim_s": round(claimed_s, 3),
                "claim_per_s": round(JOBS_COUNT / claimed_s),
                "each_exactly_once": pairs == list(range(JOBS_COUNT)),
            }
            print(json.dumps(figures))


if __name__ == "__main__":
    main()
