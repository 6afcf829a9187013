"""Tests for combining concurrent writes into a single commit."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from broadside.coordinator.agent_gateway import exchange_service
from broadside.coordinator.agent_gateway.exchange_service import ExchangeService
from broadside.exchange.fabric import Fabric
from broadside.exchange.ports import Delivery, Entity
from broadside.exchange.row_text import entity_fields

WRITES_COUNT = 40


class FullAccess:
    """Permissions to call all operations."""

    name = "client.c1"
    address = "::1"

    async def allow(self, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        return operation

    async def record_delivery(self, delivery: Delivery) -> None: ...


async def _write(service: ExchangeService, number: int) -> dict[str, Any]:
    row = entity_fields(Entity(partition_key="p", row_key=f"{number:03d}", properties={"n": 1}))
    [answer] = await service.do(
        FullAccess(), [{"id": f"s.{number}", "do": "upsert", "table": "results", "row": row}]
    )
    return answer


async def test_concurrent_writes_share_a_commit(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = ExchangeService(fabric)
    # There is no need to wait if no stream is open.
    assert "ok" in await _write(service, 0)
    lines: list[str] = []
    monkeypatch.setattr(exchange_service, "GATHER_S", 4.0)
    monkeypatch.setattr(exchange_service, "GATHER_MAX_S", 4.0)
    stream = service.stream(FullAccess(), "one")
    await anext(stream)
    database = fabric.results._database  # type: ignore[attr-defined]
    await database.read(lambda connection: connection.set_trace_callback(lines.append))
    blocked, released = threading.Event(), threading.Event()

    def block(_: object) -> None:
        blocked.set()
        released.wait(60)

    # The database thread will be blocked until it is released.
    database.submit(block, reads=True)
    await asyncio.to_thread(blocked.wait, 60)
    writes = []
    for number in range(1, WRITES_COUNT + 1):
        writes.append(asyncio.create_task(_write(service, number)))
        # Start the writes one by one.
        await asyncio.sleep(0)
    cancelled = writes.pop()
    cancelled.cancel()
    while not database._due:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    # All of them are added in the same iteration of the loop.
    assert len(database._due) == WRITES_COUNT - 1
    released.set()
    assert all("ok" in answer for answer in await asyncio.gather(*writes))
    assert lines.count("COMMIT") == 1
    assert [row.row_key async for row in fabric.results.scan("p")] == [
        f"{number:03d}" for number in range(WRITES_COUNT)
    ]
    await stream.aclose()
