"""Keeps results on disk while the table is away, and sends them when it is back.

Writes of results are upserts: each carries the whole row, and the last one of a key counts. So
what could not be sent is kept as rows, one file each, the newest of a key replacing the older; and
while anything is kept, new writes queue behind it, so that no old row ever lands on a newer one.
An agent that restarts finds the files and sends them.

Engines' raw output waits here as well, under the same bound. Rows come first: for a row's sake raw
output is dropped, the newest of it first and the oldest last, and never the other way round. So it
is when the disk is full before the bound is reached.
"""

import asyncio
import contextlib
import errno
import json
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from broadside.exchange.documents import Packed, inflated_pieces, packed
from broadside.exchange.messages import TroubleKind
from broadside.exchange.ports import (
    Entity,
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeUnavailable,
    RawName,
    Table,
)
from broadside.exchange.records import told_late
from broadside.exchange.row_text import format_entity, parse_entity
from broadside.exchange.rows import bounded_json
from broadside.exchange.troubles import TroubleLog

RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 10.0
FULL: Final = (errno.ENOSPC, errno.EDQUOT)  # room on the disk is what is missing
AWAY: Final = (ExchangeUnavailable, ExchangeMisconfigured)  # who is not let in may be, later

log = logging.getLogger(__name__)

_HEADER_MAX_BYTES: Final = 8_192  # two keys of a table, in JSON

Key = tuple[str, str]


