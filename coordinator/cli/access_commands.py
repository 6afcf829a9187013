"""Commands for API tokens and for the enrollment of agents on other hosts.

They use the store of the coordinator and not the API. A user with access to the store can read and
write these tables anyway. If the API could create tokens, one stolen token could create others.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

import typer
from pydantic import TypeAdapter, ValidationError

from broadside.coordinator.agent_gateway.enrolment import (
    Enrolled,
    Enrolments,
    JoinCode,
    JoinTerms,
    NotEnrolled,
    Revoked,
)
from broadside.coordinator.auth.principal import Access
from broadside.coordinator.auth.static_tokens import Tokens
from broadside.coordinator.cli.api_errors import describe_unknown, require_known
from broadside.coordinator.cli.command_group import CommandGroup, Output
from broadside.coordinator.cli.document_output import OutputFormat, print_document, print_rows
from broadside.coordinator.cli.exit_codes import exit_usage, exit_with_error
from broadside.coordinator.cli.options import parse_end_time
from broadside.coordinator.cli.session import run_on_private, user_name
from broadside.coordinator.cli.text_tables import ListTable, print_list, print_table
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.exchange.fabric import FabricSettings
from broadside.exchange.messages import Identifier, Role
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Table

# Fields that are never printed.
_HIDDEN: Final = ("sha256", "next_sha256")

tokens = CommandGroup()
enrollment = CommandGroup()


class TokenRole(StrEnum):
    """Role that a new token can have."""

    VIEWER = "viewer"
    OPERATOR = "operator"


TokenName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the token, for the audit log.")
]


@tokens.command()
def add(
    session: Output,
    name: TokenName,
    role: Annotated[TokenRole, typer.Option()],
    expires: Annotated[str | None, typer.Option(metavar="WHEN")] = None,
) -> None:
    """Create a token and print it.

    It is printed only once, because only its hash is stored.

    Args:
        role: Viewers can read; operators can also start and abort runs.
        expires: Expiry, such as 90d or 2027-01-31 (UTC); default: never.
    """
    now = utc_now()
    try:
        TypeAdapter(Identifier).validate_python(name)
    except ValidationError:
        exit_usage(f"NAME {name!r}: use only letters, digits, dot, dash and underscore")
    expires_at = None if expires is None else parse_end_time("--expires", expires, now)

    async def work(table: Table) -> str:
        return await Tokens(table).add(
            name, Access(role.value), by=user_name(), now=now, expires_at=expires_at
        )

    secret = run_on_private(work)

    def print_text(_: object) -> None:
        until = "never expires" if expires_at is None else f"expires {expires_at:%Y-%m-%d %H:%MZ}"
        typer.echo(f"token {name} ({role.value}) {until}; it is not shown again:", err=True)
        typer.echo(secret)

    expires_text = None if expires_at is None else expires_at.isoformat()
    fields = {"name": name, "role": role.value, "expires_at": expires_text, "token": secret}
    session.show(fields, print_text)


@tokens.command(name="list")
def list_tokens(session: Output) -> None:
    """List the tokens by name, without the secrets."""
    now = utc_now()
    print_list(
        session,
        list(run_on_private(lambda table: Tokens(table).all())),
        ListTable(
            columns={
                "token": "name",
                "role": "role",
                "state": lambda token: token.state(now),
                "created (UTC)": "created_at",
                "by": "created_by",
                "expires (UTC)": lambda token: (
                    "never" if token.expires_at is None else f"{token.expires_at:%Y-%m-%d %H:%M}"
                ),
                "revoked (UTC)": "revoked_at",
            },
            model="broadside.coordinator.auth.static_tokens:Token",
            empty="no token; create one with `broadside token add`",
            low_priority=["by", "created (UTC)"],
            wide=["revoked (UTC)"],
            hidden=("sha256",),
        ),
        extra=lambda token: {"state": token.state(now)},
    )


def _complete(list_names: Callable[[Table], Awaitable[list[str]]]) -> Callable[[str], list[str]]:
    """Return a function that completes names of the private table."""

    def matching(incomplete: str) -> list[str]:
        known: list[str] = []
        # Shell completion should never print a traceback.
        with contextlib.suppress(Exception):
            known = run_on_private(list_names)
        return [name for name in known if name.startswith(incomplete)]

    return matching


async def _token_names(table: Table) -> list[str]:
    return [token.name for token in await Tokens(table).all()]


async def _enrolled_names(table: Table) -> list[str]:
    enrolments = Enrolments(table)
    agents = [agent.agent_id for agent in await enrolments.agents() if agent.revoked_at is None]
    return agents + [join.name for join in await enrolments.codes()]


@tokens.command(name="revoke")
def revoke_token(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the token.", autocompletion=_complete(_token_names)
        ),
    ],
) -> None:
    """Revoke a token.

    Every coordinator rejects it within seconds.
    """
    require_known("token", name, run_on_private(_token_names), "broadside token list")
    run_on_private(lambda table: Tokens(table).revoke(name, now=utc_now()))
    typer.echo(f"token {name} is revoked", err=True)


@enrollment.command()
def new(
    session: Output,
    role: Annotated[Role, typer.Option()],
    count: Annotated[int, typer.Option(min=1, max=10_000)] = 1,
    expires: Annotated[str, typer.Option(metavar="WHEN")] = "1h",
) -> None:
    """Create a join code and print it.

    It is printed only once. An agent enrolls with `broadside agent --join-file FILE`.

    Args:
        role: Role of the agents.
        count: Number of agents that can use the code.
        expires: Expiry, such as 1h, 7d or a UTC time.
    """
    from broadside.coordinator.agent_gateway.gateway_server import (
        check_authority,
        server_certificate,
    )
    from broadside.exchange.http.joining import new_code

    now = utc_now()
    expires_at = parse_end_time("--expires", expires, now)
    settings, data_dir = CoordinatorSettings(), FabricSettings().data_dir
    run_on_private(lambda table: check_authority(settings, table, data_dir, now))
    code, secret = new_code(server_certificate(settings, data_dir).authority)
    join = run_on_private(
        lambda table: Enrolments(table).add_code(
            secret, JoinTerms(role, count, expires_at), by=user_name(), now=now
        )
    )

    def print_text(_: object) -> None:
        typer.echo(
            f"join code {join.name} for {count} {role} agent{'s' * (count != 1)}, expires "
            f"{expires_at:%Y-%m-%d %H:%MZ}; it is not shown again:",
            err=True,
        )
        typer.echo(code)

    fields = {"name": join.name, "role": role.value, "count": count}
    session.show({**fields, "expires_at": expires_at.isoformat(), "code": code}, print_text)


@enrollment.command()
def new_authority() -> None:
    """Create a certificate authority after the old one was lost.

    All agents need to enroll again.
    """
    from broadside.coordinator.agent_gateway.certificate_authority import (
        has_authority,
        load_authority,
    )

    data_dir = FabricSettings().data_dir
    if has_authority(data_dir):
        exit_usage(
            f"{data_dir}: there is an authority, and agents trust it; to replace it, move the "
            "folder tls/ away first"
        )
    try:
        load_authority(data_dir, utc_now())
    except (OSError, ValueError) as error:
        exit_with_error(f"{data_dir}: {error}")
    typer.echo(
        "created a new authority. Enrolled agents reject it. Revoke them and create new codes; on "
        "each host, delete credential.json and enroll again",
        err=True,
    )


@enrollment.command(name="list")
def list_agents(session: Output) -> None:
    """List the enrolled agents and the valid join codes."""

    async def work(table: Table) -> tuple[list[Enrolled], list[JoinCode]]:
        enrolments, now = Enrolments(table), utc_now()
        codes = [join for join in await enrolments.codes() if join.is_open(now)]
        return list(await enrolments.agents()), codes

    agents, codes = run_on_private(work)
    users = {
        join.name: [agent.agent_id for agent in agents if agent.join == join.name] for join in codes
    }
    if not session.is_text:
        _print_enrolments(session, agents, codes, users)
        return
    print_list(
        session,
        agents,
        ListTable(
            columns={
                "agent": "agent_id",
                "role": "role",
                "state": _state,
                "enrolled (UTC)": "enrolled_at",
                "join code": "join",
                "revoked (UTC)": "revoked_at",
            },
            model="broadside.coordinator.agent_gateway.enrolment:Enrolled",
            empty="no agent is enrolled; create a join code with `broadside enroll new`",
            wide=["revoked (UTC)"],
            hidden=_HIDDEN,
        ),
    )
    if codes:
        cells = [
            [
                join.name,
                join.role.value,
                f"{join.used_count} of {join.count}",
                ", ".join(users[join.name]),
                f"{join.expires_at:%Y-%m-%d %H:%MZ}",
                join.created_by,
            ]
            for join in codes
        ]
        print_table("", ["valid code", "role", "used", "agents", "expires", "created by"], cells)


def _print_enrolments(
    session: Output,
    agents: Sequence[Enrolled],
    codes: Sequence[JoinCode],
    users: Mapping[str, Sequence[str]],
) -> None:
    """Print agents and join codes as one list, in which ``kind`` distinguishes them.

    Args:
        session: Output of the command.
        agents: Enrolled agents.
        codes: Valid join codes.
        users: Ids of the agents that used a join code, by its name.
    """
    entries = [
        {"kind": "agent", "state": _state(agent), **agent.answer_fields(*_HIDDEN)}
        for agent in agents
    ]
    for join in codes:
        fields = {"kind": "join-code", "state": "valid", "agents": list(users[join.name])}
        entries.append(fields | join.answer_fields(*_HIDDEN))
    names = dict.fromkeys(name for row in entries for name in row)
    rows = [{name: row.get(name) for name in names} for row in entries]
    if session.output in (OutputFormat.JSON, OutputFormat.YAML):
        print_document(rows, session.output)
    else:
        print_rows(rows, session.output)


def _state(agent: Enrolled) -> str:
    return "enrolled" if agent.revoked_at is None else "revoked"


@enrollment.command(name="revoke")
def revoke_agent(
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=_complete(_enrolled_names))],
) -> None:
    """Revoke an agent and its join code, or a join code and all its agents.

    Args:
        name: Agent, role.agent, or name of a join code.
    """

    async def work(table: Table) -> Revoked:
        try:
            return await Enrolments(table).revoke(name, utc_now())
        except NotEnrolled:
            known = await _enrolled_names(table)
            exit_usage(describe_unknown("agent or code", name, known, "broadside enroll list"))

    result = run_on_private(work)
    agents = ", ".join(result.agents)
    typer.echo(f"revoked: {agents or f'join code {name}, which no agent has used'}", err=True)
    for code in result.codes:
        typer.echo(
            f"join code {code} is no longer valid; create a new one for more agents", err=True
        )
