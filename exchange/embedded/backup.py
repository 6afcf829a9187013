"""Backup of a coordinator's data directory as one file, taken while it is in use, and its restore.

The databases are copied one after another, in the order in which a row of one vouches for what
stands in the next: what the list of runs says was queued is on the queue or done, and what is on
the queue is in a plan. So the copies need no common instant (:mod:`broadside.exchange.records`).

The file is a gzipped tar archive. Its first member names the format and its version, its last one
has the SHA-256 of all others, as ``sha256sum`` writes them. Files of versions before 0.10 have
neither; gzip's own checksum covers them.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final, Self

from broadside.exchange.embedded.embedded_queue import QUEUE_APPLICATION, QUEUE_LAYOUT
from broadside.exchange.embedded.embedded_table import TABLE_APPLICATION, TABLE_LAYOUT
from broadside.exchange.embedded.sqlite import explain_foreign
from broadside.exchange.version import version_number

TLS_FOLDER: Final = "tls"  # the coordinator's certificate authority, which agents trust
DATABASES: Final = ("private", "queue", "control", "results")  # in this order, see above
FORMAT: Final = "broadside-backup"
FORMAT_VERSION: Final = 1
_HEAD: Final = "backup.json"  # first member
_SUMS: Final = "SHA256SUMS"  # last member
_NAMES: Final = re.compile(rf"({'|'.join(DATABASES)})\.sqlite3|{TLS_FOLDER}/\w[\w.-]{{0,99}}")
_NAMES_MAX_COUNT: Final = 100
_HEADER_MAX_BYTES: Final = 65_536  # of what describes a member: it is read whole
_PADDING_MAX_BYTES: Final = 2 * tarfile.RECORDSIZE  # zeros behind the last member
_STEP_PAGES: Final = 1024  # that are copied at a time: 4 MiB
_WAITING_MAX_BYTES: Final = 4 * 2**20  # that wait to be written to the disk
_BACKUP_PREFIX: Final = ".backup-"
_RESTORE_PREFIX: Final = ".restore-"
_DRILL_PREFIX: Final = ".drill-"
_READ_ERRORS: Final = (  # of a damaged file; ValueError: what is no number, in a number's place
    *(gzip.BadGzipFile, tarfile.TarError, EOFError, zlib.error, ValueError, RecursionError),
)


class BackupUnusable(Exception):
    """A backup cannot be taken or restored; the message says why, with the fix."""


def back_up(data_dir: Path, file: Path) -> list[str]:
    """Write everything of ``data_dir`` into a new ``file``.

    Args:
        data_dir: The store; other processes may write to it meanwhile.
        file: Must not exist. It appears when it is complete and on the disk.

    Returns:
        The names of what is in it.

    Raises:
        BackupUnusable: There is no store, or ``file`` exists.
        OSError: The file cannot be written.
    """
    found = [name for name in DATABASES if (data_dir / f"{name}.sqlite3").exists()]
    if not found:
        raise BackupUnusable(f"{data_dir}: nothing is stored there; set BROADSIDE_DATA_DIR")
    with _private_folder(file.absolute().parent, _BACKUP_PREFIX) as folder:
        packed = folder / "packed"
        packed.touch(0o600)  # it holds keys
        sums: dict[str, str] = {}
        with (
            packed.open("wb") as file_of,
            gzip.GzipFile("", "wb", 1, _SyncedWriter(file_of)) as compressed,
            tarfile.open(fileobj=compressed, mode="w") as archive,
        ):
            _add_text(archive, _HEAD, _head())
            for name in found:
                copy = folder / f"{name}.sqlite3"
                copy.touch(0o600)
                _copy(data_dir / copy.name, copy)
                sums[copy.name] = _add(archive, copy, copy.name)
                copy.unlink()
            for path in sorted((data_dir / TLS_FOLDER).glob("*.*")):
                name = f"{TLS_FOLDER}/{path.name}"
                sums[name] = _add(archive, path, name)
            _add_text(archive, _SUMS, "".join(f"{sums[name]}  {name}\n" for name in sums))
        _sync(packed)
        try:
            file.hardlink_to(packed)  # a file that is there stays
        except FileExistsError as error:
            raise BackupUnusable(f"{file}: there is one already; choose another name") from error
        _sync(file.absolute().parent)
    return list(sums)


def restore(file: Path, data_dir: Path) -> list[str]:
    """Unpack ``file`` as ``data_dir``, in one step once it is complete and verified.

    Args:
        file: What :func:`back_up` wrote.
        data_dir: Must be absent or empty, and stays so until the restore is complete.

    Returns:
        The names of what was in ``file``.

    Raises:
        BackupUnusable: ``file`` is not a backup, is damaged or of a newer version, or ``data_dir``
            is not empty.
        OSError: A file cannot be read or written.
    """
    if data_dir.exists() and any(data_dir.iterdir()):
        raise BackupUnusable(
            f"{data_dir}: not empty; set BROADSIDE_DATA_DIR to a new directory, or move that away"
        )
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    with _private_folder(data_dir.absolute().parent, _RESTORE_PREFIX) as unpacked:
        names = _unpack_verified(file, unpacked)
        for path in (*(folder for folder in unpacked.rglob("*") if folder.is_dir()), unpacked):
            _sync(path)
        unpacked.rename(data_dir)  # also over an empty directory
        _sync(data_dir.absolute().parent)
    return names


@contextlib.contextmanager
def unpacked_backup(file: Path) -> Iterator[Path]:
    """Unpack ``file`` beside itself for as long as the context lasts, verified as in a restore.

    Yields:
        The data directory.

    Raises:
        BackupUnusable: As :func:`restore`.
        OSError: A file cannot be read or written.
    """
    with _private_folder(file.absolute().parent, _DRILL_PREFIX) as unpacked:
        _unpack_verified(file, unpacked)
        yield unpacked


def remove_leftovers(parent: Path) -> None:
    """Remove what backups, restores and drills that were killed left in ``parent``: it holds keys.

    A process holds a lock on its folder for as long as it lives; such a folder stays.
    """
    for prefix in (_BACKUP_PREFIX, _RESTORE_PREFIX, _DRILL_PREFIX):
        for left in parent.glob(f"{prefix}*"):
            # Nobody else's, and no link: who is root removes nothing by another's choice.
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
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return json.dumps(fields) + "\n"


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(text), 0o600
    archive.addfile(member, io.BytesIO(text.encode("ascii")))


def _add(archive: tarfile.TarFile, path: Path, name: str) -> str:
    """Add a file to the archive; return its SHA-256 in hex."""
    with path.open("rb") as content:
        member = archive.gettarinfo(fileobj=content, arcname=name)
        hashed = _HashedReader(content)
        archive.addfile(member, hashed)
        return hashed.digest.hexdigest()


class _HashedReader:
    """A file's content with the SHA-256 of what was read of it."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self._content.read(size)
        self.digest.update(block)
        return block


