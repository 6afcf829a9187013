"""Install commands for missing programs, depending on how Broadside was installed.

In a checkout, ``make setup`` installs all extras. An installation from a wheel, archive or image
has no Makefile. There, the system's package manager and pip install the programs.
"""

from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[1]


def in_checkout(root: Path = _ROOT) -> bool:
    """Return True if the folder of our packages is a checkout, including editable installs."""
    return (root / "pyproject.toml").is_file() and (root / "Makefile").is_file()


def bring(package: str, *, target: str, root: Path = _ROOT) -> str:
    """Return the install command for a missing program.

    Args:
        package: Command to use without a checkout, such as ``apt-get install iperf3``.
        target: Makefile target that installs the program in a checkout.
        root: Folder that contains our packages.
    """
    return f"run make {target}, or {package}" if in_checkout(root) else package


def bring_extra(extra: str, *, root: Path = _ROOT) -> str:
    """Return the install command for a missing library of an extra.

    Args:
        extra: Name of the extra in ``pyproject.toml``.
        root: Folder of our packages, which is a checkout or not.
    """
    return "run make setup" if in_checkout(root) else f"pip install 'broadside[{extra}]'"


def bring_gate(*, root: Path = _ROOT) -> str:
    """Return the instructions to build the missing start gate."""
    again = "make setup" if in_checkout(root) else "install broadside again"
    return f"install a C compiler (apt-get install gcc libc6-dev), then {again}"


def bring_recent_iperf3(release: str, *, root: Path = _ROOT) -> str:
    """Return the instructions to replace an iperf3 older than ``release``.

    Args:
        release: Oldest supported release, such as ``3.17``.
        root: Folder of our packages, which is a checkout or not.
    """
    if in_checkout(root):
        return f"make setup brings {release} or newer where the machine's Debian mirror has one"
    return f"install iperf3 {release} or newer, and name it in BROADSIDE_AGENT_IPERF3"


def bring_by_script(script: str, *, root: Path = _ROOT) -> str:
    """Return the instructions to run a script that only a checkout contains.

    Args:
        script: Command as entered in the root of the checkout.
        root: Folder of our packages, which is a checkout or not.
    """
    if in_checkout(root):
        return f"run `{script}`"
    return f"only a checkout of Broadside brings it, by `{script}`"