class Spool:
    """Rows and raw output on disk, oldest first, at most one a key or name.

    What was refused counts towards the bound as well, and is the first to go. Rows are kept by the
    event loop, raw output by a thread: a lock holds room and files together.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Raises ``OSError`` when the folder cannot be made or read."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._files: dict[Key, tuple[Path, int]] = {}  # in the order of writing
        self._raws: dict[RawName, tuple[Path, int]] = {}  # too
        self._refused: dict[Path, int] = {}  # oldest first
        self._given_up_count = 0
        self._number = 0
        _make_private(folder)
        self._load()
        while self.size_bytes > max_bytes and self._drop_refused():
            pass

    def _load(self) -> None:
        """Find what a process before this one left, wherever it was killed; links are not ours."""
        for path in self._folder.glob("[0-9]*"):
            if path.is_symlink() or path.name.endswith("-part"):
                path.unlink()
        for path in sorted(self._folder.glob("[0-9]*.refused")):
            self._number = max(self._number, int(path.stem))
            self._refused[path] = path.stat().st_size
        for path in sorted(self._folder.glob("[0-9]*.r[ao]w")):
            self._number = max(self._number, int(path.stem))
            kept = (path, path.stat().st_size)
            try:
                if path.suffix == ".row":
                    key = _key(parse_entity(path.read_bytes()))
                    self.drop(key)  # the older one of the two that a rewriting has for a moment
                    self._files[key] = kept
                else:
                    name, _ = _parse_raw(path.read_bytes())
                    self.drop_raw(name)
                    self._raws[name] = kept
            except ValueError:  # not ours, or damaged
                self._refuse(path)

    def __len__(self) -> int:
        """How many rows."""
        return len(self._files)

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return self._kept_bytes + sum(tuple(self._refused.values()))

    @property
    def _kept_bytes(self) -> int:
        """Of what may still be sent."""
        kept = (*self._files.values(), *self._raws.values())
        return sum(size_bytes for _, size_bytes in kept)

    @property
    def given_up_count(self) -> int:
        """How many outputs made room for rows."""
        return self._given_up_count

    def put(self, entity: Entity) -> bool:
        """Keep a row in place of an older one with its key; False when there is no room.

        Raises ``OSError`` when it cannot be written, which a full disk is only when nothing of
        ours is left to give way.
        """
        text, key = format_entity(entity), _key(entity)
        with self._lock:
            replaced = self._files.get(key)
            grows_bytes = len(text) - (replaced[1] if replaced else 0)
            rows_bytes = sum(size_bytes for _, size_bytes in self._files.values())
            if rows_bytes + grows_bytes > self._max_bytes:
                return False
            while self.size_bytes + grows_bytes > self._max_bytes:
                self._give_way()
            path = self._write(text, "row", self._give_way)
            self.drop(key)
            self._files[key] = (path, len(text))
        return True

    def _give_way(self) -> bool:
        """Make some room for a row; False when there is nothing to remove."""
        if self._drop_refused():
            return True
        if not self._raws:
            return False
        newest = next(reversed(self._raws))
        log.error("LOST %s: to make room for rows", newest, extra={"action": "spool_lost"})
        self.drop_raw(newest)
        self._given_up_count += 1
        return True

    def _drop_refused(self) -> bool:
        """Remove the oldest of what was refused; False when there is none."""
        if not self._refused:
            return False
        oldest = next(iter(self._refused))
        oldest.unlink(missing_ok=True)
        del self._refused[oldest]
        return True

    def _write(self, text: bytes, kind: str, give_way: Callable[[], bool]) -> Path:
        """A new file, while the disk is full with room made for it."""
        self._number += 1
        path = self._folder / f"{self._number:012d}.{kind}"
        unfinished = path.with_suffix(f".{kind}-part")
        while True:
            try:
                _write_private(unfinished, text)
                return unfinished.replace(path)
            except OSError as error:
                with contextlib.suppress(OSError):
                    unfinished.unlink()
                if error.errno not in FULL or not give_way():
                    raise

    def oldest(self) -> tuple[Key, Path] | None:
        return next(((key, path) for key, (path, _) in self._files.items()), None)

    def drop(self, key: Key, path: Path | None = None) -> None:
        """Forget a row; with ``path``, only if that is still the file that holds it."""
        held = self._files.get(key)
        if held is not None and path in (None, held[0]):
            held[0].unlink(missing_ok=True)
            del self._files[key]

    def quarantine(self, key: Key, path: Path) -> None:
        """Keep a row that the table refuses, out of the way, for a person to look at."""
        with self._lock:
            self._refuse(path)
            if self._files.get(key, (None,))[0] == path:  # else a newer row took its place
                del self._files[key]

    def _refuse(self, path: Path) -> None:
        aside = path.with_suffix(".refused")
        with contextlib.suppress(OSError):
            path.replace(aside)
            self._refused[aside] = aside.stat().st_size

    # Raw output ------------------------------------------------------------------------------

    def put_raw(self, name: RawName, text: bytes) -> bool:
        """Keep an engine's output, packed; False when there is no room. Raises ``OSError``."""
        file = json.dumps([name.folder, name.file]).encode() + b"\n" + packed(text)
        with self._lock:
            self.drop_raw(name)
            if self._kept_bytes + len(file) > self._max_bytes:
                return False
            while self.size_bytes + len(file) > self._max_bytes:
                self._drop_refused()
            self._raws[name] = (self._write(file, "raw", self._drop_refused), len(file))
        return True

    @property
    def raws_count(self) -> int:
        return len(self._raws)

    def oldest_raw(self) -> tuple[RawName, Path] | None:
        with self._lock:
            return next(((name, path) for name, (path, _) in self._raws.items()), None)

    def read_raw(self, path: Path) -> Packed:
        """An output as it was packed, looked through. Raises ``ValueError``,
        ``RecordUnreadable``, ``OSError``."""
        _, deflated = _parse_raw(path.read_bytes())
        for _ in inflated_pieces(deflated, path.name):
            pass
        return Packed(deflated)

    def drop_raw(self, name: RawName) -> None:
        held = self._raws.pop(name, None)
        if held is not None:
            held[0].unlink(missing_ok=True)

    def quarantine_raw(self, name: RawName) -> bool:
        """Keep an output that its store refuses, out of the way, for a person to look at; False
        where it has given way to a row meanwhile."""
        with self._lock:
            held = self._raws.pop(name, None)
            if held is not None:
                self._refuse(held[0])
        return held is not None


