"""Test the contract for :class:`broadside.exchange.ports.Table` on all adapters."""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone

import pytest

from broadside.exchange.ports import (
    BATCH_MAX_COUNT,
    KEY_MAX_CHARS,
    PROPERTY_MAX_BYTES,
    PROPERTY_MAX_COUNT,
    Entity,
    EntityChanged,
    EntityExists,
    EntityNotFound,
    EntityTooLarge,
    Table,
    Value,
)
from tests.contract.adapters import Place

NOISE = random.Random(11).randbytes(PROPERTY_MAX_BYTES)


def row(key: str, properties: Mapping[str, Value] | None = None, partition: str = "part") -> Entity:
    return Entity(partition_key=partition, row_key=key, properties=properties or {"n": 1})


async def read(table: Table, key: str = "a") -> Entity:
    """Return an existing row."""
    stored = await table.get("part", key)
    assert stored is not None, key
    return stored


async def keys(rows: AsyncIterator[Entity]) -> Sequence[str]:
    return [entity.row_key async for entity in rows]


async def test_insert_never_overwrites(table: Table) -> None:
    etag = await table.insert(row("a", {"who": "first"}))
    with pytest.raises(EntityExists, match=r"part\|a"):
        await table.insert(row("a", {"who": "second"}))
    stored = await read(table)
    assert (stored.partition_key, stored.row_key, stored.etag) == ("part", "a", etag)
    assert stored.properties == {"who": "first"}


async def test_upsert_replaces_the_complete_row(table: Table) -> None:
    await table.upsert(row("a", {"old": 1, "both": 1}))
    await table.upsert(row("a", {"new": 2, "both": 2}))
    assert (await read(table)).properties == {"new": 2, "both": 2}


async def test_replace_requires_the_newest_etag(table: Table) -> None:
    first = await table.insert(row("a", {"n": 1}))
    second = await table.replace(row("a", {"m": 2}), first)
    assert second != first
    with pytest.raises(EntityChanged, match=r"part\|a"):
        await table.replace(row("a", {"n": 3}), first)
    stored = await read(table)
    assert (stored.properties, stored.etag) == ({"m": 2}, second)


async def test_replace_of_a_missing_row_is_an_error(table: Table) -> None:
    etag = await table.insert(row("a"))
    await table.delete("part", "a")
    with pytest.raises(EntityNotFound, match=r"part\|a"):
        await table.replace(row("a"), etag)
    await table.insert(row("a"))
    with pytest.raises(EntityChanged):
        await table.replace(row("a"), etag)


async def test_every_write_changes_the_etag(table: Table) -> None:
    etags = [await table.upsert(row("a")), await table.upsert(row("a"))]
    await table.batch([row("a")])
    stored = await read(table)
    assert stored.etag not in etags
    assert len(set(etags)) == 2


async def test_delete_returns_true_if_the_row_existed(table: Table) -> None:
    await table.insert(row("a"))
    assert await table.delete("part", "a")
    assert not await table.delete("part", "a")
    assert await table.get("part", "a") is None
    assert await table.get("nowhere", "a") is None


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Ünïcode, 'quotes' \"and\" 🚀\n",
        0,
        -(2**63),
        2**63 - 1,
        3_000_000_000,
        0.1,
        3.0,
        -1.5e300,
        float("inf"),
        True,
        False,
        b"",
        bytes(range(256)),
        datetime(2026, 11, 20, 12, 0, 0, 123456, tzinfo=UTC),
    ],
)
async def test_value_is_read_unchanged(table: Table, value: Value) -> None:
    await table.insert(row("a", {"value": value, "other": "x"}))
    stored = await read(table)
    assert stored.properties == {"value": value, "other": "x"}
    assert type(stored.properties["value"]) is type(value)


async def test_time_is_read_in_utc(table: Table) -> None:
    at = datetime(2026, 11, 20, 1, 0, tzinfo=timezone(timedelta(hours=2)))
    await table.insert(row("a", {"at": at}))
    stored = await read(table)
    assert isinstance(restored := stored.properties["at"], datetime)
    assert restored == at
    assert restored.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "properties",
    [
        {"at": datetime(2026, 11, 20)},  # noqa: DTZ001 - a naive instant is the case
        {"n": 2**63},
        {"n": -(2**63) - 1},
        {"two words": 1},
        {"1st": 1},
        {"PartitionKey": "x"},
        {"Timestamp": "x"},
    ],
)
async def test_invalid_property_is_rejected(table: Table, properties: Mapping[str, Value]) -> None:
    with pytest.raises(ValueError, match=r"part\|a"):
        await table.upsert(row("a", properties))
    assert await table.get("part", "a") is None


