"""Tests for the raw output spool. When space is needed, it will be dropped before rows."""

import asyncio
import random
import zlib
from pathlib import Path

import pytest

from broadside.agent.raw_spool import SpooledRaw
from broadside.agent.spool import Spool, SpooledTable
from broadside.exchange.documents import Packed
from broadside.exchange.messages import OutageKind
from broadside.exchange.outage_log import OutageLog, utc_now
from broadside.exchange.ports import (
    Entity,
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeUnavailable,
    RawName,
)
from tests.unit.agent.doubles import MemoryTable


def named(pair_index: int) -> RawName:
    return RawName(folder="raw.run-1.00000", file=f"client.{pair_index:05d}")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class MemoryRaw:
    """In-memory raw store. It can be set to be unavailable, to deny access or to reject a name."""

    def __init__(self) -> None:
        self.texts: dict[RawName, bytes] = {}
        self.away = False
        self.shut = False
        self.refused: RawName | None = None

    async def save(self, name: RawName, text: bytes) -> None:
        if self.away:
            raise ExchangeUnavailable("the store is away")
        if self.shut:
            raise ExchangeMisconfigured("the store refuses the default identity")
        if name == self.refused:
            raise ExchangeError("refused")
        self.texts[name] = zlib.decompress(text) if isinstance(text, Packed) else text

    async def read(self, name: RawName) -> bytes | None:
        return self.texts.get(name)

    async def delete_folder(self, folder: str) -> int:
        raise NotImplementedError

    async def close(self) -> None: ...


def noise(seed: int, size: int) -> bytes:
    """Return bytes that cannot be compressed."""
    return random.Random(seed).randbytes(size)


def row(key: str, size: int) -> Entity:
    packed = bytes(range(256)) * (size // 256 + 1)
    return Entity(partition_key="p", row_key=key, properties={"packed": packed[:size]})


async def test_save_does_not_wait_for_the_store(tmp_path: Path) -> None:
    store = MemoryRaw()
    raw = SpooledRaw(store, Spool(tmp_path, 10**6))
    store.away = True
    await raw.save(named(0), b"zero")
    await raw.save(named(1), b"one" * 1000)
    with pytest.raises(ExchangeUnavailable):
        await raw.drain()
    store.away = False
    await raw.drain()
    assert store.texts == {named(0): b"zero", named(1): b"one" * 1000}
    assert files(tmp_path) == []


async def test_raw_output_is_sent_in_background_and_after_restart(tmp_path: Path) -> None:
    store = MemoryRaw()
    await SpooledRaw(store, Spool(tmp_path, 10**6)).save(named(0), b"zero")
    (tmp_path / "000000000009.raw").write_bytes(b"torn")
    again = SpooledRaw(store, Spool(tmp_path, 10**6))
    draining = asyncio.create_task(again.drain_forever())
    await again.save(named(1), b"one")
    async with asyncio.timeout(5):
        while len(store.texts) < 2:  # noqa: ASYNC110 - the double gives no event
            await asyncio.sleep(0)
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)
    assert store.texts == {named(0): b"zero", named(1): b"one"}
    assert files(tmp_path) == ["000000000009.refused"]


async def test_rejected_output_does_not_block_the_others(tmp_path: Path) -> None:
    store, troubles, before_at = MemoryRaw(), OutageLog(), utc_now()
    store.refused = named(0)
    raw = SpooledRaw(store, Spool(tmp_path, 10**6), troubles)
    for pair_index in range(2):
        await raw.save(named(pair_index), b"text")
    await raw.drain()
    [lost] = troubles.between(before_at, utc_now())
    assert (lost.kind, lost.count) == (OutageKind.LOST, 1)
    assert store.texts == {named(1): b"text"}
    assert [name.partition(".")[2] for name in files(tmp_path)] == ["refused"]


async def test_raw_output_waits_for_access_to_the_store(tmp_path: Path) -> None:
    store = MemoryRaw()
    await SpooledRaw(store, Spool(tmp_path, 10**6)).save(named(0), b"zero")
    store.shut = True
    again = SpooledRaw(store, Spool(tmp_path, 10**6))
    with pytest.raises(ExchangeUnavailable, match="refuses the default identity"):
        await again.drain()
    store.shut = False
    await again.drain()
    assert store.texts == {named(0): b"zero"}


async def test_output_dropped_during_its_rejection_blocks_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, spool = MemoryRaw(), Spool(tmp_path, 1_000)
    raw = SpooledRaw(store, spool)
    await raw.save(named(0), noise(0, 500))

    async def refuse(name: RawName, text: bytes) -> None:
        assert spool.put(row("chunk.0", 600))
        raise ExchangeError("refused")

    monkeypatch.setattr(store, "save", refuse)
    await raw.drain()
    assert (spool.raws_count, len(spool)) == (0, 1)


async def test_rows_replace_raw_output_newest_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, table, troubles = MemoryRaw(), MemoryTable(), OutageLog()
    before_at = utc_now()
    spool = Spool(tmp_path, 10_000)
    raw, rows = SpooledRaw(store, spool, troubles), SpooledTable(table, spool, troubles)
    table.away = store.away = True
    texts = [noise(seed, 2_000) for seed in range(3)]
    for pair_index, text in enumerate(texts):
        await raw.save(named(pair_index), text)
    assert spool.raws_count == 3
    space = 10_000 - spool.size_bytes
    # The row needs more than this space in base64.
    await rows.upsert(row("chunk.0", space))
    assert spool.raws_count == 2
    await rows.upsert(row("chunk.1", 1_000))
    # The row is larger than the whole spool.
    await rows.upsert(row("chunk.2", 10_000))
    assert spool.raws_count == 1
    # A row should not be dropped to store raw output.
    await raw.save(named(9), bytes(reversed(range(256))) * 40)
    assert sum(name.endswith(".row") for name in files(tmp_path)) == len(spool) == 2
    table.away = store.away = False
    await rows.drain()
    await raw.drain()
    assert table.written == ["chunk.0", "chunk.1"]
    assert store.texts.keys() < {named(0), named(1), named(9)}
    assert store.texts[named(0)] == texts[0]
    assert f"LOST {named(2)}: to make room for rows" in caplog.text
    await asyncio.sleep(1)
    kinds = [trouble.kind for trouble in troubles.between(utc_now(), utc_now())]
    assert OutageKind.SPOOLED not in kinds, "the outage has ended"
    [lost] = [t for t in troubles.between(before_at, utc_now()) if t.kind is OutageKind.LOST]
    assert lost.count == caplog.text.count("LOST ") == 3


async def test_output_without_space_is_logged_as_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    troubles, before_at = OutageLog(), utc_now()
    raw = SpooledRaw(MemoryRaw(), Spool(tmp_path, 40), troubles)
    await raw.save(named(0), b"text")
    assert f"LOST {named(0)}: the spool is full" in caplog.text
    [trouble] = troubles.between(before_at, utc_now())
    assert (trouble.kind, trouble.count) == (OutageKind.LOST, 1)
