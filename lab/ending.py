"""How the lab's own programs end: with an exit code, and with their lab down."""

import signal
import sys
from collections.abc import Callable


def run_to_end(main: Callable[[], int]) -> None:
    """Exit with what ``main`` returns; with 128 + its number on SIGTERM and Ctrl-C, unwound."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # what was stood up is down by now
        sys.exit(128 + signal.SIGINT)
