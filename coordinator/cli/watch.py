"""Follows a run's events to its verdict: a full screen on a terminal, plain lines elsewhere."""

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
_AWAY_MAX_S: Final = 300.0  # s without an answer after which a run is followed no longer
_KEYS_THAT_LEAVE: Final = ("q", "Q", "\x1b", "\x03")


async def follow(
    client: "Verbs", run_id: str, *, plain: bool = False, quiet: bool = False, local: bool = False
) -> RunSummary:
    """Show a run until its verdict is stored, and return that.

    A coordinator that was there and is away is waited for. Leaving it (q, Ctrl-C) aborts nothing
    and ends the command; ``local`` says that this very process may be what looks after the run.
    """
    console = Console(stderr=True)
    try:
        if quiet:
            return await _read(client, run_id, _Picture(), lambda: None)
        if plain or not console.is_terminal:
            return await _in_lines(client, run_id, console)
        summary = await _on_screen(client, run_id, console)
    except asyncio.CancelledError:  # Ctrl-C
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
    """What is known of a run, on the coordinator's clock."""

    def __init__(self) -> None:
        self.watched = Watched()
        self.problem: str | None = None  # why nothing new comes; None while all is well
        self._at, self._read_s = datetime.now(UTC), time.monotonic()

    def take(self, name: str, data: str) -> None:
        self.problem = None
        self.watched.take(name, data)
        if name == "status" and self.watched.status is not None:
            self._at, self._read_s = self.watched.status.now, time.monotonic()

    def now(self) -> datetime:
        """The coordinator's time, run on by this host's monotonic clock."""
        return self._at + timedelta(seconds=time.monotonic() - self._read_s)


async def _in_lines(client: "Verbs", run_id: str, console: Console) -> RunSummary:
    """The verdict; until then a line whenever there is something to say."""
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
    """The verdict, or None when the person left."""
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
    """Fold events in until the run has its verdict; a broken stream is taken up again."""
    last_id: str | None = None
    heard_s: float | None = None  # monotonic; None: never
    while True:
        try:
            summary = await client.summary(run_id)
            if summary is not None:
                return summary
            heard_s = time.monotonic()
            async for name, data, event_id in client.events(run_id, last_id):
                heard_s = time.monotonic()
                picture.take(name, data)
                if event_id != last_id:  # the last one of what came together
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
    """Whether asking again is of no use; a coordinator that is busy or away may answer yet."""
    return error.status is not None and error.status < 500 and error.status != 429


@contextlib.contextmanager
def _keys(left: asyncio.Event) -> Iterator[None]:
    """Read single keys while the screen is up; where standard input is no terminal, none."""
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
