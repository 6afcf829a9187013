"""The ``broadside`` command. Exit codes are in :mod:`coordinator.cli.exits`.

A command's module is imported when the command is used: help, and whatever needs no numbers, must
not wait for what computes them.
"""

import os
import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from coordinator.cli.exits import DEBUG, code_of
from coordinator.cli.screen_text import printable
from coordinator.cli.token_option import offer_token

COMMANDS: Final = {  # by name: where it stands in this package, and the line that help shows
    "demo": (
        "demo.demo",
        "Build the lab, start the fleet, fire, judge, take all down again; the run stays.",
    ),
    "lab": (
        "lab_commands.app",
        "Azure in miniature on this host: namespaces, a firewall that counts, clocks.",
    ),
    "serve": ("serve.serve", "Look after runs and answer the REST API until interrupted."),
    "agent": ("agent_command.agent", "Run an agent until it is told to stop."),
    "launch": (
        "run_commands.launch",
        "Launch a run and, unless detached, follow it to its verdict.",
    ),
    "estimate": (
        "estimate_commands.estimate",
        "Say what a run would cost and whether the fleet could carry it now; launch nothing.",
    ),
    "price": (
        "estimate_commands.price",
        "Say what a run has cost so far, and will have cost at its end.",
    ),
    "schedule": (
        "schedule_commands.app",
        "Launch runs at instants to come; of any number of `broadside serve`, one fires each.",
    ),
    "watch": (
        "run_commands.watch",
        "Follow a run to its verdict; leaving (q, Ctrl-C) does not abort it.",
    ),
    "runs": ("result_commands.list_runs", "List runs, newest first, with how each ended."),
    "aggregate": (
        "result_commands.aggregate",
        "Sum many runs by scenario, day or label: verdicts, received rates, completeness.",
    ),
    "bursts": (
        "result_commands.bursts",
        "List a run's bursts: where each stands, and what it showed.",
    ),
    "pairs": (
        "result_commands.pairs",
        "List the pairs of one burst: who took each, how it ended, what it showed.",
    ),
    "series": (
        "result_commands.series",
        "Print a burst's seconds, once it is over; unknown is empty or null, never zero.",
    ),
    "reconciliation": (
        "result_commands.reconciliation",
        "Hold the fleet's ledger against the firewall's: the run, and each burst.",
    ),
    "agents": (
        "result_commands.agents",
        "List the agents that were heard of: role, state, engine, clock, and what is wrong.",
    ),
    "show": ("run_commands.show", "Show where a run stands, burst by burst."),
    "verdict": (
        "run_commands.verdict",
        "Print a run's verdict with its figures; the exit code says it too.",
    ),
    "abort": (
        "run_commands.abort",
        "Stop a run: agents stop traffic within seconds, what was measured is kept.",
    ),
    "report": (
        "report_commands.report",
        "Write a run's report: everything an engineer signs, in one file.",
    ),
    "export": (
        "report_commands.export",
        "Write a run's seconds, pairs, bursts and summary as tables.",
    ),
    "chart": ("report_commands.chart", "Draw one of a run's charts into a file, or list them."),
    "raw": (
        "storage.raw",
        "Print what an engine wrote, to the byte: iperf3's JSON, or one JSON document a line.",
    ),
    "compare": (
        "compare_commands.compare",
        "Compare two runs, runs with two labels, or bursts before and after a time.",
    ),
    "import": ("import_commands.app", "Make runs of what other tools measured."),
    "scenarios": (
        "run_commands.list_scenarios",
        "List the scenarios, or show one with every field that a launch can override.",
    ),
    "prune": (
        "storage.prune",
        "List the runs that are old enough to forget; with --delete, remove all that is stored.",
    ),
    "study": ("study_commands.app", "Series of runs that answer one question."),
    "advise": ("advise_commands.app", "Arithmetic that saves a burst."),
    "deadletters": (
        "dead_letter_commands.app",
        "List, explain, send again and purge what agents set aside as dead letters.",
    ),
    "token": ("token_commands.app", "Make, list and revoke tokens for the API."),
    "audit": (
        "audit_commands.audit",
        "List what was changed, newest first: who, what, from where, and how it ended.",
    ),
    "up": (
        "range_commands.up",
        "Build the range, or bring it to what the variables say (`terraform apply`).",
    ),
    "scale": (
        "range_commands.scale",
        "Set how many clients and how many servers there are: 30 before a test, 0 after it.",
    ),
    "park": (
        "range_commands.park",
        "Stop what costs while nobody tests: the fleet to 0, firewall and Bastion given back.",
    ),
    "unpark": (
        "range_commands.unpark",
        "Bring firewall and Bastion back, and the routes to the firewall's new private address.",
    ),
    "down": (
        "range_commands.down",
        "Destroy the range, and prove that nothing with its tag is left (else exit 1).",
    ),
    "capacity": (
        "capacity_commands.app",
        "Capacity units of an Azure Firewall: look, raise for a test, put back.",
    ),
    "doctor": ("doctor.doctor", "Check what this host needs, and print the fix for what is wrong."),
}


class Commands(TyperGroup):
    """Knows every command by its line of help, and loads the one that is meant."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (_, line) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=line, callback=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(name or ""), rest


def load(name: str) -> Any:
    """A command, or a group of commands, with all its options: `--token-file` beside `--api`."""
    module, attribute = COMMANDS[name][0].split(".")
    found = getattr(import_module(f"coordinator.cli.{module}"), attribute)
    holder = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name=name)(found)
    offer_token(holder)
    return typer.main.get_group(holder).commands[name]


app = typer.Typer(
    name="broadside",
    cls=Commands,
    help="Fires a fleet of iperf3 pairs at a firewall at one instant, and proves what came through."
    "\n\nExit codes: 0 pass or done, 1 fail, 2 inconclusive, 3 wrong usage, 4 could not run.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def broadside(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="print the details of an unexpected end")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"
    if context.invoked_subcommand is None:
        from coordinator.cli.welcome import welcome

        typer.echo("\n".join(map(printable, welcome())))


def main() -> None:
    """Run the command line; every end is one of the documented codes."""
    sys.exit(code_of(lambda: app(standalone_mode=False)))
