"""Online backup of a coordinator's data directory to one file, and its restore.

The databases will be copied one after another, in a fixed order. If a row refers to a row in a
database that is copied later, that other row was written first. The later copy therefore contains
it. For example, a run that is marked as queued is in the queue or finished, and a job in the queue
is in a plan. The copies need no common point in time (:mod:`broadside.exchange.records`).

The file is a gzipped tar archive. The first member contains the format and the version. The last
member contains the SHA-256 of all other members, in ``sha256sum`` format. Files from versions
before 0.10 have neither of these members. Only the gzip checksum protects them.
"""

import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

from broadside.exchange.embedded.embedded_queue import QUEUE_APPLICATION, QUEUE_LAYOUT
from broadside.exchange.embedded.embedded_table import TABLE_APPLICATION, TABLE_LAYOUT
from broadside.exchange.embedded.sqlite import explain_foreign
from broadside.exchange.outage_log import utc_now
from broadside.exchange.strict_json import parse_strict_json
from broadside.exchange.version import version_number

# Folder of the coordinator's certificate authority, which the agents trust.
TLS_FOLDER: Final = "tls"
# The order is important, see the module documentation.
DATABASES: Final = ("private", "queue", "control", "results")
FORMAT: Final = "broadside-backup"
FORMAT_VERSION: Final = 1
# Name of the first member.
_HEAD: Final = "backup.json"
# Name of the last member.
_SUMS: Final = "SHA256SUMS"
_NAMES: Final = re.compile(rf"({'|'.join(DATABASES)})\.sqlite3|{TLS_FOLDER}/\w[\w.-]{{0,99}}")
_NAMES_MAX_COUNT: Final = 100
# Maximum size of member metadata, because it is read into memory.
_HEADER_MAX_BYTES: Final = 65_536
# The maximum number of zero bytes after the last member.
_PADDING_MAX_BYTES: Final = 2 * tarfile.RECORDSIZE
# Number of database pages per copy step, 4 MiB in total.
_STEP_PAGES: Final = 1024
# After this number of bytes, written data is synced to disk.
_WAITING_MAX_BYTES: Final = 4 * 2**20
_BACKUP_PREFIX: Final = ".backup-"
_RESTORE_PREFIX: Final = ".restore-"
_DRILL_PREFIX: Final = ".drill-"
# Exceptions that a damaged file can raise. ValueError means that a number field has no number.
_READ_ERRORS: Final = (
    *(gzip.BadGzipFile, tarfile.TarError, EOFError, zlib.error, ValueError, RecursionError),
)


# Function that receives the number of bytes of each step.
BackupProgress = Callable[[int], object]


class BackupUnusable(Exception):
    """A backup cannot be written or restored. The message contains the reason and the fix."""


def backup_bytes(data_dir: Path) -> int:
    """Return the number of bytes that :func:`back_up` copies and packs, approximately."""
    return 2 * sum(path.stat().st_size for path in data_dir.glob("*.sqlite3"))


