"""The ``broadside enroll`` commands for agents on other hosts.

They use the coordinator store and not the API. As with tokens, a user with access to the store has
these permissions anyway.
"""

from datetime import UTC, datetime
from typing import Annotated

import typer

from broadside.coordinator.agent_gateway.enrolment import Enrolled, Enrolments
from broadside.coordinator.cli import display
from broadside.coordinator.cli.connection import operator_name, run_on_private
from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.expiry import parse_expiry
from broadside.coordinator.cli.lists import RowsOption, show_list
from broadside.coordinator.cli.options import Json, print_json
from broadside.coordinator.cli.token_option import CommandGroup
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.exchange.fabric import FabricSettings
from broadside.exchange.messages import Role
from broadside.exchange.ports import Table

app = CommandGroup()


@app.command()
def new(
    role: Annotated[Role, typer.Option(help="what the agents are to be")],
    count: Annotated[int, typer.Option(min=1, max=10_000, help="agents that the code lets in")] = 1,
    expires: Annotated[
        str, typer.Option(metavar="WHEN", help="1h, 7d, or a UTC date or instant")
    ] = "1h",
    as_json: Json = False,
) -> None:
    """Make a join code and print it, this once: `broadside agent --join-file FILE` trades it."""
    from broadside.coordinator.agent_gateway.gateway_server import (
        check_authority,
        server_certificate,
    )
    from broadside.exchange.http.joining import new_code

    now = datetime.now(UTC)
    try:
        expires_at = parse_expiry(expires, now)
    except (ValueError, OverflowError) as error:
        stop(f"--expires {expires}: not 1h, 7d, or a UTC date to come ({error})", Exit.USAGE)
    settings, data_dir = CoordinatorSettings(), FabricSettings().data_dir
    run_on_private(lambda table: check_authority(settings, table, data_dir, now))
    shown = server_certificate(settings, data_dir)
    code, secret = new_code(shown.authority)
    join = run_on_private(
        lambda table: Enrolments(table).add_code(
            secret, role, count, by=operator_name(), now=now, expires_at=expires_at
        )
    )
    if as_json:
        print_json(
            {
                "name": join.name,
                "role": role.value,
                "count": count,
                "expires_at": expires_at.isoformat(),
                "code": code,
            }
        )
        return
    agents = f"{count} {role} agent{'s' * (count != 1)}"
    typer.echo(
        f"join code {join.name} for {agents}, until {expires_at:%Y-%m-%d %H:%MZ}; it is not shown "
        "again:",
        err=True,
    )
    typer.echo(code)


@app.command()
def new_authority() -> None:
    """Make a certificate authority in place of one that was lost; every agent must join again."""
    from broadside.coordinator.agent_gateway.certificate_authority import (
        has_authority,
        load_authority,
    )

    data_dir = FabricSettings().data_dir
    if has_authority(data_dir):
        stop(
            f"{data_dir}: agents trust the authority there; to give it up, move tls/ away",
            Exit.USAGE,
        )
    try:
        load_authority(data_dir, datetime.now(UTC))
    except (OSError, ValueError) as error:
        stop(f"{data_dir}: {error}", Exit.CANNOT_RUN)
    typer.echo(
        "a new authority was made. Enrolled agents refuse it: revoke them, make new codes, and on "
        "each host remove its credential.json and join again",
        err=True,
    )


@app.command(name="list")
def list_agents(form: RowsOption = None, as_json: Json = False) -> None:
    """List the enrolled agents, and the join codes that are open."""

    async def work(table: Table) -> tuple[list[Enrolled], list[list[str]]]:
        known, now = Enrolments(table), datetime.now(UTC)
        agents = list(await known.agents())
        codes = [
            [
                join.name,
                join.role.value,
                f"{join.used_count} of {join.count}",
                ", ".join(agent.agent_id for agent in agents if agent.join == join.name),
                f"{join.expires_at:%Y-%m-%d %H:%MZ}",
                join.created_by,
            ]
            for join in await known.codes()
            if join.is_open(now)
        ]
        return agents, codes

    agents, codes = run_on_private(work)
    show_list(
        agents,
        {
            "agent": lambda agent: agent.agent_id,
            "role": lambda agent: agent.role.value,
            "state": lambda agent: "enrolled" if agent.revoked_at is None else "revoked",
            "enrolled": lambda agent: f"{agent.enrolled_at:%Y-%m-%d %H:%MZ}",
            "by code": lambda agent: agent.join,
        },
        of="broadside.coordinator.agent_gateway.enrolment:Enrolled",
        hidden=("sha256", "next_sha256"),
        none="no agent is enrolled; let some in with `broadside enroll new`",
        form=form,
        as_json=as_json,
    )
    if codes and form is None and not as_json:
        display.print_table(
            "", ["open code", "role", "used", "by agents", "ends", "made by"], codes
        )


@app.command()
def revoke(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="agent, role.agent, or a join code's name")
    ],
) -> None:
    """Shut out an agent and end its join code, or end a code and shut out all its agents."""
    done = run_on_private(lambda table: Enrolments(table).revoke(name, datetime.now(UTC)))
    typer.echo(
        f"revoked: {', '.join(done.agents) or f'the code {name}; no agent used it'}", err=True
    )
    for code in done.codes:
        typer.echo(f"the join code {code} has ended; further agents need a new one", err=True)
