"""Writes of many agents at about one moment share a commit; those of few wait for nobody."""

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


class Anyone:
    """Rights to everything."""

    name = "client.c1"
    address = "::1"

    async def allow(self, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        return operation

    async def record_delivery(self, delivery: Delivery) -> None: ...


async def _write(service: ExchangeService, number: int) -> dict[str, Any]:
    row = entity_fields(Entity(partition_key="p", row_key=f"{number:03d}", properties={"n": 1}))
    [answer] = await service.do(
        Anyone(), [{"id": f"s.{number}", "do": "upsert", "table": "results", "row": row}]
    )
    return answer


async def test_writes_of_one_moment_share_a_commit(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = ExchangeService(fabric)
    assert "ok" in await _write(service, 0)  # with no stream there is nobody to wait for
    lines: list[str] = []
    monkeypatch.setattr(exchange_service, "GATHER_S", 4.0)
    monkeypatch.setattr(exchange_service, "GATHER_MAX_S", 4.0)
    stream = service.stream(Anyone(), "one")
    await anext(stream)
    database = fabric.results._database  # type: ignore[attr-defined]  # the embedded table's
    await database.read(lambda connection: connection.set_trace_callback(lines.append))
    stored, released = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        stored.set()
        released.wait(60)

    # Its thread takes up nothing from here until it is released.
    database.submit(hold, reads=True)
    await asyncio.to_thread(stored.wait, 60)
    writes = []
    for number in range(1, WRITES_COUNT + 1):
        writes.append(asyncio.create_task(_write(service, number)))
        await asyncio.sleep(0)  # each comes by itself
    given_up = writes.pop()
    given_up.cancel()
    while not database._due:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    assert len(database._due) == WRITES_COUNT - 1  # all in one turn of the loop
    released.set()
    assert all("ok" in answer for answer in await asyncio.gather(*writes))
    assert lines.count("COMMIT") == 1
    assert [row.row_key async for row in fabric.results.scan("p")] == [
        f"{number:03d}" for number in range(WRITES_COUNT)
    ]
    await stream.aclose()
