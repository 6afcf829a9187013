"""The agents of the fault matrix: each on a small disk of its own, so that one can be full.

The disk is a tmpfs over the agent's spool folder in a mount namespace of the agent's own: the
kernel takes it away with the agent, and nobody else sees it. What proves to a coordinator who the
agent is stays beside it.
"""

import ctypes
import os
import tempfile
from pathlib import Path
from typing import Final

from broadside.agent.run import run_from_environment
from broadside.lab.privileges import CLONE_NEWNS

DISK_BYTES: Final = 4 * 2**20  # iperf3 takes 128 KiB a stream of it
MS_REC_SLAVE: Final = 0x4000 | 0x8_0000  # sys/mount.h
ROOM_BYTES: Final = 4 * 4096  # for a pair's seconds (two rows), report and claim, and no more
FILLER: Final = "filler"
_SPOOL: Final = "BROADSIDE_AGENT_SPOOL_DIR"


def run() -> int:
    """What a fork server calls in a child just forked: mount the disk, then be an agent."""
    spool_path = Path(os.environ[_SPOOL])
    spool_path.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    for result in (
        libc.unshare(CLONE_NEWNS),
        # Ours stays ours; what others unmount goes here too, or we would hold their namespaces.
        libc.mount(b"none", b"/", None, MS_REC_SLAVE, None),
        libc.mount(b"tmpfs", bytes(spool_path), b"tmpfs", 0, f"size={DISK_BYTES}".encode()),
    ):
        if result:
            raise OSError(ctypes.get_errno(), "no disk of its own")
    temporary = spool_path / "tmp"  # the spool and what engines write share the disk
    temporary.mkdir()
    os.environ["BROADSIDE_CREDENTIAL_FILE"] = f"{spool_path}.credential.json"
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    return run_from_environment()


def fill_disk(pid: int, spool_path: Path) -> None:
    """Leave :data:`ROOM_BYTES` on the disk of a running agent, whatever it has freed since."""
    with (_seen_by(pid, spool_path) / FILLER).open("ab") as filler:
        disk = os.fstatvfs(filler.fileno())
        filler.write(bytes(max(disk.f_bavail * disk.f_frsize - ROOM_BYTES, 0)))


def free_disk(pid: int, spool_path: Path) -> None:
    """Undo :func:`fill_disk`."""
    (_seen_by(pid, spool_path) / FILLER).unlink(missing_ok=True)


def _seen_by(pid: int, path: Path) -> Path:
    """A path as one process sees it, in its mount namespace."""
    return Path(f"/proc/{pid}/root", *path.parts[1:])
