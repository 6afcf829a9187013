"""Command that generates and serves TCP connections, see ``connections.c``.

The C code is a library next to this module, built and shipped like the start gate. This module
loads it and calls its main function with the command line.
"""

import ctypes
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from broadside.exchange.installation import bring_gate


def find_library(folder: Path = Path(__file__).parent) -> Path | None:
    """Return the path of the library, or None if it was not built."""
    built = (folder / f"libconnections{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in built if path.is_file()), None)


def main(arguments: list[str]) -> int:
    """Run the program until it ends.

    Args:
        arguments: Command line without the name of the program.

    Returns:
        The exit code.
    """
    library = find_library()
    if library is None:
        sys.stderr.write(f"connections: the generator was not built; {bring_gate()}\n")
        return 1
    argv = (ctypes.c_char_p * len(arguments))(*(text.encode() for text in arguments))
    code: int = ctypes.CDLL(str(library)).broadside_connections(len(arguments), argv)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
