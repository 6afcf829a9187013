"""Spool that saves results on disk while the table is not available, and sends them later.

All results are written with upserts. Each one has the whole row, and the last one for a key is
used. The spool has a file for each row that could not be sent. A newer row for the same key
replaces the older one. While there is data in the spool, new rows are added to it as well, so that
an old row never overwrites a newer one. When an agent starts again, it sends the files of the
previous process.

The raw output of engines is saved here as well, with the same size limit. Rows are more important.
To make room for a row, raw output is deleted, starting with the newest one. Rows are never deleted
for raw output. The same is done if the disk is full before the limit is reached.
"""

import asyncio
import contextlib
import errno
import json
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from broadside.exchange.documents import Packed, inflated_pieces, packed
from broadside.exchange.messages import OutageKind
from broadside.exchange.outage_log import OutageLog, utc_now
from broadside.exchange.ports import (
    Entity,
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeUnavailable,
    RawName,
    Table,
)
from broadside.exchange.records import with_delivery_time
from broadside.exchange.row_text import format_entity, parse_entity
from broadside.exchange.strict_json import parse_strict_json

RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 10.0
# Errors that can be fixed by making room on the disk.
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
# Errors that might be fixed later. This includes a permission that is missing now.
AWAY: Final = (ExchangeUnavailable, ExchangeMisconfigured)

log = logging.getLogger(__name__)

# Two table keys in JSON.
_HEADER_MAX_BYTES: Final = 8_192

Key = tuple[str, str]


class Spool:
    """Rows and raw output on disk in the order in which they were added.

    There is at most one file for each key or name. Data that was rejected is included in the size
    limit, and is deleted first. Rows are added by the event loop and raw output by a thread, so a
    lock is used for the size and the files.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Open a spool and load the files of previous processes.

        Args:
            folder: Folder to use. It will be created if needed.
            max_bytes: Maximum size of all files.

        Raises:
            OSError: The folder cannot be created or used.
        """
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        # In the order in which they were written.
        self._files: dict[Key, tuple[Path, int]] = {}
        # In the same order.
        self._raws: dict[RawName, tuple[Path, int]] = {}
        # The oldest file is first.
        self._refused: dict[Path, int] = {}
        self._given_up_count = 0
        self._number = 0
        _make_private(folder)
        self._load()
        while self.size_bytes > max_bytes and self._drop_refused():
            pass

    def _load(self) -> None:
        """Load the files of a previous process, which might have been killed. Links are deleted."""
        for path in self._folder.glob("[0-9]*"):
            if path.is_symlink() or path.name.endswith("-part"):
                path.unlink()
        for path in sorted(self._folder.glob("[0-9]*.refused")):
            self._number = max(self._number, int(path.stem))
            self._refused[path] = path.stat().st_size
        for path in sorted(self._folder.glob("[0-9]*.r[ao]w")):
            self._number = max(self._number, int(path.stem))
            stored = (path, path.stat().st_size)
            try:
                if path.suffix == ".row":
                    key = _key(parse_entity(path.read_bytes()))
                    # While a row is being replaced, there are two files for a short time. Drop the
                    # older one.
                    self.drop(key)
                    self._files[key] = stored
                else:
                    name, _ = _parse_raw(path.read_bytes())
                    self.drop_raw(name)
                    self._raws[name] = stored
            except ValueError:
                # The file is damaged or does not belong to a spool.
                self._refuse(path)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._files)

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return self._stored_bytes + sum(tuple(self._refused.values()))

    @property
    def _stored_bytes(self) -> int:
        """Size of all files that can still be sent."""
        stored = (*self._files.values(), *self._raws.values())
        return sum(size_bytes for _, size_bytes in stored)

    @property
    def given_up_count(self) -> int:
        """Number of outputs that were deleted to make room for rows."""
        return self._given_up_count

    def put(self, entity: Entity) -> bool:
        """Add a row, which replaces an older one with the same key.

        Args:
            entity: Row to add.

        Returns:
            False if there is no room.

        Raises:
            OSError: The row cannot be written. If the disk is full, everything that can be deleted
                has already been deleted.
        """
        text, key = format_entity(entity), _key(entity)
        with self._lock:
            replaced = self._files.get(key)
            grows_bytes = len(text) - (replaced[1] if replaced else 0)
            rows_bytes = sum(size_bytes for _, size_bytes in self._files.values())
            if rows_bytes + grows_bytes > self._max_bytes:
                return False
            while self.size_bytes + grows_bytes > self._max_bytes:
                self._drop_oldest()
            path = self._write(text, "row", self._drop_oldest)
            self.drop(key)
            self._files[key] = (path, len(text))
        return True

    def _drop_oldest(self) -> bool:
        """Make some room for a row, or return False if there is nothing to delete."""
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
        """Delete the oldest data that was rejected, or return False if there is none."""
        if not self._refused:
            return False
        oldest = next(iter(self._refused))
        oldest.unlink(missing_ok=True)
        del self._refused[oldest]
        return True

    def _write(self, text: bytes, kind: str, make_room: Callable[[], bool]) -> Path:
        """Write a new file, and make room for it while the disk is full."""
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
                if error.errno not in FULL or not make_room():
                    raise

    def oldest(self) -> tuple[Key, Path] | None:
        """Return the key and the path of the oldest row, or None if there are no rows."""
        return next(((key, path) for key, (path, _) in self._files.items()), None)

    def drop(self, key: Key, path: Path | None = None) -> None:
        """Delete a row.

        Args:
            key: Key of the row.
            path: If set, the row is deleted only if it is still in this file. None deletes it in
                any file.
        """
        stored = self._files.get(key)
        if stored is not None and path in (None, stored[0]):
            stored[0].unlink(missing_ok=True)
            del self._files[key]

    def quarantine(self, key: Key, path: Path) -> None:
        """Rename the file of a row that the table has rejected, so that a user can check it.

        Args:
            key: Key of the row.
            path: File of the row.
        """
        with self._lock:
            self._refuse(path)
            # Otherwise a newer row has replaced it.
            if self._files.get(key, (None,))[0] == path:
                del self._files[key]

    def _refuse(self, path: Path) -> None:
        aside = path.with_suffix(".refused")
        with contextlib.suppress(OSError):
            path.replace(aside)
            self._refused[aside] = aside.stat().st_size

    # Raw output ------------------------------------------------------------------------------

    def put_raw(self, name: RawName, text: bytes) -> bool:
        """Add output of an engine in compressed form.

        Args:
            name: Name of the output.
            text: Output, which will be compressed if needed.

        Returns:
            False if there is no room.

        Raises:
            OSError: The file cannot be written.
        """
        file = json.dumps([name.folder, name.file]).encode() + b"\n" + packed(text)
        with self._lock:
            self.drop_raw(name)
            if self._stored_bytes + len(file) > self._max_bytes:
                return False
            while self.size_bytes + len(file) > self._max_bytes:
                self._drop_refused()
            self._raws[name] = (self._write(file, "raw", self._drop_refused), len(file))
        return True

    @property
    def raws_count(self) -> int:
        return len(self._raws)

    def oldest_raw(self) -> tuple[RawName, Path] | None:
        """Return the name and the path of the oldest output, or None if there is none."""
        with self._lock:
            return next(((name, path) for name, (path, _) in self._raws.items()), None)

    def read_raw(self, path: Path) -> Packed:
        """Return compressed output after checking that it can be decompressed.

        Raises:
            ValueError: The file is damaged.
            RecordUnreadable: The output cannot be decompressed.
            OSError: The file cannot be opened.
        """
        _, deflated = _parse_raw(path.read_bytes())
        for _ in inflated_pieces(deflated, path.name):
            pass
        return Packed(deflated)

    def drop_raw(self, name: RawName) -> None:
        """Delete output if it is still there."""
        stored = self._raws.pop(name, None)
        if stored is not None:
            stored[0].unlink(missing_ok=True)

    def quarantine_raw(self, name: RawName) -> bool:
        """Rename the file of output that was rejected, so that a user can check it.

        Returns:
            False if it was deleted in the meantime to make room for a row.
        """
        with self._lock:
            stored = self._raws.pop(name, None)
            if stored is not None:
                self._refuse(stored[0])
        return stored is not None


