"""A run's summary as a person reads it, and as an exit code."""

import typer
from rich.console import Console

from coordinator.cli import display
from coordinator.cli.exits import Exit
from coordinator.core.summary import RunSummary


def exit_of(summary: RunSummary) -> Exit:
    """The exit code that says the verdict."""
    return {"pass": Exit.PASS, "fail": Exit.FAIL}.get(str(summary.verdict), Exit.INCONCLUSIVE)
