"""Follows a run to its verdict: a full screen on a terminal, plain lines elsewhere."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import typer
from rich.console import Console
from rich.live import Live

from coordinator.cli import display
from coordinator.cli.client import ApiError, Client
from coordinator.cli.exits import INTERRUPTED
from coordinator.cli.screen import draw
from coordinator.cli.watched import Watched
from coordinator.core.judge.summary import RunSummary

_REDRAW_S: Final = 0.25
_RETRY_S: Final = 1.0
_KEYS_THAT_LEAVE: Final = ("q", "Q", "\x1b", "\x03")


async def follow(
    client: Client, run_id: str, *, plain: bool = False, quiet: bool = False, local: bool = False
) -> RunSummary:
    """Show a run until its verdict is stored, and return that.

    Leaving it (q, Ctrl-C) aborts nothing and ends the command; ``local`` says that this very
    process may be what looks after the run.
    """
    console = Console(stderr=True)
    try:
        if plain or quiet or not console.is_terminal:
            return await display.follow(client, run_id, quiet=quiet, plain=True)
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


async def _on_screen(client: Client, run_id: str, console: Console) -> RunSummary | None:
    """The verdict, or None when the person left."""
    watched, problem, clock = Watched(), _Problem(), _Clock()
    left = asyncio.Event()
    reader = asyncio.create_task(_read(client, run_id, watched, problem, clock))
    try:
        with _keys(left), Live(console=console, screen=True, auto_refresh=False) as live:
            while not reader.done() and not left.is_set():
                width, height = console.size
                live.update(draw(watched, width, height, clock.now(), problem.text), refresh=True)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(left.wait(), _REDRAW_S)
    finally:
        if not reader.done():
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
    return None if left.is_set() else reader.result()


class _Problem:
    """Why nothing new comes; None while all is well."""

    text: str | None = None


class _Clock:
    """The coordinator's time, run on by this host's monotonic clock."""

    def __init__(self) -> None:
        self._at, self._read_s = datetime.now(UTC), time.monotonic()

    def set(self, at: datetime) -> None:
        self._at, self._read_s = at, time.monotonic()

    def now(self) -> datetime:
        return self._at + timedelta(seconds=time.monotonic() - self._read_s)


async def _read(
    client: Client, run_id: str, watched: Watched, problem: _Problem, clock: _Clock
) -> RunSummary:
    """Fold events in until the run has its verdict; a broken stream is taken up again."""
    last_id: str | None = None
    while True:
        try:
            async for name, data, event_id in client.events(run_id, last_id):
                last_id, problem.text = event_id or last_id, None
                watched.take(name, data)
                if name == "status" and watched.status is not None:
                    clock.set(watched.status.now)
            summary = await client.summary(run_id)
            if summary is not None:
                return summary
        except ApiError as error:
            if error.status is not None and error.status < 500:
                raise
            problem.text = str(error)
        await asyncio.sleep(_RETRY_S)


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
