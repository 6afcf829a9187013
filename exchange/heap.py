"""How glibc hands memory out to the threads of this process."""

import ctypes
from collections.abc import Mapping
from typing import Final

# Of glibc's <malloc.h>: what can be set. By itself each thread has a heap of its own, and an array
# of over 128 kB is fresh from the kernel, page by page, whenever one is made.
HEAPS_MAX_COUNT: Final = -8  # M_ARENA_MAX
FRESH_FROM_BYTES: Final = -3  # M_MMAP_THRESHOLD
KEPT_MAX_BYTES: Final = -1  # M_TRIM_THRESHOLD, for the next arrays


def set_heap(options: Mapping[int, int]) -> bool:
    """Set them; False where the C library is another one and goes on as it is."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    return set_option is not None and all(set_option(*each) for each in options.items())