@pytest.mark.parametrize(
    "key", ["", "a/b", "a\\b", "a#b", "a?b", "a\nb", "a\x7fb", "x" * (KEY_MAX_CHARS + 1)]
)
async def test_invalid_key_is_rejected(table: Table, key: str) -> None:
    for invalid in (row(key), row("a", partition=key)):
        with pytest.raises(ValueError, match="key"):
            await table.insert(invalid)
        with pytest.raises(ValueError, match="key"):
            await table.batch([invalid])
        with pytest.raises(ValueError, match="key"):
            await table.get(invalid.partition_key, invalid.row_key)
        with pytest.raises(ValueError, match="key"):
            await table.delete(invalid.partition_key, invalid.row_key)


async def test_all_valid_keys_work(table: Table) -> None:
    legal = ["x" * KEY_MAX_CHARS, "a b", "it's", 'quo"te', "%41", "ключ", "a:b|c=d&e", "."]
    for key in legal:
        await table.insert(row(key, {"key": key}))
    for key in legal:
        assert (await read(table, key)).properties == {"key": key}
    assert await keys(table.scan("part")) == sorted(legal)
    await table.insert(row("a", partition="it's 'a' b"))
    assert await keys(table.scan("it's 'a' b")) == ["a"]


async def test_scan_is_in_key_order_within_one_partition(table: Table) -> None:
    unordered = ["b", "B", "10", "9", "a", "a.b", "a-b", "~", "é", "aa"]
    for key in unordered:
        await table.insert(row(key))
        await table.insert(row(key, partition="par"))
    await table.insert(row("c", partition="part2"))
    assert await keys(table.scan("part")) == sorted(unordered)
    assert await keys(table.scan("nowhere")) == []


async def test_scan_respects_range_and_limit(table: Table) -> None:
    everything = [f"{letter}.{n:03d}" for letter in "abc" for n in range(40)]
    await table.batch([row(key) for key in everything[:60]])
    await table.batch([row(key) for key in everything[60:]])
    assert await keys(table.scan("part", row_from="b.", row_before="b.:")) == everything[40:80]
    assert await keys(table.scan("part", row_from="b.000", row_before="b.039")) == everything[40:79]
    assert await keys(table.scan("part", row_from="c.038")) == everything[118:]
    assert await keys(table.scan("part", row_before="a.002")) == everything[:2]
    assert await keys(table.scan("part", row_from="b.", limit=3)) == everything[40:43]
    assert await keys(table.scan("part", limit=0)) == []
    assert await keys(table.scan("part", row_from="b", row_before="b")) == []


async def test_scan_reads_many_pages(table: Table) -> None:
    numbered = [row(f"{n:05d}", {"n": n}) for n in range(2_300)]
    await table.batch(numbered)
    stored = [entity async for entity in table.scan("part")]
    assert [entity.properties["n"] for entity in stored] == list(range(2_300))
    assert len(await keys(table.scan("part", limit=1_100))) == 1_100
    assert all(entity.etag for entity in stored)


async def test_rows_can_be_written_during_a_scan(table: Table) -> None:
    await table.batch([row(f"{n:03d}", {"n": n}) for n in range(50)])
    async for entity in table.scan("part"):
        await table.upsert(row(entity.row_key, {"seen": True}))
    stored = [entity async for entity in table.scan("part")]
    assert [entity.properties for entity in stored] == [{"seen": True}] * 50


