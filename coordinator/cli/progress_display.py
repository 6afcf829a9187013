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

ProgressCallback = Callable[[float], None]


class _EndColumn(ProgressColumn):
    """Expected end from the progress so far, or the latest end, and the elapsed time."""

    def __init__(self, limit_s: float | None, expected_s: float | None) -> None:
        super().__init__()
        self._limit_s, self._expected_s = limit_s, expected_s

    def render(self, task: Task) -> Text:
        done_ratio = task.percentage / 100
        return Text(end_text(task.elapsed or 0.0, done_ratio, self._limit_s, self._expected_s))


def end_text(
    elapsed_s: float, done_ratio: float, limit_s: float | None, expected_s: float | None = None
) -> str:
    """Return the elapsed time and the end of a task.

    Args:
        elapsed_s: Time since the start in seconds.
        done_ratio: Completed part of the task.
        limit_s: Time in seconds after which the task fails. None if there is no limit.
        expected_s: Usual duration in seconds, used if nothing is done yet. None if unknown.
    """
    text = f"{elapsed_s:.0f} s"
    if 0 < done_ratio < 1:
        left_s, kind = elapsed_s * (1 / done_ratio - 1), "about"
    elif expected_s is not None and elapsed_s < expected_s:
        left_s, kind = expected_s - elapsed_s, "about"
    elif limit_s is not None:
        left_s, kind = max(0.0, limit_s - elapsed_s), "the latest"
    else:
        return text
    return f"{text}, ends at {kind} {utc_now() + timedelta(seconds=left_s):%H:%M:%S}Z"


@contextlib.contextmanager
def show_progress(
    title: str,
    total: float | None = None,
    *,
    limit_s: float | None = None,
    expected_s: float | None = None,
) -> Iterator[ProgressCallback]:
    """Show the progress of a task while the context is active.

    Args:
        title: What is done.
        total: Number of steps. None if it is unknown.
        limit_s: Time in seconds after which the task fails. None if there is no limit.
        expected_s: Usual duration in seconds. None if unknown.

    Yields:
        Function that adds a number of completed steps.
    """
    console = open_console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(20), _EndColumn(limit_s, expected_s))
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


def print_expected_end(name: str, minutes: int) -> None:
    """Print when a program that shows its own progress will have ended, on a terminal only.

    Args:
        name: Name of the program.
        minutes: Minutes that it usually needs at most.
    """
    console = open_console(stderr=True)
    if console.is_terminal:
        end_at = utc_now() + timedelta(minutes=minutes)
        console.print(f"{name} needs up to {minutes} minutes, until about {end_at:%H:%M:%S}Z")