def back_up(data_dir: Path, file: Path, advance: BackupProgress = lambda _: None) -> list[str]:
    """Write a backup of ``data_dir`` to a new ``file``.

    Args:
        data_dir: Data directory. Other processes can write to it during the backup.
        file: Path of the backup, which must not exist. The file appears when it is complete and on
            disk.
        advance: Function that receives the number of bytes of each step.

    Returns:
        The member names.

    Raises:
        BackupUnusable: There is no database, or ``file`` exists.
        OSError: The file cannot be written.
    """
    unpacked = [name for name in DATABASES if (data_dir / f"{name}.sqlite3").exists()]
    if not unpacked:
        raise BackupUnusable(f"{data_dir}: nothing is stored there; set BROADSIDE_DATA_DIR")
    with _private_folder(file.absolute().parent, _BACKUP_PREFIX) as folder:
        packed = folder / "packed"
        # The file contains private keys.
        packed.touch(0o600)
        sums: dict[str, str] = {}
        with (
            packed.open("wb") as file_of,
            gzip.GzipFile("", "wb", 1, _SyncedWriter(file_of)) as compressed,
            tarfile.open(fileobj=compressed, mode="w") as archive,
        ):
            _add_text(archive, _HEAD, _head())
            for name in unpacked:
                copy = folder / f"{name}.sqlite3"
                copy.touch(0o600)
                _copy(data_dir / copy.name, copy)
                advance(copy.stat().st_size)
                sums[copy.name] = _add(archive, copy, copy.name, advance)
                copy.unlink()
            for path in sorted((data_dir / TLS_FOLDER).glob("*.*")):
                name = f"{TLS_FOLDER}/{path.name}"
                sums[name] = _add(archive, path, name, advance)
            _add_text(archive, _SUMS, "".join(f"{sums[name]}  {name}\n" for name in sums))
        _sync(packed)
        try:
            # Unlike a rename, a hard link never overwrites an existing file.
            file.hardlink_to(packed)
        except FileExistsError as error:
            raise BackupUnusable(f"{file}: the file already exists; choose another name") from error
        _sync(file.absolute().parent)
    return list(sums)


def restore(file: Path, data_dir: Path, advance: BackupProgress = lambda _: None) -> list[str]:
    """Restore ``file`` to ``data_dir``, in one atomic step after verification.

    Args:
        file: A backup from :func:`back_up`.
        data_dir: Directory that does not exist or is empty. It will not be changed before all files
            are verified.
        advance: Function that receives the number of bytes of each step.

    Returns:
        The member names.

    Raises:
        BackupUnusable: ``file`` is not a backup, is damaged or from a newer version, or
            ``data_dir`` is not empty.
        OSError: A file cannot be read or written.
    """
    if data_dir.exists() and any(data_dir.iterdir()):
        raise BackupUnusable(
            f"{data_dir}: not empty; set BROADSIDE_DATA_DIR to a new directory, or move that away"
        )
    # If the setting is a symbolic link, use its target.
    data_dir = data_dir.resolve()
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    with _private_folder(data_dir.parent, _RESTORE_PREFIX) as unpacked:
        names = _unpack_verified(file, unpacked, advance)
        for path in (*(folder for folder in unpacked.rglob("*") if folder.is_dir()), unpacked):
            _sync(path)
        # This also replaces an empty directory.
        unpacked.rename(data_dir)
        _sync(data_dir.parent)
    return names


@contextlib.contextmanager
def unpacked_backup(file: Path, advance: BackupProgress = lambda _: None) -> Iterator[Path]:
    """Unpack and verify ``file`` in a temporary folder next to it, while the context is active.

    Args:
        file: A backup from :func:`back_up`.
        advance: Function that receives the number of bytes of each step.

    Yields:
        The data directory.

    Raises:
        BackupUnusable: As :func:`restore`.
        OSError: A file cannot be read or written.
    """
    with _private_folder(file.absolute().parent, _DRILL_PREFIX) as unpacked:
        _unpack_verified(file, unpacked, advance)
        yield unpacked


def remove_leftovers(parent: Path) -> None:
    """Remove temporary folders of killed processes from ``parent``. They contain private keys.

    A running process holds a lock on its folder. Such a folder is not removed.
    """
    for prefix in (_BACKUP_PREFIX, _RESTORE_PREFIX, _DRILL_PREFIX):
        for left in parent.glob(f"{prefix}*"):
            # Remove only folders of this user, and no links. Otherwise another user could choose
            # what root removes.
            with contextlib.suppress(OSError):
                if left.lstat().st_uid == os.geteuid() and (lock := _locked(left)) is not None:
                    shutil.rmtree(left, ignore_errors=True)
                    os.close(lock)


# Writing -----------------------------------------------------------------------------------------


