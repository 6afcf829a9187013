"""One SQLite file shared by many processes of one host, off the event loop.

The file is in write-ahead-log mode and a commit is synced to disk before a call returns
(``synchronous=FULL``). A killed process loses nothing that it was told is done; what it was doing
is rolled back by the next one that looks. When the host loses power the same holds, which
``synchronous=NORMAL`` would not give: queue and table are two files, and only a sync at each commit
keeps a claim in the one before the settled message in the other. The price is about 0.2 ms a commit
on an SSD; what one process writes side by side shares one, and nobody is told before it stands.

A :class:`Database` owns one worker thread with one connection, opened at the first call and valid
only in the process that opened it: SQLite's locks do not survive a fork.
"""

import asyncio
import fcntl
import os
import random
import sqlite3
import stat
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from operator import methodcaller
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple

from broadside.exchange.ports import (
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeUnavailable,
    RecordUnreadable,
    StorageGone,
)
from broadside.exchange.troubles import WriteRefusals

_Args = TypeVarTuple("_Args")
_T = TypeVar("_T")

_LAYOUT_VERSION: Final = 1
GROUP_MAX_COUNT: Final = 64  # writes in one commit: others' processes wait for no longer one
_PAUSE_S: Final = (0.0005, 0.002)  # between two looks at a lock that another process holds
_REPLACING: Final = methodcaller("decode", "utf-8", "replace")
_FLOCK: Final = "hhqqi"  # struct flock of 64-bit Linux: type, whence, start, length, pid
_SHARED_BYTE: Final = 128  # of FILE-shm: each connection holds a lock on it (SQLite's UNIX_SHM_DMS)


_SETTLED_S: Final = 2.0  # from a write into the log to its commit there may be a sync between

_REFUSED: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR)

Mark = tuple[int, int, int]  # the log's inode, size and instant of its last write, epoch ns


def is_open_elsewhere(path: Path) -> bool:
    """Whether another process has this database open; only for one that has not."""
    try:
        with path.with_name(f"{path.name}-shm").open("rb+") as shared:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _SHARED_BYTE, 1, 0)
            answer = fcntl.fcntl(shared, fcntl.F_GETLK, asked)
    except OSError:
        return False
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


@dataclass(frozen=True, slots=True)
class _Work:
    """What waits for the worker thread."""

    call: Callable[[sqlite3.Connection], Any]
    future: "asyncio.Future[Any]"
    reads: bool


@dataclass(frozen=True, slots=True)
class _Done:
    """What became of it."""

    work: _Work
    result: Any = None
    error: BaseException | None = None


