"""Configure how glibc allocates memory for the threads of this process."""

import ctypes
from collections.abc import Mapping
from typing import Final

# Options of ``mallopt`` from glibc's <malloc.h>. By default each thread has a separate heap. An
# array above 128 kB is then mapped from the kernel, page by page, at every allocation.
# M_ARENA_MAX
HEAPS_MAX_COUNT: Final = -8
# M_MMAP_THRESHOLD
FRESH_FROM_BYTES: Final = -3
# M_TRIM_THRESHOLD, freed memory that is reused for the next arrays.
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
    return set_option is not None and all(set_option(*each) for each in options.items())