class _SyncedWriter:
    """A file of which little is ever waiting to be written to the disk.

    Gigabytes that wait hold up the commits of those who write to the same disk.
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
        """Hand over what Python holds back."""
        self._file.flush()


def _sync(path: Path) -> None:
    """Have a file or a folder on the disk before anything rests on it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Private folders ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _private_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Folder (0700) for files with keys; also removes those of processes that were killed.

    A process holds a lock on its folder for as long as it lives.
    """
    remove_leftovers(parent)
    lock = None
    while lock is None:  # another process took a new folder for one that was left
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        with contextlib.suppress(FileNotFoundError):
            lock = _locked(folder)
    try:
        yield folder
    finally:
        with contextlib.suppress(FileNotFoundError):  # it has become the data directory
            shutil.rmtree(folder)
        os.close(lock)


def _locked(folder: Path) -> int | None:
    """Return a descriptor that holds a folder's lock; None where another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    if not os.fstat(descriptor).st_nlink:  # removed meanwhile
        os.close(descriptor)
        return None
    return descriptor


# Reading -----------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Unpacked:
    """What was found in a backup so far."""

    sums: dict[str, str]  # SHA-256 by name
    has_head: bool = False  # versions before 0.10 wrote none
    expected: Mapping[str, str] | None = None  # what the last member says of ``sums``


