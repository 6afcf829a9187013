"""``--token``: every command that takes ``--api`` takes it as well."""

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Annotated

import typer

Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="BROADSIDE_TOKEN",
        help="bearer token for --api; keep it in the environment: process lists show arguments",
    ),
]

_token: ContextVar[str | None] = ContextVar("token", default=None)


def given_token() -> str | None:
    """What the command under way was given."""
    return _token.get()


def offer_token(app: typer.Typer) -> None:
    """Give every command that takes ``--api`` a ``--token`` as well."""
    for command in app.registered_commands:
        if command.callback is not None and "api" in inspect.signature(command.callback).parameters:
            command.callback = _with_token(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            offer_token(group.typer_instance)


def _with_token(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def with_token(*args: object, token: str | None = None, **kwargs: object) -> None:
        _token.set(token)
        command(*args, **kwargs)

    signature = inspect.signature(command)
    extra = inspect.Parameter(
        "token", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Token
    )
    parameters = [*signature.parameters.values(), extra]
    vars(with_token)["__signature__"] = signature.replace(parameters=parameters)
    with_token.__annotations__ = {**command.__annotations__, "token": Token}
    return with_token
