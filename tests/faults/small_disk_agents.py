"""Agents of the fault matrix, each on its own small disk that can be full.

The disk is a tmpfs over the agent's spool folder in the agent's own mount namespace. The kernel
removes it with the agent, and no other process sees it. The agent's credential for the coordinator
is stored outside of it.
"""

import ctypes
import os
import tempfile
from pathlib import Path
from typing import Final

from broadside.agent.run import run_from_environment
from broadside.lab.privileges import CLONE_NEWNS

# Each stream of iperf3 needs 128 KiB of it.
DISK_BYTES: Final = 4 * 2**20
# Defined in sys/mount.h.
MS_REC_SLAVE: Final = 0x4000 | 0x8_0000
# This is the space for a pair's seconds (two rows), report and claim only.
ROOM_BYTES: Final = 4 * 4096
FILLER: Final = "filler"
_SPOOL: Final = "BROADSIDE_AGENT_SPOOL_DIR"


def run() -> int:
    """Mount the disk and become an agent. The fork server calls this in a new child process."""
    spool_path = Path(os.environ[_SPOOL])
    spool_path.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    for result in (
        libc.unshare(CLONE_NEWNS),
        # Mounts of this process are private. Unmounts of others are propagated, because this
        # process would otherwise keep their namespaces alive.
        libc.mount(b"none", b"/", None, MS_REC_SLAVE, None),
        libc.mount(b"tmpfs", bytes(spool_path), b"tmpfs", 0, f"size={DISK_BYTES}".encode()),
    ):
        if result:
            raise OSError(ctypes.get_errno(), "no disk of its own")
    # The spool and the files of engines share the disk.
    temporary = spool_path / "tmp"
    temporary.mkdir()
    os.environ["BROADSIDE_CREDENTIAL_FILE"] = f"{spool_path}.credential.json"
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    return run_from_environment()


def fill_disk(pid: int, spool_path: Path) -> None:
    """Fill the disk of a running agent except :data:`ROOM_BYTES`, also if it has freed space."""
    with (_seen_by(pid, spool_path) / FILLER).open("ab") as filler:
        disk = os.fstatvfs(filler.fileno())
        filler.write(bytes(max(disk.f_bavail * disk.f_frsize - ROOM_BYTES, 0)))


def free_disk(pid: int, spool_path: Path) -> None:
    """Undo :func:`fill_disk`."""
    (_seen_by(pid, spool_path) / FILLER).unlink(missing_ok=True)


def _seen_by(pid: int, path: Path) -> Path:
    """Return a path as one process sees it in its mount namespace."""
    return Path(f"/proc/{pid}/root", *path.parts[1:])
