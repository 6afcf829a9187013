"""The ``broadside raw`` and ``broadside prune`` commands."""

from typing import Annotated

import typer
from pydantic import ValidationError

from broadside.coordinator.cli import display
from broadside.coordinator.cli.connection import RunArgument, run, run_of
from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.options import Api, Json, print_json
from broadside.coordinator.cli.screen_text import write_bytes
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.runs.retention import PruneRequest
from broadside.exchange.messages import Side


def raw(
    run_id: RunArgument,
    pair: Annotated[str, typer.Argument(metavar="PAIR", help="such as pair-003, or 3")],
    burst: Annotated[int, typer.Option(min=1, help="which burst, from 1")] = 1,
    side: Annotated[Side, typer.Option(help="whose engine")] = Side.CLIENT,
    api: Api = None,
) -> None:
    """Print what an engine wrote, to the byte: iperf3's JSON, or one JSON document a line."""
    write_bytes(
        run_of(api, run_id, lambda client, chosen: client.raw(chosen, pair, burst - 1, side))
    )


def prune(
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than",
            metavar="DAYS",
            help="forget runs that were over so long ago; default: BROADSIDE_RETENTION_DAYS",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--delete", help="only list what would go, or remove it")
    ] = True,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """List the runs that are old enough to forget; with --delete, remove all of them."""
    days = CoordinatorSettings().retention_days if older_than is None else older_than
    try:
        request = PruneRequest(older_than_days=days, dry_run=dry_run)
    except ValidationError as error:
        stop(f"--older-than {days:g}: {error.errors()[0]['msg']}", Exit.USAGE)

    pruned = run(api, lambda client: client.prune(request))
    if as_json:
        print_json(pruned)
        return
    for left in pruned.unreadable:
        typer.echo(f"{left} stays: another version's plan", err=True)
    rows = [[r.run_id, r.scenario, f"{r.created_at:%Y-%m-%d %H:%M:%SZ}"] for r in pruned.runs]
    if rows:
        display.print_table("", ["run", "scenario", "created"], rows)
    what = (
        f"{len(pruned.runs)} runs that were over before {pruned.before_at:%Y-%m-%d %H:%MZ}, and "
        f"the server ends' tests of {len(pruned.tests_hours)} hours"
    )
    if pruned.dry_run:
        typer.echo(f"would go: {what}; nothing was removed, --delete does")
    else:
        typer.echo(f"removed: {what}, {pruned.rows_count} rows")
