"""Test ``Collection`` on all table adapters."""

import asyncio

import pytest

from broadside.exchange.messages import Message
from broadside.exchange.ports import EntityExists, EntityNotFound, RecordUnreadable, Table
from broadside.exchange.records.collection import Collection


class Score(Message):
    points: int = 0


class Named(Message):
    name: str


async def test_only_one_concurrent_create_succeeds(table: Table) -> None:
    collection = Collection(table, "scores", Score)
    outcomes = await asyncio.gather(
        *(collection.create("one", Score(points=n)) for n in range(8)), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, EntityExists)]
    assert len(refused) == 7
    assert outcomes.count(None) == 1
    winner = outcomes.index(None)
    assert await collection.read("one") == Score(points=winner)


async def test_concurrent_changes_are_all_applied(table: Table) -> None:
    collection = Collection(table, "scores", Score)
    await collection.put("one", Score())

    async def add() -> None:
        for _ in range(3):
            await collection.change("one", lambda old: Score(points=old.points + 1))

    await asyncio.gather(add(), add(), add())
    assert await collection.read("one") == Score(points=9)


async def test_change_of_a_missing_row_is_an_error(table: Table) -> None:
    collection = Collection(table, "scores", Score)
    with pytest.raises(EntityNotFound, match="scores one"):
        await collection.change("one", lambda old: old)
    assert await collection.read("one") is None


async def test_scan_returns_keys_in_order_within_bounds(table: Table) -> None:
    collection = Collection(table, "scores", Score)
    for key in ("c", "a", "d", "b"):
        await collection.put(key, Score(points=ord(key)))
    results = [key async for key, _ in collection.scan(key_from="b", key_before="d")]
    assert results == ["b", "c"]
    assert [key async for key, _ in collection.scan(limit=3)] == ["a", "b", "c"]


async def test_delete_returns_true_if_the_row_existed(table: Table) -> None:
    collection = Collection(table, "scores", Score)
    await collection.put("one", Score())
    assert await collection.delete("one")
    assert not await collection.delete("one")


async def test_clear_removes_one_collection_only(table: Table) -> None:
    collection, other = Collection(table, "scores", Score), Collection(table, "scores.more", Score)
    for key in ("a", "b"):
        await collection.put(key, Score())
        await other.put(key, Score())
    assert await collection.clear() == 2
    assert [key async for key, _ in collection.scan()] == []
    assert [key async for key, _ in other.scan()] == ["a", "b"]


async def test_row_of_another_kind_is_reported(table: Table) -> None:
    await Collection(table, "scores", Score).put("one", Score())
    with pytest.raises(RecordUnreadable, match=r"scores\|one: not a Named"):
        await Collection(table, "scores", Named).read("one")


async def test_unreadable_row_is_skipped_and_listed(table: Table) -> None:
    named, collection = Collection(table, "scores", Named), Collection(table, "scores", Score)
    await collection.put("a", Score(points=1))
    await named.put("b", Named(name="of another version"))
    await collection.put("c", Score(points=3))
    assert [key async for key, _ in collection.scan()] == ["a", "c"]
    assert [key async for key, _ in collection.scan(limit=2)] == ["a", "c"]
    assert await collection.unreadable() == ["scores|b"]
    assert await collection.unreadable(key_before="b") == []
