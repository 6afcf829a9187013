"""Test the contracts with many real processes on one queue and one table."""

import asyncio
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from multiprocessing.connection import Connection
from typing import Final

import pytest

from broadside.exchange.ports import Entity, EntityChanged, EntityExists, LockLost, Outgoing
from tests.contract.adapters import Place
from tests.contract.processes import in_processes, reported_by

CLAIMANTS_COUNT: Final = 100
CLAIMED_COUNT: Final = 4
ADDERS_COUNT: Final = 8
RECEIVERS_COUNT: Final = 30
MESSAGES_COUNT: Final = 300


async def _claim(place: Place, number: int) -> Sequence[int]:
    """Try to create the rows that all processes want to create, and return the created ones."""
    table = place.open_table()
    created = []
    for job in range(CLAIMED_COUNT):
        try:
            await table.insert(
                Entity(partition_key="claims", row_key=f"{job:03d}", properties={"by": number})
            )
            created.append(job)
        except EntityExists:
            pass
    await table.close()
    return created


async def _stored_claims(place: Place) -> Mapping[str, object]:
    table = place.open_table()
    claims = {row.row_key: row.properties["by"] async for row in table.scan("claims")}
    await table.close()
    return claims


def test_exactly_one_of_a_hundred_claims_succeeds(table_place: Place) -> None:
    created = in_processes(CLAIMANTS_COUNT, _claim, table_place)
    assert sorted(job for jobs in created for job in jobs) == list(range(CLAIMED_COUNT))
    fields = {f"{job:03d}": number for number, jobs in enumerate(created) for job in jobs}
    assert asyncio.run(_stored_claims(table_place)) == fields


async def _send(place: Place, _: int) -> None:
    """Send all messages from all senders, like coordinators that resume at the same time."""
    queue = place.open_queue()
    expires_at = datetime.now(UTC) + timedelta(minutes=5)
    await queue.send(
        [
            Outgoing(body=b"%d" % n, message_id=f"job.{n}", expires_at=expires_at)
            for n in range(MESSAGES_COUNT)
        ]
    )
    await queue.close()


async def _receive_all(place: Place, _: int) -> Sequence[int]:
    queue = place.open_queue()
    bodies = []
    while (delivery := await queue.receive(1.0)) is not None:
        try:
            await queue.complete(delivery)
        except LockLost:
            # On a busy machine another process may get the message.
            continue
        bodies.append(int(delivery.body))
    await queue.close()
    return bodies


def test_every_message_is_received_exactly_once(queue_place: Place) -> None:
    in_processes(4, _send, queue_place)
    parts = in_processes(RECEIVERS_COUNT, _receive_all, queue_place)
    assert sorted(n for part in parts for n in part) == list(range(MESSAGES_COUNT))
    assert sum(1 for part in parts if part) > 1, "the processes did not compete"


async def _count_up(place: Place, _: int) -> int:
    """Add one ten times with ETag match, and return the number of conflicts."""
    table = place.open_table()
    lost_count = added_count = 0
    while added_count < 10:
        row = await table.get("counters", "a")
        assert row is not None
        n = row.properties["n"]
        assert isinstance(n, int)
        increased = Entity(partition_key="counters", row_key="a", properties={"n": n + 1})
        try:
            await table.replace(increased, row.etag or "")
            added_count += 1
        except EntityChanged:
            lost_count += 1
    await table.close()
    return lost_count


async def _counter(place: Place, start: int | None = None) -> object:
    table = place.open_table()
    if start is not None:
        await table.insert(Entity(partition_key="counters", row_key="a", properties={"n": start}))
    row = await table.get("counters", "a")
    await table.close()
    return row and row.properties["n"]


def test_etag_match_prevents_lost_updates(table_place: Place) -> None:
    asyncio.run(_counter(table_place, 0))
    lost = in_processes(ADDERS_COUNT, _count_up, table_place)
    assert asyncio.run(_counter(table_place)) == 10 * ADDERS_COUNT
    assert sum(lost) > 0, "the processes did not compete"


async def _write_on(place: Place, writer: "Connection[int, object]") -> None:
    """Write the same fifty rows again and again, and send the number when a batch is complete."""
    table = place.open_table()
    for n in range(1_000_000):
        await table.batch(
            [
                Entity(partition_key="part", row_key=f"{key:02d}", properties={"n": n})
                for key in range(50)
            ]
        )
        writer.send(n)


def _numbers(reader: "Connection[object, int]") -> Iterator[int]:
    """Yield the numbers that were received before the end."""
    with suppress(EOFError):
        while True:
            yield reader.recv()


@pytest.mark.parametrize("after_s", [0.005, 0.02, 0.05])
def test_killed_writer_loses_no_acknowledged_batch(table_place: Place, after_s: float) -> None:
    with reported_by(_write_on, table_place) as (writer, reader):
        first = list(islice(_numbers(reader), 5))
        assert first == list(range(5)), "the writer died by itself"
        # The kill needs to happen during a batch.
        time.sleep(after_s)
        writer.kill()
        reported = [*first, *_numbers(reader)]
        writer.join()
        assert writer.exitcode == -signal.SIGKILL, "the writer died by itself"

    async def stored() -> Sequence[object]:
        table = table_place.open_table()
        rows = [row.properties["n"] async for row in table.scan("part")]
        await table.insert(Entity(partition_key="part", row_key="after", properties={"n": 0}))
        await table.close()
        return rows

    rows = asyncio.run(stored())
    assert len(rows) == 50
    assert len(set(rows)) == 1, "a batch must be written completely"
    last = rows[0]
    assert isinstance(last, int)
    assert last >= reported[-1]
