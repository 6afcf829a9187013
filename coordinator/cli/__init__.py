"""The ``broadside`` command. Exit codes are in :mod:`coordinator.cli.exits`."""

import os
import sys
from typing import Annotated

import typer

from coordinator.cli import advise_commands as advise
from coordinator.cli import agent_command as agent
from coordinator.cli import audit_commands as audit
from coordinator.cli import capacity_commands as capacity
from coordinator.cli import compare_commands as compare
from coordinator.cli import dead_letter_commands as deadletters
from coordinator.cli import demo, doctor, serve, storage
from coordinator.cli import estimate_commands as estimate
from coordinator.cli import import_commands as imports
from coordinator.cli import lab_commands as lab
from coordinator.cli import range_commands as range
from coordinator.cli import report_commands as reports
from coordinator.cli import result_commands as results
from coordinator.cli import run_commands as runs
from coordinator.cli import schedule_commands as schedules
from coordinator.cli import study_commands as studies
from coordinator.cli import token_commands as tokens
from coordinator.cli.connection import offer_token
from coordinator.cli.exits import DEBUG, Exit, code_of

app = typer.Typer(
    name="broadside",
    help="Fires a fleet of iperf3 pairs at a firewall at one instant, and proves what came through."
    "\n\nExit codes: 0 pass or done, 1 fail, 2 inconclusive, 3 wrong usage, 4 could not run.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command(name="demo")(demo.demo)
app.add_typer(lab.app, name="lab")
app.command(name="serve")(serve.serve)
app.command(name="agent")(agent.agent)
app.command(name="launch")(runs.launch)
app.command(name="estimate")(estimate.estimate)
app.command(name="price")(estimate.price)
app.add_typer(schedules.app, name="schedule")
app.command(name="watch")(runs.watch)
app.command(name="runs")(results.list_runs)
app.command(name="aggregate")(results.aggregate)
app.command(name="bursts")(results.bursts)
app.command(name="pairs")(results.pairs)
app.command(name="series")(results.series)
app.command(name="reconciliation")(results.reconciliation)
app.command(name="agents")(results.agents)
app.command(name="show")(runs.show)
app.command(name="verdict")(runs.verdict)
app.command(name="abort")(runs.abort)
app.command(name="report")(reports.report)
app.command(name="export")(reports.export)
app.command(name="chart")(reports.chart)
app.command(name="raw")(storage.raw)
app.command(name="compare")(compare.compare)
app.add_typer(imports.app, name="import")
app.command(name="scenarios")(runs.list_scenarios)
app.command(name="prune")(storage.prune)
app.add_typer(studies.app, name="study")
app.add_typer(advise.app, name="advise")
app.add_typer(deadletters.app, name="deadletters")
app.add_typer(tokens.app, name="token")
app.command(name="audit")(audit.audit)
app.command(name="up")(range.up)
app.command(name="scale")(range.scale)
app.command(name="park")(range.park)
app.command(name="unpark")(range.unpark)
app.command(name="down")(range.down)
app.add_typer(capacity.app, name="capacity")
app.command(name="doctor")(doctor.doctor)
offer_token(app)


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
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(Exit.USAGE)


def main() -> None:
    """Run the command line; every end is one of the documented codes."""
    sys.exit(code_of(lambda: app(standalone_mode=False)))
