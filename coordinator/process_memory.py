"""Memory of a process that holds many small things for long, and makes large ones each second."""

import ctypes
import gc
from typing import Final

NEW_MAX_COUNT: Final = 50_000  # containers between two collections; Python's own pace is 700

# Of glibc's <malloc.h>: what can be set, and to what. By itself each thread has a heap of its own,
# and an array of over 128 kB is fresh from the kernel, page by page, whenever one is made.
_HEAP: Final = {
    -8: 1,  # M_ARENA_MAX, heaps
    -3: 4 << 20,  # M_MMAP_THRESHOLD, bytes
    -1: 32 << 20,  # M_TRIM_THRESHOLD, bytes that are kept for the next arrays
}


def collect_rarely() -> None:
    """Look for garbage in cycles seldom, and never again among what is there now.

    A thousand pairs' rows are hundreds of thousands of containers and hardly a cycle: at Python's
    own pace a fifth of a live look was spent on looking through them, in pauses of 0.1 s and more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_MAX_COUNT, 10, 10)


def keep_one_heap() -> bool:
    """Have all threads' arrays made in one heap, and what is freed there used again.

    Measured on a thousand pairs' summary: 0.5 of 3.9 CPU-seconds less, all of them the kernel's,
    and 25 MB less beside 20 viewers. False where the C library is another one and goes on as it is.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    return set_option is not None and all(set_option(*each) for each in _HEAP.items())