def _head() -> str:
    fields = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "written_by": version_number(),
        "at": utc_now().isoformat(timespec="seconds"),
    }
    return json.dumps(fields) + "\n"


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(text), 0o600
    archive.addfile(member, io.BytesIO(text.encode("ascii")))


def _add(archive: tarfile.TarFile, path: Path, name: str, advance: BackupProgress) -> str:
    """Add a file to the archive. Return its SHA-256 in hex."""
    with path.open("rb") as content:
        member = archive.gettarinfo(fileobj=content, arcname=name)
        hashed = _HashedReader(content, advance)
        archive.addfile(member, hashed)
        return hashed.digest.hexdigest()


class _HashedReader:
    """File reader that computes the SHA-256 of the content and reports its progress."""

    def __init__(self, content: IO[bytes], advance: BackupProgress = lambda _: None) -> None:
        self._content, self._advance = content, advance
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self._content.read(size)
        self.digest.update(block)
        self._advance(len(block))
        return block


class _SyncedWriter:
    """File writer that syncs often, so that there is never much unsynced data.

    Gigabytes of unsynced data would delay the commits of other processes on the same disk.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._waiting_bytes = 0

    def write(self, content: bytes) -> int:
        self._waiting_bytes += len(content)
        written = self._file.write(content)
        if self._waiting_bytes >= _WAITING_MAX_BYTES:
            self._waiting_bytes = 0
            self._file.flush()
            os.fdatasync(self._file.fileno())
        return written

    def flush(self) -> None:
        """Flush the Python buffer."""
        self._file.flush()


def _sync(path: Path) -> None:
    """Sync a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Private folders ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _private_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Create a temporary folder (0700) for private keys, and remove folders of killed processes.

    A running process holds a lock on its folder.
    """
    remove_leftovers(parent)
    lock = None
    # Retry if another process removed the new folder before it was locked.
    while lock is None:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        with contextlib.suppress(FileNotFoundError):
            lock = _locked(folder)
    try:
        yield folder
    finally:
        # After a restore the folder has become the data directory.
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
        os.close(lock)


def _locked(folder: Path) -> int | None:
    """Lock a folder and return its file descriptor, or None if another process has locked it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    # The folder was removed before the lock.
    if not os.fstat(descriptor).st_nlink:
        os.close(descriptor)
        return None
    return descriptor


# Reading -----------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Unpacked:
    """Information from the members of a backup that have been read.

    Attributes:
        sums: SHA-256 of the content of each member, by name.
        has_head: True if the backup has the first member. Versions before 0.10 did not write it.
        expected: SHA-256 by name, from the last member.
    """

    sums: dict[str, str]
    has_head: bool = False
    expected: Mapping[str, str] | None = None