class SpooledTable:
    """A :class:`~broadside.exchange.ports.Table` whose upserts do not fail while the table is away.

    ``upsert`` gives no ETag. All but ``upsert`` and ``batch`` is passed on and may raise
    :class:`~broadside.exchange.ports.ExchangeUnavailable`.
    """

    def __init__(self, table: Table, spool: Spool, troubles: TroubleLog | None = None) -> None:
        self._table = table
        self._spool = spool
        self._troubles = troubles or TroubleLog()
        self._kept = asyncio.Event()
        if len(spool):
            self._kept.set()

    async def upsert(self, entity: Entity) -> str:
        await self._write(lambda: self._table.upsert(entity), [entity])
        return ""

    async def batch(self, entities: Sequence[Entity]) -> None:
        await self._write(lambda: self._table.batch(entities), entities)

    async def _write(
        self, write: Callable[[], Awaitable[object]], entities: Sequence[Entity]
    ) -> None:
        if not len(self._spool):
            try:
                await write()
            except AWAY as error:
                log.warning("away, results are spooled: %s", error, extra={"action": "spool"})
            else:
                return
        for entity in entities:
            self._keep(entity)

    def _keep(self, entity: Entity) -> None:
        given_up_count = self._spool.given_up_count
        try:
            kept = self._spool.put(entity)
            problem = "the spool is full; raise BROADSIDE_AGENT_SPOOL_MAX_BYTES"
        except OSError as error:
            kept, problem = False, f"the spool cannot be written: {error}"
        self._troubles.failed(TroubleKind.SPOOLED)
        for _ in range(self._spool.given_up_count - given_up_count):
            self._troubles.happened(TroubleKind.LOST)
        if not kept:
            self._lose(_key(entity), problem)
        self._kept.set()

    def _lose(self, key: Key, why: str) -> None:
        self._troubles.happened(TroubleKind.LOST)
        log.error("LOST %s %s: %s", *key, why, extra={"action": "spool_lost"})

    async def drain(self) -> None:
        """Send what is kept, oldest first. Raises :class:`ExchangeUnavailable` when it cannot.

        Only a row that the table itself refuses is set aside: who is not let in tries again.
        """
        while (oldest := self._spool.oldest()) is not None:
            key, path = oldest
            try:
                row = parse_entity(path.read_bytes())
            except (OSError, ValueError) as error:
                self._spool.quarantine(key, path)
                self._lose(key, f"the spool cannot be read: {error}")
                continue
            try:
                await self._table.upsert(told_late(row, datetime.now(UTC)))
            except AWAY as error:
                raise ExchangeUnavailable(str(error)) from error
            except ExchangeError as error:
                self._spool.quarantine(key, path)
                self._lose(key, f"the table refuses it: {error}")
            else:
                self._spool.drop(key, path)  # unless a newer row took its place meanwhile
        self._troubles.went_well(TroubleKind.SPOOLED)

    async def drain_forever(self) -> None:
        """Drain whenever something is kept, with growing pauses while the table is away."""
        while True:
            await self._kept.wait()
            self._kept.clear()
            pause_s = RETRY_FIRST_S
            while len(self._spool):
                try:
                    await self.drain()
                except ExchangeUnavailable as error:
                    log.warning("results wait: %s", error, extra={"action": "spool"})
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, RETRY_MAX_S)
                else:
                    log.info("the spool is sent", extra={"action": "spool_sent"})

    # Passed on -------------------------------------------------------------------------------

    async def insert(self, entity: Entity) -> str:
        return await self._table.insert(entity)

    async def replace(self, entity: Entity, etag: str) -> str:
        return await self._table.replace(entity, etag)

    async def get(self, partition_key: str, row_key: str) -> Entity | None:
        return await self._table.get(partition_key, row_key)

    def scan(
        self,
        partition_key: str,
        *,
        row_from: str | None = None,
        row_before: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Entity]:
        return self._table.scan(
            partition_key, row_from=row_from, row_before=row_before, limit=limit
        )

    async def delete(self, partition_key: str, row_key: str) -> bool:
        return await self._table.delete(partition_key, row_key)

    async def next_partition(self, key_from: str, key_before: str) -> str | None:
        return await self._table.next_partition(key_from, key_before)

    async def delete_partition(self, partition_key: str) -> int:
        return await self._table.delete_partition(partition_key)

    async def close(self) -> None:
        await self._table.close()


def _make_private(folder: Path) -> None:
    """A folder that its owner alone reads, and its parents so too where they are missing."""
    missing = [folder, *(path for path in folder.parents if not path.exists())]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


def _write_private(path: Path, text: bytes) -> None:
    """A file that its owner alone reads."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(text)


def _parse_raw(text: bytes) -> tuple[RawName, bytes]:
    """A file of raw output as its name and its packed text. Raises ``ValueError``."""
    header, _, packed = text.partition(b"\n")
    folder, file = map(str, json.loads(bounded_json(header, _HEADER_MAX_BYTES)))
    return RawName(folder=folder, file=file), packed


def _key(entity: Entity) -> Key:
    return entity.partition_key, entity.row_key