class _Member(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if not found.isreg() and found.size > _HEADER_MAX_BYTES:
            raise tarfile.ReadError(f"a header of {found.size} bytes")
        return found


def _unpack_verified(file: Path, folder: Path) -> list[str]:
    """Unpack a backup and verify format, version, checksums and databases; return the names."""
    try:
        with gzip.open(file) as packed:
            with tarfile.open(fileobj=packed, mode="r:", tarinfo=_Member) as archive:
                found = _unpack(archive, folder)
            _read_to_the_end(packed)  # only there gzip compares its own checksum
    except BackupUnusable as error:
        raise BackupUnusable(f"{file}: {error}") from error
    except _READ_ERRORS as error:
        raise BackupUnusable(f"{file}: {_explain_unreadable(file, error)}") from error
    if not any(name.endswith(".sqlite3") for name in found.sums):
        raise BackupUnusable(f"{file}: no database in it: not a backup of Broadside")
    if found.has_head and found.expected != found.sums:
        raise BackupUnusable(f"{file}: {_explain_sums(found)}")
    for name in found.sums:
        if name.endswith(".sqlite3"):
            _check(folder / name)
    return sorted(found.sums)


def _unpack(archive: tarfile.TarFile, folder: Path) -> _Unpacked:
    """Write what :func:`back_up` packed, and nothing else."""
    found = _Unpacked(sums={})
    for position, member in enumerate(archive):
        name = member.name
        if found.expected is not None:
            raise BackupUnusable(f"{name[:100]!r} is behind its end: not a backup of Broadside")
        if position == 0 and name == _HEAD:
            _check_head(_read_text(archive, member))
            found.has_head = True
            continue
        if found.has_head and name == _SUMS:
            found.expected = _parse_sums(_read_text(archive, member))
            continue
        if not member.isreg() or member.issparse() or _NAMES.fullmatch(name) is None:
            raise BackupUnusable(f"{name[:100]!r} is in it: not a backup of Broadside")
        if name in found.sums or len(found.sums) == _NAMES_MAX_COUNT:
            raise BackupUnusable(f"{name!r}: twice in it, or one of too many; take a new backup")
        free_bytes = shutil.disk_usage(folder).free
        if member.size > free_bytes:
            raise BackupUnusable(
                f"{name}: {member.size} bytes, and {free_bytes} are free; make room for it"
            )
        found.sums[name] = _extract(archive, member, folder / name)
    return found


def _read_text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    """Read a small member of text. Raises ``tarfile.ReadError``, ``ValueError``."""
    content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
    if content is None or member.size > _HEADER_MAX_BYTES:
        raise tarfile.ReadError(f"{member.name} is no text of up to {_HEADER_MAX_BYTES} bytes")
    with content:
        return content.read().decode("ascii")


def _check_head(text: str) -> None:
    """Raise :class:`BackupUnusable` for another format, or a version that is not known here."""
    fields: Any = json.loads(text)
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
    """Return SHA-256 by name. Raises ``ValueError``."""
    pairs = [line.split("  ", 1) for line in text.splitlines()]
    sums = {name: digest for digest, name in pairs}
    if len(sums) != len(pairs):
        raise ValueError(f"a name twice in {_SUMS}")
    return sums


def _explain_sums(found: _Unpacked) -> str:
    if found.expected is None:
        return f"its end is missing: there is no {_SUMS}; take it from another copy"
    names = sorted(
        name
        for name in {*found.sums, *found.expected}
        if found.sums.get(name) != found.expected.get(name)
    )
    return f"{', '.join(names)[:200]}: not what its checksum says; take it from another copy"


def _explain_unreadable(file: Path, error: Exception) -> str:
    with file.open("rb") as content:
        start = content.read(16)
    if start.startswith(b"SQLite format 3"):
        return "a SQLite database, not a backup; give the file that `broadside backup` wrote"
    if not start.startswith(b"\x1f\x8b"):
        return "not a backup of Broadside: it is not compressed by gzip"
    said = str(error) or type(error).__name__
    return f"cut short or damaged, or not a backup of Broadside ({said}); take it from another copy"


def _read_to_the_end(packed: gzip.GzipFile) -> None:
    """Read what is behind the archive. Raises :class:`BackupUnusable`, ``gzip.BadGzipFile``."""
    if any(packed.read(_PADDING_MAX_BYTES)) or packed.read(1):
        raise BackupUnusable("something is behind its end: not a backup of Broadside")


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> str:
    """Write a member's content, with no owner, mode or time of the archive's own.

    ``TarFile.extract`` is safe with ``filter="data"`` only, which Python 3.11.2 does not have.

    Returns:
        Its SHA-256 in hex.
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
        raise tarfile.ReadError(f"{member.name} is cut short")
    _sync(target)
    return hashed.digest.hexdigest()


def _copy(source: Path, target: Path) -> None:
    """Copy a database in one read transaction.

    Without the transaction a copy in steps begins anew at every commit of another process, and
    never ends beside a working fleet. In write-ahead-log mode a reader makes no writer wait. After
    each step the copy is on the disk: gigabytes that wait for it hold up the commits of others.
    """
    try:
        with (
            contextlib.closing(
                sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
            ) as at,
            contextlib.closing(sqlite3.connect(target)) as to,
            target.open("rb") as copied,
        ):
            to.execute("PRAGMA synchronous=OFF")  # it is synced here, step by step
            at.execute("BEGIN")
            at.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # the snapshot's beginning
            at.backup(to, pages=_STEP_PAGES, progress=lambda *_: os.fdatasync(copied.fileno()))
    except sqlite3.Error as error:
        raise BackupUnusable(f"{source}: cannot be copied: {error}") from error


def _check(path: Path) -> None:
    """Raise :class:`BackupUnusable` for a database that is damaged, or not one of ours."""
    queue = path.stem == "queue"
    application = QUEUE_APPLICATION if queue else TABLE_APPLICATION
    with contextlib.closing(sqlite3.connect(path)) as database:
        try:
            foreign = explain_foreign(
                database, application, QUEUE_LAYOUT if queue else TABLE_LAYOUT
            )
            if foreign is not None:
                raise BackupUnusable(f"{path.name} in the backup: {foreign}")
            (said,) = database.execute("PRAGMA quick_check(1)").fetchone()
            database.execute("PRAGMA journal_mode=WAL")
        except sqlite3.Error as error:
            said = str(error)
    if said != "ok":
        raise BackupUnusable(f"{path.name} in the backup is damaged: {said}")
