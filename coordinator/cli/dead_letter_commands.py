"""The ``broadside deadletters`` commands for messages on the dead-letter queue."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from broadside.coordinator.cli.connection import run
from broadside.coordinator.cli.lists import RowsOption, show_list
from broadside.coordinator.cli.options import Api, Json, print_json
from broadside.coordinator.cli.token_option import CommandGroup
from broadside.coordinator.runs.dead_letters import DeadJob

if TYPE_CHECKING:
    from broadside.coordinator.cli.verbs import Verbs

# How many messages to purge in one request.
PURGED_COUNT: Final = 1000

app = CommandGroup()

Sequence = Annotated[int, typer.Argument(metavar="SEQ", help="number shown by `deadletters list`")]


@app.command(name="list")
def list_letters(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="at most so many, oldest first")] = 50,
    form: RowsOption = None,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """List dead letters, oldest first."""

    found = run(api, lambda client: client.dead_letters(limit))
    show_list(
        found,
        {
            "seq": lambda dead: str(dead.sequence_number),
            "reason": lambda dead: dead.reason,
            "run": lambda dead: dead.run_id or "not a job",
            "burst": lambda dead: "" if dead.burst_index is None else str(dead.burst_index + 1),
            "pair": lambda dead: dead.pair or "",
            "description": lambda dead: dead.description,
        },
        of="broadside.coordinator.runs.dead_letters:DeadJob",
        none="no dead letters",
        form=form,
        as_json=as_json,
        spare=["burst", "pair", "reason"],
    )


@app.command()
def explain(sequence_number: Sequence, api: Api = None, as_json: Json = False) -> None:
    """Say what one dead letter was, why it was set aside, and what to do."""

    dead = run(api, lambda client: client.dead_letter(sequence_number))
    if as_json:
        print_json(dead)
        return
    died = f" at {dead.dead_at:%Y-%m-%d %H:%M:%S}Z" if dead.dead_at else ""
    typer.echo(f"dead letter {dead.sequence_number}: {dead.reason}{died}")
    typer.echo(f"why: {dead.description}")
    if dead.run_id is None or dead.burst_index is None:
        typer.echo(f"message {dead.message_id!r} is not a job: {dead.body!r}")
    else:
        claimed = f", claimed by {dead.claimed_by}" if dead.claimed_by else ""
        typer.echo(
            f"job: run {dead.run_id}, burst {dead.burst_index + 1}, {dead.pair} to {dead.target}, "
            f"due {dead.planned_start_at:%Y-%m-%d %H:%M:%S}Z{claimed}"
        )
    typer.echo(f"what to do: {dead.advice}")
    again = dead.resend_problem or f"yes, with `broadside deadletters resend {sequence_number}`"
    typer.echo(f"can it be sent again: {'no, ' if dead.resend_problem else ''}{again}")


@app.command()
def resend(sequence_number: Sequence, api: Api = None, as_json: Json = False) -> None:
    """Send a dead letter's job again; refused once its instant has passed or an agent has it."""

    dead = run(api, lambda client: client.resend(sequence_number))
    if as_json:
        print_json(dead)
    else:
        typer.echo(f"sent again: {dead.message_id}, due {dead.planned_start_at:%H:%M:%S}Z")


@app.command()
def purge(
    sequence_number: Annotated[
        int | None, typer.Argument(metavar="SEQ", help="number shown by `deadletters list`")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="every dead letter")] = False,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Remove a dead letter, or --all, for good: nobody can explain or send it again."""
    if everything == (sequence_number is not None):
        raise typer.BadParameter("name one by its SEQ, or give --all")

    async def work(client: "Verbs") -> DeadJob | int:
        if sequence_number is not None:
            return await client.purge(sequence_number)
        purged_count = 0
        while True:
            gone = (await client.purge_oldest(PURGED_COUNT))["purged_count"]
            purged_count += gone
            if gone < PURGED_COUNT:
                # Only messages that another client has locked remain.
                return purged_count

    gone = run(api, work)
    if isinstance(gone, int):
        if as_json:
            print_json({"purged_count": gone})
        else:
            typer.echo(f"purged {gone} dead letter{'s' * (gone != 1)}")
    elif as_json:
        print_json(gone)
    else:
        typer.echo(f"purged: {gone.message_id}, set aside as {gone.reason}")
