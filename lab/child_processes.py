"""Ensures that child processes end with their parent."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

# linux/prctl.h
PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Let the kernel send SIGTERM to this process when the parent *thread* ends.

    Use it as ``preexec_fn``.
    """
    parent = os.getppid()
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # Exit if the parent ended before prctl was called.
    if os.getppid() != parent:
        os._exit(1)


def run_to_end(main: Callable[[], int]) -> None:
    """Exit with the result from ``main``, or with 128 plus the signal number after cleanup.

    SIGTERM and Ctrl-C both unwind the stack.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    # All context managers will have exited at this point.
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
