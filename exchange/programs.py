"""Where this host's programs are."""

import os
import shutil
from typing import Final

SYSTEM_FOLDERS: Final = "/usr/local/sbin:/usr/sbin:/sbin"  # not on an ordinary user's PATH


def program_path(name: str) -> str | None:
    """A program by its name or path: on ``PATH``, then in the system's own folders."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_FOLDERS}")