async def test_property_size_is_limited_to_64_kib(table: Table) -> None:
    fits: dict[str, Value] = {"data": NOISE, "text": "é" * (PROPERTY_MAX_BYTES // 2)}
    await table.insert(row("a", fits))
    assert (await read(table)).properties == fits
    over: Sequence[dict[str, Value]] = (
        {"data": NOISE + b"x"},
        {"data": "é" * (PROPERTY_MAX_BYTES // 2 + 1)},
        {"data": "🚀" * (PROPERTY_MAX_BYTES // 4 + 1)},
    )
    for properties in over:
        for write in (table.insert, table.upsert):
            with pytest.raises(EntityTooLarge, match=rf"data.*{PROPERTY_MAX_BYTES}"):
                await write(row("b", properties))
    assert await table.get("part", "b") is None


async def test_row_size_is_limited_to_one_mebibyte(table: Table) -> None:
    fits: dict[str, Value] = {f"part_{n}": NOISE for n in range(11)}
    fits["rest"] = NOISE[: PROPERTY_MAX_BYTES - 4096]
    await table.insert(row("a", fits))
    await table.upsert(row("a", fits))
    stored = await read(table)
    assert stored.properties == fits
    with pytest.raises(EntityTooLarge, match="1048576"):
        await table.upsert(row("b", {f"part_{n}": NOISE for n in range(12)}))
    etag = stored.etag or ""
    with pytest.raises(EntityTooLarge):
        await table.replace(row("a", {f"part_{n}": NOISE for n in range(12)}), etag)


async def test_row_is_limited_to_252_properties(table: Table) -> None:
    maximum: dict[str, Value] = {f"p{n}": n for n in range(PROPERTY_MAX_COUNT)}
    await table.insert(row("a", maximum))
    assert (await read(table)).properties == maximum
    with pytest.raises(EntityTooLarge, match=str(PROPERTY_MAX_COUNT)):
        await table.insert(row("b", maximum | {"more": 1}))


async def test_batch_writes_new_and_existing_rows(table: Table) -> None:
    await table.insert(row("000", {"old": 1}))
    await table.batch([row(f"{n:03d}", {"n": n}) for n in range(BATCH_MAX_COUNT)])
    stored = [entity async for entity in table.scan("part")]
    assert [entity.properties for entity in stored] == [{"n": n} for n in range(BATCH_MAX_COUNT)]
    await table.batch([])


async def test_batch_above_the_limits_is_split(table: Table) -> None:
    megabytes = [row(f"big{n}", {f"part_{i}": NOISE for i in range(11)}) for n in range(6)]
    await table.batch(megabytes)
    await table.batch([row(f"small{n:03d}") for n in range(250)])
    assert len(await keys(table.scan("part"))) == 256


async def test_invalid_batch_writes_nothing(table: Table) -> None:
    with pytest.raises(ValueError, match="partitions"):
        await table.batch([row("a"), row("a", partition="other")])
    with pytest.raises(ValueError, match="duplicate row key"):
        await table.batch([row("a"), row("a")])
    many = [row(f"{n:03d}") for n in range(150)]
    with pytest.raises(EntityTooLarge):
        await table.batch([*many, row("z", {"data": NOISE + b"x"})])
    assert await keys(table.scan("part")) == []


async def test_partition_is_deleted_completely(table: Table) -> None:
    await table.batch([row(f"{n:03d}") for n in range(150)])
    await table.insert(row("a", partition="other"))
    assert await table.delete_partition("part") == 150
    assert await table.delete_partition("part") == 0
    assert await keys(table.scan("part")) == []
    assert await keys(table.scan("other")) == ["a"]


async def test_rows_remain_after_the_connection_is_closed(table_place: Place) -> None:
    writer = table_place.open_table()
    await writer.insert(row("a", {"n": 7}))
    await writer.close()
    reader = table_place.open_table()
    try:
        stored = await reader.get("part", "a")
    finally:
        await reader.close()
    assert stored is not None
    assert stored.properties == {"n": 7}


async def test_partitions_are_listed_in_order(table: Table) -> None:
    for key in ("tests.2026-11-20T09", "tests.2026-11-20T09.3", "tests.2027-01-01T00", "tests0"):
        await table.batch([row(f"{n}", partition=key) for n in range(3)])
    assert await table.next_partition("tests.", "tests0") == "tests.2026-11-20T09"
    assert await table.next_partition("tests.2026-11-20T09!", "tests0") == "tests.2026-11-20T09.3"
    assert await table.next_partition("tests.2026-11-20T10", "tests0") == "tests.2027-01-01T00"
    assert await table.next_partition("tests.2026-11-20T10", "tests.2027") is None