class Database:
    """One SQLite file behind one worker thread, with its errors explained."""

    def __init__(
        self,
        path: Path,
        application: int,
        layout: str,
        busy_s: float,
        refusals: WriteRefusals | None = None,
    ) -> None:
        self._path = path.absolute()
        self._refusals = refusals
        self._log_path = f"{self._path}-wal"
        self._application = application
        self._layout = layout
        self._busy_s = busy_s
        self._pid: int | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None  # of the file that the connection has open
        self._closed = False
        self._due: deque[_Work] = deque()
        self._woken = False  # the thread is about to look at what is due

    async def run(self, work: Callable[[sqlite3.Connection, *_Args], _T], *args: *_Args) -> _T:
        """Run ``work(connection, ...)`` on the worker thread.

        Raises ``ExchangeUnavailable`` for what may pass (a lock held too long, a full disk) and
        ``ExchangeMisconfigured`` for what will not (no directory, no right, a foreign file), of
        which ``StorageGone`` says that the file was removed or replaced under us.
        """
        return await self.submit(work, *args)

    async def read(self, work: Callable[[sqlite3.Connection, *_Args], _T], *args: *_Args) -> _T:
        """Like :meth:`run`, of what writes nothing: it waits for no group, and takes no lock."""
        return await self.submit(work, *args, reads=True)

    def submit(
        self,
        work: Callable[[sqlite3.Connection, *_Args], _T],
        *args: *_Args,
        reads: bool = False,
    ) -> "asyncio.Future[_T]":
        """Like :meth:`run`, for who goes on waiting for it though it was cancelled."""
        if self._closed:
            raise RuntimeError(f"{self._path}: used after close()")
        if self._worker is None:
            self._pid = os.getpid()
            self._worker = ThreadPoolExecutor(1, thread_name_prefix=self._path.stem)
        elif self._pid != os.getpid():
            raise ExchangeMisconfigured(
                f"{self._path}: opened in process {self._pid}, used in its fork {os.getpid()}; "
                "open the fabric after the fork"
            )
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._due.append(_Work(lambda at: work(at, *args), future, reads))
        if not self._woken:
            self._woken = True
            self._worker.submit(self._do_due)
        return future

    def mark(self) -> Mark | None:
        """What is another once anybody has committed; cheap, so on any thread.

        It is None after a write: that is read only once it is synced, and the next one may bear
        the same instant.
        """
        try:
            log = os.stat(self._log_path)  # noqa: PTH116 - the cheapest
        except OSError:
            return None
        if abs(time.time() - log.st_mtime) < _SETTLED_S:
            return None
        return log.st_ino, log.st_size, log.st_mtime_ns

    async def close(self) -> None:
        """Close the connection; in a fork of the process that opened it, leave it alone."""
        self._closed = True
        worker, self._worker = self._worker, None
        if worker is not None and self._pid == os.getpid():
            await asyncio.wrap_future(worker.submit(self._disconnect))
            worker.shutdown()

    # On the worker thread ---------------------------------------------------------------------

    def _do_due(self) -> None:
        """Everything that waits: reads one by one, writes in groups that are synced once.

        What was done together is told together: each telling wakes the event loop.
        """
        self._woken = False  # before the look: what comes from here on wakes us again
        while self._due:
            read: list[_Done] = []
            writes: list[_Work] = []
            while self._due and len(writes) < GROUP_MAX_COUNT:
                work = self._due.popleft()
                if work.future.cancelled():
                    continue
                if work.reads:
                    read.append(self._do(work))
                else:
                    writes.append(work)
            self._tell(read)
            grouped = len(writes) > 1
            self._tell(self._do_group(writes) if grouped else list(map(self._do, writes)))

    def _tell(self, done: Iterable[_Done]) -> None:
        """Have those who wait told, on their own event loops."""
        for loop, theirs in groupby(done, lambda one: one.work.future.get_loop()):
            with suppress(RuntimeError):  # it is closed: nobody waits any more
                loop.call_soon_threadsafe(_set, list(theirs))

    def _do(self, work: _Work) -> _Done:
        """One by itself."""
        try:
            return _Done(work, result=self._patiently(lambda: work.call(self._ready())))
        except BaseException as error:
            return _Done(work, error=self._told(error))

    def _do_group(self, works: list[_Work]) -> list[_Done]:
        """Many in one transaction, each whole or not at all.

        None is told before the commit is on the disk. Where the transaction itself fails (a full
        disk), nothing of it stands, and each is tried by itself.
        """
        try:
            return self._patiently(lambda: self._do_in_one(works))
        except sqlite3.Error as error:
            if not _is_busy(error):
                return list(map(self._do, works))
            # each would wait as long again
            return [_Done(work, error=self._told(error)) for work in works]
        except BaseException as error:  # whatever it is: who waits for an answer has one
            return [_Done(work, error=error) for work in works]

    def _do_in_one(self, works: list[_Work]) -> list[_Done]:
        """The transaction of a group. Raises what it failed with, and then nothing of it stands."""
        done: list[_Done] = []
        connection = self._ready()
        with transaction(connection):
            for work in works:
                try:
                    with transaction(connection):
                        result = work.call(connection)
                except Exception as error:
                    if not connection.in_transaction:  # it took the others along
                        raise
                    done.append(_Done(work, error=self._told(error)))
                else:
                    done.append(_Done(work, result=result))
        return done

    def _patiently(self, work: Callable[[], _T]) -> _T:
        """What ``work`` answers, once no other process holds the lock that it asks for.

        Who is refused has done nothing yet. All look equally often: SQLite's own pauses grow to
        0.1 s, so that who has waited longest looks most seldom.
        """
        deadline_s = time.monotonic() + self._busy_s
        while True:
            try:
                return work()
            except sqlite3.Error as error:
                if not _is_busy(error) or time.monotonic() > deadline_s:
                    raise
            time.sleep(random.uniform(*_PAUSE_S))  # noqa: S311 - jitter, no secret

    def _ready(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
        if self._found_inode() != self._inode:  # SQLite goes on with a file without a name
            raise StorageGone(
                f"{self._path}: removed or replaced while in use: what was written to it is "
                "lost; stop every Broadside on this host, then start again"
            )
        return self._connection

    def _told(self, error: BaseException) -> BaseException:
        """The error as our callers know it."""
        if not isinstance(error, sqlite3.Error):
            return error
        if hasattr(error, "sqlite_errorcode"):
            told: ExchangeError = self._explain(error)
            if self._refusals is not None and error.sqlite_errorcode & 0xFF in _REFUSED:
                self._refusals.note(self._path.stem, str(told))
        elif isinstance(error, sqlite3.OperationalError):  # text that is not UTF-8
            told = RecordUnreadable(f"{self._path}: {error}")
        else:
            return error  # not SQLite's word but the module's: our mistake
        told.__cause__ = error
        return told

    def _found_inode(self) -> tuple[int, int] | None:
        """What stands at our path just now; None: nothing."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> sqlite3.Connection:
        directory = self._path.parent
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ExchangeMisconfigured(
                f"data_dir {directory}: {error.strerror}; set BROADSIDE_DATA_DIR to a directory "
                "that exists or whose parent does"
            ) from error
        self._refuse_links()
        self._keep_private()
        self._inode = self._found_inode()  # before it is opened: it may go while it is laid out
        connection = sqlite3.connect(self._path, timeout=0, isolation_level=None)
        connection.text_factory = _REPLACING  # one row's odd byte is not the end of a scan
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _refuse_links(self) -> None:
        """A link here leads where nobody meant us to write, or to change what others may read."""
        for path in self._files():
            try:
                target = path.readlink()
            except OSError:  # no link; or none of ours to see, of which SQLite has its own words
                continue
            raise ExchangeMisconfigured(
                f"{path}: a link to {target}; put the file itself there, or set another "
                "BROADSIDE_DATA_DIR"
            )

    def _files(self) -> list[Path]:
        """The database, its log and its index."""
        return [self._path.with_name(self._path.name + end) for end in ("", "-wal", "-shm")]

    def _keep_private(self) -> None:
        """Make the file its owner's alone; SQLite gives its log and index the same mode.

        It is never opened for that: closing it would drop the locks that this process has on it.
        """
        with suppress(OSError):  # what is wrong with it, SQLite says in its own words
            os.mknod(self._path, 0o600 | stat.S_IFREG)
        for path in self._files():
            with suppress(OSError):  # not there, or another user's
                if path.stat().st_mode & 0o077:
                    path.chmod(0o600)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        application, tables_count = _identity(connection)
        if application != self._application:
            if application or tables_count:
                raise ExchangeMisconfigured(
                    f"{self._path}: a database, but not Broadside's; set another BROADSIDE_DATA_DIR"
                )
            self._create(connection)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != _LAYOUT_VERSION:
            raise ExchangeMisconfigured(
                f"{self._path}: layout version {version}, this Broadside knows {_LAYOUT_VERSION}; "
                "use the Broadside that made it, or another BROADSIDE_DATA_DIR"
            )
        connection.execute("PRAGMA synchronous=FULL")

    def _create(self, connection: sqlite3.Connection) -> None:
        """Lay out a new file; of many processes that try at once, one does."""
        connection.execute("PRAGMA journal_mode=WAL")
        with transaction(connection):
            if _identity(connection) == (0, 0):
                for statement in self._layout.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version={_LAYOUT_VERSION}")
                connection.execute(f"PRAGMA application_id={self._application}")

    def _explain(self, error: sqlite3.Error) -> ExchangeError:
        match error.sqlite_errorcode & 0xFF:  # the primary code: the rest says where
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return ExchangeUnavailable(
                    f"{self._path}: locked by another process for over {self._busy_s:g} s; look "
                    "for a stopped one, then try again"
                )
            case sqlite3.SQLITE_FULL:
                return ExchangeUnavailable(
                    f"{self._path}: disk full; free space under {self._path.parent}"
                )
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return ExchangeMisconfigured(
                    f"{self._path}: cannot be opened for writing ({error}); make "
                    f"{self._path.parent} writable for this user, or set BROADSIDE_DATA_DIR"
                )
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return ExchangeMisconfigured(
                    f"{self._path}: corrupt or foreign ({error}); stop Broadside and move it away "
                    "(a new one will be made), or set another BROADSIDE_DATA_DIR"
                )
            case _:
                return ExchangeUnavailable(
                    f"{self._path}: {error} ({error.sqlite_errorname}); check the disk under "
                    f"{self._path.parent}, then try again"
                )


def _set(done: Iterable[_Done]) -> None:
    for one in done:
        future = one.work.future
        if future.done():  # given up meanwhile
            continue
        if one.error is None:
            future.set_result(one.result)
        else:
            future.set_exception(one.error)


def _is_busy(error: sqlite3.Error) -> bool:
    """Whether another process holds the lock."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _identity(connection: sqlite3.Connection) -> tuple[int, int]:
    """Application id and number of schema entries, in one snapshot: (0, 0) is a new file."""
    application, schema_count = connection.execute(
        "SELECT application_id, (SELECT count(*) FROM sqlite_schema) FROM pragma_application_id"
    ).fetchone()
    return application, schema_count


def explain_foreign(connection: sqlite3.Connection, application: int, layout: str) -> str | None:
    """Return why a database is not one of ours with this layout; None where it is, or is empty."""
    found, objects_count = _identity(connection)
    if (found, objects_count) == (0, 0):
        return None
    if found != application:
        return "a database, but not Broadside's"
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != _LAYOUT_VERSION:
        return f"layout version {version}, this Broadside knows {_LAYOUT_VERSION}"
    with closing(sqlite3.connect(":memory:")) as own:
        own.executescript(layout)
        if _columns(connection) != _columns(own):
            return "its tables are not those of Broadside"
    return None


def _columns(connection: sqlite3.Connection) -> dict[tuple[str, str], list[str]]:
    """Columns by kind and name, of all that is stored or runs; indexes are neither."""
    objects = connection.execute(
        "SELECT type, name FROM sqlite_schema WHERE type != 'index' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    columns = "SELECT name || ' ' || type FROM pragma_table_info(?)"
    return {
        (kind, name): [text for (text,) in connection.execute(columns, (name,))]
        for kind, name in objects
    }


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold the write lock from the first statement on, so that what was read stays true; within
    another transaction, a part of it that stands or falls by itself."""
    begin, commit, undo = (
        ("SAVEPOINT part", "RELEASE part", ("ROLLBACK TO part", "RELEASE part"))
        if connection.in_transaction
        else ("BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",))
    )
    connection.execute(begin)
    try:
        yield
        connection.execute(commit)
    except BaseException:
        if connection.in_transaction:  # a full disk ends it by itself
            for statement in undo:
                connection.execute(statement)
        raise
