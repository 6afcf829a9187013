"""Tests for the readiness endpoint when a table or the queue rejects writes."""

from typing import Any

import httpx
import pytest

from broadside.coordinator.runs import storage_watch
from broadside.exchange.fabric import Fabric
from broadside.exchange.ports import Entity, ExchangeUnavailable

# SQLite will report a full disk if there is no free page.
FULL = "PRAGMA max_page_count={}"
READ_ONLY = "PRAGMA query_only={}"


async def run_pragma(place: Any, pragma: str) -> None:
    await place._database.run(lambda connection: connection.execute(pragma).fetchall())


async def assert_not_ready(api: httpx.AsyncClient, name: str, message: str) -> None:
    answer = await api.get("/readyz")
    assert answer.status_code == 503
    assert message in answer.json()["detail"]
    assert name in answer.json()["detail"]
    assert "sqlite3" not in answer.text, "an unauthenticated response must not name files"
    assert (await api.get("/healthz")).status_code == 200


@pytest.mark.parametrize("name", ["private", "control", "results", "queue"])
async def test_not_ready_while_a_store_is_read_only(
    fabric: Fabric, api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(storage_watch, "PROBE_S", -1.0)
    monkeypatch.setattr(storage_watch, "REFUSED_S", -1.0)
    place = getattr(fabric, name)
    assert (await api.get("/readyz")).status_code == 200
    await run_pragma(place, READ_ONLY.format(1))
    await assert_not_ready(api, name, "it is read-only")
    await run_pragma(place, READ_ONLY.format(0))
    assert (await api.get("/readyz")).status_code == 200


@pytest.mark.parametrize("name", ["private", "control", "results"])
async def test_not_ready_while_a_table_is_full(
    fabric: Fabric, api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(storage_watch, "PROBE_S", -1.0)
    monkeypatch.setattr(storage_watch, "REFUSED_S", -1.0)
    place = getattr(fabric, name)
    await run_pragma(place, FULL.format(1))
    await assert_not_ready(api, name, "the disk is full")
    await run_pragma(place, FULL.format(2**30))
    assert (await api.get("/readyz")).status_code == 200


async def test_not_ready_after_rejection_of_a_large_write(
    fabric: Fabric, api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe can write to the pages freed by the last probe, but a large row cannot."""
    monkeypatch.setattr(storage_watch, "PROBE_S", -1.0)
    assert (await api.get("/readyz")).status_code == 200
    await run_pragma(fabric.results, FULL.format(1))
    large = {f"blob{number}": bytes(60_000) for number in range(5)}
    with pytest.raises(ExchangeUnavailable, match="disk full"):
        await fabric.results.insert(Entity(partition_key="p", row_key="r", properties=large))
    await assert_not_ready(api, "results", "the disk is full")
    await run_pragma(fabric.results, FULL.format(2**30))
    monkeypatch.setattr(storage_watch, "REFUSED_S", -1.0)
    assert (await api.get("/readyz")).status_code == 200


async def test_requests_share_a_write_probe(fabric: Fabric) -> None:
    clock_s = 0.0
    tried: list[int] = []

    class Counted(storage_watch.WriteProbe):
        async def _try(self) -> str | None:
            tried.append(1)
            return None

    probe = Counted(fabric, lambda: clock_s)
    for _ in range(100):
        await probe.problem()
    assert len(tried) == 1
    clock_s = storage_watch.PROBE_S + 0.1
    await probe.problem()
    assert len(tried) == 2


async def test_write_probe_leaves_no_rows_or_messages(fabric: Fabric) -> None:
    assert await storage_watch.WriteProbe(fabric).problem() is None
    for table in (fabric.private, fabric.control, fabric.results):
        assert [row async for row in table.scan("doctor")] == []
    counts = await fabric.queue.counts()
    assert (counts.active_count, counts.scheduled_count, counts.dead_count) == (0, 0, 0)
