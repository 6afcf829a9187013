"""How this Broadside is installed, and so which command brings what it lacks here.

A checkout has ``make``, and its ``make setup`` installs every extra. What is installed from a
wheel, an archive or an image has neither: there the system's packages and pip bring things.
"""

from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[1]


def in_checkout(root: Path = _ROOT) -> bool:
    """Return whether the folder that holds our packages is a checkout, also an editable one."""
    return (root / "pyproject.toml").is_file() and (root / "Makefile").is_file()


def bring(package: str, *, target: str, root: Path = _ROOT) -> str:
    """Return what to do where a program is missing, as an imperative.

    Args:
        package: What installs it without a checkout, such as ``apt-get install iperf3``.
        target: The target of the Makefile that brings it.
        root: The folder that holds our packages.
    """
    return f"run make {target}, or {package}" if in_checkout(root) else package


def bring_extra(extra: str, *, root: Path = _ROOT) -> str:
    """Return what to do where a library of one of our extras is missing."""
    return "run make setup" if in_checkout(root) else f"pip install 'broadside[{extra}]'"


def bring_gate(*, root: Path = _ROOT) -> str:
    """Return what to do where the start gate was not built."""
    again = "make setup" if in_checkout(root) else "install broadside again"
    return f"install a C compiler (apt-get install gcc libc6-dev), then {again}"


def bring_recent_iperf3(release: str, *, root: Path = _ROOT) -> str:
    """Return what to do where iperf3 is older than ``release``."""
    if in_checkout(root):
        return f"make setup brings {release} or newer where the machine's Debian mirror has one"
    return f"install iperf3 {release} or newer, and name it in BROADSIDE_AGENT_IPERF3"


def bring_by_script(script: str, *, root: Path = _ROOT) -> str:
    """Return what to do where only a script of a checkout brings something."""
    if in_checkout(root):
        return f"run `{script}`"
    return f"only a checkout of Broadside brings it, by `{script}`"
