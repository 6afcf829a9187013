"""The ``broadside`` command.

:mod:`broadside.coordinator.cli.exits` defines the exit codes.

The module for a command is imported only when the command is used. ``--help`` and simple commands
therefore do not need to wait until the numerical packages are imported.
"""

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from broadside.coordinator.cli.command_list import (
    COMMANDS,
    EXAMPLES,
    GROUPS,
    PLACES,
    PRIVATE_COMMANDS,
    SERVICE_COMMANDS,
)
from broadside.coordinator.cli.exits import DEBUG, Exit, code_of
from broadside.coordinator.cli.screen_text import printable
from broadside.coordinator.cli.token_option import CommandGroup
from broadside.coordinator.process_memory import collect_rarely
from broadside.exchange.version import version_text


class Commands(TyperGroup):
    """Command group that knows the help line of every command and imports a command on use."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, line in COMMANDS.items():
            hidden = name in SERVICE_COMMANDS
            self.add_command(TyperCommand(name, help=line, callback=None, hidden=hidden))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by group, in the usual order of use."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(name or ""), rest


def load(name: str) -> Any:
    """Import a command, or a command group, and add common options such as `--token-file`."""
    module, attribute = PLACES[name].split(".")
    found = getattr(import_module(f"broadside.coordinator.cli.{module}"), attribute)
    holder = CommandGroup(add_completion=False, rich_markup_mode=None)
    command: Any
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name, help=COMMANDS[name])
        command = typer.main.get_command(holder)
        command = command.commands[name]
    else:
        holder.command(name=name)(found)
        command = typer.main.get_command(holder)
    _show_examples(command, name)
    return command


def _show_examples(command: Any, path: str) -> None:
    """Add an example below the options of each command.

    A group shows the example of its first command, and lists its commands with their full sentence.
    """
    said = (words for name, words in EXAMPLES.items() if f"{name} ".startswith(f"{path} "))
    command.epilog = f"Example: broadside {next(said)}"
    for name, inner in getattr(command, "commands", {}).items():
        inner.short_help = " ".join((inner.help or "").partition("\n\n")[0].split())
        _show_examples(inner, f"{path} {name}")


app = typer.Typer(
    name="broadside",
    cls=Commands,
    help="Fires a fleet of iperf3 pairs at a firewall at one instant, and proves what came through."
    "\n\nExit codes: 0 pass or done, 1 fail, 2 inconclusive, 3 wrong usage, 4 could not run.",
    epilog="Example: broadside demo",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"broadside {version_text()}")
        raise typer.Exit(Exit.PASS)


@app.callback(invoke_without_command=True)
def broadside(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="print the details of an unexpected end")
    ] = False,
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="print version and commit"
        ),
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"
    if context.invoked_subcommand is None:
        from broadside.coordinator.cli.welcome import welcome

        typer.echo("\n".join(map(printable, welcome())))


def main() -> None:
    """Run the command line, and exit with a documented exit code."""
    name = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if name in PRIVATE_COMMANDS:
        # Set before the first file is written.
        os.umask(0o077)
    # Imports create hardly any garbage.
    collect_rarely()
    sys.exit(code_of(lambda: app(standalone_mode=False)))
