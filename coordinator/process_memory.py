"""Memory of a process that holds many small things for long, and makes large ones each second."""

import gc
from typing import Final

from broadside.exchange.heap import FRESH_FROM_BYTES, HEAPS_MAX_COUNT, KEPT_MAX_BYTES, set_heap

NEW_MAX_COUNT: Final = 50_000  # containers between two collections; Python's own pace is 700

_HEAP: Final = {HEAPS_MAX_COUNT: 1, FRESH_FROM_BYTES: 4 << 20, KEPT_MAX_BYTES: 32 << 20}


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
    return set_heap(_HEAP)
