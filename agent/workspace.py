"""Folders for engines that need files, used for a single test or server.

They are created in the folder for temporary files, because an engine running as ``nobody`` needs
access. If an agent was killed, the next one with the same name deletes its folders. A folder is
locked while its agent is running, because agents of two fleets on a host can have the same name.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

from broadside.agent.engine_process import ProcessUser
from broadside.exchange.engines.downloads import BLOCK_BYTES
from broadside.exchange.engines.port import EngineFile

# Zeros are at the end of each unit of a body, so that small bodies have their share of them.
UNIT_BYTES: Final = 1000


class Workspace:
    """Folder for an engine."""

    def __init__(self, agent_id: str) -> None:
        """Create the folder.

        Raises:
            OSError: The folder cannot be created.
        """
        self.path, self._lock = _locked(agent_id)
        # None to use the agent's user.
        self.identity: ProcessUser | None = None

    def give_to(self, identity: ProcessUser | None) -> None:
        """Set the user to run the engine as, who will own the folder and all files in it."""
        self.identity = identity
        self._make_private(self.path)

    def fill(self, files: Iterable[EngineFile]) -> None:
        """Write files that only the engine can use.

        Raises:
            OSError: A file cannot be written.
        """
        for file in files:
            path = self.path / file.name
            folder = path.parent
            if not folder.exists():
                folder.mkdir(mode=0o700)
                self._make_private(folder)
            if file.is_closed_folder:
                path.chmod(0o500)
                continue
            if file.link_to is not None:
                path.symlink_to(file.link_to)
                continue
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(os.open(path, flags, 0o600), "wb") as opened:
                if file.size_bytes is None:
                    opened.write(file.text.encode())
                elif file.is_sparse:
                    opened.truncate(file.size_bytes)
                    # agent/bodies.c reads the share of zeros from the time stamp.
                    os.utime(opened.fileno(), (file.zeros_percent, file.zeros_percent))
                    os.fchmod(opened.fileno(), 0o400)
                else:
                    _write_body(opened, file.size_bytes, file.zeros_percent)
            self._make_private(path)

    def close(self) -> None:
        """Delete the folder and release its lock."""
        _remove(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _make_private(self, path: Path) -> None:
        if self.identity is not None:
            os.chown(path, self.identity.user_id, self.identity.group_id)


def sweep(agent_id: str) -> None:
    """Delete the folders of a previous agent with this name."""
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix(agent_id)}*"):
        with contextlib.suppress(OSError):
            lock = _lock(path)
            if lock is not None:
                _remove(path)
                os.close(lock)


def _write_body(opened: BinaryIO, size_bytes: int, zeros_percent: int) -> None:
    """Write a block of random bytes and zeros to a file until it has its size."""
    random = b"\xff" * (UNIT_BYTES * (100 - zeros_percent) // 100)
    mask = random.ljust(UNIT_BYTES, b"\0") * (BLOCK_BYTES // UNIT_BYTES)
    number = int.from_bytes(os.urandom(BLOCK_BYTES)) & int.from_bytes(mask)
    block = number.to_bytes(BLOCK_BYTES)
    for start in range(0, size_bytes, BLOCK_BYTES):
        opened.write(block[: size_bytes - start])


def _remove(path: Path) -> None:
    for folder in path.glob("*/"):
        with contextlib.suppress(OSError):
            folder.chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


def _locked(agent_id: str) -> tuple[Path, int | None]:
    """Create a folder and return it with the descriptor of its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_prefix(agent_id)))
        lock = _lock(path)
        # Otherwise another agent has just deleted it.
        if lock is not None and path.exists():
            return path, lock


def _lock(path: Path) -> int | None:
    """Return a descriptor that locks a folder until it is closed, or None if it is already locked.

    Engines do not inherit it. Raises ``OSError`` if the path is not a folder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _prefix(agent_id: str) -> str:
    return f"broadside-{agent_id}@"
