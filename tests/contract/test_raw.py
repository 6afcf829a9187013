"""Test the contract for all raw output stores."""

import asyncio
import random

import pytest

from broadside.exchange.ports import RawName, RawStore
from tests.contract.adapters import Place

LINE = b'{"event":"interval","data":{"streams":[{"socket":5,"bits_per_second":1234.5}]}}\n'


def raw_name(file: str = "client.00000", folder: str = "raw.run-1.00000") -> RawName:
    return RawName(folder=folder, file=file)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x00\xff\r\n no JSON at all",
        LINE * 40_000,
        # This cannot be compressed and needs many rows.
        random.Random(8).randbytes(5_000_000),
    ],
    ids=["empty", "bytes", "lines", "noise"],
)
async def test_text_is_read_unchanged(raw: RawStore, text: bytes) -> None:
    await raw.save(raw_name(), text)
    assert await raw.read(raw_name()) == text


async def test_unsaved_text_is_none(raw: RawStore) -> None:
    await raw.save(raw_name(), b"text")
    for other in (
        raw_name("client.00001"),
        raw_name("client.0000"),
        raw_name(folder="raw.run-1.00001"),
    ):
        assert await raw.read(other) is None


async def test_save_can_be_repeated(raw: RawStore) -> None:
    for _ in range(3):
        await raw.save(raw_name(), LINE)
    assert await raw.read(raw_name()) == LINE


async def test_concurrent_writers_store_one_complete_text(raw_place: Place) -> None:
    """Test a job that was delivered twice and executed by both agents."""
    stores = [raw_place.open_raw() for _ in range(4)]
    await asyncio.gather(*(store.save(raw_name(), LINE * 1000) for store in stores))
    assert await stores[0].read(raw_name()) == LINE * 1000
    await asyncio.gather(*(store.close() for store in stores))


async def test_delete_removes_exactly_one_folder(raw: RawStore) -> None:
    for pair_index in range(12):
        await raw.save(raw_name(f"client.{pair_index:05d}"), b"%d" % pair_index)
    similar = [
        raw_name(folder="raw.run-1.000001"),
        raw_name(folder="raw.run-1.0000"),
        raw_name(folder="raw"),
    ]
    for name in similar:
        await raw.save(name, b"stays")
    assert await raw.delete_folder("raw.run-1.00000") == 12
    assert await raw.read(raw_name()) is None
    assert [await raw.read(name) for name in similar] == [b"stays"] * 3
    assert await raw.delete_folder("raw.run-1.00000") == 0


async def test_agent_names_are_used_unchanged(raw: RawStore) -> None:
    name = raw_name("1700000000000.Server-1.chunk.000.5201", "raw.tests.2026-01-01T10")
    await raw.save(name, b"text")
    assert await raw.read(name) == b"text"
    assert await raw.read(raw_name("1700000000000.Server-1", name.folder)) is None


async def test_another_process_reads_the_saved_text(raw: RawStore, raw_place: Place) -> None:
    await raw.save(raw_name(), LINE)
    other = raw_place.open_raw()
    assert await other.read(raw_name()) == LINE
    await other.close()
