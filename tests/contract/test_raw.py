"""Test the contract of every store for raw output."""

import asyncio
import random

import pytest

from broadside.exchange.ports import RawName, RawStore
from tests.contract.adapters import Place

LINE = b'{"event":"interval","data":{"streams":[{"socket":5,"bits_per_second":1234.5}]}}\n'


def named(file: str = "client.00000", folder: str = "raw.run-1.00000") -> RawName:
    return RawName(folder=folder, file=file)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x00\xff\r\n no JSON at all",
        LINE * 40_000,
        # This does not compress and needs many rows.
        random.Random(8).randbytes(5_000_000),
    ],
    ids=["empty", "bytes", "lines", "noise"],
)
async def test_a_text_comes_back_to_the_byte(raw: RawStore, text: bytes) -> None:
    await raw.save(named(), text)
    assert await raw.read(named()) == text


async def test_what_was_never_saved_is_none(raw: RawStore) -> None:
    await raw.save(named(), b"text")
    for other in (named("client.00001"), named("client.0000"), named(folder="raw.run-1.00001")):
        assert await raw.read(other) is None


async def test_saving_again_is_harmless(raw: RawStore) -> None:
    for _ in range(3):
        await raw.save(named(), LINE)
    assert await raw.read(named()) == LINE


async def test_two_writers_at_once_leave_one_whole_text(raw_place: Place) -> None:
    """Test a job that was delivered twice and executed by both agents."""
    stores = [raw_place.open_raw() for _ in range(4)]
    await asyncio.gather(*(store.save(named(), LINE * 1000) for store in stores))
    assert await stores[0].read(named()) == LINE * 1000
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_folder_goes_whole_and_alone(raw: RawStore) -> None:
    for pair_index in range(12):
        await raw.save(named(f"client.{pair_index:05d}"), b"%d" % pair_index)
    near = [named(folder="raw.run-1.000001"), named(folder="raw.run-1.0000"), named(folder="raw")]
    for name in near:
        await raw.save(name, b"stays")
    assert await raw.delete_folder("raw.run-1.00000") == 12
    assert await raw.read(named()) is None
    assert [await raw.read(name) for name in near] == [b"stays"] * 3
    assert await raw.delete_folder("raw.run-1.00000") == 0


async def test_names_of_agents_pass_as_they_are(raw: RawStore) -> None:
    name = named("1700000000000.Server-1.chunk.000.5201", "raw.tests.2026-01-01T10")
    await raw.save(name, b"text")
    assert await raw.read(name) == b"text"
    assert await raw.read(named("1700000000000.Server-1", name.folder)) is None


async def test_another_process_reads_what_one_saved(raw: RawStore, raw_place: Place) -> None:
    await raw.save(named(), LINE)
    other = raw_place.open_raw()
    assert await other.read(named()) == LINE
    await other.close()
