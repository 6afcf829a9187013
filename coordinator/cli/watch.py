"""Display of a run until its verdict, as a full screen on a terminal and otherwise as lines."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console
from rich.live import Live

from broadside.coordinator.cli.api_errors import ApiError
from broadside.coordinator.cli.exit_codes import INTERRUPTED
from broadside.coordinator.cli.run_event_state import RunEventState
from broadside.coordinator.cli.screen import progress_key, render_line, render_screen
from broadside.coordinator.cli.terminal_text import open_console
from broadside.coordinator.core.summary import RunSummary
from broadside.exchange.outage_log import utc_now

if TYPE_CHECKING:
    from broadside.coordinator.cli.operations import Operations

_REDRAW_S: Final = 0.25
_RETRY_S: Final = 1.0
# Time without a response after which the command fails.
_SILENCE_MAX_S: Final = 300.0
_LEAVE_KEYS: Final = ("q", "Q", "\x1b", "\x03")


async def follow(
    client: "Operations", run_id: str, *, local: bool, quiet: bool, plain: bool = False
) -> RunSummary:
    """Show a run until its verdict is stored.

    If the coordinator stops responding, the function will wait for it. Leaving (q, Ctrl-C) exits
    without aborting the run.

    Args:
        client: The operations to use.
        run_id: Id of the run.
        local: The run is processed by this process.
        quiet: Do not display anything.
        plain: Print lines even on a terminal.

    Returns:
        The summary with the verdict.

    Raises:
        typer.Exit: The user left the screen before the verdict.
    """
    console = open_console(stderr=True)
    try:
        if quiet:
            return await _read_events(client, run_id, _Follower(), lambda: None)
        if plain or not console.is_terminal or console.is_dumb_terminal:
            return await _show_lines(client, run_id, console)
        summary = await _show_screen(client, run_id, console)
    except asyncio.CancelledError:
        # Raised by Ctrl-C.
        _print_left(run_id, local=local)
        raise
    if summary is None:
        _print_left(run_id, local=local)
        raise typer.Exit(INTERRUPTED)
    return summary


def _print_left(run_id: str, *, local: bool) -> None:
    future = (
        "unless a `broadside serve` runs, agents stop when the lease of the run expires"
        if local
        else "the run continues"
    )
    typer.echo(
        f"left {run_id} without aborting it; {future}; `broadside watch {run_id}` shows it again, "
        f"`broadside abort {run_id}` aborts it",
        err=True,
    )


class _Follower:
    """Run state, with the clock of the coordinator.

    Attributes:
        state: State of the run.
        problem: Reason why there is no new data. None if there is no problem.
    """

    def __init__(self) -> None:
        self.state = RunEventState()
        self.problem: str | None = None
        self._at, self._read_s = utc_now(), time.monotonic()

    def process(self, name: str, data: str) -> None:
        self.problem = None
        self.state.process(name, data)
        if name == "status" and self.state.status is not None:
            self._at, self._read_s = self.state.status.now, time.monotonic()

    def now(self) -> datetime:
        """Return the time of the coordinator, extrapolated with the monotonic clock."""
        return self._at + timedelta(seconds=time.monotonic() - self._read_s)


async def _show_lines(client: "Operations", run_id: str, console: Console) -> RunSummary:
    """Print a line for each change, and return the summary."""
    follower = _Follower()
    printed: object = None

    def show() -> None:
        nonlocal printed
        key = (follower.problem, progress_key(follower.state))
        if key != printed:
            printed = key
            text = f"{follower.problem}; waiting" if follower.problem else None
            text = text or render_line(follower.state, follower.now())
            console.print(text, highlight=False, soft_wrap=True)

    return await _read_events(client, run_id, follower, show)


async def _show_screen(client: "Operations", run_id: str, console: Console) -> RunSummary | None:
    """Show the run on the full screen. Return None if the user has left."""
    follower, left = _Follower(), asyncio.Event()
    reader = asyncio.create_task(_read_events(client, run_id, follower, lambda: None))
    try:
        with _leave_keys(left), Live(console=console, screen=True, auto_refresh=False) as live:
            while not reader.done() and not left.is_set():
                screen = render_screen(
                    follower.state, *console.size, follower.now(), follower.problem
                )
                live.update(screen, refresh=True)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(left.wait(), _REDRAW_S)
    finally:
        if not reader.done():
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
    return None if left.is_set() else reader.result()


async def _read_events(
    client: "Operations", run_id: str, follower: _Follower, show: Callable[[], None]
) -> RunSummary:
    """Process events until the run has its verdict. A broken stream is opened again."""
    last_id: str | None = None
    # Monotonic time of the last response. None if there was none.
    response_s: float | None = None
    while True:
        try:
            summary = await client.summary(run_id)
            if summary is not None:
                return summary
            response_s = time.monotonic()
            async for name, data, event_id in client.events(run_id, last_id):
                response_s = time.monotonic()
                follower.process(name, data)
                if event_id != last_id:
                    # This is the last event of a poll.
                    last_id = event_id
                    show()
        except ApiError as error:
            if response_s is None or not _can_retry(error):
                raise
            if time.monotonic() - response_s > _SILENCE_MAX_S:
                raise
            follower.problem = str(error)
            show()
        if not follower.state.over:
            await asyncio.sleep(_RETRY_S)


def _can_retry(error: ApiError) -> bool:
    """Return True if a busy or unreachable coordinator may respond later."""
    return error.status is None or error.status >= 500 or error.status == 429


@contextlib.contextmanager
def _leave_keys(left: asyncio.Event) -> Iterator[None]:
    """Set ``left`` when a key to leave is pressed, if standard input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed() -> None:
        if sys.stdin.read(1) in _LEAVE_KEYS:
            left.set()

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, pressed)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
