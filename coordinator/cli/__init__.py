"""The ``broadside`` command line.

========================= ==========================================================================
:mod:`command_list`       Names of all commands. A command is imported only when it is used.
:mod:`session`            Options ``--api``, ``--token-file`` and ``--output``, and the calls of the
                          coordinator with them.
:mod:`operations`         Coordinator operations, each with its API route: on the local store, or
                          with :mod:`api_client` over HTTP.
:mod:`options`            Options that several commands share.
:mod:`text_tables`        Lists as a table, as JSON or as a file.
:mod:`output_files`       Files that commands write.
:mod:`exit_codes`         Exit codes, and how every error is converted to one.
``*_commands``            The commands, by subject.
``range_*``, ``terraform``  The range on Azure.
:mod:`watch`              Display of a run until its verdict.
========================= ==========================================================================

``--help`` and simple commands do not wait until the numerical packages are imported.
"""

import contextlib
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from broadside.coordinator.cli.command_group import CommandGroup
from broadside.coordinator.cli.command_list import (
    COMMANDS,
    GROUPS,
    PRIVATE_COMMANDS,
    SERVICE_COMMANDS,
    example_of,
)
from broadside.coordinator.cli.exit_codes import DEBUG, ExitCode, run_with_exit_code
from broadside.coordinator.cli.terminal_text import printable
from broadside.coordinator.process_memory import collect_rarely
from broadside.exchange.version import version_text


class LazyGroup(TyperGroup):
    """Command group that lists all commands, and imports a command when it is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, command in COMMANDS.items():
            hidden = name in SERVICE_COMMANDS
            self.add_command(TyperCommand(name, help=command.help, callback=None, hidden=hidden))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by group, in the usual order of use."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, command.help) for name, command in commands.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(name or ""), rest


def load(name: str) -> Any:
    """Import a command, or a command group, and add the session options."""
    module, attribute = COMMANDS[name].function.split(".")
    function = getattr(import_module(f"broadside.coordinator.cli.{module}"), attribute)
    holder = CommandGroup(add_completion=False, rich_markup_mode=None)
    command: Any
    if isinstance(function, typer.Typer):
        holder.add_typer(function, name=name, help=COMMANDS[name].help)
        command = typer.main.get_command(holder)
        command = command.commands[name]
    else:
        holder.command(name=name)(function)
        command = typer.main.get_command(holder)
    _add_examples(command, name)
    return command


def _add_examples(command: Any, path: str) -> None:
    """Add an example below the options of each command.

    A group has the example of its first command, and lists its commands with their full sentence.
    """
    for name, inner in getattr(command, "commands", {}).items():
        inner.short_help = " ".join((inner.help or "").partition("\n\n")[0].split())
        _add_examples(inner, f"{path} {name}")
        command.epilog = command.epilog or inner.epilog
    if not hasattr(command, "commands"):
        required = [
            option.metavar or option.name.upper()
            for option in command.params
            if option.required and option.param_type_name == "argument"
        ]
        command.epilog = f"Example: broadside {example_of(path, required)}"


app = typer.Typer(
    name="broadside",
    cls=LazyGroup,
    help="Measure what a firewall can carry, with a fleet of iperf3 pairs that start together."
    "\n\nExit codes: 0 pass or done, 1 fail, 2 inconclusive, 3 wrong usage, 4 could not run.",
    epilog="Example: broadside demo",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"broadside {version_text()}")
        raise typer.Exit(ExitCode.PASS)


@app.callback(invoke_without_command=True)
def broadside(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the details of an unexpected error.")
    ] = False,
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print version and commit."
        ),
    ] = False,
) -> None:
    """Run a command, or print a welcome text if there is none."""
    if debug:
        os.environ[DEBUG] = "1"
    if context.invoked_subcommand is None:
        from broadside.coordinator.cli.welcome import welcome_lines

        typer.echo("\n".join(map(printable, welcome_lines())))


def main() -> None:
    """Run the command line, and exit with a documented exit code."""
    name = next((part for part in sys.argv[1:] if not part.startswith("-")), "")
    if name in PRIVATE_COMMANDS:
        # Set before the first file is written.
        os.umask(0o077)
    # Imports create hardly any garbage.
    collect_rarely()
    completion: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if os.environ.get("_BROADSIDE_COMPLETE") == "complete_bash":
        from broadside.coordinator.cli.shell_completion import joined_words

        completion = joined_words()
    with completion:
        sys.exit(run_with_exit_code(lambda: app(standalone_mode=False)))
