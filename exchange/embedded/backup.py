"""A coordinator's data directory as one file, taken while it is in use, and laid out again.

The databases are copied one after another, in the order in which a row of one vouches for what
stands in the next: what the list of runs says was queued is on the queue or done, and what is on
the queue is in a plan. So the copies need no common instant (:mod:`broadside.exchange.records`).
"""

import contextlib
import fcntl
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from broadside.exchange.embedded.embedded_queue import QUEUE_APPLICATION, QUEUE_LAYOUT
from broadside.exchange.embedded.embedded_table import TABLE_APPLICATION, TABLE_LAYOUT
from broadside.exchange.embedded.sqlite import explain_foreign

TLS_FOLDER: Final = "tls"  # the coordinator's certificate authority, which agents trust
DATABASES: Final = ("private", "queue", "control", "results")  # in this order, see above
_NAMES: Final = re.compile(rf"({'|'.join(DATABASES)})\.sqlite3|{TLS_FOLDER}/\w[\w.-]{{0,99}}")
_NAMES_MAX_COUNT: Final = 100
_HEADER_MAX_BYTES: Final = 65_536  # of what describes a member: it is read whole
_ALL_PAGES: Final = -1


class BackupUnusable(Exception):
    """It cannot be taken or laid out; says why, and the fix."""


def back_up(data_dir: Path, file: Path) -> list[str]:
    """Write everything of ``data_dir`` into a new ``file``; the names of what is in it.

    Raises :class:`BackupUnusable`, ``OSError``.
    """
    found = [name for name in DATABASES if (data_dir / f"{name}.sqlite3").exists()]
    if not found:
        raise BackupUnusable(f"{data_dir}: nothing is stored there; set BROADSIDE_DATA_DIR")
    with _private_folder(file.absolute().parent, ".backup-") as folder:
        packed = folder / "packed"
        packed.touch(0o600)  # it holds keys
        names = []
        with tarfile.open(packed, "w:gz", compresslevel=1) as archive:
            for name in found:
                copy = folder / f"{name}.sqlite3"
                copy.touch(0o600)
                _copy(data_dir / copy.name, copy)
                archive.add(copy, copy.name)
                copy.unlink()
                names.append(copy.name)
            for path in sorted((data_dir / TLS_FOLDER).glob("*.*")):
                archive.add(path, f"{TLS_FOLDER}/{path.name}")
                names.append(f"{TLS_FOLDER}/{path.name}")
        try:
            file.hardlink_to(packed)  # a file that is there stays
        except FileExistsError as error:
            raise BackupUnusable(f"{file}: there is one already; choose another name") from error
    return names


def restore(file: Path, data_dir: Path) -> list[str]:
    """Lay ``file`` out as ``data_dir``, which is not there yet or empty; the names of what was.

    Raises :class:`BackupUnusable`, ``OSError``.
    """
    if data_dir.exists() and any(data_dir.iterdir()):
        raise BackupUnusable(
            f"{data_dir}: not empty; set BROADSIDE_DATA_DIR to a new directory, or move that away"
        )
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    with _private_folder(data_dir.absolute().parent, ".restore-") as unpacked:
        try:
            with tarfile.open(file, "r:gz", tarinfo=_Member) as archive:
                names = _unpack(archive, unpacked)
        except BackupUnusable as error:
            raise BackupUnusable(f"{file}: {error}") from error
        # Of a damaged file, besides its own errors: what no number is, in a number's place.
        except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
            raise BackupUnusable(f"{file}: not a backup of Broadside ({error})") from error
        if not any(name.endswith(".sqlite3") for name in names):
            raise BackupUnusable(f"{file}: no database in it")
        for name in names:
            if name.endswith(".sqlite3"):
                _check(unpacked / name)
        with contextlib.suppress(FileNotFoundError):
            data_dir.rmdir()
        unpacked.rename(data_dir)
    return sorted(names)


@contextlib.contextmanager
def _private_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Folder (0700) for files with keys; also removes those of processes that were killed.

    A process holds a lock on its folder for as long as it lives.
    """
    for left in parent.glob(f"{prefix}*"):
        # Nobody else's, and no link: who is root removes nothing by another's choice.
        with contextlib.suppress(OSError):
            if left.lstat().st_uid == os.geteuid() and (lock := _locked(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)
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


class _Member(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if not found.isreg() and found.size > _HEADER_MAX_BYTES:
            raise tarfile.ReadError(f"a header of {found.size} bytes")
        return found


def _unpack(archive: tarfile.TarFile, folder: Path) -> list[str]:
    """What :func:`back_up` writes, and nothing else."""
    names: list[str] = []
    for member in archive:
        name = member.name
        if not member.isreg() or member.issparse() or _NAMES.fullmatch(name) is None:
            raise BackupUnusable(f"{name[:100]!r} is in it: not a backup of Broadside")
        if name in names or len(names) == _NAMES_MAX_COUNT:
            raise BackupUnusable(f"{name!r}: twice in it, or one of too many; take a new backup")
        free_bytes = shutil.disk_usage(folder).free
        if member.size > free_bytes:
            raise BackupUnusable(
                f"{name}: {member.size} bytes, and {free_bytes} are free; make room for it"
            )
        _extract(archive, member, folder / name)
        names.append(name)
    return names


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write a member's content, with no owner, mode or time of the archive's own.

    ``TarFile.extract`` is safe with ``filter="data"`` only, which Python 3.11.2 does not have.
    """
    target.parent.mkdir(mode=0o700, exist_ok=True)
    content = archive.extractfile(member)
    if content is None:
        raise tarfile.ReadError(f"{member.name} has no content")
    with (
        content,
        os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as to,
    ):
        shutil.copyfileobj(content, to)


def _copy(source: Path, target: Path) -> None:
    """Copy a database in one read transaction.

    A copy in steps begins anew at every commit of another process, and never ends beside a working
    fleet. In write-ahead-log mode a reader makes no writer wait.
    """
    try:
        with (
            contextlib.closing(
                sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
            ) as at,
            contextlib.closing(sqlite3.connect(target)) as to,
        ):
            at.backup(to, pages=_ALL_PAGES)
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
