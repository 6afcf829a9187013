"""Run a command as an unprivileged user, independent of the checkout's location and owner.

Interpreter and checkout are often in a folder that other users cannot enter, for example root's
home, or were created with umask 077. Therefore the command runs in a mount namespace, which ends
with it. In this namespace an open folder replaces the closed folder and contains only the required
paths. An overlay makes unreadable files readable. The host is not changed.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

NOBODY: Final = "65534"
CHECKOUT: Final = Path(__file__).parents[2]
_OTHERS_READ: Final = 0o004
_OTHERS_ENTER: Final = 0o001


def opened(*folders: Path) -> list[str]:
    """Return the command prefix that makes the checkout readable for every user.

    Args:
        folders: Further folders that the command needs. They may be inside a closed folder.
    """
    alone = ["unshare", "--mount", "--propagation=private", sys.executable, __file__]
    return [*alone, *map(str, folders), "--"]


def as_nobody(*folders: Path) -> list[str]:
    """Return the command prefix to run a command as the user nobody.

    Args:
        folders: As in :func:`opened`.
    """
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return [*opened(*folders), "setpriv", *user, "--"]


def first_closed(path: Path) -> Path | None:
    """Return the topmost folder above ``path`` that others cannot enter."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & _OTHERS_ENTER:
            return folder
    return None


def is_readable(folder: Path) -> bool:
    """Return whether others can enter ``folder`` and read the files in it."""
    if not folder.stat().st_mode & _OTHERS_ENTER:
        return False
    files = (path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    return all(path.stat().st_mode & _OTHERS_READ for path in files)


def main(arguments: Sequence[str]) -> None:
    """Prepare the mount namespace of this process and execute the command.

    Args:
        arguments: Further folders that the command needs, then ``--``, then the command.
    """
    end = arguments.index("--")
    read = {CHECKOUT, Path(sys.prefix), Path(sys.base_prefix)}
    requested = {*read, Path(os.path.realpath(sys.executable)).parent.parent}
    requested |= {Path(tempfile.gettempdir()), *map(Path, arguments[:end])}
    outer_first = sorted(requested, key=lambda path: len(path.parts))
    stored = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in outer_first}
    try:
        for path in stored:
            while (closed := first_closed(path)) is not None:
                _replace(closed, stored)
            if path in read and not is_readable(path):
                _make_readable(path)
    finally:
        for handle in stored.values():
            os.close(handle)
    os.chdir(CHECKOUT)
    os.execvp(arguments[end + 1], list(arguments[end + 1 :]))  # noqa: S606 - no shell


def _replace(closed: Path, handles: Mapping[Path, int]) -> None:
    """Replace ``closed`` with an open folder that contains the ``handles`` paths below it."""
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", closed)
    for path, handle in handles.items():
        if path.is_relative_to(closed) and not path.exists():
            path.mkdir(parents=True)
            _mount("--no-canonicalize", "--rbind", f"/proc/self/fd/{handle}", path, handle)


def _make_readable(folder: Path) -> None:
    """Make the files in ``folder`` readable for all users without copying their contents."""
    with tempfile.TemporaryDirectory() as space:
        _mount("-t", "tmpfs", "tmpfs", space)
        upper, work = Path(space, "upper"), Path(space, "work")
        upper.mkdir()
        work.mkdir()
        layers = f"lowerdir={folder},upperdir={upper},workdir={work},metacopy=on"
        _mount("-t", "overlay", "-o", layers, "overlay", folder)
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        subprocess.run(["umount", "--lazy", space], check=True)


def _mount(*arguments: str | Path | int) -> None:
    handles = [part for part in arguments if isinstance(part, int)]
    argv = ["mount", *(str(part) for part in arguments if not isinstance(part, int))]
    subprocess.run(argv, check=True, pass_fds=handles)


if __name__ == "__main__":
    main(sys.argv[1:])
