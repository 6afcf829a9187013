"""Display of a run until its verdict, as a full screen on a terminal and otherwise as lines."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console
from rich.live import Live

from broadside.coordinator.cli.exits import INTERRUPTED
from broadside.coordinator.cli.refused import ApiError
from broadside.coordinator.cli.screen import draw, line, stands
from broadside.coordinator.cli.watched import Watched
from broadside.coordinator.core.summary import RunSummary

if TYPE_CHECKING:
    from broadside.coordinator.cli.verbs import Verbs

_REDRAW_S: Final = 0.25
_RETRY_S: Final = 1.0
# Time without a response after which the command fails.
_AWAY_MAX_S: Final = 300.0
_KEYS_THAT_LEAVE: Final = ("q", "Q", "\x1b", "\x03")


async def follow(
    client: "Verbs", run_id: str, *, plain: bool = False, quiet: bool = False, local: bool = False
) -> RunSummary:
    """Show a run until its verdict is stored, and return the summary.

    If the coordinator stops responding, the function waits for it. Leaving (q, Ctrl-C) exits
    without aborting the run.

    Args:
        client: The client to use.
        run_id: The run to use.
        plain: Print lines even on a terminal.
        quiet: Do not print anything.
        local: Set to True when this process might be the one that processes the run.
    """
    console = Console(stderr=True)
    try:
        if quiet:
            return await _read(client, run_id, _Picture(), lambda: None)
        if plain or not console.is_terminal:
            return await _in_lines(client, run_id, console)
        summary = await _on_screen(client, run_id, console)
    except asyncio.CancelledError:
        # Raised by Ctrl-C.
        _say_left(run_id, local=local)
        raise
    if summary is None:
        _say_left(run_id, local=local)
        raise typer.Exit(INTERRUPTED)
    return summary


def _say_left(run_id: str, *, local: bool) -> None:
    goes_on = (
        "unless a `broadside serve` looks after it, agents stop when its lease lapses"
        if local
        else "the run goes on"
    )
    typer.echo(
        f"left {run_id} without aborting it; {goes_on}; `broadside watch {run_id}` shows it again, "
        f"`broadside abort {run_id}` stops it",
        err=True,
    )


class _Picture:
    """Run state, with the coordinator clock."""

    def __init__(self) -> None:
        self.watched = Watched()
        # Reason why there is no new data. None if there is no problem.
        self.problem: str | None = None
        self._at, self._read_s = datetime.now(UTC), time.monotonic()

    def take(self, name: str, data: str) -> None:
        self.problem = None
        self.watched.take(name, data)
        if name == "status" and self.watched.status is not None:
            self._at, self._read_s = self.watched.status.now, time.monotonic()

    def now(self) -> datetime:
        """Return the coordinator time, extrapolated with the monotonic clock."""
        return self._at + timedelta(seconds=time.monotonic() - self._read_s)


async def _in_lines(client: "Verbs", run_id: str, console: Console) -> RunSummary:
    """Print a line for each change, and return the summary."""
    picture = _Picture()
    said: object = None

    def show() -> None:
        nonlocal said
        now = (picture.problem, stands(picture.watched))
        if now != said:
            said = now
            text = f"{picture.problem}; waiting" if picture.problem else None
            text = text or line(picture.watched, picture.now())
            console.print(text, highlight=False, soft_wrap=True)

    return await _read(client, run_id, picture, show)


async def _on_screen(client: "Verbs", run_id: str, console: Console) -> RunSummary | None:
    """Show the run on the full screen. Return None if the user has left."""
    picture, left = _Picture(), asyncio.Event()
    reader = asyncio.create_task(_read(client, run_id, picture, lambda: None))
    try:
        with _keys(left), Live(console=console, screen=True, auto_refresh=False) as live:
            while not reader.done() and not left.is_set():
                width, height = console.size
                drawn = draw(picture.watched, width, height, picture.now(), picture.problem)
                live.update(drawn, refresh=True)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(left.wait(), _REDRAW_S)
    finally:
        if not reader.done():
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
    return None if left.is_set() else reader.result()


async def _read(
    client: "Verbs", run_id: str, picture: _Picture, show: Callable[[], None]
) -> RunSummary:
    """Process events until the run has its verdict. A broken stream is opened again."""
    last_id: str | None = None
    # Monotonic time when the last response was received. None if there was none.
    heard_s: float | None = None
    while True:
        try:
            summary = await client.summary(run_id)
            if summary is not None:
                return summary
            heard_s = time.monotonic()
            async for name, data, event_id in client.events(run_id, last_id):
                heard_s = time.monotonic()
                picture.take(name, data)
                if event_id != last_id:
                    # This is the last event of a poll.
                    last_id = event_id
                    show()
        except ApiError as error:
            if _is_final(error) or heard_s is None or time.monotonic() - heard_s > _AWAY_MAX_S:
                raise
            picture.problem = str(error)
            show()
        if not picture.watched.over:
            await asyncio.sleep(_RETRY_S)


def _is_final(error: ApiError) -> bool:
    """Return True if a retry is useless. A busy or unreachable coordinator may respond later."""
    return error.status is not None and error.status < 500 and error.status != 429


@contextlib.contextmanager
def _keys(left: asyncio.Event) -> Iterator[None]:
    """Read single keys while the screen is shown, if standard input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed() -> None:
        if sys.stdin.read(1) in _KEYS_THAT_LEAVE:
            left.set()

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, pressed)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
