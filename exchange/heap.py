"""Configure how glibc allocates memory for the threads of this process."""

import ctypes
from collections.abc import Mapping
from typing import Final

# Options of ``mallopt`` from glibc's <malloc.h>. By default each thread will get a separate heap,
# and an array above 128 kB will be mapped by the kernel, page by page. M_ARENA_MAX, the largest
# number of heaps.
HEAPS_MAX_COUNT: Final = -8
# M_MMAP_THRESHOLD, the size in bytes from which an allocation is mapped from the kernel.
FRESH_FROM_BYTES: Final = -3
# M_TRIM_THRESHOLD, how many free bytes the process reuses for the next arrays.
KEPT_MAX_BYTES: Final = -1


def set_heap(options: Mapping[int, int]) -> bool:
    """Set ``mallopt`` options.

    Args:
        options: Values by option number.

    Returns:
        True if all options were set. False if the C library has no ``mallopt`` or rejects an
        option.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    return set_option is not None and all(set_option(*option) for option in options.items())
