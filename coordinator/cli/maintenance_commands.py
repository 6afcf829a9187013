"""Commands for dead letters, the audit log and old runs."""

from typing import TYPE_CHECKING, Annotated, Final

import typer
from pydantic import ValidationError

from broadside.coordinator.cli.command_group import CommandGroup
from broadside.coordinator.cli.exit_codes import exit_usage
from broadside.coordinator.cli.options import LimitOption
from broadside.coordinator.cli.session import Session, WatchedSession, complete_dead_letter
from broadside.coordinator.cli.text_tables import (
    ListTable,
    cells,
    print_list,
    print_table,
)
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.runs.dead_letters import DeadJob
from broadside.coordinator.runs.retention import Pruned, PruneRequest

if TYPE_CHECKING:
    from broadside.coordinator.cli.operations import Operations

# Number of dead letters to delete in one request.
_PURGED_COUNT: Final = 1000

dead_letters = CommandGroup()

SequenceNumber = Annotated[
    int,
    typer.Argument(
        metavar="SEQ",
        help="Number shown by `deadletters list`.",
        autocompletion=complete_dead_letter,
    ),
]


@dead_letters.command(name="list")
def list_letters(
    session: WatchedSession,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
) -> None:
    """List dead letters, oldest first.

    Args:
        limit: Maximum number of rows.
    """
    print_list(
        session,
        session.call(lambda client: client.dead_letters(limit)),
        ListTable(
            columns={
                "seq": "sequence_number",
                "reason": "reason",
                "run": lambda dead: dead.run_id or "not a job",
                "burst": lambda dead: "" if dead.burst_index is None else str(dead.burst_index + 1),
                "pair": "pair",
                "description": "description",
                "dead (UTC)": "dead_at",
                "server": "target",
                "claimed by": "claimed_by",
            },
            model="broadside.coordinator.runs.dead_letters:DeadJob",
            empty="no dead letters",
            low_priority=["burst", "pair", "reason"],
            wide=["dead (UTC)", "server", "claimed by"],
        ),
    )


@dead_letters.command()
def explain(session: Session, sequence_number: SequenceNumber) -> None:
    """Show one dead letter, its reason, and what to do."""
    dead = session.call(lambda client: client.dead_letter(sequence_number))
    session.show(dead, _print_dead_letter)


def _print_dead_letter(dead: DeadJob) -> None:
    died = f" at {dead.dead_at:%Y-%m-%d %H:%M:%S}Z" if dead.dead_at else ""
    typer.echo(f"dead letter {dead.sequence_number}: {dead.reason}{died}")
    typer.echo(f"reason: {dead.description}")
    if dead.run_id is None or dead.burst_index is None:
        typer.echo(f"message {dead.message_id!r} is not a job: {dead.body!r}")
    else:
        claimed = f", claimed by {dead.claimed_by}" if dead.claimed_by else ""
        typer.echo(
            f"job: run {dead.run_id}, burst {dead.burst_index + 1}, {dead.pair} to {dead.target}, "
            f"planned at {dead.planned_start_at:%Y-%m-%d %H:%M:%S}Z{claimed}"
        )
    typer.echo(f"next: {dead.advice}")
    if dead.resend_problem:
        typer.echo(f"it cannot be resent: {dead.resend_problem}")
    else:
        typer.echo(f"resend it with `broadside deadletters resend {dead.sequence_number}`")


@dead_letters.command()
def resend(session: Session, sequence_number: SequenceNumber) -> None:
    """Send the job of a dead letter again.

    It is rejected if the planned start has passed, or if an agent has claimed the job.
    """
    dead = session.call(lambda client: client.resend(sequence_number))
    text = f"resent: {dead.message_id}, planned at {dead.planned_start_at:%H:%M:%S}Z"
    session.show(dead, lambda _: typer.echo(text))


@dead_letters.command()
def purge(
    session: Session,
    sequence_number: Annotated[int | None, typer.Argument(metavar="SEQ")] = None,
    everything: Annotated[bool, typer.Option("--all")] = False,
) -> None:
    """Delete a dead letter, or all of them.

    A deleted dead letter cannot be shown or resent.

    Args:
        sequence_number: Number shown by `deadletters list`.
        everything: Delete all dead letters.
    """
    if everything == (sequence_number is not None):
        raise typer.BadParameter("give either the number of a dead letter (SEQ) or --all")
    if sequence_number is not None:
        dead = session.call(lambda client: client.purge(sequence_number))
        session.show(dead, lambda _: typer.echo(f"deleted: {dead.message_id} ({dead.reason})"))
        return

    async def work(client: "Operations") -> int:
        total = 0
        while True:
            count = (await client.purge_oldest(_PURGED_COUNT))["purged_count"]
            total += count
            if count < _PURGED_COUNT:
                # Only messages that another client has locked remain.
                return total

    total = session.call(work)
    text = f"deleted {total} dead letter{'s' * (total != 1)}"
    session.show({"purged_count": total}, lambda _: typer.echo(text))


def audit(session: Session, limit: LimitOption = 50) -> None:
    """List changes, newest first.

    Each row has the user, the request, its source address and its HTTP status.
    """
    print_list(
        session,
        session.call(lambda client: client.audit(limit)),
        ListTable(
            columns={
                "time (UTC)": "at",
                "user": "by",
                "role": "role",
                "from": lambda row: row.from_address or "this host",
                "request": lambda row: f"{row.method} {row.route or row.path}",
                "run": "run_id",
                "status": lambda row: "unfinished" if row.status is None else str(row.status),
                "path": "path",
            },
            model="broadside.coordinator.auth.audit:AuditRow",
            empty="no changes recorded",
            low_priority=["run", "role", "from"],
            wide=["path"],
        ),
    )


def prune(
    session: Session,
    older_than: Annotated[float | None, typer.Option("--older-than", metavar="DAYS")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run/--delete")] = True,
) -> None:
    """List or delete old runs.

    Args:
        older_than: Age of the runs since their end; default: BROADSIDE_RETENTION_DAYS.
        dry_run: Only list the runs, or delete them.
    """
    days = CoordinatorSettings().retention_days if older_than is None else older_than
    try:
        request = PruneRequest(older_than_days=days, dry_run=dry_run)
    except ValidationError as error:
        exit_usage(f"--older-than {days:g}: {error.errors()[0]['msg']}")
    session.show(session.call(lambda client: client.prune(request)), _print_pruned)


def _print_pruned(pruned: Pruned) -> None:
    for run_id in pruned.unreadable:
        typer.echo(f"{run_id} is not deleted: another version has written its plan", err=True)
    columns = {"run": "run_id", "scenario": "scenario", "created (UTC)": "created_at"}
    if pruned.runs:
        print_table("", list(columns), [cells(run, columns) for run in pruned.runs])
    text = (
        f"{len(pruned.runs)} runs that ended before {pruned.before_at:%Y-%m-%d %H:%MZ}, and the "
        f"server-side tests of {len(pruned.tests_hours)} hours"
    )
    if pruned.dry_run:
        typer.echo(f"would be deleted: {text}; use --delete to delete them")
    else:
        typer.echo(f"deleted: {text}, {pruned.rows_count} rows")
