"""Finds programs, and names the package to install when one is missing."""

from typing import Final

from broadside.exchange.programs import program_path
from broadside.lab.errors import ToolMissing

PACKAGE_OF_TOOL: Final = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "chronyd": "chrony",
    "chronyc": "chrony",
    "cc": "gcc",
}


def find_tool(name: str) -> str:
    """Return the path to a program.

    Raises:
        ToolMissing: The program is not installed. The message has its package.
    """
    result = program_path(name)
    if result is None:
        package = PACKAGE_OF_TOOL.get(name, name)
        raise ToolMissing(f"{name} is not installed: run `sudo apt-get install {package}`")
    return result
