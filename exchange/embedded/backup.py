"""A coordinator's data directory as one file, taken while it is in use, and laid out again.

The databases are copied one after another, in the order in which a row of one vouches for what
stands in the next: what the list of runs says was queued is on the queue or done, and what is on
the queue is in a plan. So the copies need no common instant (:mod:`broadside.exchange.records`).
"""

import contextlib
import re
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Final, Self

TLS_FOLDER: Final = "tls"  # the coordinator's certificate authority, which agents trust
DATABASES: Final = ("private", "queue", "control", "results")  # in this order, see above
_NAMES: Final = re.compile(rf"({'|'.join(DATABASES)})\.sqlite3|{TLS_FOLDER}/\w[\w.-]{{0,99}}")
_NAMES_MAX_COUNT: Final = 100
_HEADER_MAX_BYTES: Final = 65_536  # of what describes a member: it is read whole
_PAGES_AT_ONCE: Final = 2_000  # of 4 KiB: writers get their turn between them


class BackupUnusable(Exception):
    """It cannot be taken or laid out; says why, and the fix."""


def back_up(data_dir: Path, file: Path) -> list[str]:
    """Write everything of ``data_dir`` into a new ``file``; the names of what is in it.

    Raises :class:`BackupUnusable`, ``OSError``.
    """
    found = [name for name in DATABASES if (data_dir / f"{name}.sqlite3").exists()]
    if not found:
        raise BackupUnusable(f"{data_dir}: nothing is stored there; set BROADSIDE_DATA_DIR")
    with tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=".backup-") as folder:
        packed = Path(folder) / "packed"
        names = []
        with tarfile.open(packed, "w:gz", compresslevel=1) as archive:
            for name in found:
                copy = Path(folder) / f"{name}.sqlite3"
                _copy(data_dir / copy.name, copy)
                archive.add(copy, copy.name)
                copy.unlink()
                names.append(copy.name)
            for path in sorted((data_dir / TLS_FOLDER).glob("*.*")):
                archive.add(path, f"{TLS_FOLDER}/{path.name}")
                names.append(f"{TLS_FOLDER}/{path.name}")
        packed.chmod(0o600)  # it holds keys
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
    with tempfile.TemporaryDirectory(dir=data_dir.absolute().parent, prefix=".restore-") as folder:
        try:
            with tarfile.open(file, "r:gz", tarinfo=_Member) as archive:
                names = _unpack(archive, Path(folder))
        except BackupUnusable as error:
            raise BackupUnusable(f"{file}: {error}") from error
        # Of a damaged file, besides its own errors: what no number is, in a number's place.
        except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
            raise BackupUnusable(f"{file}: not a backup of Broadside ({error})") from error
        unpacked = Path(folder)
        for path in unpacked.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        if not any(name.endswith(".sqlite3") for name in names):
            raise BackupUnusable(f"{file}: no database in it")
        for name in names:
            if name.endswith(".sqlite3"):
                _check(unpacked / name)
        with contextlib.suppress(FileNotFoundError):
            data_dir.rmdir()
        laid_out = unpacked.rename(data_dir)
        laid_out.chmod(0o700)
        unpacked.mkdir()  # what the context takes away
    return sorted(names)


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
        archive.extract(member, folder, filter="data")
        names.append(name)
    return names


def _copy(source: Path, target: Path) -> None:
    try:
        with (
            contextlib.closing(
                sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
            ) as at,
            contextlib.closing(sqlite3.connect(target)) as to,
        ):
            at.backup(to, pages=_PAGES_AT_ONCE)
    except sqlite3.Error as error:
        raise BackupUnusable(f"{source}: cannot be copied: {error}") from error


def _check(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        try:
            (said,) = database.execute("PRAGMA quick_check(1)").fetchone()
            database.execute("PRAGMA journal_mode=WAL")
        except sqlite3.Error as error:
            said = str(error)
    if said != "ok":
        raise BackupUnusable(f"{path.name} in the backup is damaged: {said}")
