"""Readiness: not while a table or the queue takes no writes, and again as soon as it does."""

from typing import Any

import httpx
import pytest

from broadside.coordinator.runs import storage_watch
from broadside.exchange.fabric import Fabric
from broadside.exchange.ports import Entity, ExchangeUnavailable

FULL = "PRAGMA max_page_count={}"  # of the pages that there are: SQLite's own word for a full disk
READ_ONLY = "PRAGMA query_only={}"


async def set_on(place: Any, pragma: str) -> None:
    await place._database.run(lambda connection: connection.execute(pragma).fetchall())


async def refused(api: httpx.AsyncClient, name: str, said: str) -> None:
    answer = await api.get("/readyz")
    assert answer.status_code == 503
    assert said in answer.json()["detail"]
    assert name in answer.json()["detail"]
    assert "sqlite3" not in answer.text, "anybody may ask: no file is named"
    assert (await api.get("/healthz")).status_code == 200


@pytest.mark.parametrize("name", ["private", "control", "results", "queue"])
async def test_a_coordinator_is_not_ready_while_a_place_is_read_only(
    fabric: Fabric, api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(storage_watch, "PROBE_S", -1.0)
    monkeypatch.setattr(storage_watch, "REFUSED_S", -1.0)
    place = getattr(fabric, name)
    assert (await api.get("/readyz")).status_code == 200
    await set_on(place, READ_ONLY.format(1))
    await refused(api, name, "it is read-only")
    await set_on(place, READ_ONLY.format(0))
    assert (await api.get("/readyz")).status_code == 200


@pytest.mark.parametrize("name", ["private", "control", "results"])
async def test_a_coordinator_is_not_ready_while_a_table_is_full(
    fabric: Fabric, api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(storage_watch, "PROBE_S", -1.0)
    monkeypatch.setattr(storage_watch, "REFUSED_S", -1.0)
    place = getattr(fabric, name)
    await set_on(place, FULL.format(1))
    await refused(api, name, "the disk is full")
    await set_on(place, FULL.format(2**30))
    assert (await api.get("/readyz")).status_code == 200


async def test_a_refused_write_that_is_larger_than_the_trial_counts(
    fabric: Fabric, api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What earlier trials freed has room for the next one, and for nothing larger."""
    monkeypatch.setattr(storage_watch, "PROBE_S", -1.0)
    assert (await api.get("/readyz")).status_code == 200
    await set_on(fabric.results, FULL.format(1))
    large = {f"blob{number}": bytes(60_000) for number in range(5)}
    with pytest.raises(ExchangeUnavailable, match="disk full"):
        await fabric.results.insert(Entity(partition_key="p", row_key="r", properties=large))
    await refused(api, "results", "the disk is full")
    await set_on(fabric.results, FULL.format(2**30))
    monkeypatch.setattr(storage_watch, "REFUSED_S", -1.0)
    assert (await api.get("/readyz")).status_code == 200


async def test_many_who_ask_at_once_cost_one_trial(fabric: Fabric) -> None:
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


async def test_a_trial_leaves_nothing(fabric: Fabric) -> None:
    assert await storage_watch.WriteProbe(fabric).problem() is None
    for table in (fabric.private, fabric.control, fabric.results):
        assert [row async for row in table.scan("doctor")] == []
    counts = await fabric.queue.counts()
    assert (counts.active_count, counts.scheduled_count, counts.dead_count) == (0, 0, 0)
