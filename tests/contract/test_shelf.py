"""Test ``Collection`` over every adapter's table: single creation, no lost update, key order."""

import asyncio

import pytest

from broadside.exchange.messages import Message
from broadside.exchange.ports import EntityExists, EntityNotFound, RecordUnreadable, Table
from broadside.exchange.records.collection import Collection


class Score(Message):
    points: int = 0


class Named(Message):
    name: str


async def test_one_of_many_creators_wins(table: Table) -> None:
    shelf = Collection(table, "scores", Score)
    outcomes = await asyncio.gather(
        *(shelf.create("one", Score(points=n)) for n in range(8)), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, EntityExists)]
    assert len(refused) == 7
    assert outcomes.count(None) == 1
    winner = outcomes.index(None)
    assert await shelf.read("one") == Score(points=winner)


async def test_concurrent_changes_all_count(table: Table) -> None:
    shelf = Collection(table, "scores", Score)
    await shelf.put("one", Score())

    async def add() -> None:
        for _ in range(3):
            await shelf.change("one", lambda old: Score(points=old.points + 1))

    await asyncio.gather(add(), add(), add())
    assert await shelf.read("one") == Score(points=9)


async def test_changing_what_is_not_there_is_an_error_and_writes_nothing(table: Table) -> None:
    shelf = Collection(table, "scores", Score)
    with pytest.raises(EntityNotFound, match="scores one"):
        await shelf.change("one", lambda old: old)
    assert await shelf.read("one") is None


async def test_scan_gives_keys_in_order_within_bounds(table: Table) -> None:
    shelf = Collection(table, "scores", Score)
    for key in ("c", "a", "d", "b"):
        await shelf.put(key, Score(points=ord(key)))
    results = [key async for key, _ in shelf.scan(key_from="b", key_before="d")]
    assert results == ["b", "c"]
    assert [key async for key, _ in shelf.scan(limit=3)] == ["a", "b", "c"]


async def test_delete_says_whether_there_was_one(table: Table) -> None:
    shelf = Collection(table, "scores", Score)
    await shelf.put("one", Score())
    assert await shelf.delete("one")
    assert not await shelf.delete("one")


async def test_clearing_takes_one_shelf_only(table: Table) -> None:
    shelf, other = Collection(table, "scores", Score), Collection(table, "scores.more", Score)
    for key in ("a", "b"):
        await shelf.put(key, Score())
        await other.put(key, Score())
    assert await shelf.clear() == 2
    assert [key async for key, _ in shelf.scan()] == []
    assert [key async for key, _ in other.scan()] == ["a", "b"]


async def test_another_kind_of_row_is_named(table: Table) -> None:
    await Collection(table, "scores", Score).put("one", Score())
    with pytest.raises(RecordUnreadable, match=r"scores\|one: not a Named"):
        await Collection(table, "scores", Named).read("one")


async def test_what_cannot_be_read_is_left_out_where_all_are_looked_after(table: Table) -> None:
    named, shelf = Collection(table, "scores", Named), Collection(table, "scores", Score)
    await shelf.put("a", Score(points=1))
    await named.put("b", Named(name="of another version"))
    await shelf.put("c", Score(points=3))
    assert [key async for key, _ in shelf.scan()] == ["a", "c"]
    assert [key async for key, _ in shelf.scan(limit=2)] == ["a", "c"]
    assert await shelf.unreadable() == ["scores|b"]
    assert await shelf.unreadable(key_before="b") == []