class _Member(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        unpacked = super().frombuf(buf, encoding, errors)
        if not unpacked.isreg() and unpacked.size > _HEADER_MAX_BYTES:
            raise tarfile.ReadError(f"a header of {unpacked.size} bytes")
        return unpacked


class _CountedFile(io.FileIO):
    """Binary file that reports the number of bytes of each read."""

    def __init__(self, path: Path, advance: BackupProgress) -> None:
        super().__init__(path)
        self._advance = advance

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self._advance(count or 0)
        return count


def _unpack_verified(file: Path, folder: Path, advance: BackupProgress) -> list[str]:
    """Unpack a backup and verify format, version, checksums and databases. Return the names."""
    try:
        with (
            io.BufferedReader(_CountedFile(file, advance)) as content,
            gzip.open(content) as packed,
        ):
            with tarfile.open(fileobj=packed, mode="r:", tarinfo=_Member) as archive:
                unpacked = _unpack(archive, folder)
            # gzip verifies its checksum at the end of the file.
            _read_to_the_end(packed)
    except BackupUnusable as error:
        raise BackupUnusable(f"{file}: {error}") from error
    except _READ_ERRORS as error:
        raise BackupUnusable(f"{file}: {_explain_unreadable(file, error)}") from error
    if not any(name.endswith(".sqlite3") for name in unpacked.sums):
        raise BackupUnusable(f"{file}: no database in it: not a backup of Broadside")
    if unpacked.has_head and unpacked.expected != unpacked.sums:
        raise BackupUnusable(f"{file}: {_explain_sums(unpacked)}")
    for name in unpacked.sums:
        if name.endswith(".sqlite3"):
            _check(folder / name)
    return sorted(unpacked.sums)


def _unpack(archive: tarfile.TarFile, folder: Path) -> _Unpacked:
    """Write the members that :func:`back_up` creates, and reject all others."""
    unpacked = _Unpacked(sums={})
    for position, member in enumerate(archive):
        name = member.name
        if unpacked.expected is not None:
            raise BackupUnusable(
                f"{name[:100]!r} is after the last file: not a backup of Broadside"
            )
        if position == 0 and name == _HEAD:
            _check_head(_read_text(archive, member))
            unpacked.has_head = True
            continue
        if unpacked.has_head and name == _SUMS:
            unpacked.expected = _parse_sums(_read_text(archive, member))
            continue
        if not member.isreg() or member.issparse() or _NAMES.fullmatch(name) is None:
            raise BackupUnusable(f"{name[:100]!r} is in it: not a backup of Broadside")
        if name in unpacked.sums or len(unpacked.sums) == _NAMES_MAX_COUNT:
            raise BackupUnusable(
                f"{name!r}: a duplicate, or over {_NAMES_MAX_COUNT} files; make a new backup"
            )
        free_bytes = shutil.disk_usage(folder).free
        if member.size > free_bytes:
            raise BackupUnusable(
                f"{name}: {member.size} bytes, and {free_bytes} are free; make room for it"
            )
        unpacked.sums[name] = _extract(archive, member, folder / name)
    return unpacked


def _read_text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    """Read a small text member. Raise ``tarfile.ReadError`` or ``ValueError`` if it is invalid."""
    content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
    if content is None or member.size > _HEADER_MAX_BYTES:
        raise tarfile.ReadError(f"{member.name} is not a text of up to {_HEADER_MAX_BYTES} bytes")
    with content:
        return content.read().decode("ascii")


def _check_head(text: str) -> None:
    """Raise :class:`BackupUnusable` for another format or an unknown version."""
    fields: Any = parse_strict_json(text, _HEADER_MAX_BYTES)
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise BackupUnusable(f"{_HEAD} in it names another format: not a backup of Broadside")
    version = fields.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise BackupUnusable(f"{_HEAD} in it has no version: not a backup of Broadside")
    if version > FORMAT_VERSION:
        by = re.sub(r"[^\w.+-]", "?", str(fields.get("written_by"))[:40])
        raise BackupUnusable(
            f"format version {version}, written by Broadside {by}; this version reads up to "
            f"{FORMAT_VERSION}. Restore it with the version that wrote it, or a newer one"
        )


def _parse_sums(text: str) -> Mapping[str, str]:
    """Return the SHA-256 by name. Raise ``ValueError`` if the text is invalid."""
    pairs = [line.split("  ", 1) for line in text.splitlines()]
    sums = {name: digest for digest, name in pairs}
    if len(sums) != len(pairs):
        raise ValueError(f"duplicate name in {_SUMS}")
    return sums


def _explain_sums(unpacked: _Unpacked) -> str:
    if unpacked.expected is None:
        return f"the end of the file is missing (no {_SUMS}); use another copy"
    names = sorted(
        name
        for name in {*unpacked.sums, *unpacked.expected}
        if unpacked.sums.get(name) != unpacked.expected.get(name)
    )
    return f"{', '.join(names)[:200]}: the checksum does not match; use another copy"


def _explain_unreadable(file: Path, error: Exception) -> str:
    with file.open("rb") as content:
        start = content.read(16)
    if start.startswith(b"SQLite format 3"):
        return "a SQLite database, not a backup; give the file that `broadside backup` wrote"
    if not start.startswith(b"\x1f\x8b"):
        return "not a backup of Broadside: it is not compressed by gzip"
    problem = str(error) or type(error).__name__
    return f"incomplete or damaged, or not a backup of Broadside ({problem}); use another copy"


def _read_to_the_end(packed: gzip.GzipFile) -> None:
    """Read the rest of the file. Raise :class:`BackupUnusable` or ``gzip.BadGzipFile``."""
    if any(packed.read(_PADDING_MAX_BYTES)) or packed.read(1):
        raise BackupUnusable(
            "there is data after the end of the archive: not a backup of Broadside"
        )


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> str:
    """Write the content of a member. Owner, mode and time in the archive are ignored.

    ``TarFile.extract`` is only safe with ``filter="data"``, which Python 3.11.2 does not support.

    Returns:
        SHA-256 in hex.
    """
    target.parent.mkdir(mode=0o700, exist_ok=True)
    content = archive.extractfile(member)
    if content is None:
        raise tarfile.ReadError(f"{member.name} has no content")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with content, os.fdopen(os.open(target, flags, 0o600), "wb") as to:
        hashed = _HashedReader(content)
        shutil.copyfileobj(hashed, to)
    if target.stat().st_size != member.size:
        raise tarfile.ReadError(f"{member.name} is incomplete")
    _sync(target)
    return hashed.digest.hexdigest()


def _copy(source: Path, target: Path) -> None:
    """Copy a database in one read transaction.

    Without the transaction, a copy in steps would restart after each commit of another process and
    would not end while the fleet is active. In write-ahead-log mode a reader does not block a
    writer. Each step is synced, because gigabytes of unsynced data would delay the commits of other
    processes. The log grows during the transaction. It is written back here. Otherwise the next
    writer would have to do this in its commit.
    """
    try:
        with (
            contextlib.closing(
                sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
            ) as at,
            contextlib.closing(sqlite3.connect(target)) as to,
            target.open("rb") as copied,
            _write_back(source) as write_back,
        ):
            # Each step is synced by the progress callback.
            to.execute("PRAGMA synchronous=OFF")
            at.execute("BEGIN")
            # This statement starts the snapshot.
            at.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            at.backup(to, pages=_STEP_PAGES, progress=lambda *_: os.fdatasync(copied.fileno()))
            at.execute("COMMIT")
            write_back()
    except sqlite3.Error as error:
        raise BackupUnusable(f"{source}: cannot be copied: {error}") from error


@contextlib.contextmanager
def _write_back(source: Path) -> Iterator[Callable[[], None]]:
    """Yield a function that writes the log back into the database without blocking other processes.

    Without write permission the function has no effect.
    """
    uri = f"{source.absolute().as_uri()}?mode=rw"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as writing:

        def write_back() -> None:
            with contextlib.suppress(sqlite3.Error):
                writing.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

        # Call it once, to open the connection and read the schema in advance.
        write_back()
        yield write_back


def _check(path: Path) -> None:
    """Raise :class:`BackupUnusable` for a damaged or foreign database."""
    queue = path.stem == "queue"
    application = QUEUE_APPLICATION if queue else TABLE_APPLICATION
    with contextlib.closing(sqlite3.connect(path)) as database:
        try:
            foreign = explain_foreign(
                database, application, QUEUE_LAYOUT if queue else TABLE_LAYOUT
            )
            if foreign is not None:
                raise BackupUnusable(f"{path.name} in the backup: {foreign}")
            (problem,) = database.execute("PRAGMA quick_check(1)").fetchone()
            database.execute("PRAGMA journal_mode=WAL")
        except sqlite3.Error as error:
            problem = str(error)
    if problem != "ok":
        raise BackupUnusable(f"{path.name} in the backup is damaged: {problem}")