class SpooledTable:
    """A :class:`~broadside.exchange.ports.Table` that accepts upserts while it is not available.

    ``upsert`` does not return an ETag. All methods except ``upsert`` and ``batch`` use the table
    directly and can raise :class:`~broadside.exchange.ports.ExchangeUnavailable`.
    """

    def __init__(self, table: Table, spool: Spool, troubles: OutageLog | None = None) -> None:
        self._table = table
        self._spool = spool
        self._troubles = troubles or OutageLog()
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
            self._store(entity)

    def _store(self, entity: Entity) -> None:
        given_up_count = self._spool.given_up_count
        try:
            stored = self._spool.put(entity)
            problem = "the spool is full; raise BROADSIDE_AGENT_SPOOL_MAX_BYTES"
        except OSError as error:
            stored, problem = False, f"the spool cannot be written: {error}"
        self._troubles.failed(OutageKind.SPOOLED)
        for _ in range(self._spool.given_up_count - given_up_count):
            self._troubles.happened(OutageKind.LOST)
        if not stored:
            self._lose(_key(entity), problem)
        self._kept.set()

    def _lose(self, key: Key, why: str) -> None:
        self._troubles.happened(OutageKind.LOST)
        log.error("LOST %s %s: %s", *key, why, extra={"action": "spool_lost"})

    async def drain(self) -> None:
        """Send all rows in the spool, using the oldest one first.

        A row is renamed only if the table itself has rejected it. If a permission is missing, it
        will be sent again later.

        Raises:
            ExchangeUnavailable: The table is not available.
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
                await self._table.upsert(with_delivery_time(row, utc_now()))
            except AWAY as error:
                raise ExchangeUnavailable(str(error)) from error
            except ExchangeError as error:
                self._spool.quarantine(key, path)
                self._lose(key, f"the table refuses it: {error}")
            else:
                # A newer row might have replaced it in the meantime, which should not be deleted.
                self._spool.drop(key, path)
        self._troubles.record_success(OutageKind.SPOOLED)

    async def drain_forever(self) -> None:
        """Send new rows when they are added, with longer pauses while the table is away."""
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

    # Methods of the table --------------------------------------------------------------------

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
    """Create a folder that only its owner can use, with all missing parents."""
    missing = [folder, *(path for path in folder.parents if not path.exists())]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


def _write_private(path: Path, text: bytes) -> None:
    """Write a file that only its owner can use."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(text)


def _parse_raw(text: bytes) -> tuple[RawName, bytes]:
    """Return the name and the compressed text in a file of raw output, or raise ``ValueError``."""
    header, _, packed = text.partition(b"\n")
    folder, file = map(str, parse_strict_json(header, _HEADER_MAX_BYTES))
    return RawName(folder=folder, file=file), packed


def _key(entity: Entity) -> Key:
    return entity.partition_key, entity.row_key
