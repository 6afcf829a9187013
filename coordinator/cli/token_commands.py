"""The ``broadside token`` commands for API tokens.

They use the fabric and not the API. A user with the fabric credential can read and write the table
anyway. If the API could create tokens, one stolen token could create others.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from broadside.coordinator.auth.principal import Access
from broadside.coordinator.auth.static_tokens import Tokens
from broadside.coordinator.cli.connection import operator_name, run_on_private
from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.expiry import parse_expiry
from broadside.coordinator.cli.lists import RowsOption, show_list
from broadside.coordinator.cli.options import Json, print_json
from broadside.coordinator.cli.token_option import CommandGroup
from broadside.exchange.messages import Identifier
from broadside.exchange.ports import Table

app = CommandGroup()


class TokenRole(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"


Name = Annotated[str, typer.Argument(metavar="NAME", help="whose it is; stays in records")]


@app.command()
def add(
    name: Name,
    role: Annotated[TokenRole, typer.Option(help="viewers read; operators also launch and abort")],
    expires: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="90d, 12h, or a UTC date or instant; default: never"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a token and print it, this once: only its hash is kept."""
    now = datetime.now(UTC)
    try:
        TypeAdapter(Identifier).validate_python(name)
        expires_at = None if expires is None else parse_expiry(expires, now)
    except ValidationError:
        stop(f"NAME {name!r}: letters, digits, dot, dash and underscore only", Exit.USAGE)
    except (ValueError, OverflowError) as error:
        stop(f"--expires {expires}: not 90d, 12h, or a UTC date to come ({error})", Exit.USAGE)

    async def work(table: Table) -> str:
        return await Tokens(table).add(
            name, Access(role.value), by=operator_name(), now=now, expires_at=expires_at
        )

    secret = run_on_private(work)
    if as_json:
        print_json(
            {
                "name": name,
                "role": role,
                "expires_at": None if expires_at is None else expires_at.isoformat(),
                "token": secret,
            }
        )
        return
    until = "never ends" if expires_at is None else f"ends {expires_at:%Y-%m-%d %H:%MZ}"
    typer.echo(f"token {name} ({role.value}) {until}; it is not shown again:", err=True)
    typer.echo(secret)


@app.command(name="list")
def list_tokens(form: RowsOption = None, as_json: Json = False) -> None:
    """List tokens by name; the tokens themselves are not kept."""
    tokens = list(run_on_private(lambda table: Tokens(table).all()))
    now = datetime.now(UTC)
    show_list(
        tokens,
        {
            "token": lambda token: token.name,
            "role": lambda token: token.role.value,
            "state": lambda token: token.state(now),
            "made": lambda token: f"{token.created_at:%Y-%m-%d %H:%MZ}",
            "by": lambda token: token.created_by,
            "ends": lambda token: (
                "never" if token.expires_at is None else f"{token.expires_at:%Y-%m-%d %H:%MZ}"
            ),
        },
        of="broadside.coordinator.auth.static_tokens:Token",
        hidden=("sha256",),
        none="no token; make one with `broadside token add`",
        form=form,
        as_json=as_json,
    )


@app.command()
def revoke(name: Name) -> None:
    """Take a token out of use; every coordinator refuses it within seconds."""
    run_on_private(lambda table: Tokens(table).revoke(name, now=datetime.now(UTC)))
    typer.echo(f"token {name} is revoked", err=True)
