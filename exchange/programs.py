"""Find programs on this host and create the environment to run them."""

import os
import re
import shutil
import sys
from typing import Final

# Not on the PATH of an ordinary user.
SYSTEM_FOLDERS: Final = "/usr/local/sbin:/usr/sbin:/sbin"

_KEPT_BACK: Final = re.compile(
    r"^(BROADSIDE|AZURE|IDENTITY|MSI|OTEL)_|TOKEN|SECRET|PASSWORD|CREDENTIAL|CONNECTION_STRING"
    r"|_KEY$|_PROXY$",
    re.IGNORECASE,
)


def program_path(name: str) -> str | None:
    """Return the path of a program from ``PATH`` or the system folders.

    Args:
        name: Name or path of the program.

    Returns:
        Path, or None if the program was not found.
    """
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_FOLDERS}")


def module_command(module: str, *words: str) -> list[str]:
    """Return the command line that runs a Broadside module in another Python process.

    Option ``-P`` removes the current folder from the import path. Otherwise Python could import a
    user's ``agent.py`` or ``json.py`` from that folder.

    Args:
        module: The name of the module.
        words: Arguments of the command.
    """
    return [sys.executable, "-P", "-m", module, *words]


def program_environment() -> dict[str, str]:
    """Return the environment of this process without settings, secrets and proxies.

    Traffic engines do not need these variables. They communicate with unknown hosts, so they must
    not have secrets. They send their traffic directly, without a proxy.
    """
    return {name: value for name, value in os.environ.items() if not _KEPT_BACK.search(name)}
