"""In-memory queue and table to be used in agent tests. The table can be set to unavailable."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from broadside.agent.agent_context import Tools
from broadside.agent.counters import HostLog
from broadside.agent.engine_process import Iperf3Program
from broadside.agent.host import Host
from broadside.agent.worker import Worker
from broadside.exchange.engines.iperf3_account import Version
from broadside.exchange.messages import HostInfo
from broadside.exchange.outage_log import OutageLog, utc_now
from broadside.exchange.ports import (
    DeadLetter,
    Delivery,
    Entity,
    EntityChanged,
    EntityExists,
    EntityNotFound,
    ExchangeError,
    ExchangeUnavailable,
    Outgoing,
    QueueCounts,
)
from broadside.exchange.records import Records
from tests.unit.agent.jobs import make_settings

HOST: Final = Host(
    address="10.1.1.1",
    nic="eth0",
    nic_mtu_bytes=1500,
    kernel="6.1",
    cpu_count=4,
    passport=HostInfo(),
)


def make_tools(records: Records, **settings: Any) -> Tools:
    """Return the tools for a client agent without start gate. Its engine cannot be started."""
    return Tools(
        settings=make_settings(**settings),
        host=HOST,
        engine=Iperf3Program(
            binary=("/nowhere/iperf3",), version=Version(3, 18), preloadable=False
        ),
        gate=None,
        records=records,
        results=records.bursts,
        troubles=OutageLog(),
        host_log=HostLog(retention_s=10),
        stopping=asyncio.Event(),
        changed=asyncio.Event(),
    )


class MemoryTable:
    """Implement :class:`~broadside.exchange.ports.Table` with a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Entity] = {}
        # Row keys, in the order they were written.
        self.written: list[str] = []
        self.away = False
        self.refusing: Callable[[Entity], ExchangeError | None] = lambda _: None
        self._version = 0

    def _check_available(self) -> None:
        if self.away:
            raise ExchangeUnavailable("the table is away")

    async def insert(self, entity: Entity) -> str:
        self._check_available()
        if (entity.partition_key, entity.row_key) in self.rows:
            raise EntityExists(entity.row_key)
        return self._write(entity)

    async def upsert(self, entity: Entity) -> str:
        self._check_available()
        if (refusal := self.refusing(entity)) is not None:
            raise refusal
        return self._write(entity)

    async def replace(self, entity: Entity, etag: str) -> str:
        self._check_available()
        answer = self.rows.get((entity.partition_key, entity.row_key))
        if answer is None:
            raise EntityNotFound(entity.row_key)
        if answer.etag != etag:
            raise EntityChanged(entity.row_key)
        return self._write(entity)

    async def get(self, partition_key: str, row_key: str) -> Entity | None:
        self._check_available()
        return self.rows.get((partition_key, row_key))

    async def scan(
        self,
        partition_key: str,
        *,
        row_from: str | None = None,
        row_before: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Entity]:
        self._check_available()
        keys = sorted(row for partition, row in self.rows if partition == partition_key)
        results = [
            key
            for key in keys
            if (row_from is None or key >= row_from) and (row_before is None or key < row_before)
        ]
        for key in results[:limit]:
            yield self.rows[partition_key, key]

    async def delete(self, partition_key: str, row_key: str) -> bool:
        self._check_available()
        return self.rows.pop((partition_key, row_key), None) is not None

    async def batch(self, entities: Sequence[Entity]) -> None:
        self._check_available()
        for entity in entities:
            self._write(entity)

    async def next_partition(self, key_from: str, key_before: str) -> str | None:
        raise NotImplementedError

    async def delete_partition(self, partition_key: str) -> int:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    def _write(self, entity: Entity) -> str:
        self._version += 1
        self.written.append(entity.row_key)
        stored = replace(entity, etag=str(self._version))
        self.rows[entity.partition_key, entity.row_key] = stored
        return str(self._version)


class MemoryQueue:
    """Implement :class:`~broadside.exchange.ports.JobQueue` with a list. ``settled`` records the
    calls that settled a message."""

    def __init__(self) -> None:
        self.waiting: list[Delivery] = []
        # Tuples of the verb, the message id and further arguments.
        self.settled: list[tuple[str, ...]] = []
        # Set when there was no message to receive.
        self.idle = asyncio.Event()

    def put(self, body: bytes, message_id: str) -> None:
        self.waiting.append(
            Delivery(
                body=body,
                message_id=message_id,
                delivery_count=1,
                locked_until_at=utc_now() + timedelta(seconds=60),
                token=None,
            )
        )

    async def receive(self, wait_s: float) -> Delivery | None:
        if self.waiting:
            return self.waiting.pop(0)
        self.idle.set()
        await asyncio.sleep(0)
        return None

    async def complete(self, delivery: Delivery) -> None:
        self.settled.append(("complete", delivery.message_id))

    async def abandon(self, delivery: Delivery) -> None:
        self.settled.append(("abandon", delivery.message_id))

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        self.settled.append(("dead_letter", delivery.message_id, reason, description))

    async def send(self, messages: Sequence[Outgoing]) -> Sequence[int]:
        raise NotImplementedError

    async def cancel(self, sequence_numbers: Sequence[int]) -> int:
        raise NotImplementedError

    async def renew(self, delivery: Delivery) -> Delivery:
        raise NotImplementedError

    async def dead_letters(self, limit: int = 100) -> Sequence[DeadLetter]:
        raise NotImplementedError

    async def resend(self, sequence_number: int, expires_at: datetime) -> bool:
        raise NotImplementedError

    async def purge(self, sequence_number: int | None = None, *, limit: int = 1000) -> int:
        raise NotImplementedError

    async def ping(self) -> None:
        """Do nothing. The queue can always be reached."""

    async def counts(self) -> QueueCounts:
        raise NotImplementedError

    async def close(self) -> None:
        pass


async def work_until_idle(worker: Worker, queue: MemoryQueue) -> None:
    """Run a worker until the queue is empty and stop it. Raises the error of the worker."""
    queue.idle.clear()
    work = asyncio.create_task(worker.run())
    idle = asyncio.create_task(queue.idle.wait())
    await asyncio.wait({work, idle}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    worker.tools.stopping.set()
    idle.cancel()
    await asyncio.gather(idle, return_exceptions=True)
    await work
