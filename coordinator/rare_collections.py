"""Python's garbage collector, for a process that holds many small things for long."""

import gc
from typing import Final

NEW_MAX_COUNT: Final = 50_000  # containers between two collections; Python's own pace is 700


def collect_rarely() -> None:
    """Look for garbage in cycles seldom, and never again among what is there now.

    A thousand pairs' rows are hundreds of thousands of containers and hardly a cycle: at Python's
    own pace a fifth of a live look was spent on looking through them, in pauses of 0.1 s and more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_MAX_COUNT, 10, 10)
