"""Tests for backup that need processes, sockets or real time."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from broadside.exchange.embedded.backup import (
    back_up,
)
from tests.unit.exchange.embedded.test_backup import make_store, members_of

KILLED_IN_MID_COPY = """
import os, signal, sys
from pathlib import Path
from broadside.exchange.embedded import backup

copy = backup._copy

def copy_and_be_killed(source, target):
    copy(source, target)
    if source.stem == "results":
        os.kill(os.getpid(), int(sys.argv[3]))

os.umask(0)
backup._copy = copy_and_be_killed
backup.back_up(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_files_of_a_killed_backup_are_private_and_removed_later(tmp_path: Path) -> None:
    make_store(data := tmp_path / "data")
    (folder := tmp_path / "backups").mkdir()
    parts = [str(data), str(folder / "one"), str(int(signal.SIGKILL))]
    killed = subprocess.run([sys.executable, "-c", KILLED_IN_MID_COPY, *parts], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = list(folder.rglob("*"))
    assert len(left) > 1, "the last copy is missing"
    assert {path.stat().st_mode & 0o077 for path in left} == {0}
    back_up(data, folder / "two")
    assert [path.name for path in folder.iterdir()] == ["two"]


def test_parallel_backups_leave_files_of_others(tmp_path: Path) -> None:
    make_store(data := tmp_path / "data")
    (folder := tmp_path / "backups").mkdir()
    parts = [str(data), str(folder / "one"), str(int(signal.SIGSTOP))]
    other = subprocess.Popen([sys.executable, "-c", KILLED_IN_MID_COPY, *parts])
    try:
        assert os.WIFSTOPPED(os.waitpid(other.pid, os.WUNTRACED)[1])
        back_up(data, folder / "two")
    finally:
        other.send_signal(signal.SIGCONT)
        other.wait(60)
    assert other.returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["one", "two"]


KILLED_AT_EVERY_STEP = """
import os, signal, sys
from pathlib import Path
from broadside.exchange.embedded import backup

file, data = map(Path, sys.argv[1:3])
number = 0
while True:
    number += 1
    child = os.fork()
    if child == 0:
        left = number

        def count(event, _):
            global left
            if event in ("open", "sqlite3.connect") or event.startswith(("os.", "shutil.")):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        backup.restore(file, data)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        sys.exit(os.WEXITSTATUS(status) or (3 if number < 20 else 0))
    if data.exists() and any(data.iterdir()):  # complete or unchanged
        backup.back_up(data, file.with_name(f"after.{number}"))
        for database in data.iterdir():
            if database.is_file():
                database.unlink()
"""


def test_killed_restore_leaves_the_previous_state(tmp_path: Path) -> None:
    """The directory should be empty or complete, and leftovers should be removed later."""
    make_store(data := tmp_path / "data")
    back_up(data, tmp_path / "file")
    expected = members_of(tmp_path / "file")
    (again := tmp_path / "again").mkdir()
    parts = [sys.executable, "-c", KILLED_AT_EVERY_STEP, str(tmp_path / "file"), str(again)]
    done = subprocess.run(parts, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in again.iterdir()) == ["private.sqlite3", "results.sqlite3"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    # Killed after the last step. Nothing is missing.
    for path in tmp_path.glob("after.*"):
        assert members_of(path).keys() == expected.keys()


def test_backup_does_not_block_writers(tmp_path: Path) -> None:
    """Check that writers are not blocked and that the backup does not write much more than without
    them."""
    make_store(data := tmp_path / "data")
    with contextlib.closing(sqlite3.connect(data / "results.sqlite3")) as filling:
        filling.execute("CREATE TABLE filler (content BLOB)")
        filling.executemany("INSERT INTO filler VALUES (?)", [(os.urandom(1_000_000),)] * 20)
        filling.commit()
    quiet_bytes = written_by_backup(data, tmp_path / "quiet")
    done = threading.Event()
    commits_count = 0

    def write() -> None:
        nonlocal commits_count
        at = sqlite3.connect(data / "results.sqlite3", timeout=0, isolation_level=None)
        with contextlib.closing(at) as writing:
            writing.execute("PRAGMA synchronous=OFF")
            while not done.is_set():
                writing.execute("UPDATE entity SET etag = ?", (str(commits_count),))
                commits_count += 1

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        try:
            busy_bytes = written_by_backup(data, tmp_path / "busy")
        finally:
            done.set()
        assert writer.result() is None, "a commit was refused"
    assert commits_count > 1
    assert busy_bytes < 2 * quiet_bytes


def written_by_backup(data: Path, file: Path) -> int:
    """Return the number of bytes written for a backup, using a new process."""
    script = (
        "import sys; from pathlib import Path; from broadside.exchange.embedded.backup import *\n"
        "back_up(*map(Path, sys.argv[1:]))\n"
        "print(open('/proc/self/io').read())"
    )
    parts = [sys.executable, "-c", script, str(data), str(file)]
    stdout = subprocess.run(parts, check=True, capture_output=True, text=True).stdout
    return int(stdout.partition("wchar: ")[2].split()[0])
