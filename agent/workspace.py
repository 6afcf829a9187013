"""Folders for engines that need files: made for one test or one server, and gone with it.

They lie under the system's folder for temporary files, as an engine that runs as nobody has to
reach them. What an agent that was killed left there, the next one of its name removes: a folder is
locked for as long as its agent lives, since agents of two fleets on one host may share a name.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from broadside.agent.engine_process import Identity
from broadside.exchange.engines.port import File


class Workspace:
    """One folder of an engine's own."""

    def __init__(self, agent_id: str) -> None:
        """Raises ``OSError``."""
        self.path, self._lock = _locked(agent_id)
        self.identity: Identity | None = None  # None: the agent's own

    def give_to(self, identity: Identity | None) -> None:
        """Let the engine run as somebody, who owns the folder and what is written into it."""
        self.identity = identity
        self._own(self.path)

    def fill(self, files: Iterable[File]) -> None:
        """Write the files, readable by the engine alone. Raises ``OSError``."""
        for file in files:
            path = self.path / file.name
            folder = path.parent
            if not folder.exists():
                folder.mkdir(mode=0o700)
                self._own(folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(os.open(path, flags, 0o600), "wb") as opened:
                if file.size_bytes is None:
                    opened.write(file.text.encode())
                else:
                    opened.truncate(file.size_bytes)
            self._own(path)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _own(self, path: Path) -> None:
        if self.identity is not None:
            os.chown(path, self.identity.user_id, self.identity.group_id)


def sweep(agent_id: str) -> None:
    """Remove what an earlier agent of this name left behind."""
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix(agent_id)}*"):
        with contextlib.suppress(OSError):
            lock = _lock(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(agent_id: str) -> tuple[Path, int | None]:
    """A new folder, and the descriptor that keeps it from being swept."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_prefix(agent_id)))
        lock = _lock(path)
        if lock is not None and path.exists():  # else somebody swept it just now
            return path, lock


def _lock(path: Path) -> int | None:
    """A descriptor that holds a folder until it is closed; None where a live agent has it.

    Engines do not inherit it. Raises ``OSError`` for what is no folder.
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
