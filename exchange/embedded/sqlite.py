"""SQLite database that many processes on one host share, accessed outside the event loop.

The database is in write-ahead-log mode, and each commit is synced to disk before a call returns
(``synchronous=FULL``). If a process is killed, all results that were returned to callers are on
disk. The next process that opens the database rolls back the rest. This is also true after a power
failure, which ``synchronous=NORMAL`` would not guarantee. Queue and table are two files. Without a
sync for each commit, a message could be settled in one file while its claim in the other is lost. A
commit takes about 0.2 ms on an SSD. Writes that a process makes at the same time share a commit,
and no result is returned before that commit is on disk.

A :class:`Database` has one worker thread with one connection. The first call opens the connection.
It can only be used in this process, because SQLite locks do not survive a fork.
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

from broadside.exchange.outage_log import WriteRefusals
from broadside.exchange.ports import (
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeUnavailable,
    RecordUnreadable,
    StorageGone,
)

_Args = TypeVarTuple("_Args")
_T = TypeVar("_T")

_LAYOUT_VERSION: Final = 1
# Maximum writes in one commit. Other processes wait for at most one such commit.
GROUP_MAX_COUNT: Final = 64
# Minimum and maximum seconds between two attempts to get a lock.
_PAUSE_S: Final = (0.0005, 0.002)
_REPLACING: Final = methodcaller("decode", "utf-8", "replace")
# ``struct flock`` on 64-bit Linux: type, whence, start, length, pid.
_FLOCK: Final = "hhqqi"
# Byte of FILE-shm that each connection locks (SQLite's UNIX_SHM_DMS).
_SHARED_BYTE: Final = 128


# Longest time from a write in the log to its commit. There can be a sync in between.
_SETTLED_S: Final = 2.0

_REFUSED: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR)

# Inode and size of the log file, and the time of the last write in epoch ns.
Mark = tuple[int, int, int]


def is_open_elsewhere(path: Path) -> bool:
    """Return True if another process has the database open.

    Do not call this while the current process has it open.
    """
    try:
        with path.with_name(f"{path.name}-shm").open("rb+") as shared:
            lock_request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _SHARED_BYTE, 1, 0)
            answer = fcntl.fcntl(shared, fcntl.F_GETLK, lock_request)
    except OSError:
        return False
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


@dataclass(frozen=True, slots=True)
class _Work:
    """A call that waits for the worker thread."""

    call: Callable[[sqlite3.Connection], Any]
    future: "asyncio.Future[Any]"
    reads: bool


@dataclass(frozen=True, slots=True)
class _Done:
    """Result or error of a call."""

    work: _Work
    result: Any = None
    error: BaseException | None = None


class Database:
    """SQLite database with one worker thread and clear error messages.

    Args:
        path: The database file to use.
        application: SQLite application id that identifies the database.
        layout: SQL statements that create the tables.
        busy_s: The maximum time to wait for a database lock, in seconds.
        refusals: Log of writes that fail because there is no space or no permission.
    """

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
        # Device and inode of the open file.
        self._inode: tuple[int, int] | None = None
        self._closed = False
        self._due: deque[_Work] = deque()
        # True if the worker thread was already started for the pending calls.
        self._woken = False

    async def run(self, work: Callable[[sqlite3.Connection, *_Args], _T], *args: *_Args) -> _T:
        """Run ``work(connection, ...)`` on the worker thread.

        Args:
            work: Function to run. It receives the connection and ``args``.
            args: Arguments of ``work`` after the connection.

        Returns:
            The result of ``work``.

        Raises:
            ExchangeUnavailable: The error is transient (lock timeout, disk full).
            ExchangeMisconfigured: The error is permanent (no directory, no permission, foreign
                file).
            StorageGone: The file was removed or replaced. This is a subclass of
                ``ExchangeMisconfigured``.
        """
        return await self.submit(work, *args)

    async def read(self, work: Callable[[sqlite3.Connection, *_Args], _T], *args: *_Args) -> _T:
        """Run ``work`` like :meth:`run`. It must not write.

        The call does not wait for a group of writes and does not take a lock.

        Args:
            work: Function to run. It receives the connection and ``args``.
            *args: Arguments of ``work`` after the connection.

        Returns:
            The result of ``work``.
        """
        return await self.submit(work, *args, reads=True)

    def submit(
        self,
        work: Callable[[sqlite3.Connection, *_Args], _T],
        *args: *_Args,
        reads: bool = False,
    ) -> "asyncio.Future[_T]":
        """Start ``work`` like :meth:`run`.

        Use this if the caller needs the result even if it is cancelled.

        Args:
            work: Function to run. It receives the connection and ``args``.
            args: Arguments of ``work`` after the connection.
            reads: True if ``work`` does not write.

        Returns:
            Future with the result of ``work``.

        Raises:
            RuntimeError: The database is closed.
            ExchangeMisconfigured: The database was opened before this process was forked.
        """
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
        """Return a value that changes after each commit, cheaply and on any thread.

        Returns:
            The mark, or None shortly after a write. At that time the mark is not reliable: readers
            see a write only after its sync, and the next write can have the same timestamp.
        """
        try:
            # ``os.stat`` is the fastest call.
            log = os.stat(self._log_path)  # noqa: PTH116 - the cheapest
        except OSError:
            return None
        if abs(time.time() - log.st_mtime) < _SETTLED_S:
            return None
        return log.st_ino, log.st_size, log.st_mtime_ns

    async def close(self) -> None:
        """Close the connection. After a fork, the child process will leave it open."""
        self._closed = True
        worker, self._worker = self._worker, None
        if worker is not None and self._pid == os.getpid():
            await asyncio.wrap_future(worker.submit(self._disconnect))
            worker.shutdown()

    # On the worker thread ---------------------------------------------------------------------

    def _do_due(self) -> None:
        """Run all pending calls.

        Reads run one by one, writes in groups with one sync. The results of a group are delivered
        together, because each delivery wakes the event loop.
        """
        # This must precede the loop, so that later calls start the worker again.
        self._woken = False
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
            self._publish(read)
            grouped = len(writes) > 1
            self._publish(self._do_group(writes) if grouped else list(map(self._do, writes)))

    def _publish(self, done: Iterable[_Done]) -> None:
        """Deliver results to the event loops of the callers."""
        for loop, theirs in groupby(done, lambda one: one.work.future.get_loop()):
            # The event loop is closed, so no caller waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_set, list(theirs))

    def _do(self, work: _Work) -> _Done:
        """Run a call by itself."""
        try:
            return _Done(work, result=self._patiently(lambda: work.call(self._ready())))
        except BaseException as error:
            return _Done(work, error=self._translated(error))

    def _do_group(self, works: list[_Work]) -> list[_Done]:
        """Run many writes in one transaction. Each write is applied completely or not at all.

        Results will be returned after the commit is on disk. If the transaction itself fails (disk
        full), it is rolled back and each write runs by itself.
        """
        try:
            return self._patiently(lambda: self._do_in_one(works))
        except sqlite3.Error as error:
            if not _is_busy(error):
                return list(map(self._do, works))
            # Do not retry the writes one by one, because each would wait for the same lock again.
            return [_Done(work, error=self._translated(error)) for work in works]
        except BaseException as error:
            # Every caller should get a result, so we need to handle any error.
            return [_Done(work, error=error) for work in works]

    def _do_in_one(self, works: list[_Work]) -> list[_Done]:
        """Run a group in one transaction. If it raises, the whole transaction is rolled back."""
        done: list[_Done] = []
        connection = self._ready()
        with transaction(connection):
            for work in works:
                try:
                    with transaction(connection):
                        result = work.call(connection)
                except Exception as error:
                    # The error also rolled back the outer transaction.
                    if not connection.in_transaction:
                        raise
                    done.append(_Done(work, error=self._translated(error)))
                else:
                    done.append(_Done(work, result=result))
        return done

    def _patiently(self, work: Callable[[], _T]) -> _T:
        """Return the result of ``work``, and retry while another process holds the lock.

        A rejected attempt has changed nothing. All processes retry at the same rate. SQLite's own
        pauses grow to 0.1 s, so the process that waited longest would retry least often.
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
        # SQLite continues to use a deleted file.
        if self._current_inode() != self._inode:
            raise StorageGone(
                f"{self._path}: removed or replaced while in use: what was written to it is "
                "lost; stop every Broadside on this host, then start again"
            )
        return self._connection

    def _translated(self, error: BaseException) -> BaseException:
        """Map an SQLite error to an exchange error."""
        if not isinstance(error, sqlite3.Error):
            return error
        if hasattr(error, "sqlite_errorcode"):
            translated: ExchangeError = self._explain(error)
            if self._refusals is not None and error.sqlite_errorcode & 0xFF in _REFUSED:
                self._refusals.note(self._path.stem, str(translated))
        elif isinstance(error, sqlite3.OperationalError):
            # Text that is not UTF-8.
            translated = RecordUnreadable(f"{self._path}: {error}")
        else:
            # This is a programming error, which should be reported.
            return error
        translated.__cause__ = error
        return translated

    def _current_inode(self) -> tuple[int, int] | None:
        """Return device and inode of the file at the path, or None if there is no file."""
        try:
            identity = self._path.stat()
        except OSError:
            return None
        return identity.st_dev, identity.st_ino

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
                "that exists, or that can be created in an existing one"
            ) from error
        self._refuse_links()
        self._make_private()
        # We need to do this before the tables are created, because the file can be removed in the
        # meantime.
        self._inode = self._current_inode()
        connection = sqlite3.connect(self._path, timeout=0, isolation_level=None)
        # If a row has an invalid byte, the scan should not be stopped.
        connection.text_factory = _REPLACING
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _refuse_links(self) -> None:
        """Reject symbolic links, which could redirect writes or a change of permissions."""
        for path in self._files():
            try:
                target = path.readlink()
            except OSError:
                # This is not a link, or it is not readable. SQLite reports the latter.
                continue
            raise ExchangeMisconfigured(
                f"{path}: a link to {target}; put the file itself there, or set another "
                "BROADSIDE_DATA_DIR"
            )

    def _files(self) -> list[Path]:
        """Return the paths of the database, the log and the index."""
        return [self._path.with_name(self._path.name + end) for end in ("", "-wal", "-shm")]

    def _make_private(self) -> None:
        """Restrict the file permissions to the owner. SQLite uses the same mode for log and index.

        Do not open the file for this. To close it would release the locks of this process.
        """
        # SQLite reports the error later.
        with suppress(OSError):
            os.mknod(self._path, 0o600 | stat.S_IFREG)
        for path in self._files():
            # The file does not exist, or we are not allowed to read it.
            with suppress(OSError):
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
        """Create the tables in a new file. If several processes try, only one of them does it."""
        connection.execute("PRAGMA journal_mode=WAL")
        with transaction(connection):
            if _identity(connection) == (0, 0):
                for statement in self._layout.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version={_LAYOUT_VERSION}")
                connection.execute(f"PRAGMA application_id={self._application}")

    def _explain(self, error: sqlite3.Error) -> ExchangeError:
        # The low byte is the primary error code.
        match error.sqlite_errorcode & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return ExchangeUnavailable(
                    f"{self._path}: locked by another process for over {self._busy_s:g} s; check "
                    "for a suspended process, then try again"
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
        # The future is done if the caller was cancelled.
        if future.done():
            continue
        if one.error is None:
            future.set_result(one.result)
        else:
            future.set_exception(one.error)


def _is_busy(error: sqlite3.Error) -> bool:
    """Return True if another process holds the lock."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _identity(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return application id and number of schema entries. A new file has (0, 0).

    Both values come from the same snapshot.
    """
    application, schema_count = connection.execute(
        "SELECT application_id, (SELECT count(*) FROM sqlite_schema) FROM pragma_application_id"
    ).fetchone()
    return application, schema_count


def explain_foreign(connection: sqlite3.Connection, application: int, layout: str) -> str | None:
    """Return why a database does not belong to Broadside.

    Args:
        connection: Connection to the database.
        application: Expected SQLite application id.
        layout: SQL statements that create the expected tables.

    Returns:
        The reason for messages. None if it belongs to Broadside, or is empty.
    """
    identity, objects_count = _identity(connection)
    if (identity, objects_count) == (0, 0):
        return None
    if identity != application:
        return "a database, but not Broadside's"
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != _LAYOUT_VERSION:
        return f"layout version {version}, this Broadside knows {_LAYOUT_VERSION}"
    with closing(sqlite3.connect(":memory:")) as memory:
        memory.executescript(layout)
        if _columns(connection) != _columns(memory):
            return "its tables are not those of Broadside"
    return None


def _columns(connection: sqlite3.Connection) -> dict[tuple[str, str], list[str]]:
    """Return the columns by object type and name, for all objects except indexes."""
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
    """Run statements in a transaction that has the write lock from its start.

    Other processes can therefore not change rows between a read and a write. Inside another
    transaction this is a savepoint, which can be rolled back separately.
    """
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
        # SQLite itself ends a transaction if the disk is full.
        if connection.in_transaction:
            for statement in undo:
                connection.execute(statement)
        raise
