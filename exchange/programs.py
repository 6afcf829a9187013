"""Where this host's programs are, and what those that we start are told of it."""

import os
import re
import shutil
import sys
from typing import Final

SYSTEM_FOLDERS: Final = "/usr/local/sbin:/usr/sbin:/sbin"  # not on an ordinary user's PATH

_KEPT_BACK: Final = re.compile(
    r"^(BROADSIDE|AZURE|IDENTITY|MSI|OTEL)_|TOKEN|SECRET|PASSWORD|CREDENTIAL|CONNECTION_STRING"
    r"|_KEY$|_PROXY$",
    re.IGNORECASE,
)


def program_path(name: str) -> str | None:
    """A program by its name or path: on ``PATH``, then in the system's own folders."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_FOLDERS}")


def module_command(module: str, *words: str) -> list[str]:
    """Return the command line that runs a module of ours in another process of this Python.

    ``-P`` keeps the current folder off the path of imports: a file ``agent.py`` or ``json.py``
    that lies there is a user's, and must not run.
    """
    return [sys.executable, "-P", "-m", module, *words]


def program_environment() -> dict[str, str]:
    """This process's environment without settings, secrets and proxies.

    A traffic engine needs none of them: strangers talk to it, and its traffic goes straight.
    """
    return {name: value for name, value in os.environ.items() if not _KEPT_BACK.search(name)}
