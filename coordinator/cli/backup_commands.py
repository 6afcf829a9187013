"""``broadside backup`` and ``restore``: an embedded store as one file."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.core import words
from broadside.exchange.embedded.backup import BackupUnusable, back_up
from broadside.exchange.embedded.backup import restore as lay_out
from broadside.exchange.fabric_settings import FabricSettings


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a new file; it will hold keys")],
) -> None:
    """Copy all that the coordinator stores into one file, also while it is at work."""
    _end_in_order()
    try:
        names = back_up(FabricSettings().data_dir, file)
    except (BackupUnusable, OSError) as error:
        stop(str(error), Exit.CANNOT_RUN)
    typer.echo(f"{file}: {words.size(file.stat().st_size)}, {', '.join(names)}", err=True)


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="what `backup` wrote")],
) -> None:
    """Lay a backup out as BROADSIDE_DATA_DIR, which must be new or empty."""
    data_dir = FabricSettings().data_dir
    _end_in_order()
    try:
        names = lay_out(file, data_dir)
    except (BackupUnusable, OSError) as error:
        stop(str(error), Exit.CANNOT_RUN)
    typer.echo(f"{data_dir}: {', '.join(names)}", err=True)


def _end_in_order() -> None:
    """Let a terminated command remove its copies, which hold keys."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda ended_by, _: sys.exit(128 + ended_by))
