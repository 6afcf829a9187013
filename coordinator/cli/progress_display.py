"""Progress of a long command with its expected end, on standard error and only on a terminal."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Final

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from broadside.coordinator.cli.terminal_text import open_console
from broadside.exchange.outage_log import utc_now

# A command that ends earlier shows no progress.
_DELAY_S: Final = 1.0

Advance = Callable[[float], None]


class _EndColumn(ProgressColumn):
    """Expected end from the progress so far, or the latest end, and the elapsed time."""

    def __init__(self, limit_s: float | None) -> None:
        super().__init__()
        self._limit_s = limit_s

    def render(self, task: Task) -> Text:
        return Text(end_text(task.elapsed or 0.0, task.percentage / 100, self._limit_s))


def end_text(elapsed_s: float, done_ratio: float, limit_s: float | None) -> str:
    """Return the elapsed time and the end of a task.

    Args:
        elapsed_s: Time since the start in seconds.
        done_ratio: Completed part of the task.
        limit_s: Time in seconds after which the task fails. None if there is no limit.
    """
    text = f"{elapsed_s:.0f} s"
    if 0 < done_ratio < 1:
        left_s, kind = elapsed_s * (1 / done_ratio - 1), "about"
    elif limit_s is not None:
        left_s, kind = max(0.0, limit_s - elapsed_s), "the latest"
    else:
        return text
    return f"{text}, ends at {kind} {utc_now() + timedelta(seconds=left_s):%H:%M:%S}Z"


@contextlib.contextmanager
def show_progress(
    title: str, total: float | None = None, *, limit_s: float | None = None
) -> Iterator[Advance]:
    """Show the progress of a task while the context is active.

    Args:
        title: What is done.
        total: Number of steps. None if it is unknown.
        limit_s: Time in seconds after which the task fails. None if there is no limit.

    Yields:
        Function that adds a number of completed steps.
    """
    console = open_console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(20), _EndColumn(limit_s))
    progress = Progress(*columns, console=console, transient=True, redirect_stdout=False)
    task = progress.add_task(title, total=total)
    timer = threading.Timer(_DELAY_S, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda steps: progress.advance(task, steps)
    finally:
        timer.cancel()
        timer.join()
        progress.stop()
