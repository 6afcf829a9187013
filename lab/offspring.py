"""Processes that must not outlive the one that started them, however that ends."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """As ``preexec_fn``: the kernel sends SIGTERM when the starting *thread* has ended."""
    parent = os.getppid()
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the kernel was told
        os._exit(1)


def run_to_end(main: Callable[[], int]) -> None:
    """Exit with what ``main`` returns; with 128 + its number on SIGTERM and Ctrl-C, unwound."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # what was stood up is down by now
        sys.exit(128 + signal.SIGINT)
