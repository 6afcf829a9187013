"""What a person sees of a run: live progress on standard error, the verdict as a table."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coordinator.cli.client import ApiError, Client
from coordinator.core.judge.summary import RunSummary
from coordinator.core.live.progress import Progress
from coordinator.core.live.status import BurstPhase, BurstStatus, RunState, RunStatus
from coordinator.views.words import rate as rate
from coordinator.views.words import ratio as ratio

BARS = " ▁▂▃▄▅▆▇█"
POLL_S = 0.5
AWAY_MAX_S = 300.0  # s without an answer after which a run is followed no longer
UNWRAPPED_WIDTH = 1000  # columns


async def follow(
    client: Client, run_id: str, *, quiet: bool = False, plain: bool = False
) -> RunSummary:
    """Show a run until its verdict is stored, and return that.

    A coordinator that was there and is away is waited for, ``AWAY_MAX_S`` at most.
    """
    console = Console(stderr=True)
    live = console.is_terminal and not quiet and not plain
    context = (
        Live(console=console, refresh_per_second=4, transient=True)
        if live
        else contextlib.nullcontext()
    )
    said: object = None
    heard_s: float | None = None  # monotonic; None: never
    with context as screen:
        while True:
            try:
                summary = await client.summary(run_id)
                if summary is not None:
                    return summary
                status = await client.status(run_id)
                progress = None
                if any(burst.phase is not BurstPhase.PLANNED for burst in status.bursts):
                    progress = await client.progress(run_id)
            except ApiError as error:
                refused = error.status is not None and error.status < 500
                if refused or heard_s is None or time.monotonic() - heard_s > AWAY_MAX_S:
                    raise
                if not quiet and said != str(error):
                    console.print(f"{error}; waiting", highlight=False, soft_wrap=True)
                    said = str(error)
                await asyncio.sleep(1)
                continue
            heard_s = time.monotonic()
            if screen is not None:
                screen.update(render(status, progress, datetime.now(UTC)))
            elif not quiet:
                stands = _stands(status, progress)
                if stands != said:
                    line = one_line(status, progress, datetime.now(UTC))
                    console.print(line, highlight=False, soft_wrap=True)
                    said = stands
            await asyncio.sleep(POLL_S)


def render(status: RunStatus, progress: Progress | None, now: datetime) -> RenderableType:
    """The live picture: one line a begun burst, and the newest burst's rate as bars."""
    lines: list[RenderableType] = [Text(one_line(status, progress, now), style="bold")]
    lines += [
        Text(_burst_line(burst, now))
        for burst in status.bursts
        if burst.phase is not BurstPhase.PLANNED
    ][-3:]
    if progress is not None and progress.whole:
        lines.append(Text(bars(progress)))
    return Group(*lines)


def one_line(status: RunStatus, progress: Progress | None, now: datetime) -> str:
    """Where a run stands, in one line."""
    newest = _newest(status)
    text = f"{status.run_id}: {status.state.value}, burst {newest.index + 1}/{len(status.bursts)}"
    match newest.phase:
        case BurstPhase.PLANNED | BurstPhase.ARMING:
            wait_s = (newest.planned_start_at - now).total_seconds()
            text += f", armed {newest.armed_count}/{newest.pairs_planned}, fires in {wait_s:.0f} s"
        case BurstPhase.RUNNING:
            if progress is not None and progress.whole:
                second = progress.whole[-1]
                text += f", second {second.second + 1}: {bars(progress)}"
        case BurstPhase.COLLECTING | BurstPhase.OVER:
            text += f", reported {newest.reported_count}/{newest.claimed_count}"
    if status.state not in (RunState.FINISHED, RunState.CANCELLED):
        left_s = max(0.0, (status.bursts[-1].planned_end_at - now).total_seconds())
        text += f", ETA {left_s:.0f} s"
    return text


def bars(progress: Progress, width: int = 60) -> str:
    """The fleet's rate a second as block characters, with the newest value."""
    seconds = progress.whole[-width:]
    top = max(second.fleet_bits_per_second for second in seconds) or 1.0
    blocks = "".join(
        BARS[round(second.fleet_bits_per_second / top * (len(BARS) - 1))] for second in seconds
    )
    last = seconds[-1]
    layer = "at the NIC" if last.from_host_count else "payload"
    sent = rate(last.fleet_bits_per_second)
    return f"{blocks} {sent} {layer} sent by {last.pairs_count} pairs"


def _stands(status: RunStatus, progress: Progress | None) -> object:
    """What must change before a new line is worth printing."""
    newest = _newest(status)
    seconds = len(progress.whole) if progress is not None else 0
    return status.state, newest.index, newest.armed_count, newest.reported_count, seconds


def _newest(status: RunStatus) -> BurstStatus:
    """The burst that is under way, else the next one, else the last."""
    begun = [burst for burst in status.bursts if burst.phase is not BurstPhase.PLANNED]
    open_bursts = [burst for burst in status.bursts if burst.phase is not BurstPhase.OVER]
    if open_bursts:
        return open_bursts[0]
    return begun[-1] if begun else status.bursts[0]


def _burst_line(burst: BurstStatus, now: datetime) -> str:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in burst.outcomes.items())
    return (
        f"  burst {burst.index + 1} at {burst.planned_start_at:%H:%M:%S}Z {burst.phase.value}: "
        f"claimed {burst.claimed_count}, armed {burst.armed_count}, "
        f"reported {burst.reported_count} of {burst.pairs_planned}"
        + (f" ({outcomes})" if outcomes else "")
    )


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A plain table."""
    drawn = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")  # a shortened run id is of no use
    for row in rows:
        drawn.add_row(*row)
    return drawn


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table on standard output; another program gets each row on one line."""
    console = Console()
    if not console.is_terminal:
        console.width = UNWRAPPED_WIDTH
    console.print(table(title, columns, rows), highlight=False)


class Steps:
    """Says on standard error what is being done, and how long it took."""

    def __init__(self, *, write: Callable[[str], object] = sys.stderr.write) -> None:
        self._write = write
        self._began_s = time.monotonic()

    def say(self, text: str) -> None:
        self._write(f"[{time.monotonic() - self._began_s:5.1f} s] {text}\n")
        sys.stderr.flush()
