"""Where the system's programs are, and which package brings a missing one."""

import os
import shutil
from typing import Final

from lab.errors import ToolMissing

PACKAGE_OF_TOOL: Final = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "chronyd": "chrony",
    "chronyc": "chrony",
    "cc": "gcc",
}
SYSTEM_FOLDERS: Final = "/usr/local/sbin:/usr/sbin:/sbin"  # not on an ordinary user's PATH


def find_tool(name: str) -> str:
    """The program's path. Raises :class:`ToolMissing`, which names the package."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_FOLDERS}")
    if found is None:
        package = PACKAGE_OF_TOOL.get(name, name)
        raise ToolMissing(f"{name} is not installed: run `sudo apt-get install {package}`")
    return found
